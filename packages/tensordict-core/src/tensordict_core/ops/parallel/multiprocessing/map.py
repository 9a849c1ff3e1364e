"""`map` and `map_iter`: a function on chunks of rows, computed by worker processes.

The rows are divided into chunks (`chunks`), workers process the chunks (`workers`), and the results are read in order.
The number of chunks in progress is bounded, so results do not accumulate if they are read slowly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Unpack

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.node import Node
from tensordict_core.base.shape_op import normal_dim
from tensordict_core.base.signature import check_options, with_options
from tensordict_core.ops.parallel.multiprocessing.chunks import Chunk, Job, cut, opened, write
from tensordict_core.ops.parallel.multiprocessing.progress import progress
from tensordict_core.ops.parallel.multiprocessing.workers import MapOptions, Workers, pool_size, start, worker_count
from tensordict_core.ops.shape.combine import cat, stack

KEEP_SHARED = 256
"""With more results than this, results in shared memory are copied: each of their leaves holds a file descriptor."""


def _results(workers: Workers, chunks: list[Chunk], window: int, pbar: bool) -> Iterator[tuple[Chunk, Any]]:
    """Yield the chunks and their results in order; the workers are closed at the end or on an error."""
    shown = progress(len(chunks), pbar)
    crowded = len(chunks) > KEEP_SHARED
    under_way: deque[tuple[Chunk, Callable[[], Any]]] = deque()
    waiting = iter(chunks)
    try:
        while True:
            while len(under_way) < window and (chunk := next(waiting, None)) is not None:
                under_way.append((chunk, workers.submit(chunk)))
            if not under_way:
                return
            chunk, wait = under_way.popleft()
            try:
                result = opened(wait())
            except Exception as error:
                error.add_note(f"while mapping {chunk}")
                raise
            if crowded and isinstance(result, Tensor | Node):
                result = _unshared(result)
            shown.update()
            yield chunk, result
    finally:
        shown.close()
        workers.close()


def _unshared(result: Any) -> Any:
    return result.clone() if result.is_shared() else result


def _join(results: list[Any], dim: int, single: bool) -> Any:
    """Return the results of all chunks as one."""
    found = [result for result in results if result is not None]
    if not found:
        return None
    for result in found:
        if not isinstance(result, Tensor | Node):
            raise TypeError(
                f"map joins tensordicts and tensors, and the function returned {type(result).__name__}; wrap it in a "
                "tensordict, or use map_iter for results of any kind"
            )
    if isinstance(found[0], Tensor):
        return torch.stack(found, dim) if single else torch.cat(found, dim)
    return stack(found, dim) if single else cat(found, dim)


def _seed(generator: torch.Generator | None, pool: Any) -> int | None:
    """Return the seed of the workers, drawn from the generator or the global one; a caller's pool is not seeded."""
    if generator is None and pool is not None:
        return None
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator).item())


