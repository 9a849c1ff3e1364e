"""Removal of folders: each folder that is open meanwhile is closed, also if an exception interrupts."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil

from tensordict_memmap.engine.descriptor import Descriptor

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_RELATIVE = {os.open, os.unlink, os.rmdir} <= os.supports_dir_fd and os.scandir in os.supports_fd


def remove_tree(path: str, *, ignore_errors: bool = False) -> None:
    """Remove a folder with all its content, as ``shutil.rmtree`` does; links are removed, and not followed.

    An exception such as ``KeyboardInterrupt`` leaves no folder open, while ``shutil.rmtree`` does not close a folder if
    the exception arrives right after it was opened.

    Args:
        path: The folder.
        ignore_errors: Whether to leave what cannot be removed; a folder that does not exist is no error then.

    Raises:
        OSError: Something cannot be removed.

    >>> os.makedirs("folder/inner")
    >>> remove_tree("folder")
    >>> os.path.lexists("folder")
    False
    """
    if _RELATIVE:
        _remove(path, None, ignore_errors)
    else:
        shutil.rmtree(path, ignore_errors=ignore_errors)


def _remove(name: str, parent: int | None, ignore_errors: bool) -> None:
    with contextlib.suppress(OSError) if ignore_errors else contextlib.nullcontext():
        # a name in an open folder, since another process may replace the folders of a path by links meanwhile
        with Descriptor(functools.partial(os.open, dir_fd=parent), name, _FOLDER) as folder:
            with os.scandir(folder.fileno()) as found:
                entries = list(found)
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _remove(entry.name, folder.fileno(), ignore_errors)
                else:
                    with contextlib.suppress(OSError) if ignore_errors else contextlib.nullcontext():
                        os.unlink(entry.name, dir_fd=folder.fileno())
        os.rmdir(name, dir_fd=parent)
