"""Selections: an index as boxes of an array, which a store reads in few calls, and the rest that torch applies.

A store reads boxes: a range of positions along every dimension. An index of integers and slices lies in one box. An
index with tensors is cut along the dimension of its first tensor into runs of neighbouring positions; runs that are
close to each other are read as one. What the boxes hold too much, torch removes by the residual index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_core.extension import Index

__all__ = ["Selection", "select"]

Range = tuple[int, int]


class Selection:
    """The boxes of an array that an index needs, and the index of what they hold.

    Attributes:
        box: The range of positions along each dimension; along ``dim``, that of all runs together.
        dim: The dimension that is cut into runs; 0 if there is one run.
        runs: The ranges of positions along ``dim``.
        shape: The shape of the boxes side by side along ``dim``.
        residual: The index of the boxes side by side; ``None`` selects all of them.
        covers: Whether the residual selects every position, each once.
    """

    __slots__ = ("box", "covers", "dim", "residual", "runs", "shape")

    def __init__(self, box: list[Range], dim: int, runs: list[Range], residual: Any, covers: bool) -> None:
        self.box = box
        self.dim = dim
        self.runs = runs
        self.residual = residual
        self.covers = covers
        sizes = [stop - start for start, stop in box]
        if sizes:
            sizes[dim] = sum(stop - start for start, stop in runs)
        self.shape = torch.Size(sizes)

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
    whole = [(0, n) for n in shape]
    if index is None:
        return Selection(whole, 0, whole[:1], None, True)
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
        elif isinstance(part, Tensor):
            numbers = np.asarray(part.reshape(-1).cpu())
            numbers = _wrapped(numbers, n, len(box))
            if first is None:
                first, dim = part, len(box)
                unique, places = np.unique(numbers, return_inverse=True)
                runs = _runs(unique, gap)
                exact = exact and unique.size == numbers.size and part.ndim == 1
                exact = exact and sum(stop - start for start, stop in runs) == unique.size
                residual.append(_places(unique, places, runs).reshape(part.shape))
                box.append((int(unique[0]), int(unique[-1]) + 1) if unique.size else (0, 0))
            else:
                exact = False
                low, high = (int(numbers.min()), int(numbers.max()) + 1) if numbers.size else (0, 0)
                residual.append(torch.from_numpy(numbers - low).reshape(part.shape))
                box.append((low, high))
        else:
            position = int(part) + n if part < 0 else int(part)
            box.append((position, position + 1))
            residual.append(0)
    box += whole[len(box) :]
    if exact and first is not None and len(index.parts) == 1 and bool((residual[0].diff() == 1).all()):
        return Selection(box, dim, runs or [(0, 0)], None, True)  # sorted rows are what the boxes hold
    return Selection(box, dim, box[dim : dim + 1] if runs is None else runs, tuple(residual), exact)


def _wrapped(numbers: np.ndarray[Any, Any], n: int, dim: int) -> np.ndarray[Any, Any]:
    """Return positions counted from the start.

    Raises:
        IndexError: A position is out of range.
    """
    if numbers.size and (numbers.min() < -n or numbers.max() >= n):
        wrong = int(numbers.min()) if numbers.min() < -n else int(numbers.max())
        raise IndexError(f"index {wrong} is out of range for dimension {dim} of size {n}; use {-n} to {n - 1}")
    return np.where(numbers < 0, numbers + n, numbers)


def _runs(unique: np.ndarray[Any, Any], gap: int) -> list[Range]:
    """Return the ranges that hold sorted positions; neighbours with at most ``gap`` positions between share one."""
    if not unique.size:
        return [(0, 0)]
    cuts = np.flatnonzero(np.diff(unique) > gap + 1) + 1
    starts = unique[np.concatenate(([0], cuts))]
    stops = unique[np.concatenate((cuts, [unique.size])) - 1] + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def _places(unique: np.ndarray[Any, Any], places: np.ndarray[Any, Any], runs: list[Range]) -> Tensor:
    """Return where each position lies in the runs side by side."""
    starts = np.array([start for start, _ in runs])
    offsets = np.concatenate(([0], np.cumsum([stop - start for start, stop in runs])[:-1]))
    run = np.searchsorted(starts, unique, side="right") - 1
    return torch.from_numpy((unique - starts[run] + offsets[run])[places].astype(np.int64))
