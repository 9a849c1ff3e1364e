"""Ranges: the bytes of a value that an index needs, as a command, and the tensor that the reply fills."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_store.arrays.dtypes import as_array, empty
from tensordict_store.arrays.selection import Range, Selection, Selector
from tensordict_store.redis.commands import Reads
from tensordict_store.redis.layout import Path, Record, ends_of, gone, shape_of

_GAP = 1024
"""A gap of at most this many bytes between two ranges is read with them, which costs no more than a second command."""


class Request:
    """The rows of a tensor that an index needs.

    Args:
        path: The path of the entry.
        name: The name of its value on the server.
        record: Its record.
        rows: The index.

    Raises:
        ValueError: The index does not fit the entry.
    """

    __slots__ = ("_dtype", "_path", "_range", "_selection", "_shape")

    def __init__(self, path: Path, name: str, record: Record, rows: Selector) -> None:
        shape, row, index, block = record.shape, record.row, rows.index, rows.block
        assert shape is not None and record.dtype is not None
        self._path, self._dtype = path, record.dtype
        self._selection: Selection | None = None  # of an index that takes the rows apart or changes their order
        if index is None:
            self._shape = shape
            self._range = Reads(name, None, row, record.nbytes)
            return
        if shape[: index.dims] != index.batch_size:
            raise ValueError(
                f"the shape {list(shape)} of {'.'.join(path)!r} on the server does not start with the batch size "
                f"{list(index.batch_size)}; store the entry again"
            )
        self._shape = index.part_of(shape)
        runs: Sequence[Range] = [block] if block is not None else self._runs(rows, record)
        size = self._shape.numel() * record.dtype.itemsize
        self._range = Reads(name, None if size == record.nbytes else runs if size else [], row, size)

    @property
    def reads(self) -> Reads:
        """The command that reads the rows, made anew: an attribute that leads back here would be a cycle."""
        return self._range._replace(into=self._memory)

    def _runs(self, rows: Selector, record: Record) -> Sequence[Range]:
        """Return the runs of rows that hold what an index selects, and note how it is selected from them."""
        shape, row = record.shape, record.row
        assert shape is not None
        selection = rows.select(shape, _GAP // row if row else 0)
        if selection.ordered and selection.whole_rows:
            return selection.runs
        self._selection = selection
        runs = selection.box[:1] if selection.dim else selection.runs  # (of runs inside rows, whole rows are read)
        self._shape = torch.Size((sum([stop - start for start, stop in runs]), *shape[1:]))
        return runs

    def _memory(self) -> tuple[Any, Tensor]:
        return empty(self._shape, self._dtype)

    def result(self, content: Any) -> Tensor:
        """Return the rows that the index selects from the result of the command.

        Raises:
            KeyError: The value does not exist on the server.
            ValueError: The length of the value does not match its shape.
        """
        if not isinstance(content, Tensor):
            content = self._copied(content)
        return content if self._selection is None else _selected(content, self._selection)

    def _copied(self, content: Any) -> Tensor:
        """Return a tensor of bytes, whose number is checked first."""
        if content is None:
            raise gone(".".join(self._path))
        if len(content) != self._range.size:
            raise ValueError(
                f"the value of {'.'.join(self._path)!r} on the server has {len(content)} bytes, but its shape requires "
                f"{self._range.size}; store the entry again"
            )
        array, tensor = self._memory()
        array.reshape(-1).view(np.uint8)[:] = np.frombuffer(content, np.uint8) if content else ()
        return tensor


class Elements(Request):
    """Elements of a stack, one behind the other.

    Args:
        path: The path of the entry.
        name: The name of its value on the server.
        record: Its record.
        numbers: The numbers of the elements.
        count: The number of elements of the stack.
    """

    __slots__ = ("_shapes",)

    def __init__(self, path: Path, name: str, record: Record, numbers: Sequence[int], count: int) -> None:
        assert record.dtype is not None
        ends = ends_of(record, count)
        runs = [(ends[a], ends[b]) for a, b in _runs_of(numbers) if ends[a] < ends[b]]
        size = sum([stop - start for start, stop in runs])
        self._path, self._dtype, self._selection = path, record.dtype, None
        self._shape = torch.Size((size // record.dtype.itemsize,))
        self._shapes = [shape_of(record, i) for i in numbers]
        self._range = Reads(name, runs, 1, size)

    def elements(self, content: Any) -> list[Tensor]:
        """Return the elements from the result of the command; errors are those of `result`."""
        flat = self.result(content).split([shape.numel() for shape in self._shapes])
        return [one.view(shape) for one, shape in zip(flat, self._shapes, strict=True)]


def _selected(rows: Tensor, selection: Selection) -> Tensor:
    """Return the selected values of the rows of a selection."""
    for dim, (start, stop) in enumerate(selection.box):
        if dim and dim != selection.dim and (start, stop) != (0, rows.shape[dim]):
            rows = rows.narrow(dim, start, stop - start)
    if selection.dim:
        parts = [rows.narrow(selection.dim, start, stop - start) for start, stop in selection.runs]
        rows = torch.cat(parts, selection.dim) if len(parts) > 1 else parts[0]
    return selection.part(rows)


def as_bytes(value: Tensor) -> memoryview:
    r"""Return the bytes of a tensor in memory; they are copied only if the tensor is not contiguous.

    >>> bytes(as_bytes(torch.tensor([1, 2], dtype=torch.int16)))
    b'\x01\x00\x02\x00'
    """
    return as_array(value).reshape(-1).view(np.uint8).data


def _runs_of(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ranges of neighbours in rising numbers.

    >>> _runs_of([1, 2, 5])
    [(1, 3), (5, 6)]
    """
    out: list[tuple[int, int]] = []
    for number in numbers:
        if out and out[-1][1] == number:
            out[-1] = (out[-1][0], number + 1)
        else:
            out.append((number, number + 1))
    return out
