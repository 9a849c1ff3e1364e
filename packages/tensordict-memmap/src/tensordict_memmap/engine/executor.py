"""Threads that share a list of jobs: kept between saves, rebuilt after a fork, usable from several threads at once.

No threading layer of Numba or OpenMP is involved: kernels and system calls release the GIL, so plain threads do. The
caller works too, which means that a call can never wait for a pool that others keep busy.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, ThreadPoolExecutor

_MOST_THREADS = 64

_executor: ThreadPoolExecutor | None = None
_executor_lock = threading.Lock()


def _forget_after_fork() -> None:
    # The child has none of its parent's threads, and may have been forked while one of them held the lock.
    global _executor, _executor_lock
    _executor, _executor_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


def default_threads() -> int:
    """The number of threads to use where none is asked for: one for every processor this process may use, at most 8.

    >>> default_threads() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return min(8, len(os.sched_getaffinity(0)))
    return min(8, os.cpu_count() or 1)


def _get_executor() -> ThreadPoolExecutor:
    global _executor
    with _executor_lock:
        if _executor is None:
            _executor = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="tensordict-memmap")
        return _executor


Job = Callable[[], None]


class _Lanes:
    """Who takes which job next."""

    def __init__(self, lanes: Iterable[Iterable[Job]]) -> None:
        self._untouched = deque(deque(lane) for lane in lanes)
        self._begun: list[deque[Job]] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(map(len, self._untouched))

    def take(self, lane: deque[Job], from_end: bool) -> tuple[deque[Job], bool, Job] | None:
        """The next job of a thread that worked in ``lane``: from there, else from a new lane, else from the longest.

        Who joins another's lane works from its end, so that the two meet only when all is done.
        """
        with self._lock:
            while not lane and self._untouched:
                lane, from_end = self._untouched.popleft(), False
                if len(lane) > 1:
                    self._begun.append(lane)
            if not lane:
                self._begun = [begun for begun in self._begun if begun]
                if not self._begun:
                    return None
                lane, from_end = max(self._begun, key=len), True
            return lane, from_end, lane.pop() if from_end else lane.popleft()


def run(
    lanes: Iterable[Iterable[Job]],
    *,
    threads: int | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> None:
    """Runs jobs, each once, on several threads of which the caller's is one.

    Args:
        lanes: what to call, in lanes of jobs that are better not run at once, as two writes to one file: a thread stays
            in its lane and joins another's only when no lane is left that nobody works in. The first job that raises
            stops the rest, and its error is raised here.
        threads: how many threads, ``default_threads()`` if None or 0.
        cancelled: asked before each job; when it says True no further job starts.

    Raises:
        concurrent.futures.CancelledError: if ``cancelled`` said so before the last job had started.

    >>> seen = []
    >>> run([[lambda: seen.append(1), lambda: seen.append(2)], [lambda: seen.append(3)]], threads=1)
    >>> seen
    [1, 2, 3]
    """
    work = _Lanes(lanes)
    errors: list[BaseException] = []
    stopped = threading.Event()

    def serve() -> None:
        lane, from_end = deque[Job](), False
        try:
            while not stopped.is_set():
                taken = work.take(lane, from_end)
                if taken is None:
                    return
                if cancelled is not None and cancelled():
                    raise CancelledError("the save was cancelled")
                lane, from_end, job = taken
                job()
        except BaseException as error:
            errors.append(error)
            stopped.set()

    count = min(threads or default_threads(), len(work), _MOST_THREADS)
    others = [_get_executor().submit(serve) for _ in range(count - 1)]
    try:
        serve()
    finally:
        for other in others:
            if not other.cancel():
                other.result()
    if errors:
        raise errors[0]
