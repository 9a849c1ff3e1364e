"""Segments: contiguous tensors that are consecutive in a file, written in large aligned ranges.

The page cache uses large pages for large, aligned writes, which makes them faster: by a quarter for tensors of
megabytes, by a third for smaller ones. So a segment is split into jobs at multiples of the job size in the file, not
at the ends of tensors. A job is one system call, or copies into one mapping (``sink.py``).
"""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from xxhash import xxh3_64

from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.checksums import Extent, digits_of_ranges
from tensordict_memmap.engine.sink import Sink
from tensordict_memmap.engine.sources import Contiguous, Run, Scattered, Strided, ViaTorch
from tensordict_memmap.engine.tuning import HASH_BYTES, JOB_BYTES, SMALL_RANGES_BYTES, are_ranges_small


def join_segments(
    parts: Iterable[Contiguous | Run | Scattered | Strided | ViaTorch], extents: Mapping[int, Extent]
) -> Iterator[Segment | Scattered | Strided | ViaTorch]:
    """Join contiguous sources that are consecutive in the file into segments; yield other sources unchanged.

    Args:
        parts: Sources in the order of the file, none of them empty.
        extents: The ranges of the file that get a checksum, by offset.
    """
    joined: list[Contiguous | Run] = []
    end = 0
    for part in parts:
        if joined and (part.offset != end or not isinstance(part, Contiguous | Run)):
            yield Segment(joined, extents)
            joined = []
        if isinstance(part, Contiguous | Run):
            joined.append(part)
            end = part.offset + part.nbytes
        else:
            yield part
    if joined:
        yield Segment(joined, extents)


def whole_extent(part: Contiguous | Strided, extents: Mapping[int, Extent]) -> Extent | None:
    """Return the extent that covers exactly this source, if there is one."""
    extent = extents.get(part.offset)
    return extent if extent is not None and extent.nbytes == part.nbytes else None


