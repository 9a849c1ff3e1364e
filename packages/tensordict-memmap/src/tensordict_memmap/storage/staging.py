"""Temporary folders that a kill leaves behind for a while only: each is locked, and the next one removes what is not.

Saves elsewhere are staged in them, as large as the save itself. Locks vanish with their process (``flock.py``), so a
folder of this user that nobody holds belonged to a process that was killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator

from tensordict_memmap.storage import locks as flock

__all__ = ["temporary_folder"]

_PREFIX = "tensordict-staged-"
_NAME = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}")


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """A new folder for as long as this is open.

    >>> with temporary_folder() as folder:
    ...     os.listdir(folder)
    []
    >>> os.path.exists(folder)
    False
    """
    base = tempfile.gettempdir()
    with flock.locked(os.path.join(base, _PREFIX)):  # no folder is new and not locked yet while others are looked at
        _remove_abandoned(base)
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=base)
        lock = flock.open_locked(folder, wait=False)
    inside = os.path.join(folder, "content")  # savers lock the folder above what they save
    os.mkdir(inside)
    try:
        yield inside
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock >= 0:
            flock.close(lock)


def _remove_abandoned(base: str) -> None:
    if os.name != "posix":
        return
    for name in filter(_NAME.fullmatch, os.listdir(base)):
        path = os.path.join(base, name)
        with contextlib.suppress(OSError):  # it is in use, another user's, or gone
            if os.lstat(path).st_uid == os.geteuid() and (lock := flock.open_locked(path, wait=False)) >= 0:
                try:
                    shutil.rmtree(path, ignore_errors=True)
                finally:
                    flock.close(lock)
