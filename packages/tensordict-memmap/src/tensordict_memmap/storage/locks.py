"""File locks (``flock``) that savers hold on folders and files; a lock ends with the process that holds it.

A forked child inherits a copy of every descriptor, and a lock is held while any copy is open. The child therefore
closes its copies at once: otherwise a worker that was forked while another thread saved would block all savers, itself
included, until it exits.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from tensordict_memmap.engine import syscalls

try:
    import fcntl
except ImportError:  # Windows: saves are atomic, but two concurrent saves to one target are not serialized
    fcntl = None  # type: ignore[assignment]  # a module elsewhere

__all__ = ["FILE", "FOLDER", "close", "lock", "locked", "open_for_lock", "open_locked", "try_locked"]

FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | syscalls.NO_LINK
"""Flags for opening a folder to lock it."""

FILE = os.O_RDWR | syscalls.BINARY | syscalls.NO_LINK
"""Flags for opening a file to lock it."""

_held: set[int] = set()
_forking = threading.RLock()  # held during a fork, so that every open descriptor is in ``_held`` then


def open_for_lock(path: str, flags: int, mode: int = 0o777) -> int:
    """Opens a file or folder to lock it; close the descriptor with `close`."""
    with _forking:
        fd = os.open(path, flags, mode)
        _held.add(fd)
    return fd


def lock(fd: int, *, wait: bool) -> bool:
    """Locks an open file or folder; returns False if the operating system or file system has no locks.

    Raises:
        BlockingIOError: Another process holds the lock and ``wait`` is False.
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
    """Closes a descriptor, which releases its lock."""
    with _forking:
        _held.discard(fd)
        os.close(fd)


def open_locked(path: str, *, wait: bool, flags: int = FOLDER) -> int:
    """Opens and locks a folder or file; returns the descriptor, or -1 if there are no locks.

    Raises:
        BlockingIOError: Another process holds the lock and ``wait`` is False.
    """
    if fcntl is None:
        return -1
    fd = open_for_lock(path, flags)
    try:
        if lock(fd, wait=wait):
            return fd
    except BlockingIOError:
        close(fd)
        raise
    close(fd)
    return -1


@contextlib.contextmanager
def try_locked(path: str, flags: int = FOLDER) -> Iterator[bool]:
    """Holds the lock of a folder or file during a block; yields False if there are no locks.

    Raises:
        BlockingIOError: Another process holds the lock.
    """
    fd = open_locked(path, wait=False, flags=flags)
    try:
        yield fd >= 0
    finally:
        if fd >= 0:
            close(fd)


@contextlib.contextmanager
def locked(target: str) -> Iterator[None]:
    """Keeps out other savers to a target during a block.

    The lock is on the parent folder, which stays in place while the target is exchanged.
    """
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
