"""Steps: how a piece of memory reaches a file, cut into parts that any thread may write in any order.

Contiguous memory is written from where it lies (``segments.py``); strided memory goes through a staging block of cache
size, by a kernel where there is one, else by NumPy in bounded chunks; what torch alone can read by torch, in chunks
too. Where checksums are wanted, bytes are hashed while they are in the cache; a part that does not fall on blocks of
its extent is left, and whoever runs the steps reads it back.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from types import ModuleType

import numpy as np
import torch

from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.checksums import Extent
from tensordict_memmap.engine.kernels.digest import Digest
from tensordict_memmap.engine.segments import Segment, join, whole_extent
from tensordict_memmap.engine.sink import Sink
from tensordict_memmap.engine.sources import Contiguous, Run, Strided, ViaTorch, as_array, chunks, dense_axis
from tensordict_memmap.engine.tuning import COPIED, JOB, KERNEL_WORTH_A_CALL, STAGING

__all__ = ["Step", "finish_device_work", "steps"]


def finish_device_work(tensors: Iterable[torch.Tensor]) -> None:
    """Waits for what is still computed on the devices of tensors."""
    # The threads copy on streams of their own, so what is still being computed must be done first.
    for device in {tensor.device for tensor in tensors if tensor.device.type == "cuda"}:
        torch.cuda.current_stream(device).synchronize()


Step = Callable[[Sink], None]
"""Puts its bytes into a file."""


def steps(
    parts: Iterable[Contiguous | Run | Strided | ViaTorch],
    kernels: ModuleType | None,
    extents: Mapping[int, Extent] | None = None,
) -> Iterator[tuple[object, Step, int]]:
    """Cuts pieces into steps.

    Args:
        parts: the pieces.
        kernels: what moves strided memory faster, where that could be loaded.
        extents: what gets a checksum, by its offset.

    Yields:
        ``(key, step, bytes)``; a step takes the file's sink and may run in any thread, in any order.
    """
    extents = extents or {}
    filled = (part for part in parts if isinstance(part, Run) or part.nbytes)
    for part in join(sorted(filled, key=lambda part: part.offset), extents):
        if isinstance(part, Segment):
            yield from part.steps()
        elif isinstance(part, ViaTorch):
            width = part.dtype.itemsize
            most = JOB if part.tensor.device.type == "cuda" else COPIED
            for chunk, start in chunks(part.tensor, max(width, part.tensor.element_size()), most):
                place = part.offset + start * width
                yield part.key, functools.partial(_write_chunk, chunk, part.dtype, place), chunk.numel() * width
        elif kernels is not None and part.nbytes >= KERNEL_WORTH_A_CALL:
            for step, count in _kernel_steps(part, kernels, whole_extent(part, extents)):
                yield part.key, step, count
        else:
            for array, start in chunks(as_array(part), part.width, COPIED):
                place = part.offset + start * part.width
                yield part.key, functools.partial(_write_array, array, place), array.nbytes


def _kernel_steps(part: Strided, kernels: ModuleType, extent: Extent | None) -> Iterator[tuple[Step, int]]:
    """Steps that are a block of the extent each, where kernels can hash what they write: one run of bytes."""
    width, shape = part.width, part.shape
    arrays = np.array(shape, dtype=np.int64), np.array(part.strides, dtype=np.int64)
    if sys.byteorder == "big":  # what kernels hash would be another number
        extent = None
    axis = dense_axis(shape, part.strides)
    if axis is None:
        total, block = prod(shape), (JOB if extent is None else extent.block) // width
        for first in range(0, total, block):
            last = min(first + block, total)
            yield functools.partial(_write_range, part, kernels, arrays, first, last, extent), (last - first) * width
        return
    outer, rows, behind = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    row = behind * width
    if rows * row <= JOB:
        step = max(JOB // (rows * row), 1)
        boxes = [(o, min(o + step, outer), 0, rows, 0, behind) for o in range(0, outer, step)]
        in_order, most = True, step * rows * row
    else:
        # A job takes at least a cache line along the dense axis, so it may have to split the axes behind.
        height = max(JOB // row, 64 // width, 8)
        columns = behind if height * row <= 2 * JOB else max(JOB // (height * width), 1)
        boxes = [
            (o, o + 1, i, min(i + height, rows), q, min(q + columns, behind))
            for o in range(outer)
            for i in range(0, rows, height)
            for q in range(0, behind, columns)
        ]
        in_order, most = columns == behind and (outer == 1 or rows % height == 0), height * row
    if extent is not None and not (in_order and 8 * row <= STAGING and extent.cut(most)):
        extent = None
    for box in boxes:
        count = (box[1] - box[0]) * (box[3] - box[2]) * (box[5] - box[4]) * width
        start = ((box[0] * rows + box[2]) * behind + box[4]) * width
        yield functools.partial(_write_tiled, part, kernels, arrays, axis, box, start, extent), count


_local = threading.local()


def _staging() -> int:
    """The address of this thread's staging block."""
    block = getattr(_local, "block", None)
    if block is None:
        block = _local.block = np.empty(STAGING, dtype=np.uint8)
        _local.address = block.ctypes.data
    return int(_local.address)