class ProcessMapping(Node):
    """``map`` and ``map_iter``."""

    __slots__ = ()

    def _chunks(self, dim: int, num_workers: int | None, options: MapOptions, shuffle: bool = False) -> list[Chunk]:
        """Return the chunks of rows, in random order if ``shuffle``."""
        size = self._meta.batch_size
        if not size:
            raise errors.no_batch_dim("map")
        at = normal_dim(dim, size)
        order = torch.randperm(size[at], generator=options.get("generator"), device="cpu") if shuffle else None
        workers = pool_size(options.get("pool")) or max(1, worker_count(num_workers))
        return cut(size, at, options.get("chunksize"), options.get("num_chunks"), workers, order)

    def _workers(
        self,
        fn: Callable[[Any], Any],
        chunks: list[Chunk],
        num_workers: int | None,
        eager: bool,
        options: MapOptions,
        out: Any = None,
    ) -> Workers:
        if not callable(fn):
            raise errors.not_callable("map", fn)
        job = Job(fn, out=out, seed=_seed(options.get("generator"), options.get("pool")))
        return start(self, job, chunks, num_workers, eager, options)

    @with_options(MapOptions)
    def map(
        self,
        fn: Callable[[Any], Any],
        dim: int = 0,
        num_workers: int | None = None,
        *,
        out: Any = None,
        index_with_generator: bool = False,
        **options: Unpack[MapOptions],
    ) -> Any:
        """Return the results of a function for chunks of rows, computed by worker processes and joined in order.

        Chunks share the memory of this tensordict, so in-place writes of the function are visible here. Plain tensors
        are moved into shared memory first; memory-mapped tensors are shared already.

        Args:
            fn: A function that is called with a chunk; returns a tensordict, a tensor, or ``None``. It must be
                picklable (a function of a module) unless workers are forked.
            dim: The batch dimension whose rows are divided into chunks.
            num_workers: The number of processes; by default one for each CPU. With 0, this process runs the chunks.
            out: A tensordict of this batch size; each result is written into the rows of its chunk, by the workers
                themselves if its memory is shared or mapped.
            chunksize: The number of rows of a chunk; 0 for single rows without the dimension, whose results are
                stacked.
            num_chunks: The number of chunks, instead of ``chunksize``; by default one for each worker.
            pool: A pool of ``multiprocessing`` or any executor of ``concurrent.futures`` (a cluster's included) that
                runs the chunks; it stays open. ``num_workers``, ``worker_threads``, ``max_tasks_per_child`` and
                ``mp_start_method`` do not apply to it.
            generator: Draws the seed of the workers' random numbers (PyTorch's, NumPy's and Python's). Each chunk has
                its own seed, so results do not depend on the number of workers. By default the global generator draws
                the seed; the workers of a ``pool`` are seeded only if a generator is given.
            max_tasks_per_child: The number of chunks that a process runs before it is replaced.
            worker_threads: The number of PyTorch threads of a worker.
            index_with_generator: Whether each chunk for a ``pool`` is indexed when it is sent, rather than all at the
                start. Other workers index the tensordict themselves.
            pbar: Whether a progress bar is shown (a counter where tqdm is not installed).
            mp_start_method: ``"fork"``, ``"spawn"`` or ``"forkserver"``; by default that of ``torch.multiprocessing``.

        Returns:
            The results, concatenated (stacked for ``chunksize=0``); ``out`` if given; ``None`` if all results are.

        Raises:
            ValueError: Both ``chunksize`` and ``num_chunks`` are given.
            TypeError: The function returned an object of another type.
            Exception: The exception of the function, with a note that names the chunk.

        >>> td = TensorDict({"a": torch.arange(6)}, [6])
        >>> td.map(lambda rows: rows * 2, chunksize=2, num_workers=0)["a"]
        tensor([ 0,  2,  4,  6,  8, 10])
        """
        check_options("map", options, MapOptions)
        chunks = self._chunks(dim, num_workers, options)
        at = normal_dim(dim, self._meta.batch_size)
        if out is not None and tuple(out.batch_size) != tuple(self._meta.batch_size):
            raise RuntimeError(
                f"out has batch size {list(out.batch_size)} and the tensordict {list(self._meta.batch_size)}; rows of "
                "results go into the same rows of out, so give one of that batch size"
            )
        # the workers of a caller's pool have no access to out
        shares = out is not None and options.get("pool") is None and (out.is_shared() or out.is_memmap())
        direct = out if shares else None
        workers = self._workers(fn, chunks, num_workers, not index_with_generator, options, direct)
        results = []
        for chunk, result in _results(workers, chunks, 8 * workers.count, options.get("pbar", False)):
            if out is None:
                results.append(result)
            elif result is not None:
                write(out, chunk, result)
        return _join(results, at, options.get("chunksize") == 0) if out is None else out

    @with_options(MapOptions)
    def map_iter(
        self,
        fn: Callable[[Any], Any],
        dim: int = 0,
        num_workers: int | None = None,
        *,
        shuffle: bool = False,
        index_with_generator: bool = True,
        **options: Unpack[MapOptions],
    ) -> Iterator[Any]:
        """Iterate over the results of a function for chunks of rows, while workers compute the next ones.

        Workers compute a few chunks ahead and stop when the iterator is closed.

        Args:
            fn: A function that is called with a chunk; may return any object.
            dim: The batch dimension whose rows are divided into chunks.
            num_workers: The number of processes; by default one for each CPU, and 0 for none.
            shuffle: Whether chunks are made of rows in random order, drawn by ``generator``.
            chunksize: The number of rows of a chunk; 0 for single rows without the dimension.
            num_chunks: The number of chunks, instead of ``chunksize``; by default one for each worker.
            pool: A pool of ``multiprocessing`` or any executor of ``concurrent.futures``; it stays open.
            generator: Draws the order of ``shuffle`` and the seed of the workers' random numbers, as in ``map``.
            max_tasks_per_child: The number of chunks that a process runs before it is replaced.
            worker_threads: The number of PyTorch threads of a worker.
            index_with_generator: Whether each chunk for a ``pool`` is indexed when it is sent.
            pbar: Whether a progress bar is shown.
            mp_start_method: ``"fork"``, ``"spawn"`` or ``"forkserver"``; by default that of ``torch.multiprocessing``.

        Returns:
            An iterator over the results in the order of the chunks.

        Raises:
            ValueError: Both ``chunksize`` and ``num_chunks`` are given.
            Exception: The exception of the function, with a note that names the chunk.

        >>> td = TensorDict({"a": torch.arange(4)}, [4])
        >>> [rows["a"].tolist() for rows in td.map_iter(lambda rows: rows, chunksize=2, num_workers=0)]
        [[0, 1], [2, 3]]
        """
        check_options("map_iter", options, MapOptions)
        chunks = self._chunks(dim, num_workers, options, shuffle)

        def rows() -> Iterator[Any]:
            workers = self._workers(fn, chunks, num_workers, not index_with_generator, options)
            for _, result in _results(workers, chunks, 2 * workers.count + 2, options.get("pbar", False)):
                yield result

        return rows()
