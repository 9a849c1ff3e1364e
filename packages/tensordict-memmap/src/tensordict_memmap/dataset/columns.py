"""Columns of a dataset: the files of its leaves, to which a writer appends rows of bytes.

Rows are written after the committed ones by positional writes. So a full disk raises an error instead of a signal, and
readers never see a partial row. A batch is checked against the saved structure before anything is written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from math import prod
from typing import Any

import torch

from tensordict_core import LazyStackedTensorDict, NonTensorData, NonTensorStack, is_non_tensor, lazy_stack
from tensordict_core.extension import TensorCollection
from tensordict_memmap.dataset.ragged import match_ragged
from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.engine.progress import progress_if_long
from tensordict_memmap.engine.sink import Sink, error_context, reserve_file
from tensordict_memmap.engine.sources import FileRange, check_memory
from tensordict_memmap.engine.tuning import JOB_BYTES
from tensordict_memmap.engine.write_plan import write_into
from tensordict_memmap.schema import nontensor
from tensordict_memmap.schema.node import WRAPPED, Dense, Leaf, Node, Parts, Value, leaves, plain, show
from tensordict_memmap.storage.rows_committed import RaggedState
from tensordict_memmap.storage.staging import replacing

_NO_RAGGED: Mapping[str, RaggedState] = {}


class Column:
    """The file of one leaf, open for writing until it is closed.

    Args:
        root: The absolute path of the saved folder.
        leaf: The leaf, whose first dimension is the rows.
    """

    __slots__ = ("file", "key", "leaf", "path", "row_bytes", "row_shape", "size")

    def __init__(self, root: str, leaf: Leaf) -> None:
        self.leaf = leaf
        self.key = plain(leaf.key)
        self.path = f"{root}/{leaf.file}"
        self.row_shape = leaf.shape[1:]
        self.row_bytes = prod(self.row_shape) * leaf.dtype.itemsize
        self.file: Descriptor | None = None
        self.size = 0

    @property
    def fd(self) -> int:
        """The number of its descriptor; -1 while it is closed."""
        return self.file.fileno() if self.file is not None else -1

    def open(self, rows: int) -> None:
        """Open the file; if it has other hard links, it is copied first, so that they keep their content.

        Raises:
            ValueError: The file holds fewer rows.
        """
        if not self.row_bytes:
            return
        flags = os.O_RDWR | syscalls.BINARY | syscalls.NO_LINK
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(self.path).st_nlink > 1:
                with replacing(self.path) as staged:
                    shutil.copyfile(self.path, staged)
        self.file = Descriptor(os.open, self.path, flags if rows else flags | os.O_CREAT, 0o666)
        self.size = os.fstat(self.fd).st_size
        if self.size < rows * self.row_bytes:
            raise ValueError(
                f"{self.path} has {self.size} bytes where {rows} rows of key {self.key!r} take "
                f"{rows * self.row_bytes}; restore it or save again"
            )

    def grow(self, rows: int) -> None:
        """Extend the file to a number of rows, without allocating disk blocks."""
        if rows * self.row_bytes > self.size:
            with self.error_context():
                os.ftruncate(self.fd, rows * self.row_bytes)
            self.size = rows * self.row_bytes

    def cut(self, rows: int) -> None:
        """Truncate the file to a number of rows."""
        if self.fd >= 0 and self.size > rows * self.row_bytes:
            os.ftruncate(self.fd, rows * self.row_bytes)
            self.size = rows * self.row_bytes

    def reserve(self, rows: int) -> None:
        """Reserve the disk blocks for a total number of rows."""
        if self.row_bytes:
            with self.error_context():
                reserve_file(self.fd, rows * self.row_bytes)
            self.size = max(self.size, rows * self.row_bytes)

    def clear(self, start: int, stop: int) -> None:
        """Set rows to zero that an earlier writer may have left uncommitted; holes stay holes."""
        position, end = start * self.row_bytes, min(stop * self.row_bytes, self.size)
        while position < end:
            try:
                data = os.lseek(self.fd, position, os.SEEK_DATA)
            except (AttributeError, OSError) as error:  # without SEEK_DATA, assume that all of it is data
                if getattr(error, "errno", None) == errno.ENXIO:
                    return
                data = position
            if data >= end:
                return
            count = min(JOB_BYTES, end - data)
            zeros = torch.zeros(count, dtype=torch.uint8, device="cpu")
            with self.error_context():
                syscalls.write_at(self.fd, zeros.data_ptr(), count, data)
            position = data + count

    def error_context(self) -> AbstractContextManager[None]:
        """Add the key and the path to each ``OSError`` of a block."""
        return error_context(self.key, self.path)

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()


def write_rows(
    columns: Sequence[Column],
    tensors: Sequence[torch.Tensor],
    start: int,
    threads: int | None,
    pbar: bool | None = None,
) -> None:
    """Write the rows of a batch, one tensor for each column, starting at row ``start``; large ones with a bar."""
    large = []
    for column, tensor in zip(columns, tensors, strict=True):
        if not column.row_bytes:
            continue
        source = tensor.detach().as_subclass(torch.Tensor)
        check_memory(column.key, source)
        plain = source.device.type == "cpu" and source.is_contiguous() and not (source.is_conj() or source.is_neg())
        if plain and source.nbytes < JOB_BYTES:
            with column.error_context():
                syscalls.write_at(column.fd, source.data_ptr(), source.nbytes, start * column.row_bytes)
            column.size = max(column.size, start * column.row_bytes + source.nbytes)
        else:
            large.append((column, source))
    if large:
        targets = [
            (Sink(column.file or column.fd), FileRange(column.key, source, start * column.row_bytes))
            for column, source in large
        ]
        with progress_if_long(sum(source.nbytes for _, source in large), pbar) as progress:
            write_into(targets, threads=threads, progress=progress)
    for column, source in large:
        column.size = max(column.size, start * column.row_bytes + source.nbytes)


# --- checks of a saved structure and of batches


def check_growable(node: Node, where: str) -> Dense:
    """Check that all leaves of a schema can grow by rows, and return the node of the tensordict at its root.

    Raises:
        ValueError: An entry cannot grow; the error names the key.
    """
    content = node
    while isinstance(content, Parts) and WRAPPED in content.parts:
        content = content.parts[WRAPPED]
    if isinstance(content, Dense) and not content.batch_size:
        raise ValueError(
            f"{where} has the batch size [], and a dataset requires at least one batch dimension; save it with rows"
        )
    _check_node(node, where)
    if not isinstance(content, Dense):
        raise ValueError(f"{where} is one value without tensors, and a dataset has rows of tensors; save a tensordict")
    return content


def _check_node(node: Node, where: str) -> None:
    here = f"key {show(node.key)}" if node.key else where
    if isinstance(node, Parts):
        if WRAPPED not in node.parts:
            raise ValueError(f"{here} is a lazy stack, which cannot grow; save it as td.contiguous()")
        _check_node(node.parts[WRAPPED], where)
    elif isinstance(node, Value):
        if node.stack:
            raise ValueError(
                f"{here} is a stack of non-tensor values, which cannot grow; store its rows as a tensor, or one value "
                "for all rows"
            )
    else:
        for entry in node.entries.values():
            if not isinstance(entry, Leaf):
                _check_node(entry, where)
            elif entry.layout != "strided" and (
                entry.layout != "jagged" or entry.ragged != 1 or len(node.batch_size) != 1
            ):
                raise ValueError(
                    f"key {show(entry.key)} is a nested tensor, and of those only jagged ones can grow whose first "
                    "dimension differs by row, in a tensordict with one batch dimension; pad it to one shape"
                )


def match_batch(
    node: Node, batch_size: tuple[int, ...], rows: Any, *, one: bool, ragged: Mapping[str, RaggedState] = _NO_RAGGED
) -> tuple[int, list[Any]]:
    """Return the number of rows of a batch, and its leaves in the order of the saved ones.

    Args:
        node: The schema of the saved rows.
        batch_size: Their batch size.
        rows: The batch.
        one: Whether the batch is a single row, without the row dimension.
        ragged: The ragged columns; their leaves are returned as `RaggedRows`.

    Raises:
        TypeError: The batch is not a tensordict or tensorclass.
        ValueError: Keys, classes, dtypes, trailing shapes or non-tensor values differ; the error names the key.
    """
    if not isinstance(rows, TensorCollection):
        raise TypeError(f"{type(rows).__name__} holds no rows; pass a tensordict or tensorclass")
    size, saved = tuple(rows.batch_size), batch_size[1:]
    if (size if one else size[1:]) != saved or not (one or size):
        wanted = ", ".join(map(str, saved)) if one else ", ".join(["n", *map(str, saved)])
        raise ValueError(f"the rows have the batch size {list(size)} where saved rows have [{wanted}]; reshape them")
    out: dict[str, Any] = {}
    number = 1 if one else size[0]
    _match_batch(node, rows, () if one else (number,), out, ragged)
    return number, [out[leaf.file] for leaf in leaves(node)]


def _match_batch(
    node: Node, rows: Any, number: tuple[int, ...], out: dict[str, Any], ragged: Mapping[str, RaggedState]
) -> None:
    here = f"key {show(node.key)}" if node.key else "the rows"
    apart: dict[str, Any] = {}  # the ragged columns of a lazy stack
    if isinstance(rows, LazyStackedTensorDict):
        if ragged and number and isinstance(node, Dense):  # rows of several lengths, which cannot be stacked
            apart = _ragged_parts(node, rows)
            rows = rows.exclude(*apart)
        rows = rows.contiguous()
    form = rows._disk_form() if isinstance(rows, TensorCollection) else None
    if isinstance(form, TensorCollection):  # saved as the container that it wraps
        rows, form = form, form._disk_form()
    if isinstance(node, Parts):
        parts = form[1] if isinstance(form, tuple) else {}
        if WRAPPED not in parts or (node.cls is not None and type(rows) is not node.cls):
            raise ValueError(f"{here}: {type(rows).__name__} where the saved rows have a {node.type_name}; convert it")
        _match_batch(node.parts[WRAPPED], parts[WRAPPED], number, out, ragged)
        return
    assert isinstance(node, Dense)
    if not isinstance(rows, TensorCollection) or is_non_tensor(rows) or form is not None:
        raise ValueError(f"{here}: {type(rows).__name__} where the saved rows have a tensordict; convert it")
    _match_entries(node, dict(rows._items()) | apart, number, out, ragged)


def _match_entries(
    node: Dense,
    given: Mapping[str, Any],
    number: tuple[int, ...],
    out: dict[str, Any],
    ragged: Mapping[str, RaggedState],
) -> None:
    if given.keys() != node.entries.keys():
        here = f"key {show(node.key)}" if node.key else "the rows"
        raise ValueError(
            f"{here} have the keys {sorted(map(str, given))} where the saved rows have {sorted(node.entries)}; add or "
            "remove keys"
        )
    for name, entry in node.entries.items():
        value = given[name]
        if isinstance(entry, Leaf) and entry.file in ragged:
            count = number[0] if number else 1
            out[entry.file] = match_ragged(entry, ragged[entry.file], value, count, one=not number)
        elif isinstance(entry, Leaf):
            out[entry.file] = _matching_leaf(entry, value, number + entry.shape[1:])
        elif isinstance(entry, Value):
            _check_value(entry, value)
        else:
            _match_batch(entry, value, number, out, ragged)


def _matching_leaf(saved: Leaf, value: Any, shape: tuple[int, ...]) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        if value.dtype == saved.dtype and tuple(value.shape) == shape:
            return value
        kind = f"{value.dtype} {list(value.shape)}"
    else:
        kind = type(value).__name__
    raise ValueError(
        f"key {show(saved.key)} is {kind} where the saved rows have {saved.dtype} {list(shape)}; convert or reshape it"
    )


def _ragged_parts(node: Dense, rows: LazyStackedTensorDict) -> dict[str, Any]:
    """Return the ragged columns of a lazy stack, as lists of rows, and the nodes that hold such columns."""
    parts: dict[str, Any] = {}
    for name, entry in node.entries.items():
        if isinstance(entry, Leaf):
            if entry.layout == "jagged":
                parts[name] = [row.get(name) for row in rows.unbind(0)]
        elif any(leaf.layout == "jagged" for leaf in leaves(entry)):
            parts[name] = lazy_stack([row.get(name) for row in rows.unbind(0)])
    return parts


def _check_value(saved: Value, value: Any) -> None:
    if isinstance(value, NonTensorStack):
        found = value.reshape(-1).tolist()
    else:
        found = [value.data if isinstance(value, NonTensorData) else value]
    if not all(nontensor.is_same(saved.value, one) for one in found):
        raise ValueError(
            f"key {show(saved.key)} is {found[0]!r:.100} where all saved rows have {saved.value!r:.100}; store values "
            "that differ by row as a tensor"
        )
