"""Writing: stores tensors in arrays, a block of rows at a time, so that large entries need little memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tensordict_core.extension import Index, Meta
from tensordict_store.arrays.dtypes import numpy_dtype
from tensordict_store.arrays.group import Group

__all__ = ["facts_of", "prepared_tensor", "reader"]

_BLOCK = 1 << 26
"""Bytes that are copied at once from one store to another."""


def facts_of(meta: Meta) -> dict[str, Any]:
    """Return what a file says of a node."""
    facts: dict[str, Any] = {"batch_size": list(meta.batch_size), "version": 1}
    return facts if meta.names is None else facts | {"names": list(meta.names)}


def reader(node: Any, key: str) -> Callable[[slice], Tensor]:
    """Return a function that reads rows of an entry of a store."""
    size = node._meta.batch_size

    def read(rows: slice) -> Tensor:
        value: Tensor = node._read(key, Index(rows, size) if size else None)
        return value if size or not value.ndim else value[rows]

    return read


def prepared_tensor(key: str, value: Tensor, read: Callable[[slice], Tensor]) -> Callable[[Group], None]:
    """Return a function that stores a tensor, a block of rows at a time.

    Raises:
        TypeError: The tensor has no plain form.
    """
    if value.layout is not torch.strided or value.is_nested or value.is_quantized:
        raise TypeError(
            f"the entry {key!r} has layout {value.layout} and cannot be stored as an array; densify it first"
        )
    numpy_dtype(value.dtype)
    shape, dtype = value.shape, value.dtype

    def put(group: Group) -> None:
        array = group.put_array(key, shape, dtype)
        if not shape:
            array.write([], read(slice(None)))
            return
        rows = max(_BLOCK // max(shape[1:].numel() * dtype.itemsize, 1), 1)
        for start in range(0, shape[0], rows):
            stop = min(start + rows, shape[0])
            array.write([(start, stop), *((0, n) for n in shape[1:])], read(slice(start, stop)))

    return put
