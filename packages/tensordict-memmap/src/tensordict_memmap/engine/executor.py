"""Executor: runs jobs on threads that are kept between saves and replaced after a fork.

Several threads may use it at once. Kernels and system calls release the GIL, so plain threads suffice, without the
threading layers of Numba or OpenMP. The calling thread runs jobs too, so a call never waits for a busy thread, and does
all the work if no thread can be started: at the limit of the process, and in newer versions of Python when the
interpreter exits.

No call returns or raises before its jobs have ended, even if it is interrupted repeatedly. Idle threads are daemons,
for which the interpreter does not wait; the thread that started a call waits for its jobs. ``concurrent.futures`` has a
pool too, but it accepts no work when the interpreter exits, and if starting one of its threads is interrupted, the
process hangs at exit.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError

_MOST_THREADS = 64

Job = Callable[[], None]


def check_cancelled(cancelled: Callable[[], bool] | None) -> None:
    """Raise a ``CancelledError`` if the function returns that the save was cancelled."""
    if cancelled is not None and cancelled():
        raise CancelledError("the save was cancelled")


class _Pool:
    """Daemon threads that wait for tasks; a task must not raise."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._idle: deque[None] = deque()  # an item for each idle thread
        self._threads = 0

    def start(self, task: Job) -> bool:
        """Run a task on an idle thread or a new one; return False if none can be had.

        If an exception arrives, a thread may not be counted as idle any more; it still takes tasks.
        """
        try:
            self._idle.pop()
        except IndexError:
            if self._threads < _MOST_THREADS:
                try:
                    threading.Thread(target=self._serve, name="tensordict-memmap", daemon=True).start()
                except RuntimeError:
                    return False
                self._threads += 1
        self._tasks.put(task)
        return True

    def _serve(self) -> None:
        while True:
            task = self._tasks.get()
            task()
            del task  # it holds the tensors of a save
            self._idle.append(None)


_pool = _Pool()


def _forget_after_fork() -> None:
    # The child has none of its parent's threads, and may have been forked while one of them held a lock.
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


def default_threads() -> int:
    """Return the default number of threads: one for each processor that this process may use, at most 8.

    >>> default_threads() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return min(8, len(os.sched_getaffinity(0)))
    return min(8, os.cpu_count() or 1)


class _Queues:
    """Queues of jobs that threads share, each thread on a queue of its own while there are enough."""

    def __init__(self, queues: Iterable[Iterable[Job]]) -> None:
        self._untouched = deque(deque(queue) for queue in queues)
        self._begun: list[deque[Job]] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(map(len, self._untouched))

    def take(self, queue: deque[Job], from_end: bool) -> tuple[deque[Job], bool, Job] | None:
        """Take the next job for a thread that worked on ``queue``.

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

    def clear(self) -> None:
        """Drop all jobs, and with them the tensors that they write."""
        self._untouched.clear()
        self._begun = []


class _Crew:
    """The threads of one call of `run`."""

    def __init__(self, work: _Queues, cancelled: Callable[[], bool] | None) -> None:
        self.work = work
        self.cancelled = cancelled
        self.errors: list[BaseException] = []
        self.is_stopped = False
        self._is_closed = False
        self._lock = threading.Lock()
        self._begun: list[threading.Lock] = []  # for each helper that has begun, a lock that it holds until it ends

    def serve(self) -> None:
        """Run jobs until none is left, one has failed, or the call is cancelled."""
        queue, from_end = deque[Job](), False
        try:
            while not self.is_stopped:
                taken = self.work.take(queue, from_end)
                if taken is None:
                    return
                check_cancelled(self.cancelled)
                queue, from_end, job = taken
                job()
        except BaseException as error:
            self.errors.append(error)
            self.is_stopped = True

    def help(self) -> None:
        """Run jobs in another thread than that of the call, unless the call has ended."""
        running = threading.Lock()
        with running:
            with self._lock:
                if self._is_closed:
                    return
                self._begun.append(running)
            self.serve()

    def close(self) -> None:
        """Let no other thread begin, and wait for those that have begun, whatever arrives meanwhile.

        Raises:
            KeyboardInterrupt: It arrived meanwhile, or any other exception of a signal handler.
        """
        interrupt: BaseException | None = None
        while True:
            try:
                with self._lock:
                    self._is_closed = True
                for running in self._begun:
                    with running:
                        pass
                self.work.clear()
                break
            except BaseException as error:
                interrupt, self.is_stopped = error, True
        if interrupt is not None:
            try:
                raise interrupt
            finally:
                del interrupt  # its traceback leads here


def run(
    queues: Iterable[Iterable[Job]],
    *,
    threads: int | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> None:
    """Run each job once, on several threads including the caller's.

    The first job that raises stops the others, and its error is raised here. So does a ``KeyboardInterrupt``: jobs that
    have begun end first.

    Args:
        queues: The jobs. Jobs that are slow at the same time, such as two writes to one file, share a queue: a thread
            stays on one queue, and joins that of another thread only when all queues have been begun.
        threads: The number of threads; ``default_threads()`` if None or 0.
        cancelled: A function that is called before each job; once it returns True, no further job starts.

    Raises:
        concurrent.futures.CancelledError: ``cancelled`` returned True before the last job had started.

    >>> seen = []
    >>> run([[lambda: seen.append(1), lambda: seen.append(2)], [lambda: seen.append(3)]], threads=1)
    >>> seen
    [1, 2, 3]
    """
    work = _Queues(queues)
    crew = _Crew(work, cancelled)
    count = min(threads or default_threads(), len(work), _MOST_THREADS)
    try:
        try:
            while count > 1 and _pool.start(crew.help):
                count -= 1
            crew.serve()
        except BaseException:
            crew.is_stopped = True
            raise
        finally:
            crew.close()
    finally:
        crew.close()  # again: an exception may have arrived right before the first call
    if crew.errors:
        error = crew.errors[0]
        crew.errors.clear()  # its traceback leads to this list: without a cycle, files and tensors are freed with it
        try:
            raise error
        finally:
            del error
