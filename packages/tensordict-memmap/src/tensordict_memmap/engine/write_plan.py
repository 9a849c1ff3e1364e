"""Write plans: the files of a save and their ranges, split into jobs of a few megabytes that several threads run.

A plan is a list of files, and a file is a list of ranges. A job moves at most 4 MiB (``jobs.py``), and the jobs of the
largest files run first. Each thread works on a separate file while there are enough files, because threads that write
one file wait for each other in the operating system (``sink.py``). Measurements led to these methods (``tuning.py``):

- A new file is filled by positional writes into reserved blocks, which is two to five times faster than writing through
  a new mapping, where page faults take longer than the copy.
- Contiguous memory is written without a copy, other memory through a staging block that fits in the cache.
- Pages that are already in memory are written through their mapping, at memory speed (``tensor/update.py``).
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType

import numpy as np
import torch

from tensordict_core.extension import gc_paused
from tensordict_memmap.engine import executor, syscalls
from tensordict_memmap.engine.checksums import Extent, hash_bytes
from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.engine.direct import DirectFile
from tensordict_memmap.engine.gpu import finish_device_work
from tensordict_memmap.engine.jobs import Part, Write, cut_into_jobs
from tensordict_memmap.engine.sink import Sink, error_context
from tensordict_memmap.engine.sources import Contiguous, FileRange, Run, Scattered, Strided, ViaTorch, classify
from tensordict_memmap.engine.tuning import DIRECT_FILE_MIN, DISK_THREADS, SMALL_FILE, load_kernels


@dataclass(slots=True)
class FileWrite:
    """A file to write.

    Args:
        path: The file.
        ranges: The ranges to write, in any order, without overlap.
        size: The size of the whole file in bytes; None ends it after its last range.
        fresh: Whether the file is created or truncated first. False overwrites it in place, truncates or extends it to
            ``size``, and keeps the inode, so that live mappings of it stay connected.
        shared: Whether the file exists with its full size, and other processes write its other ranges: it is opened
            and neither created, truncated nor extended.
        maps: Whether blocks of a shared file are reserved on a disk of this machine, so that threads may copy into
            mappings of it.
        extents: The ranges of the file that get a checksum.
        direct: Whether a durable save may bypass the page cache, because the file is not mapped immediately.
        key: The key for errors if there are no ranges.
    """

    path: str | os.PathLike[str]
    ranges: Sequence[FileRange | Run | Scattered]
    size: int | None = None
    fresh: bool = True
    extents: Sequence[Extent] = ()
    key: object = None
    shared: bool = False
    maps: bool = False
    direct: bool = False


@dataclass(slots=True)
class _Open:
    """An output file while its jobs run: the first job opens it, the last one closes it.

    If jobs fail, `close` does, once all of them have ended: the error refers to the file, and its blocks stay in use
    as long as it is open.
    """

    write: FileWrite
    size: int
    durable: bool
    jobs: int = 0
    sink: Sink | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self) -> Sink:
        with self.lock:
            if self.sink is None:
                self.sink = self._open()
                if self.durable and self.write.direct and self.size >= DIRECT_FILE_MIN:
                    with contextlib.suppress(OSError):  # then through the page cache
                        self.sink.direct = DirectFile(self.write.path, self.sink.fd)
            return self.sink

    def _open(self) -> Sink:
        if self.write.shared:
            flags = os.O_RDWR | syscalls.BINARY | syscalls.NO_LINK
            return Sink(Descriptor(os.open, self.write.path, flags), maps=self.write.maps)
        sink = Sink(_create(self.write.path, os.O_TRUNC if self.write.fresh else 0))
        if (
            not self.write.fresh
            or not self.write.ranges
            or (self.size >= SMALL_FILE and not sink.reserve(0, self.size))
        ):
            os.ftruncate(sink.fd, self.size)
        return sink

    def leave(self) -> None:
        with self.lock:
            self.jobs -= 1
            if self.jobs == 0 and self.sink is not None:
                if self.durable:
                    os.fsync(self.sink.fd)
                self.close()

    def close(self) -> None:
        sink, self.sink = self.sink, None
        if sink is not None and sink.direct is not None:
            sink.direct.close()
        if sink is not None and isinstance(sink.file, Descriptor):
            sink.file.close()


def _create(path: str | os.PathLike[str], flags: int) -> Descriptor:
    """Open a file for writing; create the file and its folder if they are absent."""
    flags |= os.O_RDWR | os.O_CREAT | syscalls.BINARY
    try:
        return Descriptor(os.open, path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return Descriptor(os.open, path, flags, 0o666)


def write_files(
    files: Sequence[FileWrite],
    *,
    threads: int | None = None,
    durable: bool = False,
    progress: Callable[[int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> None:
    """Write files from tensors in parallel, with less than 64 MiB of additional memory.

    Args:
        files: The files with their ranges. Missing folders are created.
        threads: The number of threads; chosen for the machine if None or 0.
        durable: Whether to sync each file to disk. More threads are used then, because disks process many requests at
            once.
        progress: A function that is called with the number of bytes just written, from any of the threads.
        cancelled: A function that is called between jobs; once it returns True, the call stops.

    Raises:
        OSError: A write fails, for example because the disk is full; the error names the key and the file. Files that
            were written before stay; ``storage/transaction.py`` makes a save atomic.
        concurrent.futures.CancelledError: ``cancelled`` returned True.
        TypeError: A source is not strided memory (sparse, meta, nested); nothing was written.

    >>> write_files([FileWrite("x.bin", [FileRange("x", torch.tensor([[1, 2], [3, 4]], dtype=torch.int8).T)])])
    >>> np.fromfile("x.bin", dtype=np.int8).tolist()
    [1, 3, 2, 4]
    """
    with torch._C.DisableTorchFunctionSubclass(), gc_paused():
        planned = [
            (write, [part if isinstance(part, Run | Scattered) else classify(part) for part in write.ranges])
            for write in files
        ]
    kernels = _kernels_for(part for _, parts in planned for part in parts)
    finish_device_work(part.tensor for _, parts in planned for part in parts if isinstance(part, ViaTorch | Scattered))

    opened: list[_Open] = []
    queues: list[tuple[int, Sequence[executor.Job]]] = []
    short: list[_Short] = []
    for write, parts in planned:
        if (one := _as_short(write, parts)) is not None:
            short.append(one)
        else:
            file, jobs = _file_jobs(write, parts, kernels, durable, progress)
            opened.append(file)
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
        for file in opened:  # no job runs any more, whatever was raised
            file.close()
    if unread := _unread_blocks(files):
        executor.run(unread, threads=threads, cancelled=cancelled)


_Cut = tuple[object, Write | None, int]
"""A job: the key for errors, the function that writes it (None for a file without ranges), and its size in bytes."""

_Short = tuple[FileWrite, Contiguous | None]
_BATCH = 32
"""The number of small files that one job writes, so that its overhead is small compared with creating the files."""


def _as_short(write: FileWrite, parts: Sequence[Part]) -> _Short | None:
    """Return a new file that is one small tensor or a hole, of which one job writes many; None of other files."""
    if not write.fresh or write.shared or len(parts) > 1:
        return None
    if not parts:
        return None if write.extents else (write, None)
    part = parts[0]
    is_whole = write.size in (None, part.nbytes) and not part.offset
    return (write, part) if isinstance(part, Contiguous) and part.nbytes < SMALL_FILE and is_whole else None


def _file_jobs(
    write: FileWrite,
    parts: Sequence[Part],
    kernels: ModuleType | None,
    durable: bool,
    progress: Callable[[int], None] | None,
) -> tuple[_Open, Sequence[executor.Job]]:
    """Return an output file, which its first job opens, and the jobs that write it."""
    end = max((part.offset + part.nbytes for part in parts), default=0)
    file = _Open(write, end if write.size is None else write.size, durable)
    cut: list[_Cut] = list(cut_into_jobs(parts, kernels, {extent.offset: extent for extent in write.extents}))
    file.jobs = len(cut) or 1
    return file, [functools.partial(_run_job, file, *job, progress) for job in cut or [(write.key, None, 0)]]


def _unread_blocks(files: Iterable[FileWrite]) -> list[list[executor.Job]]:
    """Return jobs that hash the blocks that no job could hash while it wrote them, one queue for each file."""
    return [
        [functools.partial(_read_back, write, extent, *block) for extent in write.extents for block in extent.missing()]
        for write in files
        if write.extents
    ]


def _write_short(files: Sequence[_Short], durable: bool, progress: Callable[[int], None] | None) -> None:
    """Write files of one small tensor each, and files that are holes."""
    for write, part in files:
        try:
            _write_whole(write, part, durable)
        except OSError:
            with error_context(write.key if part is None else part.key, write.path):
                raise
        if part is None:
            continue
        for extent in write.extents:
            if part.nbytes and (extent.offset, extent.nbytes) == (0, part.nbytes):
                extent.put(0, hash_bytes(syscalls.view(part.address, part.nbytes)))
        if progress is not None:
            progress(part.nbytes)


def _write_whole(write: FileWrite, part: Contiguous | None, durable: bool) -> None:
    file = _create(write.path, os.O_TRUNC)
    try:  # a third of the time of a with block
        fd = file.fileno()
        if part is None:
            os.ftruncate(fd, write.size or 0)
        else:
            syscalls.write_at(fd, part.address, part.nbytes, 0)
        if durable:
            os.fsync(fd)
    finally:
        file.close()


def _read_back(write: FileWrite, extent: Extent, start: int, nbytes: int) -> None:
    """Hash a block that jobs could not hash: it has several sources, or was not written sequentially."""
    with Descriptor(os.open, write.path, os.O_RDONLY | syscalls.BINARY) as file:
        extent.read_back(file.fileno(), start, nbytes)


def write_into(
    targets: Sequence[tuple[Sink, FileRange]],
    *,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write ranges into open files in parallel; ranges may overwrite or extend their content.

    Args:
        targets: Pairs of a file and a range to write there; several pairs may have the same file.
        threads: The number of threads; chosen for the machine if None or 0.
        progress: A function that is called with the number of bytes just written, from any of the threads.

    Raises:
        OSError: A write fails; the error names the key. Ranges that were written before stay.
    """
    with torch._C.DisableTorchFunctionSubclass():
        planned = [(sink, classify(part)) for sink, part in targets]
    kernels = _kernels_for(part for _, part in planned)
    finish_device_work(part.tensor for _, part in planned if isinstance(part, ViaTorch))
    files: dict[int, tuple[Sink, list[Contiguous | Strided | ViaTorch]]] = {}
    for sink, part in planned:
        files.setdefault(sink.fd, (sink, []))[1].append(part)
    queues = [
        [functools.partial(_run_into, sink, *job, progress) for job in cut_into_jobs(parts, kernels)]
        for sink, parts in sorted(files.values(), key=lambda file: -sum(part.nbytes for part in file[1]))
    ]
    executor.run(queues, threads=threads)


