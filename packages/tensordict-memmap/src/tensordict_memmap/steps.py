"""Steps: how a piece of memory reaches a file, cut into parts that any thread may write in any order.

Contiguous memory is written from where it lies; strided memory goes through a staging block of cache size, by a kernel
where there is one, else by NumPy in bounded chunks; what torch alone can read by torch, in chunks too. Where checksums
are wanted, bytes are hashed in pieces while they are in the cache; a part that does not fall on blocks of its extent is
left, and whoever runs the steps reads it back.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from math import prod
from types import ModuleType

import numpy as np
import torch

from tensordict_memmap import system
from tensordict_memmap.checksums import BlockHash, Extent, digits_of_pieces, hash_bytes
from tensordict_memmap.digest import Digest
from tensordict_memmap.outlet import Outlet
from tensordict_memmap.sources import Flat, Foreign, Run, Strided, as_array, chunks, dense_axis
from tensordict_memmap.ways import COPIED, HASHED, JOB, KERNEL_WORTH_A_CALL, SMALL, STAGING

__all__ = ["Step", "finish_device_work", "steps"]


def finish_device_work(tensors: Iterable[torch.Tensor]) -> None:
    """Waits for what is still computed on the devices of tensors."""
    # The threads copy on streams of their own, so what is still being computed must be done first.
    for device in {tensor.device for tensor in tensors if tensor.device.type == "cuda"}:
        torch.cuda.current_stream(device).synchronize()


Step = Callable[[Outlet], None]
"""Puts its bytes into a file."""


def steps(
    parts: Iterable[Flat | Run | Strided | Foreign],
    kernels: ModuleType | None,
    extents: Mapping[int, Extent] | None = None,
) -> Iterator[tuple[object, Step, int]]:
    """Cuts pieces into steps.

    Args:
        parts: the pieces.
        kernels: what moves strided memory faster, where that could be loaded.
        extents: what gets a checksum, by its offset.

    Yields:
        ``(key, step, bytes)``; a step takes the file's outlet and may run in any thread, in any order.
    """
    extents = extents or {}
    group: list[Flat] = []
    size = 0
    for part in sorted(parts, key=lambda part: part.offset):
        if part.nbytes == 0:
            continue
        if isinstance(part, Flat) and part.nbytes < SMALL:
            if group and (group[-1].offset + group[-1].nbytes != part.offset or size + part.nbytes > JOB):
                yield _joined(group, size, extents)
                group, size = [], 0
            group.append(part)
            size += part.nbytes
            continue
        if isinstance(part, Run):
            yield from _run_steps(part)
        elif isinstance(part, Flat) and (extent := _whole(part, extents)) is not None:
            yield from _hashed_steps(part, extent)
        elif isinstance(part, Flat):
            # cut where the file's own multiples are, the page cache holds it in large pages: a third of the faults of
            # a reader
            for edge in range(-(part.offset % JOB), part.nbytes, JOB):
                start = max(edge, 0)
                count = min(edge + JOB, part.nbytes) - start
                yield part.key, functools.partial(_write_flat, part, start, count), count
        elif isinstance(part, Foreign):
            width = part.dtype.itemsize
            most = JOB if part.tensor.device.type == "cuda" else COPIED
            for chunk, start in chunks(part.tensor, max(width, part.tensor.element_size()), most):
                place = part.offset + start * width
                yield part.key, functools.partial(_write_chunk, chunk, part.dtype, place), chunk.numel() * width
        elif kernels is not None and part.nbytes >= KERNEL_WORTH_A_CALL:
            for step, count in _kernel_steps(part, kernels, _whole(part, extents)):
                yield part.key, step, count
        else:
            for array, start in chunks(as_array(part), part.width, COPIED):
                place = part.offset + start * part.width
                yield part.key, functools.partial(_write_array, array, place), array.nbytes
    if group:
        yield _joined(group, size, extents)


def _whole(part: Flat | Strided, extents: Mapping[int, Extent]) -> Extent | None:
    """The extent that a piece is all of."""
    extent = extents.get(part.offset)
    return extent if extent is not None and extent.nbytes == part.nbytes else None


def _joined(group: list[Flat], size: int, extents: Mapping[int, Extent]) -> tuple[object, Step, int]:
    first = group[0]
    if len(group) == 1:
        extent = _whole(first, extents)
        if extent is not None:
            return next(_hashed_steps(first, extent))
        return first.key, functools.partial(_write_flat, first, 0, size), size
    pieces = [(part.address, part.nbytes) for part in group]
    return first.key, functools.partial(_write_group, pieces, group, first.offset, extents), size


def _hashed_steps(part: Flat, extent: Extent) -> Iterator[tuple[object, Step, int]]:
    """Steps that hash a block each, and write what ends on the file's own multiples, as others do.

    Where blocks end between those, what one step hashes is written by another, from the cache, or the other way round.
    """
    done = 0
    for start in range(0, part.nbytes, extent.block):
        end = min(start + extent.block, part.nbytes)
        beyond = (part.offset + end + HASHED // 2) % HASHED - HASHED // 2
        edge = end if end == part.nbytes else min(end - beyond, part.nbytes)
        step = functools.partial(_write_hashed, part, range(start, end), range(done, edge), extent)
        yield part.key, step, edge - done
        done = edge


def _run_steps(part: Run) -> Iterator[tuple[object, Step, int]]:
    most = JOB
    if part.digits is not None:
        part.digits[:] = [""] * len(part.sizes)
        most = HASHED  # one thread hashes while another writes
    ends = list(accumulate(part.sizes))
    first, before = 0, 0
    while before < ends[-1]:
        last = min(bisect_left(ends, before + most) + 1, len(ends))
        nbytes = ends[last - 1] - before
        yield part.keys[first], functools.partial(_write_run, part, first, last, part.offset + before), nbytes
        first, before = last, ends[last - 1]


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
    if extent is not None and not (in_order and 8 * row <= _room(part) and extent.cut(most)):
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


def _room(part: Strided) -> int:
    """How much of the staging block is packed before it is written.

    Large pages are made only where writes fall on their bounds; elsewhere, as in one file, a quarter goes out best.
    """
    return STAGING if part.offset % STAGING == 0 else STAGING // 4


def _write_flat(part: Flat, start: int, count: int, file: Outlet) -> None:
    with file.way(part.offset + start, count) as put:
        put(part.address + start, count, part.offset + start)


def _write_hashed(part: Flat, block: range, written: range, extent: Extent, file: Outlet) -> None:
    state, hashed = BlockHash(), block.start
    with file.way(part.offset + written.start, len(written)) as put:
        position = written.start
        while position < written.stop:
            end = min(position + HASHED - (part.offset + position) % HASHED, written.stop)
            known = min(end, block.stop)
            state.add(part.address + hashed, known - hashed)
            put(part.address + position, end - position, part.offset + position)
            position, hashed = end, known
    state.add(part.address + hashed, block.stop - hashed)
    extent.put(block.start, state.value())


def _write_group(
    pieces: list[tuple[int, int]], keep: object, offset: int, extents: Mapping[int, Extent], file: Outlet
) -> None:
    if extents:
        place = offset
        for address, nbytes in pieces:
            extent = extents.get(place)
            if extent is not None and extent.nbytes == nbytes:
                extent.put(0, hash_bytes(system.view(address, nbytes)))
            place += nbytes
    addresses, sizes = zip(*pieces, strict=True)
    system.write_pieces_at(file.fd, addresses, sizes, offset)


def _write_run(part: Run, first: int, last: int, offset: int, file: Outlet) -> None:
    addresses, sizes = part.addresses[first:last], part.sizes[first:last]
    if part.digits is not None:
        part.digits[first:last] = digits_of_pieces(addresses, sizes)
    system.write_pieces_at(file.fd, addresses, sizes, offset)


def _write_range(
    part: Strided,
    kernels: ModuleType,
    arrays: tuple[np.ndarray, np.ndarray],
    first: int,
    last: int,
    extent: Extent | None,
    file: Outlet,
) -> None:
    with _digest(extent, first * part.width) as digest:
        place = file.fd, part.offset, part.address, *arrays, first, last, _staging(), _room(part), part.width
        _check(kernels.write_range(*place, digest))


def _write_tiled(
    part: Strided,
    kernels: ModuleType,
    arrays: tuple[np.ndarray, np.ndarray],
    axis: int,
    box: tuple[int, ...],
    start: int,
    extent: Extent | None,
    file: Outlet,
) -> None:
    with _digest(extent, start) as digest:
        corners = np.array(box, dtype=np.int64)
        place = file.fd, part.offset, part.address, *arrays, axis, corners, _staging(), _room(part), part.width
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


def _write_array(chunk: np.ndarray, offset: int, file: Outlet) -> None:
    block = np.ascontiguousarray(chunk)
    system.write_at(file.fd, block.ctypes.data, block.nbytes, offset)


def _write_chunk(chunk: torch.Tensor, dtype: torch.dtype, offset: int, file: Outlet) -> None:
    if chunk.device.type == "cuda":
        block = _from_cuda(chunk.to(dtype) if chunk.dtype != dtype else chunk)
    else:
        block = chunk.to(device="cpu", dtype=dtype)
    block = block.resolve_conj().resolve_neg().contiguous()
    system.write_at(file.fd, block.data_ptr(), block.nbytes, offset)


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
