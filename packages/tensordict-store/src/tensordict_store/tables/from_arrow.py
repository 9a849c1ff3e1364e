"""Arrow tables to tensordicts: columns become tensors that view the memory of the table where that is safe.

Types and buffers are those of https://arrow.apache.org/docs/format/Columnar.html.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from tensordict_core import NestedKey, NonTensorStack, TensorDict
from tensordict_store.extras import require

Nulls = Literal["raise", "fill", "mask"]


def from_arrow(
    table: Any,
    *,
    copy: bool | None = None,
    nulls: Nulls = "raise",
    mask_key: NestedKey | None = None,
    device: torch.device | str | int | None = None,
) -> TensorDict:
    """Return a tensordict with an entry for each column of an Arrow table.

    Numbers become tensors, fixed-size lists tensors with more dimensions, lists of numbers jagged nested tensors,
    structs nested tensordicts; other values (strings, dates, dictionaries) are non-tensor data, one value for each row.

    Args:
        table: A ``pyarrow.Table`` or ``RecordBatch``, a stream of record batches, a dataset of Hugging Face, or an
            object with ``__arrow_c_stream__``, such as a frame of pandas or polars.
        copy: ``False`` returns views of the table, ``True`` copies; by default memory that Arrow marks as immutable,
            such as that of a mapped file, is copied. Columns of several chunks and bools are always copied.
        nulls: ``"raise"`` raises an error for null values; ``"fill"`` replaces them by NaN, 0, ``False``, an empty list
            or ``None``; ``"mask"`` does so and adds a bool entry that is true where a value is present.
        mask_key: The key under which ``nulls="mask"`` adds the masks, by default ``"_mask"``.
        device: The device of the tensors.

    Returns:
        A tensordict of batch size ``[rows]``.

    Raises:
        ImportError: pyarrow is not installed.
        ValueError: A value is null, a name occurs twice, or ``nulls`` is unknown.

    >>> import pyarrow as pa
    >>> table = pa.table({"x": [1.0, 2.0], "name": ["a", "b"], "n": [{"y": 1}, {"y": 2}]})
    >>> td = from_arrow(table)
    >>> td["x"], td["name"], td["n", "y"]
    (tensor([1., 2.], dtype=torch.float64), ['a', 'b'], tensor([1, 2]))
    >>> from_arrow(pa.table({"x": [1, None]}), nulls="mask")["_mask", "x"]
    tensor([ True, False])
    """
    pa = require("arrow", "from_arrow")
    if nulls not in ("raise", "fill", "mask"):
        raise ValueError(f"nulls={nulls!r} is unknown; pass 'raise', 'fill' or 'mask'")
    if mask_key is not None and nulls != "mask":
        raise ValueError(f"mask_key is the key of the masks of nulls='mask', and nulls={nulls!r}; leave it out")
    table = _as_table(pa, table)
    reader = _Columns(pa, copy, nulls)
    td = reader.node(zip(table.column_names, table.columns, strict=True), table.num_rows, ())
    for path, mask in reader.masks.items():
        prefix = (mask_key if isinstance(mask_key, tuple) else (mask_key,)) if mask_key is not None else ("_mask",)
        td.set((*prefix, *path), mask)
    return td if device is None else td.to(device)


def _as_table(pa: Any, source: Any) -> Any:
    if isinstance(source, pa.Table):
        return source
    if isinstance(source, pa.RecordBatch):
        return pa.Table.from_batches([source])
    if isinstance(source, pa.RecordBatchReader):
        return source.read_all()
    if hasattr(source, "with_format") and hasattr(source, "flatten_indices"):  # a dataset of Hugging Face
        return source.with_format("arrow")[:]
    return pa.table(source)


class _Columns:
    """Converts columns, and collects the masks of those with null values."""

    def __init__(self, pa: Any, copy: bool | None, nulls: Nulls) -> None:
        self.pa = pa
        self.copy = copy
        self.nulls = nulls
        self.masks: dict[tuple[str, ...], Tensor] = {}

    def node(self, columns: Iterator[tuple[str, Any]], rows: int, path: tuple[str, ...]) -> TensorDict:
        """Return the columns of a table, or the fields of a struct, as a tensordict."""
        entries: dict[str, Any] = {}
        for name, column in columns:
            if name in entries:
                raise ValueError(f"the column {(*path, name)} occurs twice; rename one of the two")
            entries[name] = self.entry(_one_chunk(self.pa, column), (*path, name))
        return TensorDict(entries, batch_size=[rows])

    def entry(self, array: Any, path: tuple[str, ...]) -> Any:
        """Return one column as an entry."""
        kind, types = array.type, self.pa.types
        if types.is_struct(kind):
            # flatten() gives the nulls of the struct to its fields, which report them
            fields = ((kind.field(i).name, field) for i, field in enumerate(array.flatten()))
            return self.node(fields, len(array), path)
        self.check(array, path)
        if isinstance(kind, self.pa.BaseExtensionType):
            if kind.extension_name == "arrow.fixed_shape_tensor":
                return self.fixed_shape(array, path)
            shape = getattr(kind, "shape", None)  # arrays of Hugging Face's datasets are lists in lists
            if isinstance(shape, tuple) and all(type(n) is int for n in shape) and not array.null_count:
                return self.lists_of_shape(array.storage, shape, path)
            return _values(array)
        if types.is_fixed_size_list(kind) and _is_number(types, _innermost(types, kind)):
            return self.fixed_size(array, path)
        if (types.is_list(kind) or types.is_large_list(kind)) and _is_number(types, kind.value_type):
            return self.jagged(array, path)
        return self.numbers(array) if _is_number(types, kind) else _values(array)

    def check(self, array: Any, path: tuple[str, ...]) -> None:
        """Refuse nulls, or note the mask of a column that has some."""
        if not array.null_count:
            return
        if self.nulls == "raise":
            raise ValueError(
                f"the column {path} has {array.null_count} null value(s); pass nulls='fill' to replace them, or "
                "nulls='mask' to get a mask too"
            )
        if self.nulls == "mask":
            self.masks[path] = torch.from_numpy(array.is_valid().to_numpy(zero_copy_only=False).copy())

    def numbers(self, array: Any) -> Tensor:
        """Return a column of numbers or bools."""
        types, kind = self.pa.types, array.type
        if array.null_count:
            missing = float("nan") if types.is_floating(kind) else False if types.is_boolean(kind) else 0
            array = array.fill_null(self.pa.scalar(missing).cast(kind))
        if types.is_boolean(kind):
            return torch.from_numpy(array.to_numpy(zero_copy_only=False).copy())
        if not len(array):
            return torch.from_numpy(array.to_numpy().copy())
        tensor: Tensor = torch.from_dlpack(array)  # type: ignore[attr-defined]  # documented, but not in its stubs
        mutable = array.buffers()[1].is_mutable
        return tensor.clone() if self.copy or (self.copy is None and not mutable) else tensor

    def jagged(self, array: Any, path: tuple[str, ...]) -> Tensor:
        """Return a column of lists of numbers."""
        lengths = self.pa.compute.list_value_length(array).fill_null(0)
        values = array.flatten()  # the values of the lists that are not null, in order
        self.check_inside(values, path)
        offsets = torch.zeros(len(array) + 1, dtype=torch.int64, device="cpu")
        torch.cumsum(torch.from_numpy(lengths.to_numpy().astype("int64")), 0, out=offsets[1:])
        return torch.nested.nested_tensor_from_jagged(self.numbers(values), offsets)

    def fixed_size(self, array: Any, path: tuple[str, ...]) -> Tensor:
        """Return a column of lists of one length, which may be nested."""
        size = array.type.list_size
        values = array.values.slice(array.offset * size, len(array) * size)
        if array.null_count:  # the content of a null row is undefined
            given = array.is_valid().to_numpy(zero_copy_only=False).repeat(size)
            nothing = self.pa.scalar(None, values.type)
            values = self.pa.compute.if_else(self.pa.array(given), values, nothing)
        else:
            self.check_inside(values, path)
        if self.pa.types.is_fixed_size_list(values.type):
            inner = self.fixed_size(values, path)
            return inner.reshape(len(array), size, *inner.shape[1:])
        return self.numbers(values).reshape(len(array), size)

    def fixed_shape(self, array: Any, path: tuple[str, ...]) -> Tensor:
        """Return a column of tensors of one shape."""
        kind = array.type
        flat = self.fixed_size(array.storage, path)
        tensor = flat.reshape(len(array), *kind.shape)
        order = kind.permutation
        return tensor if order is None else tensor.permute(0, *[i + 1 for i in order])

    def lists_of_shape(self, array: Any, shape: tuple[int, ...], path: tuple[str, ...]) -> Tensor:
        """Return a column of nested lists of one shape."""
        rows = len(array)
        for _ in shape:
            array = array.flatten()
            self.check_inside(array, path)
        if len(array) != rows * math.prod(shape) or not _is_number(self.pa.types, array.type):
            raise ValueError(
                f"the column {path} has {len(array)} values of {array.type}, which are no {rows} rows of numbers of "
                f"the shape {list(shape)}; cast it to lists"
            )
        return self.numbers(array).reshape(rows, *shape)

    def check_inside(self, values: Any, path: tuple[str, ...]) -> None:
        """Refuse nulls inside of rows, which a mask of rows cannot express."""
        if values.null_count and self.nulls != "fill":
            raise ValueError(
                f"the column {path} has {values.null_count} null value(s) inside of its rows; pass nulls='fill' to "
                "replace them"
            )


def _one_chunk(pa: Any, column: Any) -> Any:
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _innermost(types: Any, kind: Any) -> Any:
    while types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind


def _is_number(types: Any, kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _values(array: Any) -> NonTensorStack:
    """Return a column of other values: one for each row."""
    return NonTensorStack.from_list(array.to_pylist(), batch_size=[len(array)])
