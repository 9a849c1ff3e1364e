"""Transfers: a save is a plan, cut into jobs of a few megabytes that several threads run.

The plan is a list of files, a file a list of pieces. Pieces are cut into jobs of at most 4 MiB, those of the biggest
files first; what lies side by side in a file is cut as one (``segments.py``). Threads keep to files of their own while
there are any, because two that write one file wait for each other in the kernel, or go two ways (``sink.py``). What
was measured decides how bytes move:

- a new file is filled by positional writes into blocks that were reserved first, two to five times faster than through
  a fresh mapping, where a page fault a page costs more than the copy;
- memory is written from where it lies, or through a staging block of cache size (``steps.py``);
- pages that are in memory already are copied to through their mapping (``update.py``), which runs at memory speed.

``tuning.py`` holds those choices.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType

import numpy as np
import torch

from tensordict_memmap.engine import executor, syscalls
from tensordict_memmap.engine.checksums import Extent, hash_bytes
from tensordict_memmap.engine.gc_paused import gc_paused
from tensordict_memmap.engine.jobs import Step, finish_device_work, steps
from tensordict_memmap.engine.sink import Sink, error_context
from tensordict_memmap.engine.sources import Contiguous, FileRange, Run, Strided, ViaTorch, classify
from tensordict_memmap.engine.tuning import SMALL, WAITING, load_kernels

__all__ = ["FileWrite", "write_files", "write_into"]


@dataclass(slots=True)
class FileWrite:
    """A file to write.

    Args:
        path: where.
        pieces: what, in any order, not overlapping.
        size: bytes of the whole file; None ends it behind its last piece.
        fresh: whether the file is created or emptied first; False overwrites in place and keeps the inode, for those
            who share live mappings of it, and cuts or extends it to ``size``.
        key: what errors name where there are no pieces.
    """

    path: str | os.PathLike[str]
    pieces: Sequence[FileRange | Run]
    size: int | None = None
    fresh: bool = True
    extents: Sequence[Extent] = ()
    key: object = None


@dataclass(slots=True)
class _Open:
    """A file while its jobs run: opened by the first that needs it, closed by the last."""

    write: FileWrite
    size: int
    durable: bool
    jobs: int = 0
    sink: Sink | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self) -> Sink:
        with self.lock:
            if self.sink is None:
                self.sink = Sink(_create(self.write.path, os.O_TRUNC if self.write.fresh else 0))
                if (
                    not self.write.fresh
                    or not self.write.pieces
                    or (self.size >= SMALL and not self.sink.reserve(0, self.size))
                ):
                    os.ftruncate(self.sink.fd, self.size)
            return self.sink

    def leave(self) -> None:
        with self.lock:
            self.jobs -= 1
            if self.jobs == 0 and self.sink is not None:
                if self.durable:
                    os.fsync(self.sink.fd)
                self.close()

    def close(self) -> None:
        if self.sink is not None:
            fd, self.sink = self.sink.fd, None
            os.close(fd)


def _create(path: str | os.PathLike[str], flags: int) -> int:
    """Opens a file to write to. It is made where it is absent, and its folder too, so that threads share that work."""
    flags |= os.O_RDWR | os.O_CREAT | syscalls.BINARY
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, 0o666)


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
        files: the files with their pieces. Folders are made where they are absent.
        threads: how many threads write, a good number for this machine if None or 0.
        durable: whether each file is on the disk, not just in the page cache, when this returns. More threads then wait
            for it at once, because a disk works on many requests together.
        progress: called with the number of bytes that just went out, from any of the threads.
        cancelled: asked between jobs; once it says True the call stops.

    Raises:
        OSError: if the system refuses, a full disk among them; it names the key and the file. What was written
            until then stays: who needs all or nothing writes into a staging folder (``commit.py``).
        concurrent.futures.CancelledError: if ``cancelled`` stopped it.
        TypeError: if a source is not strided memory (sparse, meta, nested), before anything is written.

    >>> write_files([FileWrite("x.bin", [FileRange("x", torch.tensor([[1, 2], [3, 4]], dtype=torch.int8).T)])])
    >>> np.fromfile("x.bin", dtype=np.int8).tolist()
    [1, 3, 2, 4]
    """
    with torch._C.DisableTorchFunctionSubclass(), gc_paused():
        planned = [
            (write, [piece if isinstance(piece, Run) else classify(piece) for piece in write.pieces]) for write in files
        ]
    kernels = _kernels_for(part for _, parts in planned for part in parts)
    finish_device_work(part.tensor for _, parts in planned for part in parts if isinstance(part, ViaTorch))

    opened: list[_Open] = []
    lanes: list[tuple[int, list[executor.Job]]] = []
    short: list[_Short] = []
    for write, parts in planned:
        first = parts[0] if len(parts) == 1 and write.fresh else None
        if (
            isinstance(first, Contiguous)
            and first.nbytes < SMALL
            and write.size in (None, first.nbytes)
            and not first.offset
        ):
            short.append((write, first))
            continue
        if not parts and write.fresh and not write.extents:
            short.append((write, None))
            continue
        end = max((part.offset + part.nbytes for part in parts), default=0)
        file = _Open(write, end if write.size is None else write.size, durable)
        opened.append(file)
        cut = list(steps(parts, kernels, {extent.offset: extent for extent in write.extents}))
        file.jobs = len(cut) or 1
        jobs: list[executor.Job] = []
        jobs.extend(functools.partial(_run_step, file, key, step, nbytes, progress) for key, step, nbytes in cut)
        lanes.append((file.size, jobs or [functools.partial(_run_step, file, write.key, None, 0, progress)]))
    lanes.sort(key=lambda lane: -lane[0])
    lanes += [
        (0, [functools.partial(_write_short, short[start : start + _BATCH], durable, progress)])
        for start in range(0, len(short), _BATCH)
    ]
    if durable and not threads:
        threads = max(executor.default_threads(), WAITING)
    try:
        executor.run([jobs for _, jobs in lanes], threads=threads, cancelled=cancelled)
    finally:
        for file in opened:
            file.close()
    missed = [(write, [(extent, *block) for extent in write.extents for block in extent.missing()]) for write in files]
    executor.run(
        [[functools.partial(_read_back, write, *block) for block in blocks] for write, blocks in missed if blocks],
        threads=threads,
        cancelled=cancelled,
    )