class Segment:
    """Contiguous sources that are consecutive in a file.

    Args:
        parts: The sources in the order of the file, none of them empty.
        extents: The ranges of the file that get a checksum, by offset.

    >>> import numpy as np
    >>> sources = np.arange(4, dtype=np.uint8), np.arange(4, 9, dtype=np.uint8)
    >>> parts = [Contiguous(n, source.ctypes.data, source.nbytes, 4 * n, source) for n, source in enumerate(sources)]
    >>> with open("x.bin", "wb") as file:
    ...     for key, write, nbytes in Segment(parts, {}).jobs():
    ...         write(Sink(file.fileno()))
    >>> np.fromfile("x.bin", dtype=np.uint8).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """

    __slots__ = ("_addresses", "_bounds", "_extents", "_firsts", "_hashed", "_parts", "_sizes")

    def __init__(self, parts: Sequence[Contiguous | Run], extents: Mapping[int, Extent]) -> None:
        self._parts = parts
        self._extents = extents
        self._addresses: list[int] = []
        self._sizes: list[int] = []
        self._firsts: list[int] = []  # for each source, the number of its first range of memory
        self._hashed = bool(extents)
        for part in parts:
            self._firsts.append(len(self._sizes))
            if isinstance(part, Contiguous):
                self._addresses.append(part.address)
                self._sizes.append(part.nbytes)
            else:
                self._addresses += part.addresses
                self._sizes += part.sizes
                if part.digits is not None:
                    part.digits[:] = [""] * len(part.sizes)
                    self._hashed = True
        self._bounds = list(accumulate(self._sizes, initial=parts[0].offset))

    def jobs(self) -> Iterator[tuple[object, functools.partial[None], int]]:
        """Yield, for each range of the file, the key of a tensor in it, the function that writes it, and its size."""
        start, end = self._bounds[0], self._bounds[-1]
        most = SMALL_RANGES_BYTES if not self._hashed and are_ranges_small(end - start, len(self._sizes)) else JOB_BYTES
        for bound in range(start - start % most, end, most):
            low, high = max(bound, start), min(bound + most, end)
            yield self._key((low + high) // 2), functools.partial(self._write, low, high), high - low

    def _key(self, position: int) -> object:
        """Return the key of the tensor at a position of the file."""
        number = bisect_right(self._bounds, position) - 1
        place = bisect_right(self._firsts, number) - 1
        part = self._parts[place]
        return part.key if isinstance(part, Contiguous) else part.keys[number - self._firsts[place]]

    def _numbers(self, low: int, high: int) -> tuple[int, int]:
        """Return the first and the end of the numbers of the memory ranges between two positions of the file."""
        return bisect_right(self._bounds, low) - 1, bisect_left(self._bounds, high)

    def _within(self, low: int, high: int) -> tuple[list[int], list[int]]:
        """Return the addresses and sizes of the memory ranges between two positions of the file."""
        first, last = self._numbers(low, high)
        addresses, sizes = self._addresses[first:last], self._sizes[first:last]
        skipped = low - self._bounds[first]
        addresses[0] += skipped
        sizes[0] -= skipped
        sizes[-1] -= self._bounds[last] - high
        return addresses, sizes

    def _write(self, low: int, high: int, file: Sink) -> None:
        first, last = self._numbers(low, high)
        with file.open_range(low, high - low, last - first) as put:
            if not self._hashed:
                put(*self._within(low, high), low)
                return
            blocks = _Blocks(self._blocks(low, high))
            for bound in range(low - low % HASH_BYTES, high, HASH_BYTES):
                start, end = max(bound, low), min(bound + HASH_BYTES, high)
                blocks.hash_up_to(end)
                self._hash_runs(start, end)
                put(*self._within(start, end), start)
        blocks.hash_up_to(self._bounds[-1])

    def _parts_within(self, low: int, high: int) -> range:
        """Return the numbers of the sources between two positions of the file."""
        first, last = self._numbers(low, high)
        return range(bisect_right(self._firsts, first) - 1, bisect_left(self._firsts, last))

    def _hash_runs(self, low: int, high: int) -> None:
        """Hash the tensors of runs that begin between two positions of the file."""
        first, last = bisect_left(self._bounds, low), bisect_left(self._bounds, high)
        for place in self._parts_within(low, high):
            part = self._parts[place]
            if isinstance(part, Run) and part.digits is not None:
                begin, end = max(first - self._firsts[place], 0), min(last - self._firsts[place], len(part.sizes))
                part.digits[begin:end] = digits_of_ranges(part.addresses[begin:end], part.sizes[begin:end])

    def _blocks(self, low: int, high: int) -> Iterator[tuple[Extent, int, range, int]]:
        """Yield the blocks whose middle is between two positions: extent, start in it, range in the file, address.

        A block may extend beyond the job: bytes that one job hashes are still in the cache when the next writes them.
        """
        for place in self._parts_within(low, high):
            part = self._parts[place]
            if isinstance(part, Run) or (extent := whole_extent(part, self._extents)) is None:
                continue
            earliest = max((low - part.offset) // extent.block - 1, 0) * extent.block
            for start in range(earliest, part.nbytes, extent.block):
                begin, end = part.offset + start, part.offset + min(start + extent.block, part.nbytes)
                if (begin + end) // 2 >= high:
                    break
                if (begin + end) // 2 >= low:
                    yield extent, start, range(begin, end), part.address + start


class _Blocks:
    """Hashes blocks incrementally, in the order of the file."""

    def __init__(self, blocks: Iterator[tuple[Extent, int, range, int]]) -> None:
        self._blocks = blocks
        self._block = next(blocks, None)
        self._state = xxh3_64()
        self._done = 0

    def hash_up_to(self, position: int) -> None:
        """Hash the bytes before a position of the file."""
        while self._block is not None:
            extent, start, place, address = self._block
            first, last = place.start + self._done, min(place.stop, position)
            if first < last:
                self._state.update(syscalls.view(address + self._done, last - first))
                self._done += last - first
            if last < place.stop:
                return
            extent.put(start, self._state.intdigest())
            self._block, self._state, self._done = next(self._blocks, None), xxh3_64(), 0