def _kernels_for(parts: Iterable[Part]) -> ModuleType | None:
    strided = [part for part in parts if isinstance(part, Strided)]
    return load_kernels(sum(part.nbytes for part in strided), {part.width for part in strided})


def _run_into(sink: Sink, key: object, write: Write, nbytes: int, progress: Callable[[int], None] | None) -> None:
    with error_context(key):
        write(sink)
    if progress is not None:
        progress(nbytes)


def _run_job(
    file: _Open, key: object, write: Write | None, nbytes: int, progress: Callable[[int], None] | None
) -> None:
    try:
        sink = file.enter()
    except OSError:  # the file could not be opened or reserved: name its largest tensor
        with error_context(_largest_key(file.write), file.write.path):
            raise
    with error_context(key, file.write.path):
        if write is not None:
            write(sink)
        file.leave()
    if progress is not None and nbytes:
        progress(nbytes)


def _largest_key(write: FileWrite) -> object:
    """Return the key of the largest range of a file."""
    sizes: list[tuple[int, object]] = []
    for part in write.ranges:
        if isinstance(part, Run):
            sizes += zip(part.sizes, part.keys, strict=True)
        elif isinstance(part, Scattered):
            sizes.append((part.nbytes, part.key))
        else:
            source = part.source
            nbytes = source.nbytes if isinstance(source, torch.Tensor | np.ndarray) else len(source)
            sizes.append((nbytes, part.key))
    return max(sizes, key=lambda found: found[0], default=(0, write.key))[1]
