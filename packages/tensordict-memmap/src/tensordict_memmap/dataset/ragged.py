"""Ragged columns: entries whose first dimension differs by row, and values that are not tensors, stored as bytes.

On disk, a ragged column is a jagged tensor: one file has the elements of all rows, one after the other, and a second
one the shape of each row. A column of strings or other values is a jagged tensor of their bytes (``encoding.py``). Rows
are appended to both files, and committed with the number of rows: elements after those of committed rows do not count.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch

from tensordict_core import NonTensorData, NonTensorStack
from tensordict_memmap.dataset import encoding
from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.engine.sink import Sink, error_context
from tensordict_memmap.engine.sources import FileRange, check_memory
from tensordict_memmap.engine.write_plan import write_into
from tensordict_memmap.schema.node import Leaf, show
from tensordict_memmap.storage.rows_committed import RaggedState
from tensordict_memmap.tensor.mapping import Mapping
from tensordict_memmap.tensor.memmap import MemoryMappedTensor


class RaggedRows(NamedTuple):
    """The rows of a batch of one ragged column: their elements, one after the other, and the length of each."""

    values: torch.Tensor
    lengths: torch.Tensor


def shapes_leaf(leaf: Leaf) -> Leaf:
    """Return the shapes of the rows of a ragged leaf as a leaf of its own, with a row for each."""
    return Leaf(leaf.key, leaf.shapes_file, torch.int64, leaf.shape)


# --- writing


class RaggedWriter:
    """The file of the elements of a ragged column, open for writing until it is closed.

    Args:
        root: The absolute path of the saved folder.
        leaf: The leaf.
        state: The committed elements.
    """

    def __init__(self, root: str, leaf: Leaf, state: RaggedState) -> None:
        self.leaf, self.state = leaf, state
        self.path = f"{root}/{leaf.file}"
        self.file = Descriptor(os.open, self.path, os.O_RDWR | os.O_CREAT | syscalls.BINARY | syscalls.NO_LINK, 0o666)
        size = os.fstat(self.file.fileno()).st_size
        if size < state.nbytes:
            self.close()
            raise ValueError(
                f"{self.path} has {size} bytes where the rows of key {show(leaf.key)} take {state.nbytes}; restore it "
                "or save again"
            )
        self.end = self.written = state.nbytes

    def write(self, rows: RaggedRows, threads: int | None) -> None:
        """Write the elements of some rows after those that end at ``end``, up to ``written``."""
        values = rows.values.detach().as_subclass(torch.Tensor)
        if values.nbytes:
            check_memory(self.leaf.key, values)
            write_into([(Sink(self.file), FileRange(self.leaf.key, values, self.end))], threads=threads)
        self.written = self.end + values.nbytes

    @property
    def element_bytes(self) -> int:
        """The number of bytes of one element of a row."""
        return prod(self.state.row) * self.leaf.dtype.itemsize

    def shapes(self, lengths: torch.Tensor) -> torch.Tensor:
        """Return the shapes of rows of some lengths."""
        row = torch.tensor(self.state.row, dtype=torch.int64, device="cpu")
        return torch.cat([lengths[:, None], row.expand(len(lengths), -1)], 1)

    def sync(self) -> None:
        """Sync the file to disk."""
        os.fsync(self.file.fileno())

    def committed(self) -> RaggedState:
        """Return the state to commit: all written elements."""
        return replace(self.state, nbytes=self.end, shown=max(self.end, self.state.shown))

    def cut(self) -> None:
        """Truncate the file to the elements that readers may have mapped."""
        with error_context(self.leaf.key, self.path):
            if os.fstat(self.file.fileno()).st_size > self.state.shown:
                os.ftruncate(self.file.fileno(), self.state.shown)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def saved_state(root: str, leaf: Leaf) -> RaggedState:
    """Return the state of the jagged leaf of a folder that was not written as a dataset."""
    shapes = _read_shapes(root, leaf, leaf.shape[0])
    row = tuple(shapes[0, 1:].tolist()) if len(shapes) else (0,) * (leaf.shape[1] - 1)
    if (shapes[:, 1:] != np.array(row, np.int64)).any():
        raise ValueError(
            f"key {show(leaf.key)} has components that differ in more than their first dimension, and a dataset has "
            "rows that differ in that one only; pad the others"
        )
    nbytes = int(shapes[:, 0].sum()) * prod(row) * leaf.dtype.itemsize
    return RaggedState(nbytes, nbytes, row)


def match_ragged(leaf: Leaf, state: RaggedState, value: Any, number: int, *, one: bool) -> RaggedRows:
    """Return the rows of a batch of one ragged column.

    Args:
        leaf: The leaf.
        state: The kind of the column and the shape of its elements.
        value: The entry of the batch: for tensors one row, a jagged or strided tensor of rows, or a list of rows; else
            one value, or a stack of values.
        number: The number of rows.
        one: Whether the entry is that of a single row.

    Raises:
        ValueError: The entry does not match the saved rows; the error names the key.
    """
    where = f"key {show(leaf.key)}"
    if state.kind != encoding.TENSOR:
        documents = [encoding.encode(state.kind, item, where) for item in _values(value, number, one, where)]
        data = np.frombuffer(bytearray(b"".join(documents)), np.uint8)
        return RaggedRows(
            torch.from_numpy(data), torch.tensor([len(item) for item in documents], dtype=torch.int64, device="cpu")
        )
    if isinstance(value, torch.Tensor) and value.is_nested and not one:
        jagged: Any = value  # torch annotates no methods of nested tensors
        if value.layout is torch.jagged and jagged.lengths() is None and isinstance(value.shape[1], torch.SymInt):
            values, lengths = value.values(), value.offsets().diff().to("cpu", torch.int64)
            offset = int(value.offsets()[0])
            _check_rows(leaf, state, [values], where)
            _check_number(len(lengths), number, where)
            return RaggedRows(values[offset : offset + int(lengths.sum())].contiguous(), lengths)
        value = list(value.unbind())
    if isinstance(value, torch.Tensor):
        parts = [value] if one else list(value.unbind()) if value.ndim else [value]
    elif isinstance(value, list) and all(isinstance(part, torch.Tensor) for part in value):
        parts = value
    else:
        raise ValueError(f"{where} is {type(value).__name__} where the saved rows have a ragged tensor; convert it")
    _check_rows(leaf, state, parts, where)
    _check_number(len(parts), number, where)
    lengths = torch.tensor([len(part) for part in parts], dtype=torch.int64, device="cpu")
    values = torch.cat(parts) if parts else torch.empty((0, *state.row), dtype=leaf.dtype, device="cpu")
    return RaggedRows(values.contiguous(), lengths)


def _check_rows(leaf: Leaf, state: RaggedState, parts: Sequence[torch.Tensor], where: str) -> None:
    for part in parts:
        if part.dtype != leaf.dtype or part.ndim != leaf.shape[1] or tuple(part.shape[1:]) != state.row:
            shape = ", ".join(["n", *map(str, state.row)])
            raise ValueError(
                f"{where} has a row of {part.dtype} {list(part.shape)} where the saved rows have {leaf.dtype} "
                f"[{shape}]; convert or reshape it"
            )


def _check_number(found: int, number: int, where: str) -> None:
    if found != number:
        raise ValueError(f"{where} has {found} rows and the batch has {number}; pass one for each")


def _values(value: Any, number: int, one: bool, where: str) -> list[Any]:
    if isinstance(value, NonTensorStack):
        found = [value.tolist()] if one else value.tolist()
    elif isinstance(value, NonTensorData):
        found = [value.data] * number
    elif isinstance(value, list) and not one:
        found = [item.data if isinstance(item, NonTensorData) else item for item in value]
    else:
        found = [value] * number
    _check_number(len(found), number, where)
    return list(found)


# --- reading


def _read_shapes(root: str, leaf: Leaf, rows: int) -> np.ndarray[Any, Any]:
    dims = leaf.shape[1]
    try:
        shapes = np.fromfile(f"{root}/{leaf.shapes_file}", np.int64, rows * dims) if rows else np.empty(0, np.int64)
    except FileNotFoundError:
        shapes = np.empty(0, np.int64)
    if len(shapes) != rows * dims or (shapes < 0).any():
        raise ValueError(
            f"the shapes of the {rows} rows of key {show(leaf.key)} in {root}/{leaf.shapes_file} are damaged: the file "
            f"is missing or short, or holds negative numbers; restore it or save again"
        )
    return shapes.reshape(rows, dims)


def read_lengths(root: str, leaf: Leaf, rows: int) -> np.ndarray[Any, Any]:
    """Return the lengths of the first rows of a ragged leaf."""
    return _read_shapes(root, leaf, rows)[:, 0]


class RaggedReader:
    """The rows of a ragged column, mapped from its files.

    Args:
        root: The absolute path of the saved folder.
        leaf: The leaf.
        state: The kind of the column and the shape of its elements.
        rows: The number of rows.

    Raises:
        ValueError: The files are damaged.
    """

    def __init__(self, root: str, leaf: Leaf, state: RaggedState, rows: int) -> None:
        self.leaf, self.state = leaf, state
        self.element_bytes = prod(state.row) * leaf.dtype.itemsize
        self.path = f"{root}/{leaf.file}"
        self.offsets = np.zeros(rows + 1, np.int64)
        np.cumsum(read_lengths(root, leaf, rows), out=self.offsets[1:])
        total = int(self.offsets[-1])
        self.values = torch.empty((total, *state.row), dtype=leaf.dtype, device="cpu")
        if not self.values.numel():
            return
        with Descriptor(os.open, self.path, os.O_RDONLY | syscalls.BINARY | syscalls.NO_LINK) as file:
            size = os.fstat(file.fileno()).st_size
            if size < self.values.nbytes:
                raise ValueError(
                    f"{self.path} has {size} bytes where {rows} rows of key {show(leaf.key)} take "
                    f"{self.values.nbytes}; restore it or save again"
                )
            mapping = Mapping(file.fileno(), self.path, self.values.nbytes, mode="r")
        mapped = MemoryMappedTensor.from_handler(mapping, leaf.dtype, (total, *state.row))
        self.values = mapped.as_subclass(torch.Tensor)

    def row(self, number: int) -> Any:
        """Return one row: a tensor, or a value as non-tensor data."""
        start, stop = self.offsets[number : number + 2].tolist()
        part = self.values[start:stop]
        if self.state.kind == encoding.TENSOR:
            return part.clone()
        return NonTensorData(self._decoded(part))

    def take(self, rows: torch.Tensor) -> Any:
        """Return rows by their numbers: a jagged tensor, or a stack of values."""
        return self.batch(self.parts(rows))

    def parts(self, rows: torch.Tensor) -> list[Any]:
        """Return rows by their numbers as a list of views of the files, or of values."""
        numbers = rows.numpy()
        starts, stops = self.offsets[numbers].tolist(), self.offsets[numbers + 1].tolist()
        parts = [self.values[start:stop] for start, stop in zip(starts, stops, strict=True)]
        return parts if self.state.kind == encoding.TENSOR else [self._decoded(part) for part in parts]

    def batch(self, parts: list[Any]) -> Any:
        """Return rows, given as by `parts`, as a jagged tensor or a stack of values."""
        if self.state.kind != encoding.TENSOR:
            return NonTensorStack(*map(NonTensorData, parts))
        offsets = torch.zeros(len(parts) + 1, dtype=torch.int64, device="cpu")
        torch.cumsum(torch.tensor([len(part) for part in parts], dtype=torch.int64, device="cpu"), 0, out=offsets[1:])
        values = torch.cat(parts) if parts else self.values[:0].clone()
        return torch.nested.nested_tensor_from_jagged(values, offsets)

    def whole(self) -> torch.Tensor:
        """Return all rows as a jagged tensor over the files; those of values as the bytes that encode them."""
        made: torch.Tensor = torch.nested.nested_tensor_from_jagged(self.values, torch.from_numpy(self.offsets))
        return made

    def _decoded(self, part: torch.Tensor) -> Any:
        try:
            return encoding.decode(self.state.kind, part.numpy().tobytes())
        except ValueError as error:
            raise ValueError(
                f"a value of key {show(self.leaf.key)} in {self.path} is damaged ({error}); restore the file"
            ) from None
