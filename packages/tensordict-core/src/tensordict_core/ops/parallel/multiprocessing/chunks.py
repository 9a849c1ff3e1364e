"""Chunks of `map`: the rows that a worker processes together, and the code that it runs on them.

A chunk holds row numbers, not data: workers that were started for the job have the tensordict and index it themselves.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.node import Node, is_leaf_tensor
from tensordict_core.ops.parallel.packing import pack, unpack

PACK_BELOW = 1 << 20
"""Results of fewer bytes are returned as one block through the pipe, larger ones as leaves in shared memory."""


@dataclass(frozen=True)
class Chunk:
    """Rows along one dimension.

    Attributes:
        number: The position of the chunk among all chunks.
        dim: The dimension.
        rows: A slice, the number of one row (which removes the dimension), or the numbers of several rows.
        count: The number of rows; ``None`` for one row without the dimension.
    """

    number: int
    dim: int
    rows: Any
    count: int | None

    @property
    def index(self) -> tuple[Any, ...]:
        """The index of the rows in the tensordict."""
        return (*(slice(None),) * self.dim, self.rows)

    def __str__(self) -> str:
        if isinstance(self.rows, slice):
            where = f"rows {self.rows.start} to {self.rows.stop - 1}"
        elif isinstance(self.rows, int):
            where = f"row {self.rows}"
        else:
            where = f"{self.count} shuffled rows"
        return f"chunk {self.number} ({where} of dim {self.dim})"


def cut(
    size: Sequence[int],
    dim: int,
    chunksize: int | None,
    num_chunks: int | None,
    workers: int,
    order: Tensor | None = None,
) -> list[Chunk]:
    """Return the chunks of a batch size.

    Args:
        size: The batch size.
        dim: The dimension that is cut.
        chunksize: The number of rows of each chunk; 0 for single rows without the dimension.
        num_chunks: The number of chunks, instead of ``chunksize``.
        workers: The number of chunks if neither is given.
        order: The numbers of the rows in the order of the chunks; by default ascending.

    Raises:
        ValueError: Both numbers are given, or one is negative.

    >>> [str(chunk) for chunk in cut([5], 0, 2, None, 1)]
    ['chunk 0 (rows 0 to 1 of dim 0)', 'chunk 1 (rows 2 to 3 of dim 0)', 'chunk 2 (rows 4 to 4 of dim 0)']
    """
    if chunksize is not None and num_chunks is not None:
        raise errors.two_ways("chunksize", "num_chunks", "the rows of a chunk")
    n = size[dim]
    if chunksize is None:
        parts = workers if num_chunks is None else num_chunks
        if parts < 1:
            raise ValueError(f"num_chunks={parts} is less than 1; pass 1 or more, or chunksize")
        chunksize = max(1, -(-n // parts))
    elif chunksize < 0:
        raise ValueError(f"chunksize={chunksize} is negative; pass a number of rows, or 0 for rows without the dim")
    if chunksize == 0:
        rows = range(n) if order is None else order.tolist()
        return [Chunk(i, dim, row, None) for i, row in enumerate(rows)]
    starts = range(0, max(n, 1), chunksize)
    if order is not None:
        return [Chunk(i, dim, order[s : s + chunksize], min(chunksize, n - s)) for i, s in enumerate(starts)]
    return [Chunk(i, dim, slice(s, min(s + chunksize, n)), min(chunksize, n - s)) for i, s in enumerate(starts)]


class Packed(NamedTuple):
    """A result as a skeleton and its bytes."""

    skeleton: Any
    data: bytes


@dataclass
class Job:
    """The part of a job that is the same for every chunk.

    Attributes:
        fn: The function that is called with each chunk.
        source: The tensordict; ``None`` if the data of each chunk are sent.
        out: The tensordict in shared memory that the worker writes results into, if any.
        seed: The random seed of chunk 0; ``None`` leaves the random state unchanged.
        private: Whether results are sent to another process.
        foreign: Whether that process shares no memory with the worker.
    """

    fn: Callable[[Any], Any]
    source: Any = None
    out: Any = None
    seed: int | None = None
    private: bool = False
    foreign: bool = False


def run(job: Job, chunk: Chunk, data: Any = None) -> Any:
    """Return the result of one chunk, packed if it is sent to another process."""
    if job.seed is not None:
        # each chunk has its seed, so results do not depend on the assignment of chunks to workers
        seed = (job.seed + chunk.number) % (1 << 63)
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % (1 << 32))
    result = job.fn(job.source[chunk.index] if data is None else data)
    if job.out is not None and result is not None:
        write(job.out, chunk, result)
        return None
    if not job.private:
        return result
    boxed = is_leaf_tensor(result)
    if isinstance(result, Node) and (job.foreign or result.bytes() < PACK_BELOW):
        skeleton, buffer = pack(result, "cpu" if job.foreign else None)
        return Packed(skeleton, buffer.numpy().tobytes()) if buffer.device.type == "cpu" else result
    return result.detach().clone() if boxed and job.foreign else result


def opened(result: Any) -> Any:
    """Return the unpacked result of ``run``."""
    if not isinstance(result, Packed):
        return result
    buffer = (
        torch.frombuffer(bytearray(result.data), dtype=torch.uint8)
        if result.data
        else torch.empty(0, dtype=torch.uint8, device="cpu")
    )
    return unpack(result.skeleton, buffer)


def write(out: Any, chunk: Chunk, result: Any) -> None:
    """Write the result of a chunk into the same rows of ``out``.

    Raises:
        RuntimeError: The result has another number of rows.
    """
    expected = torch.Size(out.batch_size)
    expected = expected[: chunk.dim] + (() if chunk.count is None else (chunk.count,)) + expected[chunk.dim + 1 :]
    if not isinstance(result, Node) or result._meta.batch_size != expected:
        got = list(result._meta.batch_size) if isinstance(result, Node) else type(result).__name__
        raise RuntimeError(
            f"with out, the result of {chunk} is a tensordict of batch size {list(expected)}, got {got}; return as "
            "many rows as the chunk has, or leave out"
        )
    out[chunk.index] = result
