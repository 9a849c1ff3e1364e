"""`SaveFuture`: the future of a save in the background, with progress and cancellation."""

from __future__ import annotations

import atexit
import contextvars
import itertools
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from typing import Any

from tensordict_memmap.engine.progress import progress_if_long

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
    pbar: bool | None = False,
    where: str = "memory",
) -> Any:
    """Run a planned save, now or in the background.

    Args:
        run: The function that saves.
        result: The function that returns the result once the save is done.
        total: The number of bytes to write.
        early: Whether to return a `SaveFuture` of the result at once.
        pbar: Whether to show a progress bar; None shows one on a terminal after two seconds, unless ``early``.
        where: The target, for messages.
    """
    shown = False if early and pbar is None else pbar  # a bar amid the output of other work disturbs it

    def work(progress: Progress | None, cancelled: Cancelled | None) -> Any:
        with progress_if_long(total, shown, progress) as report:
            run(report, cancelled)
        return result()

    return SaveFuture(work, total, where) if early else work(None, None)


class _Count:
    """A number of bytes that several threads increase; it does not lead to the future, which may hold an error."""

    def __init__(self) -> None:
        self.total = 0
        self._lock = threading.Lock()

    def add(self, nbytes: int) -> None:
        with self._lock:
            self.total += nbytes


class SaveFuture(Future[Any]):
    """The future of a save with ``return_early=True``: `result` waits for the save and returns its result.

    The save covers the entries that the tensordict has when it starts; entries that are added or removed later have no
    effect. Values are read while the save runs, since a copy would double the memory: change tensors in place only
    after `done` returns True, or save a ``clone()``.

    When the program ends, the interpreter waits for the save. If the save failed and neither `result` nor
    `exception` was called, the error is printed on stderr then. If no thread can be started, the save is done
    before the constructor returns.

    Args:
        work: The function that saves. It runs in a thread and takes a `Progress` and a `Cancelled` function.
        total: The number of bytes to write.
        where: The target, for the message about a failed save.

    Attributes:
        bytes_total: The number of bytes that this process writes.
        stall_seconds: For a save by several ranks and for a checkpoint, the duration in seconds of the call that
            started it, which copies the tensors to host memory, so that they may be changed at once. Other saves read
            the tensors while they run.

    >>> from tensordict_core import TensorDict
    >>> future = TensorDict({"a": torch.arange(3)}, [3]).memmap("in_background", return_early=True)
    >>> future.result()["a"].tolist(), future.progress
    ([0, 1, 2], 1.0)
    """

    def __init__(self, work: Callable[[Progress, Cancelled], Any], total: int, where: str = "memory") -> None:
        super().__init__()
        self.bytes_total = total
        self.stall_seconds = 0.0
        self._where = where
        self._is_asked = False
        self._number = next(_numbers)
        self._count = _Count()
        self._stop = threading.Event()
        self._start = time.monotonic()
        self._end: float | None = None
        self.set_running_or_notify_cancel()
        run = contextvars.copy_context().run  # the thread has the timeouts of the caller
        self._thread = threading.Thread(target=run, args=(self._run, work), name="tensordict-save")
        if threading.main_thread().is_alive():  # if it has ended, the interpreter waits for no new thread
            try:
                self._thread.start()
                return
            except RuntimeError:  # no thread can be had
                pass
        self._run(work)
        error = super().exception()
        if error is not None and not isinstance(error, Exception):  # an interrupt of the calling thread
            raise error

    def _run(self, work: Callable[[Progress, Cancelled], Any]) -> None:
        try:
            result = work(self._count.add, self._stop.is_set)
        except BaseException as error:  # result() raises it
            self._end = time.monotonic()
            if not isinstance(error, CancelledError):
                _failed[self._number] = _message(self._where, error)
            self.set_exception(error)
            if self._is_asked:
                _failed.pop(self._number, None)
        else:
            self._end = time.monotonic()
            self.set_result(result)
        del self, work  # the traceback of an error leads here, and its files and tensors are freed with the future

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the save and return its result, or raise its error.

        Args:
            timeout: The maximum number of seconds to wait; None waits until the save is done.

        Raises:
            TimeoutError: The save takes longer.

        >>> future = TensorDict({"a": torch.ones(3)}, [3]).save("run", return_early=True)
        >>> future.result()["a"]
        tensor([1., 1., 1.])
        """
        self._ask()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the save and return its error, or None; `result` has the same argument.

        >>> TensorDict({"a": torch.ones(3)}, [3]).save("run", return_early=True).exception() is None
        True
        """
        self._ask()
        return super().exception(timeout)

    def _ask(self) -> None:
        """Record that the program learns whether the save fails."""
        self._is_asked = True
        _failed.pop(self._number, None)

    @property
    def bytes_written(self) -> int:
        """The number of bytes written so far.

        >>> future = TensorDict({"a": torch.ones(3)}, [3]).save("run", return_early=True)
        >>> _ = future.result()
        >>> future.bytes_written >= 12
        True
        """
        return self._count.total

    @property
    def progress(self) -> float:
        """The fraction of the bytes that were written, from 0 to 1.

        >>> future = TensorDict({"a": torch.ones(3)}, [3]).save("run", return_early=True)
        >>> _ = future.result()
        >>> future.progress
        1.0
        """
        if self.done() and not super().exception():
            return 1.0
        return min(self.bytes_written / self.bytes_total, 1.0) if self.bytes_total else 0.0

    @property
    def bytes_per_second(self) -> float:
        """The speed so far, or the speed of the whole save once it is done.

        >>> future = TensorDict({"a": torch.ones(3)}, [3]).save("run", return_early=True)
        >>> _ = future.result()
        >>> future.bytes_per_second > 0
        True
        """
        spent = (self._end or time.monotonic()) - self._start
        return self.bytes_written / spent if spent > 0 else 0.0

    def cancel(self) -> bool:
        """Cancel the save and wait until it has stopped. No files are left, and an earlier save is unchanged.

        Returns:
            Whether the save was cancelled; False if it was already done or being committed.

        >>> future = TensorDict({"a": torch.ones(3)}, [3]).save("run", return_early=True)
        >>> _ = future.result()
        >>> future.cancel()  # too late: it is done
        False
        """
        if self.done():
            return False
        self._stop.set()
        self._thread.join()
        return isinstance(super().exception(), CancelledError)

    def cancelled(self) -> bool:
        """Return whether `cancel` has cancelled the save.

        >>> future = TensorDict({"a": torch.ones(3)}, [3]).save("run", return_early=True)
        >>> _ = future.result()
        >>> future.cancelled()
        False
        """
        return self.done() and isinstance(super().exception(), CancelledError)


