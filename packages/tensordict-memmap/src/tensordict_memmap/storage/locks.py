"""Locks of savers on folders and files: they belong to an open file, so they vanish with the process that holds them.

A forked child gets a copy of every descriptor, and a lock is held while any copy is open. The child closes its copies
at once: else a worker that was forked while another thread saved would keep all savers out for as long as it lives,
itself included.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

try:
    import fcntl
except ImportError:  # Windows: saves are whole, but two at once to one place are not kept apart
    fcntl = None  # type: ignore[assignment]  # a module elsewhere

__all__ = ["close", "lock", "locked", "open_for_lock", "open_locked"]

_held: set[int] = set()
_forking = threading.RLock()  # no descriptor is open and unknown while a child is forked


def open_for_lock(path: str, flags: int, mode: int = 0o777) -> int:
    """Opens a file or folder that is to be locked; `close` closes it."""
    with _forking:
        fd = os.open(path, flags | getattr(os, "O_CLOEXEC", 0), mode)
        _held.add(fd)
    return fd


def lock(fd: int, *, wait: bool) -> bool:
    """Locks what is open; False where the system or file system has no locks.

    Raises:
        BlockingIOError: if another holds the lock and ``wait`` is False.
    """
    if fcntl is None:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def close(fd: int) -> None:
    """Closes what was opened here, or any other descriptor, which ends its lock."""
    with _forking:
        _held.discard(fd)
        os.close(fd)


@contextlib.contextmanager
def locked(target: str) -> Iterator[None]:
    """Keeps other savers to this target out, by the folder above it, which stays while the target is exchanged."""
    found = -1
    for folder in (os.path.dirname(target), target):
        with contextlib.suppress(OSError):
            found = open_locked(folder, wait=True)
            break
    try:
        yield
    finally:
        if found >= 0:
            close(found)


def open_locked(folder: str, *, wait: bool) -> int:
    """A descriptor that holds the lock of a folder, -1 where there are no locks.

    Raises:
        BlockingIOError: if another holds it and ``wait`` is False.
    """
    if os.name != "posix":
        return -1
    fd = open_for_lock(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if lock(fd, wait=wait):
            return fd
    except BlockingIOError:
        close(fd)
        raise
    close(fd)
    return -1


def _close_copies() -> None:
    global _forking
    for fd in _held:
        with contextlib.suppress(OSError):
            os.close(fd)
    _held.clear()
    _forking = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _forking.acquire() and None,
        after_in_parent=lambda: _forking.release(),
        after_in_child=_close_copies,
    )
