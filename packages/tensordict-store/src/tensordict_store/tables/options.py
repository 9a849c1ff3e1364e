"""Options that all readers of tables share: nested keys in column names, the batch size, the device and the dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

import torch

from tensordict_core import TensorDict


class ReadOptions(TypedDict, total=False):
    """The options of ``from_pandas`` and its siblings; their docstrings explain each."""

    auto_batch_size: bool
    batch_dims: int | None
    device: torch.device | str | int | None
    batch_size: Sequence[int] | int | None
    separator: str | None
    dtype: torch.dtype | None


DEFAULTS: dict[str, Any] = {**dict.fromkeys(ReadOptions.__annotations__), "auto_batch_size": False}
"""The defaults of the options."""


def finish(what: str, entries: dict[str, Any], rows: int, **options: Unpack[ReadOptions]) -> TensorDict:
    """Return the tensordict of the columns of a table.

    Args:
        what: The name of the reader, for errors.
        entries: The columns: tensors, nested tensordicts or non-tensor values for each row.
        rows: The number of rows.
        **options: The options of the reader. ``dtype`` casts numbers and bools.

    Raises:
        TypeError: Both ``batch_size`` and ``auto_batch_size`` are given.
        RuntimeError: The columns do not have the batch size.

    >>> finish("from_csv", {"a.b": torch.zeros(2)}, 2, separator=".")["a", "b"].shape
    torch.Size([2])
    """
    auto, size = options.get("auto_batch_size", False), options.get("batch_size")
    if auto and size is not None:
        raise TypeError(f"batch_size and auto_batch_size of {what}() both set the batch size; pass one of them")
    dtype = options.get("dtype")
    if dtype is not None:
        entries = {name: _cast(value, dtype) for name, value in entries.items()}
    td = TensorDict(entries, batch_size=[rows], device=options.get("device"))
    separator = options.get("separator")
    if separator is not None:
        td = td.unflatten_keys(separator)
    if auto:
        td.auto_batch_size_(options.get("batch_dims"))
    elif size is not None:
        td.batch_size = size
    return td


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor | TensorDict) else value
