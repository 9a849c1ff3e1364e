"""CSV and JSON files: a column, or a field of a record, for each entry."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tensordict_core import NonTensorStack, TensorDict
from tensordict_store.extras import require
from tensordict_store.staging import staged
from tensordict_store.tables.frames import columns_of, from_pandas
from tensordict_store.tables.options import finish


def from_csv(
    path: Any,
    *,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
    device: torch.device | str | int | None = None,
    batch_size: Sequence[int] | int | None = None,
    separator: str | None = None,
    dtype: torch.dtype | None = None,
    **kwargs: Any,
) -> TensorDict:
    """Read a CSV file into a tensordict, with an entry for each column.

    Args:
        path: The file.
        auto_batch_size: Whether the batch size is the longest that all entries share.
        batch_dims: The maximum number of batch dimensions with ``auto_batch_size``.
        device: The device of the tensors.
        batch_size: The batch size; by default the number of rows.
        separator: The string at which names of columns are split into nested keys.
        dtype: The dtype of numbers and bools; by default their own.
        **kwargs: The other arguments of ``pandas.read_csv``.

    Raises:
        ImportError: pandas is not installed.
        FileNotFoundError: There is no file.

    >>> to_csv(TensorDict({"a": torch.arange(2), "s": ["x", "y"]}, [2]), "two.csv")
    >>> td = from_csv("two.csv")
    >>> td["a"], td[0]["s"]
    (tensor([0, 1]), 'x')
    """
    pd = require("pandas", "from_csv")
    return from_pandas(
        pd.read_csv(path, **kwargs),
        auto_batch_size=auto_batch_size,
        batch_dims=batch_dims,
        device=device,
        batch_size=batch_size,
        separator=separator,
        dtype=dtype,
    )


def to_csv(td: Any, path: str | os.PathLike[str], *, separator: str | None = None, **kwargs: Any) -> None:
    """Write a tensordict to a CSV file, with a column for each leaf.

    Args:
        td: A tensordict or tensorclass whose leaves have one value for each row.
        path: The file; an existing file is replaced atomically.
        separator: The string with which nested keys are joined to names of columns.
        **kwargs: The other arguments of ``pandas.DataFrame.to_csv``.

    Raises:
        ImportError: pandas is not installed.
        ValueError: There is a nested tensordict and no separator, or a tensor does not have exactly one value for each
            row.

    >>> from pathlib import Path
    >>> to_csv(TensorDict({"a": torch.arange(2), "n": {"x": torch.zeros(2)}}, [2]), "n.csv", separator=".")
    >>> Path("n.csv").read_text().split()
    ['a,n.x', '0,0.0', '1,0.0']
    """
    pd = require("pandas", "to_csv")
    frame = pd.DataFrame(columns_of(td, separator, "to_csv"))
    with staged(path) as file:
        frame.to_csv(file, **{"index": False, **kwargs})


def from_json(
    path: Any,
    *,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
    device: torch.device | str | int | None = None,
    batch_size: Sequence[int] | int | None = None,
    separator: str | None = None,
    dtype: torch.dtype | None = None,
    lines: bool = False,
    **kwargs: Any,
) -> TensorDict:
    """Read a JSON file of records into a tensordict, with an entry for each field.

    Numbers become tensors (``float64`` if one has a fraction, is null or is missing), lists of numbers of one shape
    tensors with more dimensions, objects nested tensordicts, other values non-tensor data, one for each record.

    Args:
        path: The file, or an open one: an array of objects, or an object of columns, as pandas writes it.
        auto_batch_size: Whether the batch size is the longest that all entries share.
        batch_dims: The maximum number of batch dimensions with ``auto_batch_size``.
        device: The device of the tensors.
        batch_size: The batch size; by default the number of rows.
        separator: The string at which names of columns are split into nested keys.
        dtype: The dtype of numbers and bools; by default their own.
        lines: Whether each line is an object instead.
        **kwargs: Options of ``json.loads``.

    Raises:
        ValueError: The file is not JSON, or a record is not an object.
        FileNotFoundError: There is no file.

    >>> td = TensorDict({"a": torch.arange(2), "n": {"x": torch.zeros(2, 3)}, "s": ["u", "v"]}, [2])
    >>> to_json(td, "rows.json")
    >>> again = from_json("rows.json")
    >>> again["n", "x"].shape, again["a"], again["s"]
    (torch.Size([2, 3]), tensor([0, 1]), ['u', 'v'])
    """
    if hasattr(path, "read"):
        text = path.read()
    else:
        with open(os.fspath(path), encoding="utf-8") as stream:  # not a number: closing would close that descriptor
            text = stream.read()
    records = (
        [json.loads(line, **kwargs) for line in text.split("\n") if line.strip()]
        if lines
        else json.loads(text, **kwargs)
    )
    if isinstance(records, dict):
        records = _rows(records)
    if not isinstance(records, list):
        raise ValueError(
            f"{path!r} holds neither an array of objects nor an object of columns, which from_json() reads; "
            "load it with json.load and pass it to TensorDict.from_dict"
        )
    entries = _fields(records, ()) if records else {}
    return finish(
        "from_json",
        entries,
        len(records),
        auto_batch_size=auto_batch_size,
        batch_dims=batch_dims,
        device=device,
        batch_size=batch_size,
        separator=separator,
        dtype=dtype,
    )


def _rows(columns: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the records of columns: lists of one length, or objects with the labels of the rows; otherwise nothing."""
    lists = [list(column.values()) if isinstance(column, dict) else column for column in columns.values()]
    if not all(isinstance(column, list) and len(column) == len(lists[0]) for column in lists):
        return None
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


