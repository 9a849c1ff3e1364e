"""Progress bar of a save: tqdm if it is installed, else a plain counter.

``pbar=True`` shows it immediately and ``pbar=False`` never; by default it appears after two seconds on a terminal, and
not in scripts, log files and short saves.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

_DELAY = 2.0
"""The seconds after which the bar appears by default."""


def shows_progress(pbar: bool | None) -> bool:
    """Return whether a call measures its progress: ``pbar``, or by default whether standard error is a terminal.

    >>> shows_progress(True), shows_progress(False)
    (True, False)
    """
    if pbar is not None:
        return bool(pbar)
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


@contextlib.contextmanager
def progress_if_long(
    total: int, pbar: bool | None, also: Callable[[int], None] | None = None
) -> Iterator[Callable[[int], None] | None]:
    """Show the number of written bytes on standard error, unless ``pbar`` or the terminal rules out a bar.

    Args:
        total: The number of bytes to write.
        pbar: Whether to show a bar at once; None shows one on a terminal after two seconds.
        also: Another progress callback to call.

    Yields:
        A function that takes the number of bytes just written, which any thread may call; ``also`` without a bar.
    """
    if not shows_progress(pbar):
        yield also
        return
    bar = _Delayed(total, 0 if pbar else _DELAY)
    lock = threading.Lock()

    def report(nbytes: int) -> None:
        if also is not None:
            also(nbytes)
        with lock:
            bar.update(nbytes)

    try:
        yield report
    finally:
        bar.close()


class _Delayed:
    """Counts, and makes the bar once the delay is over."""

    def __init__(self, total: int, delay: float) -> None:
        self.total, self.n, self.bar = total, 0, None if delay else _bar(total)
        self.start = time.monotonic() + delay

    def update(self, nbytes: int) -> None:
        # meta.json files are written too, but the total does not include them
        nbytes = min(nbytes, max(self.total - self.n, 0))
        self.n += nbytes
        if self.bar is not None:
            self.bar.update(nbytes)
        elif time.monotonic() >= self.start:
            self.bar = _bar(self.total)
            self.bar.update(self.n)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def _bar(total: int) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return _Counter(total)
    return tqdm(total=total, desc="save", unit="B", unit_scale=True, unit_divisor=1024)


class _Counter:
    """Prints ``save: 12/500 MB`` and updates it on the same line."""

    def __init__(self, total: int) -> None:
        self.total, self.n = total, 0

    def update(self, nbytes: int) -> None:
        self.n += nbytes
        print(f"\rsave: {self.n / 1e6:,.0f}/{self.total / 1e6:,.0f} MB", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        print(file=sys.stderr)
