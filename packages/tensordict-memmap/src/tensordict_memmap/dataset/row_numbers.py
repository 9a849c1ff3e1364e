"""Row numbers: an index along the one dimension of rows as numbers, and readers that take such an index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from numbers import Integral
from typing import Any

import torch

_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8})


class RowReader(ABC):
    """Something with rows, which an index reads by number, by several numbers, or as a column by its key."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def _column(self, key: str | tuple[str, ...]) -> Any:
        """Return a column."""

    @abstractmethod
    def _row(self, number: int) -> Any:
        """Return one row."""

    @abstractmethod
    def _batch(self, rows: torch.Tensor) -> Any:
        """Return several rows."""

    def __getitem__(self, index: Any) -> Any:
        """Return rows, or a column by its key."""
        if isinstance(index, str) or (isinstance(index, tuple) and index and all(isinstance(n, str) for n in index)):
            return self._column(index)
        rows = row_numbers(index, len(self))
        return self._row(rows) if isinstance(rows, int) else self._batch(rows)

    def __getitems__(self, indices: Any) -> Any:
        """Return the rows of a batch."""
        return self[indices if isinstance(indices, torch.Tensor) else list(indices)]


def row_numbers(index: Any, rows: int) -> int | torch.Tensor:
    """Return the rows that an index selects: the number of one row, or a tensor of numbers.

    Args:
        index: A number, a slice, a list or range of numbers, or a tensor of numbers or a mask.
        rows: The number of rows.

    Raises:
        IndexError: There is no such row, or the index has several dimensions.

    >>> row_numbers(-1, 5), row_numbers(slice(3), 5), row_numbers([4, -5], 5)
    (4, tensor([0, 1, 2]), tensor([4, 0]))
    """
    if isinstance(index, Integral) and not isinstance(index, bool):
        number = int(index)
        if not -rows <= number < rows:
            raise IndexError(f"row {number} is not one of {rows} rows; check the index")
        return number % rows
    if isinstance(index, slice):
        return (
            torch.arange(*index.indices(rows), device="cpu")
            if (index.step or 1) > 0
            else torch.tensor(range(rows)[index], device="cpu")
        )
    if isinstance(index, list | range):
        index = torch.tensor(list(index), dtype=torch.bool if _are_bools(index) else torch.int64, device="cpu")
    try:
        index = torch.as_tensor(index, device="cpu")
        found = index.to("cpu", torch.int64) if index.dtype in _INTEGERS else torch.arange(rows, device="cpu")[index]
        low, high = torch.aminmax(found) if found.numel() else (0, -1)
        if low < -rows or high >= rows:
            raise IndexError(f"row {int(low if low < -rows else high)} does not exist")
        if low < 0:
            found = torch.where(found < 0, found + rows, found)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise IndexError(
            f"{index!r:.100} does not select some of {rows} rows ({error}); pass a number, a slice, a list or a tensor"
        ) from None
    if found.ndim > 1:
        raise IndexError(
            f"{index!r:.100} selects rows of shape {list(found.shape)}, and this dataset has one dimension of rows; "
            "pass an index of one dimension"
        )
    return found if found.ndim else int(found)


def _are_bools(index: Any) -> bool:
    return bool(index) and all(isinstance(item, bool) for item in index)
