"""Frames of pandas: a column for each leaf."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from tensordict_core import NonTensorStack, TensorDict, is_non_tensor, is_tensorclass
from tensordict_core.extension import check_options, with_options
from tensordict_store.extras import require
from tensordict_store.tables.options import DEFAULTS, ReadOptions, finish


@with_options(ReadOptions, DEFAULTS)
def from_pandas(dataframe: Any, **options: Unpack[ReadOptions]) -> TensorDict:
    """Return a tensordict with an entry for each column of a frame.

    Numbers and bools become tensors, categories the tensor of their codes, dates and time differences ``int64`` with
    nanoseconds, other values non-tensor data, one for each row.

    Args:
        dataframe: A ``pandas.DataFrame``; names of columns become strings.
        auto_batch_size: Whether the batch size is the longest that all entries share.
        batch_dims: The maximum number of batch dimensions with ``auto_batch_size``.
        device: The device of the tensors.
        batch_size: The batch size; by default the number of rows.
        separator: The string at which names of columns are split into nested keys.
        dtype: The dtype of numbers and bools; by default their own.

    Raises:
        ImportError: pandas is not installed.
        TypeError: ``dataframe`` is not a ``pandas.DataFrame``.

    >>> import pandas as pd
    >>> td = from_pandas(pd.DataFrame({"a": [1, 2], "n.x": [0.5, 1.0], "name": ["u", "v"]}), separator=".")
    >>> td["a"], td["n", "x"], td[1]["name"]
    (tensor([1, 2]), tensor([0.5000, 1.0000], dtype=torch.float64), 'v')
    """
    check_options("from_pandas", options, ReadOptions)
    dtype = options.pop("dtype", None)
    pd = require("pandas", "from_pandas")
    if not isinstance(dataframe, pd.DataFrame):
        raise TypeError(f"from_pandas() takes a pandas.DataFrame, got {type(dataframe).__name__}; convert it first")
    entries: dict[str, Any] = {}
    for position, name in enumerate(dataframe.columns):
        if str(name) in entries:
            raise ValueError(f"the column {str(name)!r} occurs twice; rename one of the two")
        entries[str(name)] = _entry(pd, dataframe.iloc[:, position], dtype)
    return finish("from_pandas", entries, len(dataframe), **options)


def _entry(pd: Any, column: Any, dtype: torch.dtype | None) -> Tensor | NonTensorStack:
    kind = column.dtype
    if isinstance(kind, pd.CategoricalDtype):
        array = column.cat.codes.to_numpy()
    elif pd.api.types.is_datetime64_any_dtype(kind) or pd.api.types.is_timedelta64_dtype(kind):
        # to nanoseconds, whatever the unit of the column
        dates = pd.DatetimeIndex(column) if pd.api.types.is_datetime64_any_dtype(kind) else pd.TimedeltaIndex(column)
        return torch.from_numpy(dates.as_unit("ns").asi8.copy())
    elif pd.api.types.is_bool_dtype(kind) and not column.isna().any():
        array = column.to_numpy(dtype=bool)
    elif pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind):
        array = column.to_numpy(dtype="float64", na_value=np.nan) if column.isna().any() else column.to_numpy()
        if array.dtype == object:  # an extension type, such as a decimal
            return NonTensorStack.from_list(column.tolist(), batch_size=[len(column)])
    else:
        return NonTensorStack.from_list(column.tolist(), batch_size=[len(column)])
    tensor = torch.from_numpy(array.copy())  # pandas hands out its own memory, sometimes read-only
    return tensor if dtype is None else tensor.to(dtype)


def columns_of(td: Any, separator: str | None, what: str) -> dict[str, Any]:
    """Return the columns of a table: an array or a list of values under each name.

    Args:
        td: The tensordict or tensorclass.
        separator: The string that joins nested keys.
        what: The name of the writer, for errors.

    Raises:
        ValueError: There is a nested tensordict and no separator, or a tensor does not have exactly one value for each
            row.

    >>> columns_of(TensorDict({"a": {"b": torch.zeros(2)}}, [2]), ".", "to_csv")
    {'a.b': array([0., 0.], dtype=float32)}
    """
    if separator is not None:
        td = td.flatten_keys(separator)
    out: dict[str, Any] = {}
    rows = td.batch_size[0] if td.batch_size else None
    for key, value in td.items():
        if isinstance(value, Tensor):
            if value.is_nested or value.ndim != 1:
                shape = "nested" if value.is_nested else list(value.shape)
                raise ValueError(
                    f"key {key!r} has the shape {shape}, and a column has one value for each row; write Arrow or "
                    "Parquet, or split the entry"
                )
            out[key] = _array(key, value)
        elif is_non_tensor(value):
            values = value.tolist()
            out[key] = values if isinstance(values, list) and value.batch_size else [values] * (rows or 1)
        elif is_tensorclass(value):
            out[key] = list(value.unbind(0))
        else:
            raise ValueError(
                f"key {key!r} is a nested tensordict, and a column has one value for each row; pass separator='.' to "
                f"join its keys, as in {what}(..., separator='.')"
            )
    return out


def _array(key: str, value: Tensor) -> np.ndarray[Any, Any]:
    try:
        return value.detach().cpu().resolve_conj().resolve_neg().numpy()
    except TypeError:
        raise TypeError(f"key {key!r} has the dtype {value.dtype}, which NumPy does not have; cast it first") from None


def to_pandas(td: Any, *, separator: str | None = None) -> Any:
    """Return a ``pandas.DataFrame`` with a column for each leaf.

    Args:
        td: A tensordict or tensorclass whose leaves have one value for each row.
        separator: The string with which nested keys are joined to names of columns.

    Raises:
        ImportError: pandas is not installed.
        ValueError: There is a nested tensordict and no separator, or a tensor does not have exactly one value for each
            row.

    >>> to_pandas(TensorDict({"a": torch.arange(2), "n": {"x": torch.zeros(2)}}, [2]), separator=".").columns.tolist()
    ['a', 'n.x']
    """
    pd = require("pandas", "to_pandas")
    columns = columns_of(td, separator, "to_pandas")
    # copies: a frame that shared memory with the tensors would change with them
    return pd.DataFrame({name: np.array(v) if isinstance(v, np.ndarray) else v for name, v in columns.items()})
