"""Reads: reads boxes of saved tensors into memory, without the bytes between them.

Runs of bytes that are long enough are read from the file straight into the destination. Short ones are copied from a
mapping of the file, whose pages hold the bytes between them anyway.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch

from tensordict_memmap.distributed.plan import Box
from tensordict_memmap.distributed.write import byte_strides
from tensordict_memmap.engine import executor, syscalls
from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.engine.scatter import run_offsets
from tensordict_memmap.engine.sink import error_context
from tensordict_memmap.engine.sources import Scattered, chunks
from tensordict_memmap.engine.tuning import JOB_BYTES
from tensordict_memmap.schema.dtypes import reach
from tensordict_memmap.tensor.mapping import Mapping

READ_RUN_MIN = 16 << 10
"""A run of at least this many bytes is read by its own system call; a shorter one is copied from a mapping."""


class Saved(NamedTuple):
    """A saved tensor: its file, the offset of its first byte there, its dtype and shape."""

    path: str
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(slots=True)
class Read:
    """A box to read.

    Args:
        key: The name in errors.
        saved: The tensor in its file.
        box: The part to read.
        out: The target: a contiguous CPU tensor of the size of the box and of the dtype of the file.
    """

    key: object
    saved: Saved
    box: Box
    out: torch.Tensor


@dataclass(slots=True)
class Count:
    """The number of bytes that reads took from files."""

    nbytes: int = 0


def read_ranges(
    reads: Iterable[Read],
    *,
    check: Callable[[str, int], None] | None = None,
    count: Count | None = None,
) -> None:
    """Read boxes of saved tensors into memory, in parallel.

    Args:
        reads: The boxes.
        check: A function that is called with the path and the descriptor of each file, to refuse one that was replaced.
        count: Counts the bytes that are read.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file is too short; the error names the key.

    >>> with open("rows.bin", "wb") as file:
    ...     _ = file.write(bytes(range(12)))
    >>> out = torch.empty(2, 2, dtype=torch.uint8)
    >>> saved = Saved(os.path.abspath("rows.bin"), 0, torch.uint8, (3, 4))
    >>> read_ranges([Read("x", saved, Box((1, 2), (2, 2)), out)])
    >>> out.tolist()
    [[6, 7], [10, 11]]
    """
    by_file: dict[str, list[Read]] = {}
    for read in reads:
        if read.out.numel():
            by_file.setdefault(read.saved.path, []).append(read)
    for path, wanted in by_file.items():
        with error_context(_name(wanted[0].key), path):
            file = Descriptor(os.open, path, os.O_RDONLY | syscalls.BINARY | syscalls.NO_WAIT)
        with file:
            fd = file.fileno()
            if check is not None:
                check(path, fd)
            _check_size(fd, path, wanted)
            jobs = [job for read in wanted for job in _jobs(fd, path, read)]
            if count is not None:
                count.nbytes += sum(read.out.nbytes for read in wanted)
            executor.run([jobs])


def _check_size(fd: int, path: str, reads: Iterable[Read]) -> None:
    size = os.fstat(fd).st_size
    for read in reads:
        needed = read.saved.offset + prod(read.saved.shape) * read.saved.dtype.itemsize
        if size < needed:
            raise ValueError(
                f"{path} has {size} bytes, and {read.key!r} ends at byte {needed}; the file is truncated: get it again"
            )


def _name(key: object) -> Any:
    return key[0] if isinstance(key, tuple) and len(key) == 1 else key


def _jobs(fd: int, path: str, read: Read) -> Iterator[executor.Job]:
    saved, out = read.saved, read.out
    strides = byte_strides(saved.shape, saved.dtype.itemsize)
    start = saved.offset + sum(first * step for first, step in zip(read.box.offset, strides, strict=True))
    part = Scattered(read.key, out, start, strides)
    outer, run = part.run()
    address, runs = out.data_ptr(), out.nbytes // run
    if runs == 1:
        first = run_offsets(part, outer, 0, 1)[0]
        for position in range(0, run, JOB_BYTES):
            nbytes = min(JOB_BYTES, run - position)
            yield partial(syscalls.read_into, fd, address + position, nbytes, first + position, path)
    elif run >= READ_RUN_MIN:
        most = max(JOB_BYTES // run, 1)
        for first in range(0, runs, most):
            yield partial(_read_runs, fd, path, part, outer, run, first, min(most, runs - first))
    else:
        # a window of the mapping is wider than what is copied from it, by the ratio of the rows
        most = max(JOB_BYTES * run // max(strides[outer - 1], 1), 1 << 18)
        for chunk, number in chunks(out, saved.dtype.itemsize, most):
            place = np.unravel_index(number, out.shape)
            offset = start + sum(int(index) * step for index, step in zip(place, strides, strict=True))
            yield partial(_copy_short_runs, fd, path, chunk, offset, strides)


def _read_runs(fd: int, path: str, part: Scattered, outer: int, run: int, first: int, count: int) -> None:
    address = part.tensor.data_ptr() + first * run
    for offset in run_offsets(part, outer, first, count):
        syscalls.read_into(fd, address, run, offset, path)
        address += run


def _copy_short_runs(fd: int, path: str, out: torch.Tensor, start: int, strides: Sequence[int]) -> None:
    """Copy a part of a tensor from a mapping of the span that holds it."""
    width, size = out.element_size(), tuple(out.shape)
    end = start + reach(size, strides) - 1 + width
    base = start - start % syscalls.PAGE
    mapping = Mapping(fd, path, end - base, offset=base, mode="r")
    # as bytes, since the first element need not be aligned to its width
    span = torch.frombuffer(mapping.buffer, dtype=torch.uint8)[start - base :]
    bits = out.unsqueeze(-1).view(torch.uint8)
    bits.copy_(span.as_strided((*size, width), (*strides, 1)))
