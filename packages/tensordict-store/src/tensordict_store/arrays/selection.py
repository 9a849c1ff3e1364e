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

__all__ = ["Range", "Selection", "Selector", "select"]

Range = tuple[int, int]


class Selection:
    """The boxes of an array that an index needs, and the index of what they hold.

    Attributes:
        box: The range of positions along each dimension; along ``dim``, that of all runs together.
        dim: The dimension that is cut into runs; 0 if there is one run.
        runs: The ranges of positions along ``dim``.
        count: The number of positions in all runs.
        residual: The index of the boxes side by side; ``None`` selects all of them.
        covers: Whether the residual selects every position, each once.
        ordered: Whether it does so in order, so that only the shape changes.
    """

    __slots__ = ("box", "count", "covers", "dim", "ordered", "residual", "runs")

    def __init__(
        self,
        box: list[Range],
        dim: int = 0,
        runs: list[Range] | None = None,
        count: int | None = None,
        residual: Any = None,
        covers: bool = True,
        ordered: bool = True,
    ) -> None:
        self.box = box
        self.dim = dim
        self.runs = box[dim : dim + 1] if runs is None else runs
        self.count = sum([stop - start for start, stop in self.runs]) if count is None else count
        self.residual = residual
        self.covers = covers
        self.ordered = ordered

    @property
    def shape(self) -> torch.Size:
        """The shape of the boxes side by side along ``dim``."""
        sizes = [stop - start for start, stop in self.box]
        if sizes:
            sizes[self.dim] = self.count
        return torch.Size(sizes)

    def boxes(self) -> list[tuple[list[Range], int]]:
        """Return every box with its place along ``dim`` in the boxes side by side."""
        out, place = [], 0
        for start, stop in self.runs:
            out.append(([*self.box[: self.dim], (start, stop), *self.box[self.dim + 1 :]], place))
            place += stop - start
        return out

    def part(self, values: Tensor) -> Tensor:
        """Return what the index selects from the values of the boxes side by side."""
        return values if self.residual is None else values[self.residual]


class _Head(NamedTuple):
    """What a selection has of its index: everything but the dimensions behind those that the index consumes."""

    box: list[Range]
    dim: int
    runs: list[Range] | None
    total: int | None
    residual: Any
    covers: bool
    ordered: bool


