"""Removal: what a save replaced is given back to the disk in the background, which may take longer than the save.

A thread of its own does it, and an interpreter that ends waits for it. What is removed carries a lock meanwhile, which
vanishes with the process: if that dies first, the next save to the same place finds it unlocked and removes it. A child
that was forked meanwhile leaves all of it to its parent.

Until it is done, the disk holds what was replaced as well. A save that would not fit beside it waits first, and no
place ever has more than one removal under way.
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
"""Seconds for which what was removed may slow down who makes files near to it (see `syscalls.scatter`)."""

_latest = -_REMEMBERED

_condition = threading.Condition()
_pending: dict[str, list[tuple[_Work, Sequence[int]]]] = {}
_thread: threading.Thread | None = None


def later(place: str, work: _Work, descriptors: Sequence[int] = ()) -> None:
    """Does some work in the background, after what was given earlier for the same place.

    Args:
        place: what is replaced; names the work for `wait`.
        work: what to do. Where the system refuses, nobody is told: what is left is found by the next save.
        descriptors: what to close once it is done; a forked child closes its copies at once.
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
    """Waits until nothing is left to do, for one place or at all."""
    with _condition:
        _condition.wait_for(lambda: not _pending if place is None else place not in _pending)


def make_room(place: str, nbytes: int) -> None:
    """Waits for what is under way for a place, unless the disk has room beside it for as many bytes and some more."""
    if place in _pending:
        with contextlib.suppress(OSError):
            if shutil.disk_usage(os.path.dirname(place)).free > nbytes + nbytes // 8 + (64 << 20):
                return
        wait(place)


def remember() -> None:
    """Takes note that files of a save are being removed."""
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


def _leave_to_the_parent() -> None:
    global _condition, _thread
    for works in _pending.values():
        for _, descriptors in works:
            for fd in descriptors:
                with contextlib.suppress(OSError):
                    os.close(fd)
    _pending.clear()
    _condition, _thread = threading.Condition(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)
