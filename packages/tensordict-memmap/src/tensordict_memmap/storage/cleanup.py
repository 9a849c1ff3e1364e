"""Background cleanup: a thread removes replaced saves, since freeing their disk blocks may take longer than a save.

The interpreter waits for the thread when it exits. A folder is locked while it is removed. The lock ends with its
process, so if that process dies first, the next save to the same target finds the folder unlocked and removes it. A
forked child drops the pending work of its parent.

A replaced save takes disk space until it is removed. A new save that would not fit beside it waits for the removal
first, and each target has at most one removal in progress.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence

from tensordict_memmap.storage import locks

__all__ = ["later", "make_room", "remember", "wait", "was_recent"]

_Work = Callable[[], None]

_REMEMBERED = 300.0
"""Seconds for which removed files slow down the creation of files in the same block group (see `syscalls.scatter`)."""

_latest = -_REMEMBERED

_condition = threading.Condition()
_pending: dict[str, list[tuple[_Work, Sequence[int]]]] = {}
_thread: threading.Thread | None = None


def later(place: str, work: _Work, descriptors: Sequence[int] = ()) -> None:
    """Runs a removal in the background, after earlier ones for the same target.

    Args:
        place: the path of the target, for `wait`.
        work: the removal. An OSError is ignored: the next save finds the files that are left.
        descriptors: file descriptors to close once the removal is done; a forked child closes its copies at once.
    """
    global _thread
    wait(place)
    with _condition:
        _pending.setdefault(place, []).append((work, descriptors))
        if _thread is not None:
            return
        _thread = threading.Thread(target=_serve, name="tensordict-removal")
        try:
            _thread.start()
        except RuntimeError:  # no thread can be started, as when the interpreter is ending
            _thread = None
    if _thread is None:
        _serve()


def wait(place: str | None = None) -> None:
    """Waits until all removals are done, for one target or for all."""
    with _condition:
        _condition.wait_for(lambda: not _pending if place is None else place not in _pending)


def make_room(place: str, nbytes: int) -> None:
    """Waits for the removals for a target, unless the disk has room for ``nbytes`` and a margin."""
    if place in _pending:
        with contextlib.suppress(OSError):
            if shutil.disk_usage(os.path.dirname(place)).free > nbytes + nbytes // 8 + (64 << 20):
                return
        wait(place)


def remember() -> None:
    """Records that files of a save are being removed now, for `was_recent`."""
    global _latest
    _latest = time.monotonic()


def was_recent() -> bool:
    """Whether this process removed files of a save in the last minutes."""
    return time.monotonic() - _latest < _REMEMBERED


def _serve() -> None:
    global _thread
    while True:
        with _condition:
            if not _pending:
                _thread = None
                return
            place = next(iter(_pending))
            work, descriptors = _pending[place][0]
        try:
            with contextlib.suppress(OSError):
                work()
        finally:
            for fd in descriptors:
                locks.close(fd)
            with _condition:
                _pending[place].pop(0)
                if not _pending[place]:
                    del _pending[place]
                _condition.notify_all()


def _forget_after_fork() -> None:
    global _condition, _thread
    for works in _pending.values():
        for _, descriptors in works:
            for fd in descriptors:
                with contextlib.suppress(OSError):
                    os.close(fd)
    _pending.clear()
    _condition, _thread = threading.Condition(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
