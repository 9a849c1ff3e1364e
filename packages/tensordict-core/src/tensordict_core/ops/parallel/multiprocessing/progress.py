"""Progress of `map`: a tqdm bar of the finished chunks, or a plain counter if tqdm is not installed."""

from __future__ import annotations

import sys
from typing import Protocol


class Progress(Protocol):
    """A progress bar or counter."""

    def update(self, n: int = 1) -> object:
        """Count ``n`` more."""

    def close(self) -> object:
        """End the line."""


class Counter:
    """A counter on the standard error stream: ``map: 3/20``.

    Args:
        total: The number of chunks.

    >>> counter = Counter(2)
    >>> counter.update()
    >>> counter.done
    1
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self._show()

    def _show(self) -> None:
        print(f"\rmap: {self.done}/{self.total}", end="", file=sys.stderr, flush=True)

    def update(self, n: int = 1) -> None:
        """Count ``n`` more."""
        self.done += n
        self._show()

    def close(self) -> None:
        """End the line."""
        print(file=sys.stderr)


class Silent:
    """A progress that shows nothing."""

    def update(self, n: int = 1) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def progress(total: int, shown: bool) -> Progress:
    """Return a progress bar or counter of chunks."""
    if not shown:
        return Silent()
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return Counter(total)
    bar: Progress = tqdm(total=total, desc="map")
    return bar
