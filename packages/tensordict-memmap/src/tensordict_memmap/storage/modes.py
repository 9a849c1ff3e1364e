"""File modes: a save is readable by this user only while it is written, and then gets the modes of what it replaces.

A folder or file that other users cannot read therefore stays unreadable for them, also during the next save to it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection

from tensordict_memmap.storage.manifest import NAME, folders

PRIVATE_FILE = 0o600
"""The mode of a file that is being written to replace another one."""

PRIVATE_FOLDER = 0o700
"""The mode of a folder that is being written to replace another one."""


def copy_mode(source: str, target: str) -> None:
    """Give a file or folder the mode of another one, if that exists.

    >>> from pathlib import Path
    >>> Path("old").touch(mode=0o640), Path("new").touch()
    (None, None)
    >>> copy_mode("old", "new")
    >>> oct(os.stat("new").st_mode)[-3:]
    '640'
    """
    with contextlib.suppress(OSError):  # it is absent, or the file system has no modes
        os.chmod(target, stat.S_IMODE(os.stat(source).st_mode))


def copy_modes(earlier: str, stage: str, files: Collection[str]) -> None:
    """Give staged files and folders the modes of those that they replace; new files get that of the manifest.

    Args:
        earlier: The folder with the earlier save; it may be absent.
        stage: The staging folder, with a manifest.
        files: The paths of the staged files.
    """
    if not os.path.isdir(earlier):
        return
    usual = _mode(f"{stage}/{NAME}")
    by_default = _mode(f"{earlier}/{NAME}")
    parts = folders(files)
    filled = {part for part in ("", *parts) if _has_files(f"{earlier}/{part}")}
    for name in (*files, NAME):  # a status is read for each of thousands of files, so the paths are joined by hand
        replaced = _mode(f"{earlier}/{name}") if name.rpartition("/")[0] in filled else 0
        mode = replaced or by_default
        if mode and mode != usual:
            os.chmod(f"{stage}/{name}", mode)
    for part in parts:
        copy_mode(f"{earlier}/{part}", f"{stage}/{part}")
    copy_mode(earlier, stage)


def _has_files(folder: str) -> bool:
    """Return whether a folder exists and is not empty."""
    try:
        with os.scandir(folder) as found:
            return next(found, None) is not None
    except OSError:
        return False


def _mode(path: str) -> int:
    """Return the mode of a regular file; 0 if there is none."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return 0
    return stat.S_IMODE(mode) if stat.S_ISREG(mode) else 0
