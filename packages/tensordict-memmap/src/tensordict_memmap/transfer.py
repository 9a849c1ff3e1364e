"""Transfers: a save is a plan, cut into jobs of a few megabytes that several threads run.

The plan is a list of files, a file a list of pieces. Pieces are cut into jobs of at most 4 MiB, those of the biggest
files first; small pieces that lie side by side in a file share a job. Threads keep to files of their own while there
are any, because two that write one file wait for each other in the kernel. What was measured decides how bytes move:

- a new file is filled by positional writes into blocks that were reserved first, two to five times faster than through
  a fresh mapping, where a page fault a page costs more than the copy;
- contiguous memory is written from where it lies; strided memory goes through a staging block of cache size, by a
  kernel where the bytes are worth loading Numba for, else by NumPy in bounded chunks; what torch alone can read (other
  devices, lazy conjugates, another dtype) by torch, in chunks too;
- pages that are in memory already are copied to through their mapping, by torch, which runs at memory speed.

``ways.py`` holds those choices.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from types import ModuleType

import numpy as np
import torch

from tensordict_memmap import pool, system
from tensordict_memmap.sources import Flat, Foreign, Piece, Run, Strided, as_array, chunks, classify, dense_axis
from tensordict_memmap.ways import JOB, KERNEL_WORTH_A_CALL, SMALL, STAGING, load_kernels, writable_file


@dataclass(slots=True)
class FileWrite:
    """A file to write.

    Args:
        path: where.
        pieces: what, in any order, not overlapping.
        size: bytes of the whole file; None ends it behind its last piece.
        fresh: whether the file is created or emptied first; False overwrites in place and keeps the inode, for those
            who share live mappings of it, and cuts or extends it to ``size``.
    """

    path: str | os.PathLike[str]
    pieces: Sequence[Piece | Run]
    size: int | None = None
    fresh: bool = True


@dataclass(slots=True)
class _Open:
    """A file while its jobs run: opened by the first that needs it, closed by the last."""

    write: FileWrite
    size: int
    durable: bool
    jobs: int = 0
    fd: int = -1
    has_room: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self) -> int:
        with self.lock:
            if self.fd < 0:
                flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
                fd = os.open(self.write.path, flags | (os.O_TRUNC if self.write.fresh else 0), 0o666)
                self.fd = fd
                if (
                    not self.write.fresh
                    or not self.write.pieces
                    or (self.size >= SMALL and not system.reserve(fd, 0, self.size))
                ):
                    os.ftruncate(fd, self.size)
                self.has_room = True
            return self.fd

    def leave(self) -> None:
        with self.lock:
            self.jobs -= 1
            if self.jobs == 0:
                if self.durable:
                    os.fsync(self.fd)
                self.close()

    def close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)


def write_files(
    files: Sequence[FileWrite],
    *,
    threads: int | None = None,
    durable: bool = False,
    progress: Callable[[int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> None:
    """Writes files from tensors, in parallel, with less than 64 MiB of memory beside the tensors.

    Args:
        files: the files with their pieces. Their folders must exist.
        threads: how many threads write, a good number for this machine if None or 0.
        durable: whether each file is on the disk, not just in the page cache, when this returns.
        progress: called with the number of bytes that just went out, from any of the threads.
        cancelled: asked between jobs; once it says True the call stops.

    Raises:
        OSError: if the system refuses, a full disk among them; it names the key and the file. What was written
            until then stays: who needs all or nothing writes into a staging folder (``commit.py``).
        concurrent.futures.CancelledError: if ``cancelled`` stopped it.
        TypeError: if a source is not strided memory (sparse, meta, nested), before anything is written.

    >>> write_files([FileWrite("x.bin", [Piece("x", torch.tensor([[1, 2], [3, 4]], dtype=torch.int8).T)])])
    >>> np.fromfile("x.bin", dtype=np.int8).tolist()
    [1, 3, 2, 4]
    """
    with torch._C.DisableTorchFunctionSubclass():
        planned = [
            (write, [piece if isinstance(piece, Run) else classify(piece) for piece in write.pieces]) for write in files
        ]
    strided = sum(part.nbytes for _, parts in planned for part in parts if isinstance(part, Strided))
    kernels = load_kernels(strided)
    _finish_device_work(part.tensor for _, parts in planned for part in parts if isinstance(part, Foreign))

    opened: list[_Open] = []
    lanes: list[tuple[int, list[pool.Job]]] = []
    for write, parts in planned:
        end = max((part.offset + part.nbytes for part in parts), default=0)
        file = _Open(write, end if write.size is None else write.size, durable)
        opened.append(file)
        steps = list(_steps(parts, kernels))
        file.jobs = len(steps) or 1
        jobs: list[pool.Job] = []
        jobs.extend(functools.partial(_run_step, file, key, step, nbytes, progress) for key, step, nbytes in steps)
        lanes.append((file.size, jobs or [functools.partial(_run_step, file, None, None, 0, progress)]))
    lanes.sort(key=lambda lane: -lane[0])
    try:
        pool.run([jobs for _, jobs in lanes], threads=threads, cancelled=cancelled)
    finally:
        for file in opened:
            file.close()


def copy_into(dst: torch.Tensor, src: torch.Tensor, *, threads: int | None = None) -> None:
    """Copies ``src`` into ``dst``, which may map a file, converting and broadcasting as ``Tensor.copy_`` does.

    Where ``dst`` maps a file whose pages are not in memory yet, as after preallocation, the bytes are written to the
    file instead: the mapping sees them, and no page is faulted in one by one.

    Args:
        dst: where to. Its memory is changed in place.
        src: what; any tensor that broadcasts to the shape of ``dst``.
        threads: for writes to a file, how many threads.

    >>> dst = torch.zeros(2, 3)
    >>> copy_into(dst, torch.arange(3))
    >>> dst[1]
    tensor([0., 1., 2.])
    """
    file = None
    if dst.nbytes >= JOB and not (torch.is_grad_enabled() and (dst.requires_grad or src.requires_grad)):
        file = writable_file(dst, src)
    if file is None:
        torch.Tensor.copy_(dst, src)
        return
    fd, offset = file
    try:
        system.reserve(fd, offset, dst.nbytes)
        write_into([(fd, Piece("source", src.expand(dst.shape), offset, dst.dtype))], threads=threads)
    finally:
        os.close(fd)
    dst.detach()[:0].zero_()  # tells autograd that the values have changed


def write_into(targets: Sequence[tuple[int, Piece]], *, threads: int | None = None) -> None:
    """Writes pieces into files that are open already, over what is there or behind it, in parallel.

    Args:
        targets: descriptors, each with what to write there.
        threads: how many threads write, a good number for this machine if None or 0.

    Raises:
        OSError: if the system refuses; it names the key. What was written until then stays.
    """
    with torch._C.DisableTorchFunctionSubclass():
        planned = [(fd, classify(piece)) for fd, piece in targets]
    kernels = load_kernels(sum(part.nbytes for _, part in planned if isinstance(part, Strided)))
    _finish_device_work(part.tensor for _, part in planned if isinstance(part, Foreign))
    lanes = [
        [functools.partial(_run_into, fd, key, step) for key, step, _ in _steps([part], kernels)]
        for fd, part in planned
    ]
    pool.run(lanes, threads=threads)


def _run_into(fd: int, key: object, step: _Step) -> None:
    try:
        step(fd)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} (writing {key!r})") from error


def _finish_device_work(tensors: Iterable[torch.Tensor]) -> None:
    # The threads copy on streams of their own, so what is still being computed must be done first.
    for device in {tensor.device for tensor in tensors if tensor.device.type == "cuda"}:
        torch.cuda.current_stream(device).synchronize()


_Step = Callable[[int], None]


def _steps(
    parts: Iterable[Flat | Run | Strided | Foreign], kernels: ModuleType | None
) -> Iterator[tuple[object, _Step, int]]:
    """Yields ``(key, step, bytes)``; a step takes the file's descriptor and may run in any thread, in any order."""
    group: list[Flat] = []
    size = 0
    for part in sorted(parts, key=lambda part: part.offset):
        if part.nbytes == 0:
            continue
        if isinstance(part, Flat) and part.nbytes < SMALL:
            if group and (group[-1].offset + group[-1].nbytes != part.offset or size + part.nbytes > JOB):
                yield _joined(group, size)
                group, size = [], 0
            group.append(part)
            size += part.nbytes
            continue
        if isinstance(part, Run):
            yield from _run_steps(part)
        elif isinstance(part, Flat):
            for start in range(0, part.nbytes, JOB):
                count = min(JOB, part.nbytes - start)
                yield part.key, functools.partial(_write_flat, part, start, count), count
        elif isinstance(part, Foreign):
            width = part.dtype.itemsize
            for chunk, start in chunks(part.tensor, max(width, part.tensor.element_size()), JOB):
                place = part.offset + start * width
                yield part.key, functools.partial(_write_chunk, chunk, part.dtype, place), chunk.numel() * width
        elif kernels is not None and part.nbytes >= KERNEL_WORTH_A_CALL:
            for step, count in _kernel_steps(part, kernels):
                yield part.key, step, count
        else:
            for array, start in chunks(as_array(part), part.width, JOB):
                place = part.offset + start * part.width
                yield part.key, functools.partial(_write_array, array, place), array.nbytes
    if group:
        yield _joined(group, size)