_Short = tuple[FileWrite, Contiguous | None]
_BATCH = 32
"""Short files that a job writes: what a job costs is then little beside what a file costs."""


def _write_short(files: Sequence[_Short], durable: bool, progress: Callable[[int], None] | None) -> None:
    """Writes whole files that are one short piece each, or room that takes no blocks."""
    for write, part in files:
        with error_context(write.key if part is None else part.key, write.path):
            fd = _create(write.path, os.O_TRUNC)
            try:
                if part is None:
                    os.ftruncate(fd, write.size or 0)
                else:
                    syscalls.write_at(fd, part.address, part.nbytes, 0)
                if durable:
                    os.fsync(fd)
            finally:
                os.close(fd)
        if part is None:
            continue
        for extent in write.extents:
            if part.nbytes and (extent.offset, extent.nbytes) == (0, part.nbytes):
                extent.put(0, hash_bytes(syscalls.view(part.address, part.nbytes)))
        if progress is not None:
            progress(part.nbytes)


def _read_back(write: FileWrite, extent: Extent, start: int, nbytes: int) -> None:
    """Hashes what no step could: a block that is made of several pieces, or was not written from front to back."""
    fd = os.open(write.path, os.O_RDONLY | syscalls.BINARY)
    try:
        extent.read_back(fd, start, nbytes)
    finally:
        os.close(fd)


def write_into(targets: Sequence[tuple[Sink, FileRange]], *, threads: int | None = None) -> None:
    """Writes pieces into files that are open already, over what is there or behind it, in parallel.

    Args:
        targets: files, each with what to write there; a file may come several times.
        threads: how many threads write, a good number for this machine if None or 0.

    Raises:
        OSError: if the system refuses; it names the key. What was written until then stays.
    """
    with torch._C.DisableTorchFunctionSubclass():
        planned = [(sink, classify(piece)) for sink, piece in targets]
    kernels = _kernels_for(part for _, part in planned)
    finish_device_work(part.tensor for _, part in planned if isinstance(part, ViaTorch))
    files: dict[int, tuple[Sink, list[Contiguous | Strided | ViaTorch]]] = {}
    for sink, part in planned:
        files.setdefault(sink.fd, (sink, []))[1].append(part)
    lanes = [
        [functools.partial(_run_into, sink, key, step) for key, step, _ in steps(parts, kernels)]
        for sink, parts in sorted(files.values(), key=lambda file: -sum(part.nbytes for part in file[1]))
    ]
    executor.run(lanes, threads=threads)


def _kernels_for(parts: Iterable[Contiguous | Run | Strided | ViaTorch]) -> ModuleType | None:
    strided = [part for part in parts if isinstance(part, Strided)]
    return load_kernels(sum(part.nbytes for part in strided), {part.width for part in strided})


def _run_into(sink: Sink, key: object, step: Step) -> None:
    with error_context(key):
        step(sink)


def _run_step(file: _Open, key: object, step: Step | None, nbytes: int, progress: Callable[[int], None] | None) -> None:
    try:
        sink = file.enter()
    except OSError:  # the system refused the whole file, and the largest tensor has most to do with it
        with error_context(_largest_key(file.write), file.write.path):
            raise
    with error_context(key, file.write.path):
        if step is not None:
            step(sink)
        file.leave()
    if progress is not None and nbytes:
        progress(nbytes)


def _largest_key(write: FileWrite) -> object:
    """The key of the largest of the ranges of a file."""
    sizes: list[tuple[int, object]] = []
    for part in write.pieces:
        if isinstance(part, Run):
            sizes += zip(part.sizes, part.keys, strict=True)
        else:
            source = part.source
            nbytes = source.nbytes if isinstance(source, torch.Tensor | np.ndarray) else len(source)
            sizes.append((nbytes, part.key))
    return max(sizes, key=lambda found: found[0], default=(0, write.key))[1]