def _write_range(
    part: Strided,
    kernels: ModuleType,
    arrays: tuple[np.ndarray, np.ndarray],
    first: int,
    last: int,
    extent: Extent | None,
    file: Sink,
) -> None:
    with _digest(extent, first * part.width) as digest:
        place = file.fd, part.offset, part.address, *arrays, first, last, _staging(), STAGING, part.width
        _check(kernels.write_range(*place, digest))


def _write_tiled(
    part: Strided,
    kernels: ModuleType,
    arrays: tuple[np.ndarray, np.ndarray],
    axis: int,
    box: tuple[int, ...],
    start: int,
    extent: Extent | None,
    file: Sink,
) -> None:
    with _digest(extent, start) as digest:
        corners = np.array(box, dtype=np.int64)
        place = file.fd, part.offset, part.address, *arrays, axis, corners, _staging(), STAGING, part.width
        _check(kernels.write_tiled(*place, digest))


@contextmanager
def _digest(extent: Extent | None, start: int) -> Iterator[Digest | None]:
    """What a kernel hashes a block of an extent with."""
    digest = None if extent is None else Digest()
    yield digest
    if extent is not None and digest is not None:
        extent.put(start, digest.value())


def _check(code: int) -> None:
    if code:
        raise OSError(code, os.strerror(code))


def _write_array(chunk: np.ndarray, offset: int, file: Sink) -> None:
    block = np.ascontiguousarray(chunk)
    syscalls.write_at(file.fd, block.ctypes.data, block.nbytes, offset)


def _write_chunk(chunk: torch.Tensor, dtype: torch.dtype, offset: int, file: Sink) -> None:
    if chunk.device.type == "cuda":
        block = _from_cuda(chunk.to(dtype) if chunk.dtype != dtype else chunk)
    else:
        block = chunk.to(device="cpu", dtype=dtype)
    block = block.resolve_conj().resolve_neg().contiguous()
    syscalls.write_at(file.fd, block.data_ptr(), block.nbytes, offset)


def _from_cuda(chunk: torch.Tensor) -> torch.Tensor:
    """Brings a chunk to this thread's pinned block, on this thread's stream: others write while this one transfers."""
    streams = getattr(_local, "streams", None)
    if streams is None:
        streams = _local.streams = {}
        _local.pinned = torch.empty(JOB, dtype=torch.uint8, pin_memory=True)
    stream = streams.get(chunk.device)
    if stream is None:
        stream = streams[chunk.device] = torch.cuda.Stream(chunk.device)  # type: ignore[no-untyped-call]  # torch's
    # What ran on the thread's own stream (a dtype change) comes first; the caller's work was waited for.
    stream.wait_stream(torch.cuda.current_stream(chunk.device))
    with torch.cuda.stream(stream):
        dense = chunk.resolve_conj().resolve_neg().contiguous()
        block: torch.Tensor = _local.pinned[: dense.nbytes].view(dense.dtype).view(dense.shape)
        block.copy_(dense, non_blocking=True)
    stream.synchronize()
    return block
