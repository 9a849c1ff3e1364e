"""Background cleanup: threads remove replaced saves, since freeing their disk blocks may take longer than a save.

The interpreter waits for the threads when it exits. A folder is locked while it is removed. The lock ends with its
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

from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.storage import locks

_REMEMBERED = 300.0
"""Seconds for which removed files slow down the creation of files in the same block group (see `syscalls.scatter`)."""

_latest = -_REMEMBERED


class _Removal:
    """A removal for a target, and the descriptors to close after it; whoever calls `run` first does it."""

    def __init__(self, place: str, work: Callable[[], None], descriptors: Sequence[Descriptor]) -> None:
        self.place, self.descriptors = place, descriptors
        self._work = [work]
        self._turn = threading.RLock()

    def run(self) -> None:
        """Do the work, or wait until the thread that does it has ended."""
        with self._turn:
            try:
                if self._work:
                    with contextlib.suppress(OSError):
                        self._work.pop()()
            finally:
                for fd in self.descriptors:
                    locks.close(fd)
                if self in _removals:
                    _removals.remove(self)


_removals: list[_Removal] = []
"""The removals that have not ended. If an exception keeps `later` from starting the thread of one, `wait` runs it."""


def later(place: str, work: Callable[[], None], descriptors: Sequence[Descriptor] = ()) -> None:
    """Run a removal in the background, after earlier ones for the same target.

    Args:
        place: The path of the target, for `wait`.
        work: The removal. An OSError is ignored: the next save finds the files that are left.
        descriptors: File descriptors to close once the removal is done; a forked child closes its copies at once.
    """
    wait(place)
    removal = _Removal(place, work, descriptors)
    _removals.append(removal)
    try:
        # once the main thread has ended, the interpreter waits for no new thread
        if threading.main_thread().is_alive():
            threading.Thread(target=removal.run, name="tensordict-removal").start()
            return
    except RuntimeError:  # no thread can be had
        pass
    removal.run()


def wait(place: str | None = None) -> None:
    """Wait until all removals are done, for one target or for all."""
    for removal in list(_removals):
        if place in (None, removal.place):
            removal.run()


def make_room(place: str, nbytes: int) -> None:
    """Wait for the removals for a target, unless the disk has room for ``nbytes`` and a margin."""
    if any(removal.place == place for removal in list(_removals)):
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


def _forget_after_fork() -> None:
    for removal in _removals:
        for fd in removal.descriptors:
            fd.close()
    _removals.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
