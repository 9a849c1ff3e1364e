"""Byte ranges: the bytes of the share of a rank between two positions of a file, for uploads in parts."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from tensordict_memmap.engine.scatter import run_offsets
from tensordict_memmap.engine.sources import Scattered
from tensordict_memmap.schema.dtypes import as_bytes


class Cut(NamedTuple):
    """Some bytes of a span of a file: where ranges start in the span, how long they are, and their content."""

    starts: np.ndarray
    sizes: np.ndarray
    data: np.ndarray

    def put(self, target: np.ndarray) -> None:
        """Write the ranges into an array of the span."""
        position = 0
        for start, size in zip(self.starts.tolist(), self.sizes.tolist(), strict=True):
            target[start : start + size] = self.data[position : position + size]
            position += size


@dataclass(slots=True)
class _Runs:
    """Ranges of one length whose bytes follow each other in memory, and the span of the file that they are in."""

    start: int
    end: int
    offsets: np.ndarray
    size: int
    tensor: torch.Tensor
    data: np.ndarray | None = None

    def bytes(self) -> np.ndarray:
        if self.data is None:
            self.data = as_bytes(self.tensor.cpu()).numpy()
        return self.data


@dataclass(slots=True)
class ByteRanges:
    """The bytes of one file that a rank has.

    >>> ranges = ByteRanges()
    >>> ranges.add(2, torch.tensor([1, 2, 3], dtype=torch.uint8))
    >>> ranges.add_scattered(Scattered("x", torch.tensor([[7], [8]], dtype=torch.uint8), 6, (2, 1)))
    >>> ranges.counts([0, 7]), ranges.cut(3, 9).data.tolist(), ranges.cut(3, 9).starts.tolist()
    ([4], [2, 3, 7, 8], [0, 3, 5])
    """

    parts: list[_Runs] = field(default_factory=list)

    def add(self, offset: int, source: torch.Tensor) -> None:
        """Add values that are consecutive in the file."""
        end = offset + source.nbytes
        self.parts.append(_Runs(offset, end, np.array([offset], dtype=np.int64), source.nbytes, source))

    def add_scattered(self, part: Scattered) -> None:
        """Add values that are runs in the file."""
        outer, run = part.run()
        offsets = np.array(run_offsets(part, outer, 0, part.nbytes // run), dtype=np.int64)
        self.parts.append(_Runs(int(offsets[0]), int(offsets[-1]) + run, offsets, run, part.tensor))

    def sort(self) -> None:
        """Sort the ranges by their starts, once all were added."""
        self.parts.sort(key=lambda runs: (runs.start, runs.end))

    def counts(self, bounds: Sequence[int]) -> list[int]:
        """Return the number of bytes in each span between consecutive bounds."""
        found = [0] * (len(bounds) - 1)
        for runs in self.parts:
            low = max(bisect.bisect_right(bounds, runs.start) - 1, 0)
            high = min(bisect.bisect_left(bounds, runs.end), len(found))
            for number in range(low, high):
                start, end = bounds[number], bounds[number + 1]
                inside = np.minimum(runs.offsets + runs.size, end) - np.maximum(runs.offsets, start)
                found[number] += int(np.maximum(inside, 0).sum())
        return found

    def _within(self, start: int, end: int) -> Iterator[tuple[_Runs, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield the runs that reach into a span, with their numbers and where they begin and end in it."""
        last = bisect.bisect_left(self.parts, end, key=lambda runs: runs.start)
        for runs in self.parts[:last]:
            if runs.end > start:
                first = max(int(np.searchsorted(runs.offsets, start, side="right")) - 1, 0)
                numbers = np.arange(first, int(np.searchsorted(runs.offsets, end, side="left")))
                offsets = runs.offsets[numbers]
                yield runs, numbers, np.maximum(offsets, start), np.minimum(offsets + runs.size, end)

    def cut(self, start: int, end: int) -> Cut:
        """Return the bytes in a span of the file."""
        starts, sizes, data = [], [], []
        for runs, numbers, low, high in self._within(start, end):
            kept = high > low
            numbers, low, high = numbers[kept], low[kept], high[kept]
            if not len(numbers):
                continue
            begin = numbers * runs.size + low - runs.offsets[numbers]
            # the runs follow each other in memory, and only the first and the last can be cut
            data.append(runs.bytes()[int(begin[0]) : int(begin[-1] + high[-1] - low[-1])])
            starts.append(low - start)
            sizes.append(high - low)
        none = np.empty(0, dtype=np.int64)
        return Cut(
            np.concatenate([none, *starts]),
            np.concatenate([none, *sizes]),
            np.concatenate([np.empty(0, dtype=np.uint8), *data]),
        )


def join_cut(cut: Cut) -> bytes:
    """Return a cut as a message.

    >>> cut = Cut(np.array([1]), np.array([2]), np.array([7, 8], dtype=np.uint8))
    >>> parse_cut(join_cut(cut)).data.tolist()
    [7, 8]
    """
    count = np.array([len(cut.starts)], dtype=np.int64)
    return b"".join([count.tobytes(), cut.starts.tobytes(), cut.sizes.tobytes(), cut.data.tobytes()])


def parse_cut(message: bytes) -> Cut:
    """Return the cut of a message."""
    count = int(np.frombuffer(message[:8], dtype=np.int64)[0])
    numbers = np.frombuffer(message[8 : 8 + 16 * count], dtype=np.int64)
    return Cut(numbers[:count], numbers[count:], np.frombuffer(message[8 + 16 * count :], dtype=np.uint8))
