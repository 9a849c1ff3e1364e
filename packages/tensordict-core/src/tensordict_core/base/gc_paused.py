"""Pause the garbage collector while thousands of objects are created that form no reference cycles.

A header of 5,000 tensors becomes 20,000 small dictionaries and lists. The collector traverses them repeatedly without
freeing anything, which takes a fifth of the time of opening the file, and half of it if each tensor has its own file.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def gc_paused(short: bool = True) -> Iterator[Callable[[], None]]:
    """Pause the garbage collector during a short block that creates no reference cycles.

    The collector is shared by the process: if several threads pause it, it is enabled when the first one is done.

    Args:
        short: Whether the work is short. Pass False for work that also reads or moves much data; nothing is paused
            then.

    Yields:
        A function that enables the collector before the block ends, for work that turns out to take long.

    >>> with gc_paused():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    if not (short and gc.isenabled()):
        yield _nothing
        return
    try:
        try:
            gc.disable()
            yield gc.enable
        finally:
            gc.enable()
    finally:
        gc.enable()  # again: an exception may have arrived right before the first call


def _nothing() -> None:
    """Do nothing: no pause was begun."""
