"""Write jobs: split the sources of a file into parts that threads can write in any order.

Contiguous memory is written without a copy (``segments.py``). Strided memory is packed into a staging block by a
kernel, or copied by NumPy in bounded chunks if no kernel is loaded. Other sources are copied by torch, in chunks too.
Bytes that get a checksum are hashed while they are in the cache; blocks that no job hashes are read back afterwards
(``write_plan.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from math import prod
from types import ModuleType

import numpy as np
import torch
from xxhash import xxh3_64

from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.checksums import Extent
from tensordict_memmap.engine.direct import staging_block
from tensordict_memmap.engine.gpu import from_gpu
from tensordict_memmap.engine.scatter import scatter_jobs
from tensordict_memmap.engine.segments import Segment, join_segments, whole_extent
from tensordict_memmap.engine.sink import Sink
from tensordict_memmap.engine.sources import Contiguous, Run, Scattered, Strided, ViaTorch, as_array, chunks, dense_axis
from tensordict_memmap.engine.tuning import COPY_BYTES, JOB_BYTES, KERNEL_CALL_MIN, STAGING_BYTES

Part = Contiguous | Run | Scattered | Strided | ViaTorch
"""A source by its layout in memory and in the file."""


Write = Callable[[Sink], None]
"""A function that writes the bytes of one job to a file."""


def cut_into_jobs(
    parts: Iterable[Part],
    kernels: ModuleType | None,
    extents: Mapping[int, Extent] | None = None,
) -> Iterator[tuple[object, Write, int]]:
    """Split the sources of a file into jobs.

    Args:
        parts: The sources.
        kernels: The module of kernels, if loaded.
        extents: The ranges of the file that get a checksum, by offset.

    Yields:
        The key for errors, the function that writes the job, and its size in bytes. Jobs may run in any thread and
        order.
    """
    extents = extents or {}
    filled = (part for part in parts if isinstance(part, Run) or part.nbytes)
    for part in join_segments(sorted(filled, key=lambda part: part.offset), extents):
        if isinstance(part, Segment):
            yield from part.jobs()
        elif isinstance(part, Scattered):
            yield from scatter_jobs(part)
        elif isinstance(part, ViaTorch):
            width = part.dtype.itemsize
            most = JOB_BYTES if part.tensor.device.type == "cuda" else COPY_BYTES
            for chunk, start in chunks(part.tensor, max(width, part.tensor.element_size()), most):
                place = part.offset + start * width
                yield part.key, functools.partial(_write_chunk, chunk, part.dtype, place), chunk.numel() * width
        elif kernels is not None and part.nbytes >= KERNEL_CALL_MIN:
            yield from _KernelWrite(part, kernels, whole_extent(part, extents)).jobs()
        else:
            for array, start in chunks(as_array(part), part.width, COPY_BYTES):
                place = part.offset + start * part.width
                yield part.key, functools.partial(_write_array, array, place), array.nbytes


_ROWS = 16
"""Rows packed together if the source is not dense along its last axis; fewer would waste parts of cache lines."""


class _KernelWrite:
    """The write of a strided source, which kernels pack: ranges in C order, or blocks of rows if rows are very long."""

    def __init__(self, part: Strided, kernels: ModuleType, extent: Extent | None) -> None:
        self.part, self.kernels, self.extent = part, kernels, extent
        self.axis = dense_axis(part.shape, part.strides)
        self.behind = prod(part.shape[self.axis + 1 :])
        self.unit = 1 if self.axis == len(part.shape) - 1 else _ROWS * self.behind
        shape, strides = np.array(part.shape, dtype=np.int64), np.array(part.strides, dtype=np.int64)
        self.source = part.address, shape, strides, self.axis

    def jobs(self) -> Iterator[tuple[object, Write, int]]:
        """Yield the jobs, as `cut_into_jobs` does."""
        key, shape, width, behind = self.part.key, self.part.shape, self.part.width, self.behind
        row_bytes = self.unit * width
        if row_bytes <= STAGING_BYTES // 2:
            count = JOB_BYTES // row_bytes * self.unit if self.extent is None else self.extent.block // width
            for first in range(0, prod(shape), count):
                last = min(first + count, prod(shape))
                yield key, functools.partial(self._write_range, first, last), (last - first) * width
            return
        height = max(_ROWS, 64 // width)  # at least a cache line along the dense axis
        columns = max(STAGING_BYTES // (height * width), 1)
        length = shape[self.axis]
        for outer in range(prod(shape[: self.axis])):
            for i, first in product(range(0, length, height), range(0, behind, columns)):
                row, rows, last = outer * length + i, min(height, length - i), min(first + columns, behind)
                write = functools.partial(self._write_rows, row, rows, first, last)
                yield key, write, rows * (last - first) * width

    def _write_range(self, first: int, last: int, file: Sink) -> None:
        """Write the items ``first`` to ``last``.

        Packing stops at multiples of ``unit`` items, which are whole rows. Writes end at multiples of half the staging
        block in the file; bytes that are packed beyond that go with the next write.
        """
        width, staging, most = self.part.width, staging_block(), STAGING_BYTES // 2
        state = xxh3_64() if self.extent is not None else None
        position, offset, packed = first, self.part.offset + first * width, 0
        while packed or position < last:
            wanted = most - offset % most
            if packed < wanted and position < last:
                end = min(-((position * width + wanted - packed) // -(self.unit * width)) * self.unit, last)
                self.kernels.pack_range(staging + packed, *self.source, position, end, width)
                packed += (end - position) * width
                position = end
            nbytes = min(wanted, packed)
            if state is not None:
                state.update(syscalls.view(staging, nbytes))
            syscalls.write_at(file.fd, staging, nbytes, offset)
            offset, packed = offset + nbytes, packed - nbytes
            syscalls.copy(staging, staging + nbytes, packed)
        if self.extent is not None and state is not None:
            self.extent.put(first * width, state.intdigest())

    def _write_rows(self, row: int, rows: int, first: int, last: int, file: Sink) -> None:
        """Write, for ``rows`` steps along the axis, the items ``first`` to ``last`` behind it, row by row."""
        width, staging = self.part.width, staging_block()
        nbytes = (last - first) * width
        self.kernels.pack_block(staging, *self.source, row, rows, first, last, width)
        for number in range(rows):
            offset = self.part.offset + ((row + number) * self.behind + first) * width
            syscalls.write_at(file.fd, staging + number * nbytes, nbytes, offset)


def _write_array(chunk: np.ndarray, offset: int, file: Sink) -> None:
    block = _contiguous(chunk.squeeze())
    syscalls.write_at(file.fd, block.ctypes.data, block.nbytes, offset)


def _contiguous(chunk: np.ndarray) -> np.ndarray:
    """Copy an array to contiguous memory, in tiles if it is dense along another axis than the last.

    NumPy and torch copy row by row. Each item of a row is then on another page, and a long row needs more pages than
    the processor has translations of, which takes up to ten times as long.
    """
    axis = dense_axis(chunk.shape, chunk.strides) if chunk.ndim else 0
    if axis >= chunk.ndim - 1:
        return np.ascontiguousarray(chunk)
    block = np.empty(chunk.shape, chunk.dtype)
    before: tuple[slice, ...] = (slice(None),) * (axis + 1)
    count = max(_TILE // prod(chunk.shape[axis + 2 :]), 1)
    for first in range(0, chunk.shape[axis + 1], count):
        tile = (*before, slice(first, first + count))
        np.copyto(block[tile], chunk[tile])
    return block


_TILE = 256
"""The most items of a row that are copied before the next row, if a source is not dense along its last axis."""


def _write_chunk(chunk: torch.Tensor, dtype: torch.dtype, offset: int, file: Sink) -> None:
    if chunk.device.type == "cuda":
        block = from_gpu(chunk.to(dtype) if chunk.dtype != dtype else chunk)
    else:
        block = chunk.to(device="cpu", dtype=dtype)
    block = block.resolve_conj().resolve_neg().contiguous()
    syscalls.write_at(file.fd, block.data_ptr(), block.nbytes, offset)