class Pending:
    """The last save in the background of its kind; the next one waits for it or cancels it.

    >>> pending = Pending()
    >>> pending.end("wait")  # there is none
    """

    def __init__(self) -> None:
        self._last: SaveFuture | None = None
        self._process = os.getpid()

    def set(self, future: SaveFuture) -> None:
        """Record the future of a save that was begun."""
        self._last, self._process = future, os.getpid()

    def end(self, pending: str) -> None:
        """Wait for the save, or cancel it.

        Raises:
            ValueError: ``pending`` is neither ``"wait"`` nor ``"cancel"``.
        """
        if pending not in ("wait", "cancel"):
            raise ValueError(f"pending={pending!r} is unknown; pass 'wait' or 'cancel', for a save that still runs")
        last, self._last = self._last, None
        if last is None or last.done() or self._process != os.getpid():  # a forked child has no thread of it
            return
        if pending == "cancel":
            last.cancel()
        wait([last])


_failed: dict[int, str] = {}
"""Messages about failed saves whose futures were never queried, by the number of the future."""

_numbers = itertools.count()


def _message(where: str, error: BaseException) -> str:
    reason = "".join(traceback.format_exception_only(error)).strip()
    return f"tensordict-memmap: the background save to {where} failed, and its future was not asked: {reason}"


def _report() -> None:
    """Print the messages about failed saves at the end of the program, when all threads have ended."""
    for message in _failed.values():
        print(message, file=sys.stderr)


atexit.register(_report)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_failed.clear)
