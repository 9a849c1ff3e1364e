"""Scatter: writes a part of a tensor whose bytes are not consecutive in the file, such as some columns of a matrix.

Each run of consecutive bytes is one positional write. Short runs are copied into a mapping of the file instead, where
its blocks are reserved on a disk of this machine: two writes to one page from two machines through mappings would
overwrite each other's bytes.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator

import numpy as np
import torch

from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.mapped_range import mapped_range
from tensordict_memmap.engine.sink import Sink
from tensordict_memmap.engine.sources import Scattered, chunks
from tensordict_memmap.engine.tuning import JOB_BYTES, RUN_WRITE_MIN


def scatter_jobs(part: Scattered) -> Iterator[tuple[object, Callable[[Sink], None], int]]:
    """Split a scattered part into jobs; yield the key, the function that writes, and the bytes of each.

    >>> source = torch.arange(6, dtype=torch.uint8).view(3, 2)
    >>> with open("columns.bin", "wb") as file:
    ...     for _, write, _ in scatter_jobs(Scattered("x", source, 1, (4, 1))):
    ...         write(Sink(file.fileno()))
    >>> np.fromfile("columns.bin", dtype=np.uint8).tolist()
    [0, 0, 1, 0, 0, 2, 3, 0, 0, 4, 5]
    """
    outer, run = part.run()
    width = part.tensor.element_size()
    # a chunk ends between runs, since none is split that fits into a job
    for chunk, start in chunks(part.tensor, width, max(JOB_BYTES, run)):
        nbytes = chunk.numel() * width
        yield part.key, functools.partial(_write, part, outer, run, chunk, start * width // run), nbytes


def run_offsets(part: Scattered, outer: int, first: int, count: int) -> list[int]:
    """Return the offsets in the file of ``count`` runs of a part, from number ``first`` in C order.

    >>> run_offsets(Scattered("x", torch.zeros(2, 2, 3), 100, (60, 20, 4)), 2, 1, 3)
    [120, 160, 180]
    """
    places = np.full(count, part.offset, dtype=np.int64)
    numbers = np.arange(first, first + count, dtype=np.int64)
    for dim in range(outer - 1, -1, -1):
        numbers, index = np.divmod(numbers, part.tensor.shape[dim])
        places += index * part.strides[dim]
    found: list[int] = places.tolist()
    return found


def _write(part: Scattered, outer: int, run: int, chunk: torch.Tensor, first: int, file: Sink) -> None:
    block = chunk.detach().cpu().resolve_conj().resolve_neg().contiguous()
    address, nbytes = block.data_ptr(), block.nbytes
    offsets = run_offsets(part, outer, first, nbytes // run)
    if run < RUN_WRITE_MIN and file.maps:
        _copy(file.fd, address, run, offsets)
        return
    data = syscalls.view(address, nbytes)
    for number, offset in enumerate(offsets):
        start = number * run
        if not syscalls.LINUX:
            syscalls.write_at(file.fd, address + start, run, offset)
        elif (done := os.pwrite(file.fd, data[start : start + run], offset)) != run:
            syscalls.write_at(file.fd, address + start + done, run - done, offset + done)


def _copy(fd: int, address: int, run: int, offsets: list[int]) -> None:
    """Copy runs into a mapping of the span of the file that holds them."""
    base, end = min(offsets), max(offsets) + run
    with mapped_range(fd, base, end - base) as mapped:
        steps = {later - earlier for earlier, later in itertools.pairwise(offsets)}
        if len(steps) <= 1:
            step = steps.pop() if steps else run
            syscalls.items(mapped, len(offsets), run, step)[:] = syscalls.items(address, len(offsets), run, run)
            return
        for number, offset in enumerate(offsets):
            syscalls.copy(mapped + offset - base, address + number * run, run)
