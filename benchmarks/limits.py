"""The limit of the machine: the same bytes, files and folders, written by threads without other work.

Blocks are reserved first, and bytes are written by positional writes of 4 MiB, on one thread per core. One thread
writes each file, because two threads that write one file block each other, unless the file has most of the bytes.
Headers and descriptions are made before the clock runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.workloads import Tree, flat
from tensordict_core import TensorDict
from tensordict_memmap.formats.tree import describe, name_files
from tensordict_memmap.schema.node import leaves, nodes
from tensordict_memmap.schema.plan import plan
from tensordict_memmap.storage.manifest import NAME, Entry, Manifest

JOB = 4 << 20
SMALL = 256 << 10
THREADS = os.cpu_count() or 1


@dataclass
class PlainFile:
    """A file and the parts of it, in their order."""

    path: str
    parts: list[memoryview]

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))


def raw(tensor: torch.Tensor) -> memoryview:
    """Returns the bytes of a tensor in the order of a file."""
    return memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def files_of_tree(tree: Tree) -> list[PlainFile]:
    """Returns the files of a save with one file per leaf."""
    node = name_files(plan(TensorDict(tree, [])), tie=False)
    files = []
    for one in nodes(node):
        place = f"{one.folder}/" if one.folder else ""
        files += [PlainFile(place + name, [memoryview(text)]) for name, text in describe(one).items()]
    files += [PlainFile(leaf.file, [raw(leaf.source)]) for leaf in leaves(node) if leaf.source is not None]
    manifest = Manifest({file.path: Entry(file.size) for file in files}).dumps()
    return [*files, PlainFile(NAME, [memoryview(manifest)])]


def one_file(tree: Tree) -> list[PlainFile]:
    """Returns the parts of a save to one file: a header of about the usual length, and all bytes."""
    tensors = [raw(leaf) for _, leaf in flat(tree)]
    return [PlainFile("", [memoryview(bytes(120 * len(tensors))), *tensors])]


def write_plain(files: Sequence[PlainFile], path: Path, *, sync: bool = False) -> None:
    """Writes files below ``path``, or a single file to it."""
    for folder in sorted({os.path.dirname(file.path) for file in files if file.path}):
        os.makedirs(path / folder, exist_ok=True)
    jobs: list[Callable[[], object]] = []
    opened: list[int] = []
    small: list[PlainFile] = []
    total = sum(file.size for file in files)
    for file in sorted(files, key=lambda one: -one.size):
        if file.size < SMALL and len(files) > 1:
            small.append(file)
            continue
        fd = os.open(path / file.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        opened.append(fd)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, file.size)
        segments = _segments(fd, file)
        jobs += segments if 2 * file.size > total else [lambda segments=segments: [segment() for segment in segments]]
    jobs += [_small_files(path, small[first : first + 16], sync) for first in range(0, len(small), 16)]
    try:
        with ThreadPoolExecutor(THREADS) as threads:
            for job in [threads.submit(job) for job in jobs]:
                job.result()
            if sync:
                for job in [threads.submit(os.fsync, fd) for fd in opened]:
                    job.result()
    finally:
        for fd in opened:
            os.close(fd)


def _segments(fd: int, file: PlainFile) -> list[Callable[[], None]]:
    """Divides the data into writes of at most `JOB` bytes that end at multiples of it."""
    jobs: list[Callable[[], None]] = []
    group: list[memoryview] = []
    start = position = 0

    def flush() -> None:
        nonlocal group, start
        if group:
            jobs.append(lambda parts=group, at=start: _write_all(fd, parts, at))
        group, start = [], position

    for part in file.parts:
        while part:
            count = min(len(part), JOB - position % JOB)
            group.append(part[:count])
            part, position = part[count:], position + count
            if position % JOB == 0 or len(group) == 1000:
                flush()
    flush()
    return jobs


def _write_all(fd: int, parts: list[memoryview], offset: int) -> None:
    wanted = sum(map(len, parts))
    done = os.pwritev(fd, parts, offset)
    if done != wanted:
        raise OSError(f"{done} of {wanted} bytes were written")


def _small_files(path: Path, files: list[PlainFile], sync: bool) -> Callable[[], None]:
    def write() -> None:
        for file in files:
            fd = os.open(path / file.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                os.writev(fd, file.parts)
                if sync:
                    os.fsync(fd)
            finally:
                os.close(fd)

    return write
