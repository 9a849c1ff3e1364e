"""File locks (``flock``) that savers hold on folders and files; a lock ends with the process that holds it.

A lock is held while its `Descriptor` is open, so it also ends with the last reference to that, whatever exception
arrives. A forked child inherits a copy of every descriptor, and a lock is held while any copy is open. The child
therefore closes its copies at once: otherwise a worker that was forked while another thread saved would block all
savers, itself included, until it exits.

Anyone who may read a folder may lock it and never release it. So no wait is unbounded, and in a folder that others own
or write to, such as ``/tmp``, a saver relies on a lock file that only this user can open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from contextvars import ContextVar

from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.engine.syscalls import fcntl

FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | syscalls.NO_LINK
"""Flags for opening a folder to lock it."""

FILE = os.O_RDWR | syscalls.BINARY | syscalls.NO_LINK
"""Flags for opening a file to lock it."""

TIMEOUT = 600.0
"""The default number of seconds to wait for a lock, several times what a commit takes."""

_PATIENCE = 5.0
"""Seconds after which a warning names the awaited lock, and after which the lock of a folder of others is ignored."""

_LONGEST_PAUSE = 0.01

_timeout: ContextVar[float | None] = ContextVar("lock_timeout", default=TIMEOUT)

_held: weakref.WeakSet[Descriptor] = weakref.WeakSet()
_forking = threading.RLock()  # held during a fork, so that every open descriptor is in ``_held`` then


@contextlib.contextmanager
def lock_timeout(seconds: float | None) -> Iterator[None]:
    """Limit, within a ``with`` block, how long saves, loads and appends wait for the lock of another saver.

    The limit applies to each lock, and to saves with ``return_early=True`` that start in the block. The default is
    600 seconds. A wait of more than 5 seconds warns, and names what is locked and, on Linux, the process that holds it.

    Args:
        seconds: The longest wait; None waits until the lock is released.

    Raises:
        TimeoutError: Another process holds a lock for longer; nothing was changed.

    >>> from tensordict_core import TensorDict
    >>> with lock_timeout(10):
    ...     _ = TensorDict({"a": torch.arange(3)}).save("run")
    """
    if seconds is not None and not seconds >= 0:
        raise ValueError(f"{seconds!r} is not a number of seconds to wait for a lock; pass 0 or more, or None")
    token = _timeout.set(seconds)
    try:
        yield
    finally:
        _timeout.reset(token)


def open_for_lock(path: str, flags: int, mode: int = 0o777) -> Descriptor:
    """Open a file or folder to lock it; close the descriptor with `close`."""
    with _forking:
        fd = Descriptor(os.open, path, flags, mode)
        _held.add(fd)
    return fd


def lock(fd: Descriptor, *, wait: bool, path: str = "", seconds: float | None = None) -> bool:
    """Lock an open file or folder; return False if the operating system or file system has no locks.

    Args:
        fd: The file or folder.
        wait: Whether to wait for another process that holds the lock.
        path: Its path, for errors.
        seconds: The longest wait, if it is shorter than that of `lock_timeout`.

    Raises:
        BlockingIOError: Another process holds the lock and ``wait`` is False.
        TimeoutError: Another process holds the lock for too long.
    """
    if fcntl is None:
        return False
    pause, start, warned = 0.0005, time.monotonic(), False
    while True:
        try:
            fcntl.flock(fd.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if not wait:
                raise
        except OSError:
            return False
        waited = time.monotonic() - start
        limit = _timeout.get()
        if seconds is not None and (limit is None or seconds < limit):
            limit = seconds
        if limit is not None and waited >= limit:
            raise TimeoutError(
                errno.ETIMEDOUT, f"{_holder(fd)} holds the lock for more than {limit:g} s; end it, or wait longer", path
            )
        if waited >= _PATIENCE and not warned:
            warned = True
            warnings.warn(
                f"waiting for the lock of {path}, which {_holder(fd)} holds; lock_timeout limits the wait",
                RuntimeWarning,
                stacklevel=2,
            )
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)


def close(fd: Descriptor) -> None:
    """Close a descriptor, which releases its lock."""
    with _forking:
        fd.close()


def open_locked(path: str, *, wait: bool, flags: int = FOLDER, seconds: float | None = None) -> Descriptor | None:
    """Open and lock a folder or file; return None if there are no locks.

    Raises:
        BlockingIOError: Another process holds the lock and ``wait`` is False.
        TimeoutError: Another process holds the lock for too long.
    """
    if fcntl is None:
        return None
    fd = open_for_lock(path, flags)
    is_locked = False
    try:
        is_locked = lock(fd, wait=wait, path=path, seconds=seconds)
    finally:
        if not is_locked:
            close(fd)
    return fd if is_locked else None


@contextlib.contextmanager
def try_locked(path: str, flags: int = FOLDER) -> Iterator[bool]:
    """Hold the lock of a folder or file during a block; yield False if there are no locks.

    Raises:
        BlockingIOError: Another process holds the lock.
    """
    fd = open_locked(path, wait=False, flags=flags)
    try:
        yield fd is not None
    finally:
        if fd is not None:
            close(fd)


@contextlib.contextmanager
def locked(target: str) -> Iterator[None]:
    """Keep out other savers to a target during a block.

    The lock is on the parent folder, which stays in place while the target is exchanged. If other users own the parent
    or write to it, this user's savers also exclude each other by a lock file there, and the lock of the parent is
    ignored if it is held for more than some seconds.

    Raises:
        TimeoutError: Another process holds the lock for longer than `lock_timeout` allows.
    """
    parent = os.path.dirname(target)
    mine = folder = None
    try:
        mine = _lock_file(parent)
        folder = _lock_folder(parent, target, is_optional=mine is not None)
        yield
    finally:
        if folder is not None:
            close(folder)
        if mine is not None:
            with contextlib.suppress(OSError):  # while it is locked: `_lock_file` notices that it was removed
                os.unlink(_lock_name(parent))
            close(mine)


def _lock_folder(parent: str, target: str, *, is_optional: bool) -> Descriptor | None:
    for folder in (parent, target):
        try:
            return open_locked(folder, wait=True, seconds=_PATIENCE if is_optional else None)
        except TimeoutError as error:
            if not is_optional:
                raise
            reason = str(error.strerror).partition(";")[0]
            warnings.warn(
                f"{reason} on {folder}, a folder of other users; saves of this user go on without it",
                RuntimeWarning,
                stacklevel=4,
            )
            return None
        except OSError:  # this user may not read it
            continue
    return None


def _lock_file(folder: str) -> Descriptor | None:
    """Lock a file in a folder that other users own or write to; return None for other folders."""
    if fcntl is None:
        return None
    try:
        info = os.stat(folder)
        if info.st_uid == os.geteuid() and not info.st_mode & stat.S_IWOTH:
            return None
        name = _lock_name(folder)
        while True:
            fd = open_for_lock(name, FILE | os.O_CREAT | syscalls.NO_WAIT, 0o600)
            found = os.fstat(fd.fileno())
            if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode) or stat.S_IMODE(found.st_mode) & 0o077:
                return None  # put there by another user, who could hold its lock
            if not lock(fd, wait=True, path=name):
                return None
            with contextlib.suppress(FileNotFoundError):  # the saver that held the lock has removed the file
                if os.path.samestat(os.fstat(fd.fileno()), os.stat(name)):
                    return fd
            close(fd)
    except TimeoutError:
        raise
    except OSError:  # this user may not write to the folder
        return None


def _lock_name(folder: str) -> str:
    return os.path.join(folder, f".tensordict-{os.geteuid()}.lock")


def _holder(fd: Descriptor) -> str:
    """Return a description of the process that holds the lock of a file, from ``/proc/locks``."""
    with contextlib.suppress(OSError, ValueError):
        inode = str(os.fstat(fd.fileno()).st_ino)
        for line in syscalls.system_text("/proc/locks").splitlines():
            kind, _, _, process, place = line.split()[1:6]
            if kind == "FLOCK" and place.rpartition(":")[2] == inode:
                return f"process {process} ({_command(process)})"
    return "another process"


def _command(process: str) -> str:
    words = syscalls.system_text(f"/proc/{process}/cmdline")[:100].replace("\0", " ").split()
    return " ".join(words) or "of another user or machine"


def _close_copies() -> None:
    global _forking
    for fd in list(_held):
        with contextlib.suppress(OSError):
            fd.close()
    _forking = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _forking.acquire() and None,
        after_in_parent=lambda: _forking.release(),
        after_in_child=_close_copies,
    )
