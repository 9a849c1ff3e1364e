"""Pauses of the garbage collector, while thousands of containers are made that all stay alive or go by themselves.

A header of 5,000 tensors becomes 20,000 small dictionaries and lists, and the collector walks through them again and
again, to find nothing: a fifth of the time that opening the file takes, and half of it where each has a file.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["gc_paused"]


@contextlib.contextmanager
def gc_paused(short: bool = True) -> Iterator[None]:
    """Keeps the collector from running in a short segment of work that makes no cycles.

    It is one for the whole process, so where several threads are here, it runs again when the first is done.

    Args:
        short: whether the work is; nothing changes where it also reads or moves much.

    >>> with gc_paused():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    if not (short and gc.isenabled()):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
