"""Parquet files, by pyarrow: a column for each entry, nested entries as structs or under joined names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Unpack

import torch

from tensordict_core import NestedKey, TensorDict, is_tensor_collection, unravel_key_to_tuple
from tensordict_store.extras import require
from tensordict_store.staging import staged
from tensordict_store.tables.from_arrow import from_arrow
from tensordict_store.tables.options import ReadOptions, finish
from tensordict_store.tables.to_arrow import to_arrow

_ROWS = 65_536
"""The number of rows of a source larger than memory that are written, or read, at a time."""


def to_parquet(
    td: Any, path: str | os.PathLike[str], *, separator: str | None = None, rows: int = _ROWS, **kwargs: Any
) -> None:
    """Write a tensordict, or the batches of an iterable, to a Parquet file.

    Args:
        td: A tensordict with one batch dimension; an iterable of tensordicts of the same keys and dtypes; or a dataset
            whose slices are tensordicts, such as a ``MemmapDataset``. Only one batch is in memory at a time.
        path: The file; an existing file is replaced atomically.
        separator: The string with which nested keys are joined to names of columns; by default nested tensordicts are
            structs.
        rows: The number of rows of a dataset that are written at a time.
        **kwargs: The other arguments of ``pyarrow.parquet.ParquetWriter``, such as ``compression``.

    Raises:
        ImportError: pyarrow is not installed.
        TypeError: Arrow has no type for an entry.
        ValueError: There is no batch, or not one batch dimension.

    >>> to_parquet(TensorDict({"a": torch.arange(2), "n": {"x": torch.zeros(2, 3)}}, [2]), "rows.parquet")
    >>> from_parquet("rows.parquet")["n", "x"].shape
    torch.Size([2, 3])
    """
    require("arrow", "to_parquet")
    import pyarrow.parquet as pq

    writer: Any = None
    with staged(path) as file:
        try:
            for batch in _batches(td, rows):
                table = to_arrow(batch if separator is None else batch.flatten_keys(separator))
                if writer is None:
                    writer = pq.ParquetWriter(file, table.schema, **kwargs)
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()
        if writer is None:
            raise ValueError(f"there is no batch to write to {os.fspath(path)!r}; give at least one")


def _batches(source: Any, rows: int) -> Iterator[Any]:
    if is_tensor_collection(source):
        yield source
    elif hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, list | tuple):
        for start in range(0, max(len(source), 1), rows):
            yield source[start : start + rows]
    else:
        yield from source


def _names(columns: Sequence[NestedKey] | None, separator: str | None) -> list[str] | None:
    if columns is None:
        return None
    joint = "." if separator is None else separator  # pyarrow names the fields of structs with dots
    return [joint.join(unravel_key_to_tuple(column)) for column in columns]


def _without_dots(columns: Sequence[NestedKey], path: Any, options: dict[str, Any]) -> list[NestedKey]:
    """Return keys of columns, with nested keys in place of names with dots that no column has."""
    if not any(isinstance(column, str) and "." in column for column in columns):
        return list(columns)
    import pyarrow.parquet as pq

    shared = {name: options[name] for name in ("filesystem", "partitioning", "schema") if name in options}
    flat = pq.ParquetDataset(path, **shared).schema.names
    return [
        tuple(column.split(".")) if isinstance(column, str) and "." in column and column not in flat else column
        for column in columns
    ]


def from_parquet(
    path: Any,
    *,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
    device: torch.device | str | int | None = None,
    batch_size: Sequence[int] | int | None = None,
    separator: str | None = None,
    dtype: torch.dtype | None = None,
    columns: Sequence[NestedKey] | None = None,
    copy: bool | None = None,
    **kwargs: Any,
) -> TensorDict:
    """Read a Parquet file into a tensordict, with an entry for each column.

    Numbers with null values become ``float64`` with NaN, timestamps ``int64`` with nanoseconds, structs nested
    tensordicts, lists of numbers jagged nested tensors, and strings non-tensor data, a value for each row.

    Args:
        path: The file or folder.
        auto_batch_size: Whether the batch size is the longest that all entries share.
        batch_dims: The maximum number of batch dimensions with ``auto_batch_size``.
        device: The device of the tensors.
        batch_size: The batch size; by default the number of rows.
        separator: The string at which names of columns are split into nested keys.
        dtype: The dtype of numbers and bools; by default their own.
        columns: The columns to read; a nested key names a field of a struct, or with ``separator`` a column. A field
            may be named with dots, as pyarrow does, unless a column has that name.
        copy: Whether the memory of the table is copied, as for `from_arrow`.
        **kwargs: The other arguments of ``pyarrow.parquet.read_table``.

    Raises:
        ImportError: pyarrow is not installed.
        FileNotFoundError: There is no file.

    >>> to_parquet(TensorDict({"a": torch.arange(2), "s": ["x", "y"]}, [2]), "two.parquet")
    >>> from_parquet("two.parquet", columns=["s"])["s"]
    ['x', 'y']
    """
    require("arrow", "from_parquet")
    import pyarrow.parquet as pq

    names = _names(columns, separator)
    if columns is not None and separator is None:  # fields of structs: read_table would take them out of their struct
        columns = _without_dots(columns, path, kwargs)
        names = [*dict.fromkeys(unravel_key_to_tuple(column)[0] for column in columns)]
    td = _from_table(
        pq.read_table(path, columns=names, **kwargs),
        "from_parquet",
        copy,
        auto_batch_size=auto_batch_size,
        batch_dims=batch_dims,
        device=device,
        batch_size=batch_size,
        separator=separator,
        dtype=dtype,
    )
    return td if columns is None or separator is not None else td.select(*columns)


def iter_parquet(
    path: Any,
    *,
    rows: int = _ROWS,
    columns: Sequence[NestedKey] | None = None,
    separator: str | None = None,
    device: torch.device | str | int | None = None,
) -> Iterator[TensorDict]:
    """Read a Parquet file in batches. A thread reads the next batch meanwhile, so that two are in memory.

    Args:
        path: The file.
        rows: The maximum number of rows of a batch.
        columns: The columns to read, as for `from_parquet`.
        separator: The string at which names of columns are split into nested keys.
        device: The device of the tensors.

    Raises:
        ImportError: pyarrow is not installed.

    >>> to_parquet(TensorDict({"a": torch.arange(5)}, [5]), "five.parquet")
    >>> [batch["a"].tolist() for batch in iter_parquet("five.parquet", rows=2)]
    [[0, 1], [2, 3], [4]]
    """
    pa = require("arrow", "iter_parquet")
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file, ThreadPoolExecutor(1, "tensordict-store") as reader:
        batches = file.iter_batches(rows, columns=_names(columns, separator))
        ahead = reader.submit(next, batches, None)
        while (batch := ahead.result()) is not None:
            ahead = reader.submit(next, batches, None)
            yield _from_table(pa.Table.from_batches([batch]), "iter_parquet", None, separator=separator, device=device)


def _from_table(table: Any, what: str, copy: bool | None, **options: Unpack[ReadOptions]) -> TensorDict:
    import pyarrow as pa

    columns = [_numeric(pa, column) for column in table.columns]
    names = table.column_names
    table = pa.Table.from_arrays(columns, names=names)
    td = from_arrow(table, copy=copy, nulls="fill")
    return finish(what, dict(td.items()), table.num_rows, **options)


def _numeric(pa: Any, column: Any) -> Any:
    """Return a column with null numbers as floating-point numbers, and timestamps as integers."""
    types, kind = pa.types, column.type
    if types.is_timestamp(kind) or types.is_duration(kind):
        unit = pa.timestamp("ns", kind.tz) if types.is_timestamp(kind) else pa.duration("ns")
        column = column.cast(unit).cast(pa.int64())
    if column.null_count:
        if types.is_integer(column.type):
            return column.cast(pa.float64())
        if types.is_boolean(kind):  # neither False nor True: values for each row
            return column.dictionary_encode()
    return column
