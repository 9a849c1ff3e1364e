"""`SaveFuture`: the future of a save in the background, with progress and cancellation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

from tensordict_memmap.engine.progress import progress_bar

__all__ = ["Cancelled", "Progress", "SaveFuture", "run_save"]

Progress = Callable[[int], None]
"""A callback that takes the number of bytes just written."""

Cancelled = Callable[[], bool]
"""A function that returns whether the save was cancelled."""


def run_save(
    run: Callable[[Progress | None, Cancelled | None], Any],
    result: Callable[[], Any],
    total: int,
    *,
    early: bool = False,
    pbar: bool = False,
) -> Any:
    """Runs a planned save, now or in the background.

    Args:
        run: the function that saves.
        result: the function that returns the result once the save is done.
        total: the number of bytes to write.
        early: whether to return a `SaveFuture` of the result at once.
        pbar: whether to show a progress bar.
    """

    def work(progress: Progress | None, cancelled: Cancelled | None) -> Any:
        if pbar:
            with progress_bar(total, progress) as report:
                run(report, cancelled)
        else:
            run(progress, cancelled)
        return result()

    return SaveFuture(work, total) if early else work(None, None)


class SaveFuture(Future[Any]):
    """The future of a save with ``return_early=True``: `result` waits for the save and returns its result.

    The save covers the entries that the tensordict has when it starts; entries that are added or removed later have no
    effect. Values are read while the save runs, since a copy would double the memory: change tensors in place only
    after `done` returns True, or save a ``clone()``.

    Args:
        work: the function that saves. It runs in a thread and takes a `Progress` and a `Cancelled` function.
        total: the number of bytes to write.

    >>> from tensordict_core import TensorDict
    >>> future = TensorDict({"a": torch.arange(3)}, [3]).memmap("in_background", return_early=True)
    >>> future.result()["a"].tolist(), future.progress
    ([0, 1, 2], 1.0)
    """

    def __init__(self, work: Callable[[Progress, Cancelled], Any], total: int) -> None:
        super().__init__()
        self.bytes_total = total
        self._written = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._start = time.monotonic()
        self._end: float | None = None
        self.set_running_or_notify_cancel()
        self._thread = threading.Thread(target=self._run, args=(work,), name="tensordict-save")
        self._thread.start()

    def _run(self, work: Callable[[Progress, Cancelled], Any]) -> None:
        try:
            result = work(self._add, self._stop.is_set)
        except BaseException as error:  # result() raises it
            self._end = time.monotonic()
            self.set_exception(error)
        else:
            self._end = time.monotonic()
            self.set_result(result)

    def _add(self, nbytes: int) -> None:
        with self._lock:
            self._written += nbytes

    @property
    def bytes_written(self) -> int:
        """The number of bytes written so far."""
        return self._written

    @property
    def progress(self) -> float:
        """The fraction of the bytes that were written, from 0 to 1."""
        if self.done() and not self.exception():
            return 1.0
        return min(self._written / self.bytes_total, 1.0) if self.bytes_total else 0.0

    @property
    def bytes_per_second(self) -> float:
        """The speed so far, or the speed of the whole save once it is done."""
        spent = (self._end or time.monotonic()) - self._start
        return self._written / spent if spent > 0 else 0.0

    def cancel(self) -> bool:
        """Cancels the save and waits until it has stopped. No files are left, and an earlier save is unchanged.

        Returns:
            Whether the save was cancelled; False if it was already done or being committed.
        """
        if self.done():
            return False
        self._stop.set()
        self._thread.join()
        return isinstance(self.exception(), CancelledError)

    def cancelled(self) -> bool:
        """Whether `cancel` has cancelled the save."""
        return self.done() and isinstance(self.exception(), CancelledError)