def _joined(group: list[Flat], size: int) -> tuple[object, _Step, int]:
    first = group[0]
    if len(group) == 1:
        return first.key, functools.partial(_write_flat, first, 0, size), size
    pieces = [(part.address, part.nbytes) for part in group]
    return first.key, functools.partial(_write_group, group, pieces), size


def _run_steps(part: Run) -> Iterator[tuple[object, _Step, int]]:
    first, size, offset = 0, 0, part.offset
    for number, nbytes in enumerate(part.sizes, 1):
        size += nbytes
        if size >= JOB or number == len(part.sizes):
            yield part.keys[first], functools.partial(_write_run, part, first, number, offset), size
            first, size, offset = number, 0, offset + size


def _kernel_steps(part: Strided, kernels: ModuleType) -> Iterator[tuple[_Step, int]]:
    width, shape = part.width, part.shape
    arrays = np.array(shape, dtype=np.int64), np.array(part.strides, dtype=np.int64)
    axis = dense_axis(shape, part.strides)
    if axis is None:
        total, block = prod(shape), JOB // width
        for first in range(0, total, block):
            last = min(first + block, total)
            yield functools.partial(_write_range, part, kernels, arrays, first, last), (last - first) * width
        return
    outer, rows, behind = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    row = behind * width
    if rows * row <= JOB:
        step = max(JOB // (rows * row), 1)
        boxes = [(o, min(o + step, outer), 0, rows, 0, behind) for o in range(0, outer, step)]
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
    for box in boxes:
        count = (box[1] - box[0]) * (box[3] - box[2]) * (box[5] - box[4]) * width
        yield functools.partial(_write_tiled, part, kernels, arrays, axis, box), count


_local = threading.local()


def _staging() -> int:
    """The address of this thread's staging block."""
    block = getattr(_local, "block", None)
    if block is None:
        block = _local.block = np.empty(STAGING, dtype=np.uint8)
        _local.address = block.ctypes.data
    return int(_local.address)


def _run_step(
    file: _Open, key: object, step: _Step | None, nbytes: int, progress: Callable[[int], None] | None
) -> None:
    try:
        fd = file.enter()
        if step is not None:
            step(fd)
        file.leave()
    except OSError as error:
        if not file.has_room:  # all of the file was refused, and the largest part has most to do with it
            key = max(map(_largest, file.write.pieces), default=(0, key), key=lambda found: found[0])[1]
        what = "" if key is None else f" (writing {key!r})"
        path = os.fspath(file.write.path)
        raise OSError(error.errno, f"{error.strerror}{what}", path) from error
    if progress is not None and nbytes:
        progress(nbytes)


def _largest(piece: Piece | Run) -> tuple[int, object]:
    """The bytes and the key of a piece, or of the largest of many."""
    if isinstance(piece, Run):
        nbytes = max(piece.sizes)
        return nbytes, piece.keys[piece.sizes.index(nbytes)]
    source = piece.source
    return source.nbytes if isinstance(source, torch.Tensor | np.ndarray) else len(source), piece.key


def _write_flat(part: Flat, start: int, count: int, fd: int) -> None:
    system.write_at(fd, part.address + start, count, part.offset + start)


def _write_group(group: list[Flat], pieces: list[tuple[int, int]], fd: int) -> None:
    system.write_pieces_at(fd, pieces, group[0].offset)


def _write_run(part: Run, first: int, last: int, offset: int, fd: int) -> None:
    pieces = list(zip(part.addresses[first:last], part.sizes[first:last], strict=True))
    system.write_pieces_at(fd, pieces, offset)


def _write_range(
    part: Strided,
    kernels: ModuleType,
    arrays: tuple[np.ndarray, np.ndarray],
    first: int,
    last: int,
    fd: int,
) -> None:
    unit = kernels.UNITS[part.width]
    address = _staging()
    _check(kernels.write_range(fd, part.offset, part.address, *arrays, first, last, address, STAGING, unit))


def _write_tiled(
    part: Strided,
    kernels: ModuleType,
    arrays: tuple[np.ndarray, np.ndarray],
    axis: int,
    box: tuple[int, ...],
    fd: int,
) -> None:
    unit = kernels.UNITS[part.width]
    address, corners = _staging(), np.array(box, dtype=np.int64)
    _check(kernels.write_tiled(fd, part.offset, part.address, *arrays, axis, corners, address, STAGING, unit))


def _check(code: int) -> None:
    if code:
        raise OSError(code, os.strerror(code))


def _write_array(chunk: np.ndarray, offset: int, fd: int) -> None:
    block = np.ascontiguousarray(chunk)
    system.write_at(fd, block.ctypes.data, block.nbytes, offset)


def _write_chunk(chunk: torch.Tensor, dtype: torch.dtype, offset: int, fd: int) -> None:
    if chunk.device.type == "cuda":
        block = _from_cuda(chunk.to(dtype) if chunk.dtype != dtype else chunk)
    else:
        block = chunk.to(device="cpu", dtype=dtype)
    block = block.resolve_conj().resolve_neg().contiguous()
    system.write_at(fd, block.data_ptr(), block.nbytes, offset)


def _from_cuda(chunk: torch.Tensor) -> torch.Tensor:
    """Brings a chunk to this thread's pinned block, on this thread's stream: others write while this one transfers."""
    streams = getattr(_local, "streams", None)
    if streams is None:
        streams = _local.streams = {}
        _local.pinned = torch.empty(JOB, dtype=torch.uint8, pin_memory=True)
    stream = streams.get(chunk.device)
    if stream is None:
        stream = streams[chunk.device] = torch.cuda.Stream(chunk.device)  # type: ignore[no-untyped-call]
    # What ran on the thread's own stream (a dtype change) comes first; the caller's work was waited for.
    stream.wait_stream(torch.cuda.current_stream(chunk.device))
    with torch.cuda.stream(stream):
        dense = chunk.resolve_conj().resolve_neg().contiguous()
        block: torch.Tensor = _local.pinned[: dense.nbytes].view(dense.dtype).view(dense.shape)
        block.copy_(dense, non_blocking=True)
    stream.synchronize()
    return block
