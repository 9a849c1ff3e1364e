"""File locks on ranges of rows: one writer of a whole dataset, or several writers of separate ranges.

A row is locked by the byte of the lock file with the same number. The operating system releases locks when a process
ends, so a killed writer leaves no rows locked. On Linux, a lock belongs to the open file, not to the process: two
writers in one process exclude each other too, and a forked child closes its copy of the descriptor.
"""

from __future__ import annotations

import errno
import os
import struct
import time
import weakref

from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.engine.syscalls import NO_LINK, fcntl

EVERY_ROW = (0, 1 << 62)

_OPEN_FILE_LOCK = getattr(fcntl, "F_OFD_SETLK", None)
_BUSY = (errno.EAGAIN, errno.EACCES)
_PATIENCE = 0.1
"""Seconds to wait for a lock: a newly forked child holds the locks of its parent until it closes its copies."""


class RowLock:
    """A lock on a range of rows, held until it is closed.

    Args:
        path: The lock file, created if it is absent.
        rows: The first row and the end of the range.

    Raises:
        BlockingIOError: Another writer holds one of these rows.

    >>> lock = RowLock("rows.lock", (0, 10))
    >>> RowLock("rows.lock", (5, 6))
    Traceback (most recent call last):
        ...
    BlockingIOError: [Errno 11] another writer holds some of the rows 5 to 6, which have one writer at a time; close ...
    >>> lock.close()
    """

    def __init__(self, path: str, rows: tuple[int, int]) -> None:
        self.path = path
        self._file = Descriptor(os.open, path, os.O_RDWR | os.O_CREAT | NO_LINK, 0o666)
        try:
            self._wait(*rows)
        except OSError as error:
            self.close()
            if error.errno not in _BUSY:
                raise
            what = "some of the rows" if rows == EVERY_ROW else f"some of the rows {rows[0]} to {rows[1]}"
            raise BlockingIOError(
                errno.EAGAIN,
                f"another writer holds {what}, which have one writer at a time; close it first, or read with mode='r'",
                path,
            ) from None
        _held.add(self)

    def _wait(self, start: int, stop: int) -> None:
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                return self._take(start, stop)
            except OSError as error:
                if error.errno not in _BUSY or time.monotonic() > end:
                    raise
            time.sleep(0.005)

    def _take(self, start: int, stop: int) -> None:
        if fcntl is None:  # Windows: users have to ensure that there is one writer
            return
        try:
            if _OPEN_FILE_LOCK is None:
                fcntl.lockf(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, stop - start, start)
            else:
                # struct flock: type, whence, start, length, process (0 for locks of open files)
                request = struct.pack("@hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, start, stop - start, 0)
                fcntl.fcntl(self._file.fileno(), _OPEN_FILE_LOCK, request)
        except OSError as error:
            if error.errno in _BUSY:
                raise
            # the file system has no locks

    def is_open(self) -> bool:
        """Return whether this process holds the lock."""
        return self._file.fileno() >= 0

    def is_held(self) -> bool:
        """Return whether this process holds the lock, and the lock file was not replaced."""
        try:
            return self.is_open() and os.path.samestat(os.fstat(self._file.fileno()), os.stat(self.path))
        except OSError:
            return False

    def close(self) -> None:
        """Release the lock."""
        self._file.close()


_held: weakref.WeakSet[RowLock] = weakref.WeakSet()


def _close_after_fork() -> None:
    for lock in list(_held):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_after_fork)
