"""Workers that run the chunks of `map`: new processes, a pool or executor of the caller, or the calling process.

New processes get the job when they start (a forked process inherits it, so neither the tensordict nor the function is
pickled), and then only the row numbers of each chunk.
"""

from __future__ import annotations

import multiprocessing.pool
import os
import random
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol, TypedDict

import numpy as np
import torch
from torch import Tensor

from tensordict_core.ops.parallel.multiprocessing.chunks import Chunk, Job, run

Handle = Callable[[], Any]
"""Waits for the result of a chunk."""


class MapOptions(TypedDict, total=False):
    """The options of ``map`` and ``map_iter``; the docstring of ``map`` explains each."""

    chunksize: int | None
    num_chunks: int | None
    pool: Any
    generator: torch.Generator | None
    max_tasks_per_child: int | None
    worker_threads: int
    pbar: bool
    mp_start_method: str | None


class Workers(Protocol):
    """Runs chunks."""

    count: int

    def submit(self, chunk: Chunk) -> Handle:
        """Start a chunk; the handle waits for its result."""

    def close(self) -> None:
        """End the workers that were started for the job."""


def worker_count(num_workers: int | None) -> int:
    """Return the number of worker processes: the given number, or one for each CPU that this process may use.

    Raises:
        ValueError: ``num_workers`` is negative.

    >>> worker_count(3)
    3
    """
    if num_workers is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if num_workers < 0:
        raise ValueError(f"num_workers={num_workers} is negative; pass a number of processes, or 0 for this process")
    return num_workers


def pool_size(pool: Any) -> int | None:
    """Return the number of workers of a pool or an executor; ``None`` if it is unknown.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> pool_size(ThreadPoolExecutor(3)), pool_size(None)
    (3, None)
    """
    count = getattr(pool, "_processes", None) or getattr(pool, "_max_workers", None)
    return count if isinstance(count, int) else None


_THREADS = (ThreadPoolExecutor, multiprocessing.pool.ThreadPool)

_job: Job | None = None
"""The job of this worker process."""


def _init_worker(job: Job, threads: int) -> None:
    global _job
    _job = job
    torch.set_num_threads(threads)


def _run_chunk(chunk: Chunk) -> Any:
    assert _job is not None, "the worker was started without a job"
    return run(_job, chunk)


def _submit(pool: Any, function: Callable[..., Any], *args: Any) -> Handle:
    """Start a call in a pool of ``multiprocessing`` or in an executor."""
    handle: Handle = (
        pool.apply_async(function, args).get
        if isinstance(pool, multiprocessing.pool.Pool)
        else pool.submit(function, *args).result
    )
    return handle


class CallingProcess:
    """Runs chunks in the calling process, when their results are requested."""

    count = 1

    def __init__(self, job: Job) -> None:
        self.job = job

    def submit(self, chunk: Chunk) -> Handle:
        """Return a handle that runs the chunk."""
        return lambda: self._run(chunk)

    def _run(self, chunk: Chunk) -> Any:
        states = random.getstate(), np.random.get_state()
        try:
            with torch.random.fork_rng(
                devices=[]
            ):  # restores the random state of this process, because the chunk sets a seed
                return run(self.job, chunk)
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])

    def close(self) -> None:
        """Do nothing: nothing was started."""


class NewProcesses:
    """Processes that are started for one job."""

    def __init__(self, job: Job, count: int, chunks: int, options: MapOptions) -> None:
        context: Any = torch.multiprocessing.get_context(options.get("mp_start_method"))
        max_tasks = options.get("max_tasks_per_child")
        self.count = max(1, min(count, chunks))
        arguments = (job, options.get("worker_threads", 1))
        self.pool: Any
        if max_tasks is not None and context.get_start_method() == "fork":
            # an executor cannot replace forked workers, a pool can
            self.pool = context.Pool(
                self.count, initializer=_init_worker, initargs=arguments, maxtasksperchild=max_tasks
            )
        else:
            # an executor notices a worker that dies, a pool waits for it forever
            self.pool = ProcessPoolExecutor(
                self.count,
                mp_context=context,
                initializer=_init_worker,
                initargs=arguments,
                max_tasks_per_child=max_tasks,
            )

    def submit(self, chunk: Chunk) -> Handle:
        """Send the rows of the chunk to a worker."""
        return _submit(self.pool, _run_chunk, chunk)

    def close(self) -> None:
        """Stop the processes; chunks that are not started are dropped."""
        if isinstance(self.pool, ProcessPoolExecutor):
            self.pool.shutdown(wait=True, cancel_futures=True)
        else:
            self.pool.terminate()
            self.pool.join()


class CallersPool:
    """A pool or an executor of the caller, which gets each chunk as data and stays open."""

    def __init__(self, pool: Any, source: Any, job: Job, eager: list[Chunk] | None) -> None:
        self.pool = pool
        self.source = source
        # threads share all memory and processes of this machine share tensors; other executors may run elsewhere
        threads = isinstance(pool, _THREADS)
        self.compact = not (threads or isinstance(pool, multiprocessing.pool.Pool | ProcessPoolExecutor))
        self.job = replace(job, source=None, private=not threads, foreign=self.compact)
        self.count = pool_size(pool) or worker_count(None)
        self.ready = {} if eager is None else {chunk.number: self._data(chunk) for chunk in eager}

    def _data(self, chunk: Chunk) -> Any:
        data = self.source[chunk.index]
        if not self.compact:
            return data
        # a pickle of a view contains the whole storage, one of a compact copy only the rows
        return data.apply(_compact, filter_empty=False)

    def submit(self, chunk: Chunk) -> Handle:
        """Send the chunk."""
        data = self.ready.pop(chunk.number, None)
        return _submit(self.pool, run, self.job, chunk, self._data(chunk) if data is None else data)

    def close(self) -> None:
        """Do nothing: the pool is the caller's."""


def _compact(leaf: Tensor) -> Tensor:
    if type(leaf) is not Tensor or leaf.untyped_storage().nbytes() == leaf.nbytes:
        return leaf
    return leaf.clone(memory_format=torch.contiguous_format)


def start(
    source: Any, job: Job, chunks: list[Chunk], num_workers: int | None, eager: bool, options: MapOptions
) -> Workers:
    """Return the workers of a job.

    Raises:
        TypeError: ``pool`` is neither a pool nor an executor.
        ValueError: A seed is given for the threads of an executor.
    """
    pool = options.get("pool")
    if pool is not None:
        if not isinstance(pool, (multiprocessing.pool.Pool, Executor)) and not callable(getattr(pool, "submit", None)):
            raise TypeError(
                f"pool must be a multiprocessing pool or an executor of concurrent.futures, got {type(pool).__name__}; "
                "pass num_workers to start processes"
            )
        if job.seed is not None and isinstance(pool, _THREADS):
            raise ValueError(
                "generator seeds the random numbers of worker processes, but the threads of this pool share the random "
                "state of this process; call torch.manual_seed, or pass a pool of processes"
            )
        return CallersPool(pool, source, job, chunks if eager else None)
    count = worker_count(num_workers)
    if count == 0:
        return CallingProcess(replace(job, source=source))
    for leaf in source._leaves():
        if not leaf.is_cuda and not leaf.is_meta and leaf.layout is torch.strided:
            leaf.share_memory_()  # so that in-place writes of a worker are visible here
    own = replace(job, source=source, private=True)
    return NewProcesses(own, count, len(chunks), options)
