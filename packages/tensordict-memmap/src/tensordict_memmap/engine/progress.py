"""Progress bar of a save: tqdm if it is installed, else a plain counter."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["progress_bar"]


@contextlib.contextmanager
def progress_bar(total: int, also: Callable[[int], None] | None = None) -> Iterator[Callable[[int], None]]:
    """Shows the number of written bytes on standard error.

    Args:
        total: the number of bytes to write.
        also: another progress callback to call.

    Yields:
        A function that takes the number of bytes just written; any thread may call it.
    """
    bar = _bar(total)
    lock = threading.Lock()

    def report(nbytes: int) -> None:
        if also is not None:
            also(nbytes)
        with lock:
            # meta.json files are written too, but the total does not include them
            bar.update(min(nbytes, max(total - bar.n, 0)))

    try:
        yield report
    finally:
        bar.close()


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
