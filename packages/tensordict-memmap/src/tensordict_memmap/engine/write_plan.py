"""Write plans: the files of a save with their ranges, cut into jobs of a few megabytes that several threads run.

A plan is a list of files, and a file is a list of ranges. Jobs move at most 4 MiB (``jobs.py``), and those of the
largest files run first. Each thread keeps to a file of its own while there are enough files, because threads that write
one file wait for each other in the kernel, or fill it in two ways (``sink.py``). Measurements decide how bytes move:

- A new file is filled by positional writes into blocks that are reserved first, which is two to five times faster than
  a new mapping, where page faults take longer than the copy.
- Contiguous memory is written from where it lies, other memory through a staging block of cache size.
- Pages that are in memory already are written through their mapping, at memory speed (``tensor/update.py``).

``tuning.py`` holds these choices.
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
from tensordict_memmap.engine.jobs import Write, cut_into_jobs, finish_device_work
from tensordict_memmap.engine.sink import Sink, error_context
from tensordict_memmap.engine.sources import Contiguous, FileRange, Run, Strided, ViaTorch, classify
from tensordict_memmap.engine.tuning import DISK_THREADS, SMALL_FILE, load_kernels

__all__ = ["FileWrite", "write_files", "write_into"]


@dataclass(slots=True)
class FileWrite:
    """A file to write.

    Args:
        path: the file.
        ranges: what to write, in any order, without overlap.
        size: the bytes of the whole file; None ends it behind its last range.
        fresh: whether the file is created or emptied first. False overwrites it in place, cuts or extends it to
            ``size``, and keeps the inode, so that live mappings of it stay connected.
        extents: the parts of the file that get a checksum.
        key: the key that errors name where there are no ranges.
    """

    path: str | os.PathLike[str]
    ranges: Sequence[FileRange | Run]
    size: int | None = None
    fresh: bool = True
    extents: Sequence[Extent] = ()
    key: object = None


@dataclass(slots=True)
class _Open:
    """A file while its jobs run: the first job opens it, the last one closes it."""

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
                    or not self.write.ranges
                    or (self.size >= SMALL_FILE and not self.sink.reserve(0, self.size))
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
    """Opens a file for writing, and makes it and its folder where absent, in the thread that needs it."""
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
        files: the files with their ranges. Absent folders are made.
        threads: the number of threads; None or 0 is a good number for this machine.
        durable: whether each file is on the disk, not just in the page cache, when this returns. More threads wait for
            it then, because a disk works on many requests together.
        progress: called with the number of bytes that were just written, from any of the threads.
        cancelled: called between jobs; once it returns True, the call stops.

    Raises:
        OSError: The system refuses a write, for a full disk among other reasons; the error names the key and the file.
            What was written before stays: all or nothing needs a staging folder (``storage/transaction.py``).
        concurrent.futures.CancelledError: ``cancelled`` returned True.
        TypeError: A source is not strided memory (sparse, meta, nested); nothing was written.

    >>> write_files([FileWrite("x.bin", [FileRange("x", torch.tensor([[1, 2], [3, 4]], dtype=torch.int8).T)])])
    >>> np.fromfile("x.bin", dtype=np.int8).tolist()
    [1, 3, 2, 4]
    """
    with torch._C.DisableTorchFunctionSubclass(), gc_paused():
        planned = [
            (write, [part if isinstance(part, Run) else classify(part) for part in write.ranges]) for write in files
        ]
    kernels = _kernels_for(part for _, parts in planned for part in parts)
    finish_device_work(part.tensor for _, parts in planned for part in parts if isinstance(part, ViaTorch))

    opened: list[_Open] = []
    queues: list[tuple[int, Sequence[executor.Job]]] = []
    short: list[_Short] = []
    for write, parts in planned:
        first = parts[0] if len(parts) == 1 and write.fresh else None
        if (
            isinstance(first, Contiguous)
            and first.nbytes < SMALL_FILE
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
        cut: list[_Cut] = list(cut_into_jobs(parts, kernels, {extent.offset: extent for extent in write.extents}))
        file.jobs = len(cut) or 1
        jobs = [functools.partial(_run_job, file, *job, progress) for job in cut or [(write.key, None, 0)]]
        queues.append((file.size, jobs))
    queues.sort(key=lambda queue: -queue[0])
    queues += [
        (0, [functools.partial(_write_short, short[start : start + _BATCH], durable, progress)])
        for start in range(0, len(short), _BATCH)
    ]
    if durable and not threads:
        threads = max(executor.default_threads(), DISK_THREADS)
    try:
        executor.run([jobs for _, jobs in queues], threads=threads, cancelled=cancelled)
    finally:
        for file in opened:
            file.close()
    missed = [(write, [(extent, *block) for extent in write.extents for block in extent.missing()]) for write in files]
    executor.run(
        [[functools.partial(_read_back, write, *block) for block in blocks] for write, blocks in missed if blocks],
        threads=threads,
        cancelled=cancelled,
    )


_Cut = tuple[object, Write | None, int]
"""A job: the key that errors name, the function that writes it, None for a file without ranges, and its bytes."""

_Short = tuple[FileWrite, Contiguous | None]
_BATCH = 32
"""Small files that one job writes, so that starting the job takes little time beside making the files."""


def _write_short(files: Sequence[_Short], durable: bool, progress: Callable[[int], None] | None) -> None:
    """Writes files of one small tensor each, and files of zeros that take no blocks."""
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
    """Hashes a block that no job could: it has several sources, or was not written from front to back."""
    fd = os.open(write.path, os.O_RDONLY | syscalls.BINARY)
    try:
        extent.read_back(fd, start, nbytes)
    finally:
        os.close(fd)


def write_into(targets: Sequence[tuple[Sink, FileRange]], *, threads: int | None = None) -> None:
    """Writes ranges into files that are open already, over their content or behind it, in parallel.

    Args:
        targets: pairs of a file and a range to write there; a file may come several times.
        threads: the number of threads; None or 0 is a good number for this machine.

    Raises:
        OSError: The system refuses a write; the error names the key. What was written before stays.
    """
    with torch._C.DisableTorchFunctionSubclass():
        planned = [(sink, classify(part)) for sink, part in targets]
    kernels = _kernels_for(part for _, part in planned)
    finish_device_work(part.tensor for _, part in planned if isinstance(part, ViaTorch))
    files: dict[int, tuple[Sink, list[Contiguous | Strided | ViaTorch]]] = {}
    for sink, part in planned:
        files.setdefault(sink.fd, (sink, []))[1].append(part)
    queues = [
        [functools.partial(_run_into, sink, key, write) for key, write, _ in cut_into_jobs(parts, kernels)]
        for sink, parts in sorted(files.values(), key=lambda file: -sum(part.nbytes for part in file[1]))
    ]
    executor.run(queues, threads=threads)


def _kernels_for(parts: Iterable[Contiguous | Run | Strided | ViaTorch]) -> ModuleType | None:
    strided = [part for part in parts if isinstance(part, Strided)]
    return load_kernels(sum(part.nbytes for part in strided), {part.width for part in strided})


def _run_into(sink: Sink, key: object, write: Write) -> None:
    with error_context(key):
        write(sink)


def _run_job(
    file: _Open, key: object, write: Write | None, nbytes: int, progress: Callable[[int], None] | None
) -> None:
    try:
        sink = file.enter()
    except OSError:  # the system refused the whole file: name its largest tensor
        with error_context(_largest_key(file.write), file.write.path):
            raise
    with error_context(key, file.write.path):
        if write is not None:
            write(sink)
        file.leave()
    if progress is not None and nbytes:
        progress(nbytes)


def _largest_key(write: FileWrite) -> object:
    """The key of the largest of the ranges of a file."""
    sizes: list[tuple[int, object]] = []
    for part in write.ranges:
        if isinstance(part, Run):
            sizes += zip(part.sizes, part.keys, strict=True)
        else:
            source = part.source
            nbytes = source.nbytes if isinstance(source, torch.Tensor | np.ndarray) else len(source)
            sizes.append((nbytes, part.key))
    return max(sizes, key=lambda found: found[0], default=(0, write.key))[1]
