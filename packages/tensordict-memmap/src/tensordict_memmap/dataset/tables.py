"""Tables: rows as dictionaries of arrays by column, as engines for data exchange them, and back.

The name of a column is its nested key, joined with ``.``. Columns of one shape are arrays; ragged tensors are arrays of
objects that hold an array for each row, and values are arrays of objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from tensordict_core import NonTensorData, NonTensorStack, TensorDict
from tensordict_memmap.schema.node import Path

Table = dict[str, np.ndarray[Any, Any]]


def rows_to_table(rows: Any) -> Table:
    """Return a batch of rows as arrays by column.

    Args:
        rows: A tensordict with one batch dimension.

    Raises:
        TypeError: A column has a dtype that NumPy lacks, such as bfloat16; the error names the key.

    >>> rows_to_table(TensorDict({"a": torch.arange(2), "b": {"c": torch.zeros(2, 1)}}, [2]))
    {'a': array([0, 1]), 'b.c': array([[0.],
           [0.]], dtype=float32)}
    """
    table = {}
    for path, value in columns_of(rows):
        name = ".".join(path)
        if name in table:
            raise ValueError(f"two keys are named {name!r} once joined with '.'; rename one of them")
        if isinstance(value, torch.Tensor):
            parts = [_array(part, name) for part in value.unbind()] if value.is_nested else None
            table[name] = _array(value, name) if parts is None else _objects(parts)
        elif isinstance(value, NonTensorStack):
            table[name] = _objects(value.tolist())
        else:
            table[name] = _objects([value.data if isinstance(value, NonTensorData) else value] * len(rows))
    return table


def table_to_rows(table: Mapping[str, Any], keys: Mapping[str, Path] | None = None) -> Any:
    """Return arrays by column as a batch of rows.

    Args:
        table: The arrays, all of the same length.
        keys: The nested key of each column; names are split at ``.`` if None.

    Raises:
        ValueError: The columns have other names, or differ in length.

    >>> table_to_rows({"a.b": np.arange(3)})["a", "b"]
    tensor([0, 1, 2])
    """
    if keys is not None and keys.keys() != set(table):
        raise ValueError(f"the columns are {sorted(table)} where the dataset has {sorted(keys)}; add or remove columns")
    lengths = {name: len(column) for name, column in table.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the columns have the lengths {lengths}, and a batch has one; check them")
    rows = TensorDict({}, [next(iter(lengths.values()), 0)])
    for name, column in table.items():
        rows.set(tuple(name.split(".")) if keys is None else keys[name], _entry(column, name))
    return rows


def example_of(rows: Any) -> tuple[Any, list[Path]]:
    """Return the first of some rows, and the keys of the columns that are ragged.

    >>> example_of(table_to_rows({"a": np.arange(3), "s": np.array(["x", "y", "z"])}))[1]
    [('s',)]
    """
    ragged: list[Path] = []
    like = TensorDict({})
    for path, value in columns_of(rows):
        if isinstance(value, torch.Tensor) and not value.is_nested:
            like.set(path, value[0])
        else:
            ragged.append(path)
            first = value.unbind()[0] if isinstance(value, torch.Tensor) else NonTensorData(value.tolist()[0])
            like.set(path, first)
    return like, ragged


def columns_of(rows: Any) -> Iterator[tuple[Path, Any]]:
    """Yield the entries of a tensordict or tensorclass by their nested keys, non-tensor data included.

    >>> [key for key, _ in columns_of(TensorDict({"a": 1, "b": {"c": "text"}}))]
    [('a',), ('b', 'c')]
    """
    for name, value in rows._inmost()._items():
        if isinstance(value, torch.Tensor | NonTensorData | NonTensorStack):
            yield (name,), value
        else:
            for path, inner in columns_of(value):
                yield (name, *path), inner


def _array(tensor: torch.Tensor, name: str) -> np.ndarray[Any, Any]:
    try:
        found: np.ndarray[Any, Any] = tensor.detach().as_subclass(torch.Tensor).cpu().numpy()
    except TypeError as error:
        raise TypeError(
            f"column {name!r} has a dtype that NumPy lacks ({error}); convert it, such as to float32"
        ) from None
    return found


def _objects(values: list[Any]) -> np.ndarray[Any, Any]:
    out = np.empty(len(values), object)
    for number, value in enumerate(values):
        out[number] = value
    return out


def _entry(column: Any, name: str) -> Any:
    array = np.asarray(column)
    if array.dtype.kind in "biufc":
        writable = array if array.flags.writeable and array.flags.c_contiguous else array.copy()
        return torch.from_numpy(writable)
    values = array.tolist() if array.dtype.kind != "O" else list(array)
    if values and all(isinstance(value, np.ndarray) and value.dtype.kind in "biufc" for value in values):
        parts = [torch.from_numpy(np.array(value)) for value in values]
        if any(
            part.ndim == 0 or part.dtype != parts[0].dtype or part.shape[1:] != parts[0].shape[1:] for part in parts
        ):
            raise ValueError(f"column {name!r} has rows that differ in dtype, or in more than one dimension; pad them")
        return torch.nested.nested_tensor(parts, layout=torch.jagged)
    return NonTensorStack(*(NonTensorData(value) for value in values))
