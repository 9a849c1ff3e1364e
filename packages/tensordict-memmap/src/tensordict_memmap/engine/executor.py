"""Executor: runs jobs on a thread pool that is kept between saves and rebuilt after a fork.

Several threads may use it at once. Kernels and system calls release the GIL, so plain threads suffice, without the
threading layers of Numba or OpenMP. The calling thread runs jobs too, so a call never waits for a busy pool.
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
    """Returns the default number of threads: one for each processor that this process may use, at most 8.

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


class _Queues:
    """Queues of jobs that threads share, each thread on a queue of its own while there are enough."""

    def __init__(self, queues: Iterable[Iterable[Job]]) -> None:
        self._untouched = deque(deque(queue) for queue in queues)
        self._begun: list[deque[Job]] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(map(len, self._untouched))

    def take(self, queue: deque[Job], from_end: bool) -> tuple[deque[Job], bool, Job] | None:
        """Takes the next job for a thread that worked on ``queue``.

        The job comes from that queue, else from one that no thread has begun, else from the longest. A thread that
        joins the queue of another thread takes jobs from its end, far from those of the other thread.

        Returns:
            The queue that the thread works on now, whether it works from the end, and the job; None if no job is left.
        """
        with self._lock:
            while not queue and self._untouched:
                queue, from_end = self._untouched.popleft(), False
                if len(queue) > 1:
                    self._begun.append(queue)
            if not queue:
                self._begun = [begun for begun in self._begun if begun]
                if not self._begun:
                    return None
                queue, from_end = max(self._begun, key=len), True
            return queue, from_end, queue.pop() if from_end else queue.popleft()


def run(
    queues: Iterable[Iterable[Job]],
    *,
    threads: int | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> None:
    """Runs each job once, on several threads including the caller's.

    The first job that raises stops the others, and its error is raised here.

    Args:
        queues: the jobs. Jobs that are slow at the same time, such as two writes to one file, share a queue: a thread
            stays on one queue, and joins that of another thread only when all queues have been begun.
        threads: the number of threads; ``default_threads()`` if None or 0.
        cancelled: called before each job; once it returns True, no further job starts.

    Raises:
        concurrent.futures.CancelledError: ``cancelled`` returned True before the last job had started.

    >>> seen = []
    >>> run([[lambda: seen.append(1), lambda: seen.append(2)], [lambda: seen.append(3)]], threads=1)
    >>> seen
    [1, 2, 3]
    """
    work = _Queues(queues)
    errors: list[BaseException] = []
    stopped = threading.Event()

    def serve() -> None:
        queue, from_end = deque[Job](), False
        try:
            while not stopped.is_set():
                taken = work.take(queue, from_end)
                if taken is None:
                    return
                if cancelled is not None and cancelled():
                    raise CancelledError("the save was cancelled")
                queue, from_end, job = taken
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