def _fields(records: Sequence[Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return an entry for each field that a record has; it is null in records that lack it."""
    names: dict[str, None] = {}
    for number, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise ValueError(
                f"record {number}{f' of {path}' if path else ''} is a {type(record).__name__} instead of an object; "
                "make it an object"
            )
        names.update(dict.fromkeys(record))
    return {name: _entry([record.get(name) for record in records], (*path, name)) for name in names}


def _entry(values: list[Any], path: tuple[str, ...]) -> Any:
    if all(isinstance(value, dict) for value in values):
        return TensorDict(_fields(values, path), batch_size=[len(values)])
    kinds = {*map(type, values)}
    if kinds == {bool}:
        return torch.tensor(values, device="cpu")
    if kinds <= {int, float, type(None)} and kinds != {type(None)}:
        if kinds == {int}:
            try:
                return torch.tensor(values, dtype=torch.int64, device="cpu")
            except (OverflowError, RuntimeError, ValueError):  # integers of more than 64 bits
                return NonTensorStack.from_list(values, batch_size=[len(values)])
        return torch.tensor(
            [math.nan if value is None else value for value in values], dtype=torch.float64, device="cpu"
        )
    if kinds == {list}:
        try:
            array = np.array(values)
        except ValueError:  # of several shapes
            array = np.array(None)
        if array.dtype.kind in "bif":
            return torch.from_numpy(array)
    return NonTensorStack.from_list(values, batch_size=[len(values)])


def to_json(
    td: Any, path: str | os.PathLike[str], *, separator: str | None = None, lines: bool = False, **kwargs: Any
) -> None:
    """Write a tensordict to a JSON file of records, one for each row.

    Args:
        td: A tensordict or tensorclass with one batch dimension.
        path: The file; an existing file is replaced atomically.
        separator: The string with which nested keys are joined to names of fields; by default nested tensordicts are
            objects.
        lines: Whether each record is a line of its own, instead of an array of all.
        **kwargs: Options of ``json.dumps``, such as ``indent``.

    Raises:
        ValueError: The tensordict does not have exactly one batch dimension, or a number is infinite, which JSON cannot
            represent.
        TypeError: JSON cannot hold a value.

    >>> from pathlib import Path
    >>> to_json(TensorDict({"a": torch.arange(2), "n": {"x": torch.ones(2)}}, [2]), "n.json", lines=True)
    >>> print(Path("n.json").read_text(), end="")
    {"a":0,"n":{"x":1.0}}
    {"a":1,"n":{"x":1.0}}
    """
    if len(td.batch_size) != 1:
        raise ValueError(f"the batch size is {list(td.batch_size)}, and records have one dimension; reshape it")
    columns = _plain(td if separator is None else td.flatten_keys(separator), ())
    rows = [_record(columns, i) for i in range(td.batch_size[0])]
    kwargs.setdefault("allow_nan", False)
    if kwargs.get("indent") is None:
        kwargs.setdefault("separators", (",", ":"))  # no spaces, as pandas writes
    if lines:
        text = "".join(json.dumps(row, **kwargs) + "\n" for row in rows)
    else:
        text = json.dumps(rows, **kwargs)
    with staged(path) as file, open(file, "w", encoding="utf-8") as stream:
        stream.write(text)


def _plain(td: Any, path: tuple[str, ...]) -> dict[str, Any]:
    """Nested dictionaries of lists, with ``None`` in place of NaN."""
    out: dict[str, Any] = {}
    for key, value in td.items():
        if isinstance(value, torch.Tensor):
            out[key] = [row.tolist() for row in value.unbind()] if value.is_nested else _numbers(value, (*path, key))
        elif value._is_non_tensor:
            out[key] = value.maybe_to_stack().tolist()
        else:
            out[key] = _plain(value, (*path, key))
    return out


def _numbers(value: torch.Tensor, path: tuple[str, ...]) -> list[Any]:
    value = value.detach().cpu()
    if not value.is_floating_point():
        return value.tolist()
    if value.isinf().any():
        raise ValueError(f"key {path} has infinite numbers, which JSON cannot hold; clamp them first")
    numbers = value.double().numpy().astype(object)
    numbers[value.isnan().numpy()] = None
    rows: list[Any] = numbers.tolist()
    return rows


def _record(columns: dict[str, Any], row: int) -> dict[str, Any]:
    return {key: _record(column, row) if isinstance(column, dict) else column[row] for key, column in columns.items()}