class Selector:
    """The selections of one index in several arrays; what they have in common is computed once.

    Args:
        index: The index of the leading dimensions; ``None`` for all.

    >>> rows = Selector(Index(torch.tensor([7, 2, 3]), torch.Size([10])))
    >>> rows.select([10, 4]).runs, rows.select([10, 4], gap=5).runs
    ([(2, 4), (7, 8)], [(2, 8)])
    """

    __slots__ = ("_heads", "_order", "_sorted", "index")

    def __init__(self, index: Index | None) -> None:
        self.index = index
        self._heads: dict[Any, _Head] = {}
        self._order: tuple[int, list[Range]] | None = None
        self._sorted: tuple[int, Any, Any] | None = None

    def select(self, shape: Sequence[int], gap: int = 0) -> Selection:
        """Return the selection in an array of a shape; runs with no more positions between them than ``gap`` are one.

        Raises:
            IndexError: A position is out of range.
        """
        if self.index is None:
            return Selection([(0, n) for n in shape])
        dims = self.index.dims
        leading = tuple(shape[:dims])
        head = self._heads.get((leading, 0 if self.index.gives_views else gap))
        if head is None:
            head = self._heads[leading, 0 if self.index.gives_views else gap] = self._head(self.index, leading, gap)
        return Selection([*head.box, *[(0, n) for n in shape[len(head.box) :]]], *head[1:])

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
            self._order = (shape[0], _runs(_positions(part, shape[0], 0), 0, 1))
        return self._order[1]

    def _head(self, index: Index, shape: tuple[int, ...], gap: int) -> _Head:
        box: list[Range] = []
        residual: list[Any] = []
        dim, runs, exact = 0, None, True
        first: Tensor | None = None
        for part in index.parts:
            if part is None or isinstance(part, bool):
                residual.append(part)
                exact = exact and part is not False
                continue
            n = shape[len(box)]
            if isinstance(part, slice):
                start, stop, step = part.indices(n)
                count = len(range(start, stop, step))
                stop = start + (count - 1) * step + 1 if count else start
                box.append((start, stop))
                residual.append(slice(None, None, step))
                exact = exact and (step == 1 or count <= 1)
            elif isinstance(part, Tensor) and first is None:
                first, dim = part, len(box)
                unique, places = self._unique(part, n, dim)
                runs = _runs(unique, gap)
                exact = exact and unique.size == part.numel() and part.ndim == 1
                exact = exact and sum([stop - start for start, stop in runs]) == unique.size
                residual.append(_places(unique, places, runs).reshape(part.shape))
                box.append((int(unique[0]), int(unique[-1]) + 1) if unique.size else (0, 0))
            elif isinstance(part, Tensor):
                exact = False
                numbers = _positions(part, n, len(box))
                low, high = (int(numbers.min()), int(numbers.max()) + 1) if numbers.size else (0, 0)
                residual.append(torch.from_numpy(numbers - low).reshape(part.shape))
                box.append((low, high))
            else:
                position = int(part) + n if part < 0 else int(part)
                box.append((position, position + 1))
                residual.append(0)
        ordered = exact and (first is None or (len(index.parts) == 1 and bool((residual[0].diff() == 1).all())))
        total = None if runs is None else sum([stop - start for start, stop in runs])
        if ordered and first is not None:
            return _Head(box, dim, runs or [(0, 0)], total, None, True, True)  # sorted rows are what the boxes hold
        return _Head(box, dim, runs, total, tuple(residual), exact, ordered)

    def _unique(self, part: Tensor, n: int, dim: int) -> tuple[Any, Any]:
        """Return the positions of a tensor, sorted and each once, and where each of the tensor is among them."""
        if self._sorted is None or self._sorted[0] != n:
            self._sorted = (n, *np.unique(_positions(part, n, dim), return_inverse=True))
        return self._sorted[1:]


def select(index: Index | None, shape: Sequence[int], gap: int = 0) -> Selection:
    """Return the selection of an index in an array.

    Args:
        index: The index of the leading dimensions; ``None`` for all.
        shape: The shape of the array.
        gap: Runs with no more positions between them are read as one.

    >>> one = select(Index(torch.tensor([7, 2, 3]), torch.Size([10])), [10, 4])
    >>> one.runs, one.residual[0].tolist(), one.shape
    ([(2, 4), (7, 8)], [2, 0, 1], torch.Size([3, 4]))
    """
    return Selector(index).select(shape, gap)


def _positions(part: Tensor, n: int, dim: int) -> np.ndarray[Any, Any]:
    """Return the positions in a tensor, counted from the start.

    Raises:
        IndexError: A position is out of range.
    """
    numbers = np.asarray(part.reshape(-1).cpu())
    if numbers.size and (numbers.min() < -n or numbers.max() >= n):
        wrong = int(numbers.min()) if numbers.min() < -n else int(numbers.max())
        raise IndexError(f"index {wrong} is out of range for dimension {dim} of size {n}; use {-n} to {n - 1}")
    return np.where(numbers < 0, numbers + n, numbers)


def _runs(positions: np.ndarray[Any, Any], gap: int, least: int = 0) -> list[Range]:
    """Return the ranges that hold positions, one behind the other.

    A position that is at least ``least`` and at most ``gap`` + 1 above the one before shares its range.
    """
    if not positions.size:
        return [(0, 0)]
    steps = np.diff(positions)
    cuts = np.flatnonzero((steps > gap + 1) | (steps < least)) + 1
    starts = positions[np.concatenate(([0], cuts))]
    stops = positions[np.concatenate((cuts, [positions.size])) - 1] + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def _places(unique: np.ndarray[Any, Any], places: np.ndarray[Any, Any], runs: list[Range]) -> Tensor:
    """Return where each position lies in the runs side by side."""
    starts = np.array([start for start, _ in runs])
    offsets = np.concatenate(([0], np.cumsum([stop - start for start, stop in runs])[:-1]))
    run = np.searchsorted(starts, unique, side="right") - 1
    return torch.from_numpy((unique - starts[run] + offsets[run])[places].astype(np.int64))
