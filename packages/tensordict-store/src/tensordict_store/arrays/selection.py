"""Selections: an index as boxes of an array, which a store reads in few calls, and the rest that torch applies.

A store reads boxes: a range of positions along every dimension. An index of integers and slices selects one box. An
index with tensors is divided along the dimension of its first tensor into runs of adjacent positions; runs that are
close to each other are read as one. The residual index then removes the positions that were read but not selected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tensordict_core.extension import Index

Range = tuple[int, int]
_Numbers = np.ndarray[Any, np.dtype[np.int64]]


class _Head(NamedTuple):
    """The part of a selection that follows from the index alone, without the dimensions behind those it consumes."""

    box: list[Range]
    dim: int
    runs: list[Range]
    total: int
    residual: Any
    covers: bool
    ordered: bool


_ALL = _Head([], 0, [], 0, None, True, True)


class Selection:
    """The boxes of an array that an index needs, and the index of what they hold.

    Attributes:
        dim: The dimension that is cut into runs; 0 if there is one run.
        runs: The ranges of positions along ``dim``.
        count: The number of positions in all runs.
        residual: The index of the boxes side by side; ``None`` selects all of them.
        covers: Whether the residual selects every position, each once.
        ordered: Whether it does so in order, so that only the shape changes.
    """

    __slots__ = ("_array", "_leading", "count", "covers", "dim", "ordered", "residual", "runs")

    def __init__(self, head: _Head, array: Sequence[int]) -> None:
        self._leading, self.dim, runs, self.count, self.residual, self.covers, self.ordered = head
        self._array = array
        if not self._leading:
            self.count = array[0] if array else 1
            runs = [(0, self.count)]
        self.runs = runs

    @property
    def box(self) -> list[Range]:
        """The range of positions along each dimension; along ``dim``, that of all runs together."""
        return [*self._leading, *[(0, n) for n in self._array[len(self._leading) :]]]

    @property
    def whole_rows(self) -> bool:
        """Whether the boxes hold all positions of every dimension but the first."""
        sides = zip(self._leading[1:], self._array[1:], strict=False)
        return not self.dim and all([side == (0, n) for side, n in sides])

    @property
    def shape(self) -> torch.Size:
        """The shape of the boxes side by side along ``dim``."""
        sizes = [stop - start for start, stop in self.box]
        if sizes:
            sizes[self.dim] = self.count
        return torch.Size(sizes)

    def boxes(self) -> list[tuple[list[Range], int]]:
        """Return every box with its place along ``dim`` in the boxes side by side; a scalar is one box."""
        if not self._array:
            return [([], 0)]
        out, place = [], 0
        for start, stop in self.runs:
            out.append(([*self.box[: self.dim], (start, stop), *self.box[self.dim + 1 :]], place))
            place += stop - start
        return out

    def part(self, values: Tensor) -> Tensor:
        """Return the selected values from the values of the boxes side by side."""
        residual = self.residual
        if residual is None:
            return values
        if len(residual) == 1 and isinstance(residual[0], Tensor):  # torch copies whole rows here, not each element
            [places] = residual
            rows = values.index_select(0, places.reshape(-1).to(values.device))
            return rows if places.ndim == 1 else rows.view((*places.shape, *values.shape[1:]))
        return values[residual]


class Selector:
    """The selections of one index in several arrays; what they have in common is computed once.

    Args:
        index: The index of the leading dimensions; ``None`` for all.

    Attributes:
        index: The index.
        block: The rows that an integer, or a slice without steps, selects; ``None`` of other indices.

    >>> rows = Selector(Index(torch.tensor([7, 2, 3]), torch.Size([10])))
    >>> rows.select(torch.Size([10, 4])).runs, rows.select(torch.Size([10, 4]), gap=5).runs
    ([(2, 4), (7, 8)], [(2, 8)])
    """

    __slots__ = ("_heads", "_order", "_positions", "_unique", "block", "index")

    def __init__(self, index: Index | None) -> None:
        self.index = index
        self.block = None if index is None else _block(index)
        self._heads: dict[Any, _Head] = {}
        self._order: tuple[int, list[Range]] | None = None
        self._positions: tuple[int, _Numbers, int, int] | None = None
        self._unique: tuple[_Numbers, _Numbers] | None = None

    def select(self, shape: torch.Size, gap: int = 0) -> Selection:
        """Return the selection in an array of a shape; runs with no more positions between them than ``gap`` are one.

        Raises:
            IndexError: A position is out of range.
        """
        index = self.index
        if index is None:
            return Selection(_ALL, shape)
        leading = shape[: index.dims]
        key = (leading, 0 if index.gives_views else gap)
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = self._head(index, leading, gap)
        return Selection(head, shape)

    def in_order(self, shape: Sequence[int]) -> list[Range] | None:
        """Return the runs of rows of an index of row numbers, in its order and as often; ``None`` of another index.

        >>> Selector(Index(torch.tensor([7, 2, 3]), torch.Size([10]))).in_order([10, 4])
        [(7, 8), (2, 4)]
        """
        index = self.index
        if index is None or index.gives_views or len(index.parts) != 1:
            return None
        if self._order is None or self._order[0] != shape[0]:
            [part] = index.parts
            if not isinstance(part, Tensor) or part.ndim != 1:
                return None
            self._order = (shape[0], _runs(_positions(part, shape[0], 0)[0], 0)[1])
        return self._order[1]

    def _head(self, index: Index, shape: torch.Size, gap: int) -> _Head:
        box: list[Range] = []
        residual: list[Any] = []
        dim, exact = 0, True
        runs: list[Range] = []
        first: Tensor | None = None
        for part in index.parts:
            if part is None or isinstance(part, bool):
                residual.append(part)
                exact = exact and part is not False
                continue
            n = shape[len(box)]
            if isinstance(part, slice):
                covered, step = _covered(part, n)
                box.append(covered)
                residual.append(slice(None, None, step))
                exact = exact and (step == 1 or covered[1] - covered[0] <= 1)
            elif isinstance(part, Tensor) and first is None:
                first, dim = part, len(box)
                runs, places, covers = self._divided(part, n, dim, gap)
                exact = exact and covers and part.ndim == 1
                residual.append(torch.from_numpy(places).reshape(part.shape))
                box.append((runs[0][0], runs[-1][1]))
            elif isinstance(part, Tensor):
                exact = False
                numbers, low, high = _positions(part, n, len(box))
                residual.append(torch.from_numpy(numbers - low).reshape(part.shape))
                box.append((low, high))
            else:
                position = int(part) + n if part < 0 else int(part)
                box.append((position, position + 1))
                residual.append(0)
        if first is None:
            runs = box[:1]
        ordered = exact and (first is None or (len(index.parts) == 1 and bool((residual[0].diff() == 1).all())))
        count = sum([stop - start for start, stop in runs])
        if ordered and first is not None:
            return _Head(box, dim, runs, count, None, True, True)  # sorted rows are what the boxes hold
        return _Head(box, dim, runs, count, tuple(residual), exact, ordered)

    def _divided(self, part: Tensor, n: int, dim: int, gap: int) -> tuple[list[Range], _Numbers, bool]:
        """Return the runs of a tensor, the place of each position in the joined runs, and whether each occurs once."""
        if self._positions is None or self._positions[0] != n:
            self._positions, self._unique = (n, *_positions(part, n, dim)), None
        _, numbers, low, high = self._positions
        if numbers.size < high - low <= gap + 2:  # (sorting finds one run, too, and some positions that are not there)
            return [(low, high)], numbers - low, False
        if self._unique is None:
            self._unique = np.unique(numbers, return_inverse=True)
        unique, places = self._unique
        skipped, runs = _runs(unique, gap)
        within = unique - low
        within[1:] -= skipped.cumsum()
        return runs, within[places], unique.size == numbers.size == sum([stop - start for start, stop in runs])


ALL = Selector(None)
"""The selections of all positions."""


def select(index: Index | None, shape: torch.Size, gap: int = 0) -> Selection:
    """Return the selection of an index in an array.

    Args:
        index: The index of the leading dimensions; ``None`` for all.
        shape: The shape of the array.
        gap: Runs with no more positions between them are read as one.

    >>> one = select(Index(torch.tensor([7, 2, 3]), torch.Size([10])), torch.Size([10, 4]))
    >>> one.runs, one.residual[0].tolist(), one.shape
    ([(2, 4), (7, 8)], [2, 0, 1], torch.Size([3, 4]))
    """
    return Selector(index).select(shape, gap)


def _block(index: Index) -> Range | None:
    """Return the range of rows that an index selects if it is an integer or a slice without steps.

    >>> [_block(Index(idx, torch.Size([5]))) for idx in (-2, slice(1, 9), slice(None, None, 2))]
    [(3, 4), (1, 5), None]
    """
    part = index.parts[0] if len(index.parts) == 1 else None
    if type(part) is slice:
        start, stop, step = part.indices(index.batch_size[0])
        return (start, stop) if step == 1 and start < stop else None
    if type(part) is int:
        start = part if part >= 0 else part + index.batch_size[0]
        return start, start + 1
    return None


def _covered(part: slice, n: int) -> tuple[Range, int]:
    """Return the range from the first to the last position of a slice of ``n`` positions, and the step."""
    start, stop, step = part.indices(n)
    count = len(range(start, stop, step))
    return (start, start + (count - 1) * step + 1 if count else start), step


def _positions(part: Tensor, n: int, dim: int) -> tuple[_Numbers, int, int]:
    """Return the positions in a tensor, counted from the start, the lowest of them, and the one after the highest.

    Raises:
        IndexError: A position is out of range.
    """
    numbers = np.asarray(part.reshape(-1).cpu()).astype(np.int64, copy=False)
    if not numbers.size:
        return numbers, 0, 0
    low, high = int(numbers.min()), int(numbers.max())
    if low < -n or high >= n:
        raise IndexError(
            f"index {low if low < -n else high} is out of range for dimension {dim} of size {n}; use {-n} to {n - 1}"
        )
    if low < 0:
        numbers = np.where(numbers < 0, numbers + n, numbers)
        low, high = int(numbers.min()), int(numbers.max())
    return numbers, low, high + 1


def _runs(positions: _Numbers, gap: int) -> tuple[_Numbers, list[Range]]:
    """Return how many positions are left out before each but the first, and the ranges that hold the positions.

    A position that is at most ``gap`` + 1 above the one before shares its range.
    """
    if not positions.size:
        return positions, [(0, 0)]
    steps = np.diff(positions)
    cuts = (steps > gap + 1) | (steps < 1)
    before = np.flatnonzero(cuts)
    starts = [int(positions[0]), *positions[before + 1].tolist()]
    stops = [*(positions[before] + 1).tolist(), int(positions[-1]) + 1]
    return np.where(cuts, steps - 1, 0), list(zip(starts, stops, strict=True))
