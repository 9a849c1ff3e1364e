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
from dataclasses import dataclass

from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.storage import locks

_Work = Callable[[], None]

_REMEMBERED = 300.0
"""Seconds for which removed files slow down the creation of files in the same block group (see `syscalls.scatter`)."""

_LONGEST_WAIT = 0.1
"""Seconds after which `wait` looks whether the thread is alive."""

_latest = -_REMEMBERED

_condition = threading.Condition()
_pending: dict[str, list[_Removal]] = {}
_thread: threading.Thread | None = None


@dataclass(slots=True, eq=False)
class _Removal:
    """A removal, the descriptors to close after it, and the thread that has begun it."""

    work: _Work
    descriptors: Sequence[Descriptor]
    thread: threading.Thread | None = None

    def is_over(self) -> bool:
        """Return whether an exception ended it, in a thread that continued since."""
        return self.thread is not None and (self.thread is threading.current_thread() or not self.thread.is_alive())


def later(place: str, work: _Work, descriptors: Sequence[Descriptor] = ()) -> None:
    """Run a removal in the background, after earlier ones for the same target.

    Args:
        place: The path of the target, for `wait`.
        work: The removal. An OSError is ignored: the next save finds the files that are left.
        descriptors: File descriptors to close once the removal is done; a forked child closes its copies at once.
    """
    global _thread
    wait(place)
    thread = None
    with _condition:
        _pending.setdefault(place, []).append(_Removal(work, descriptors))
        if _thread is None:
            thread = _thread = threading.Thread(target=_serve, name="tensordict-removal")
    if thread is not None:
        try:
            # once the main thread has ended, the interpreter waits for no new thread
            if threading.main_thread().is_alive():
                thread.start()
                return
        except RuntimeError:  # no thread can be had
            pass
        _serve()


def wait(place: str | None = None) -> None:
    """Wait until all removals are done, for one target or for all."""
    while True:
        with _condition:
            if not (_pending if place is None else place in _pending):
                return
            _forget_ended()
            is_begun = all(one.thread is not None for works in _pending.values() for one in works)
            if is_begun or (_thread is not None and _thread.is_alive()):
                _condition.wait(_LONGEST_WAIT)
                continue
        _serve()  # an exception has kept `later` from starting the thread


def make_room(place: str, nbytes: int) -> None:
    """Wait for the removals for a target, unless the disk has room for ``nbytes`` and a margin."""
    if place in _pending:
        with contextlib.suppress(OSError):
            if shutil.disk_usage(os.path.dirname(place)).free > nbytes + nbytes // 8 + (64 << 20):
                return
        wait(place)


def remember() -> None:
    """Record that files of a save are being removed now, for `was_recent`."""
    global _latest
    _latest = time.monotonic()


def was_recent() -> bool:
    """Return whether this process removed files of a save in the last minutes."""
    return time.monotonic() - _latest < _REMEMBERED


def _serve() -> None:
    global _thread
    while True:
        with _condition:
            waiting = ((place, one) for place, works in _pending.items() for one in works if one.thread is None)
            place, removal = next(waiting, (None, None))
            if place is None or removal is None:
                _thread = None
                return
            removal.thread = threading.current_thread()
        try:
            with contextlib.suppress(OSError):
                removal.work()
        finally:
            for fd in removal.descriptors:
                locks.close(fd)
            with _condition:
                _pending[place].remove(removal)
                _forget_ended()
                _condition.notify_all()


def _forget_ended() -> None:
    """Drop removals that an exception ended, and targets without removals; the next save removes what is left."""
    for place, works in list(_pending.items()):
        works[:] = [one for one in works if not one.is_over()]
        if not works:
            del _pending[place]


def _forget_after_fork() -> None:
    global _condition, _thread
    for works in _pending.values():
        for removal in works:
            for fd in removal.descriptors:
                fd.close()
    _pending.clear()
    _condition, _thread = threading.Condition(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
