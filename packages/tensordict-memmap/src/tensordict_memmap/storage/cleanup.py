"""Cleanup: a background thread frees the blocks of saves that were replaced, which may take longer than a save.

An interpreter that ends waits for the thread. A folder that is removed is locked meanwhile, and locks vanish with their
process: if that dies first, the next save to the same place finds the folder unlocked and removes it. A forked child
leaves all of it to its parent.

Until a replaced save is removed, the disk holds it too. A save that would not fit beside it waits first, and each place
has at most one removal under way.
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
"""Seconds for which removed files slow down the creation of files near to them (see `syscalls.scatter`)."""

_latest = -_REMEMBERED

_condition = threading.Condition()
_pending: dict[str, list[tuple[_Work, Sequence[int]]]] = {}
_thread: threading.Thread | None = None


def later(place: str, work: _Work, descriptors: Sequence[int] = ()) -> None:
    """Does some work in the background, after earlier work for the same place.

    Args:
        place: the path that is replaced; names the work for `wait`.
        work: the work. An error of the system is ignored: the next save finds the files that are left.
        descriptors: closed once the work is done; a forked child closes its copies at once.
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
    """Waits until all work is done, for one place or for all."""
    with _condition:
        _condition.wait_for(lambda: not _pending if place is None else place not in _pending)


def make_room(place: str, nbytes: int) -> None:
    """Waits for the work for a place, unless the disk has room for as many bytes and some more beside it."""
    if place in _pending:
        with contextlib.suppress(OSError):
            if shutil.disk_usage(os.path.dirname(place)).free > nbytes + nbytes // 8 + (64 << 20):
                return
        wait(place)


def remember() -> None:
    """Notes that files of a save are being removed."""
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
