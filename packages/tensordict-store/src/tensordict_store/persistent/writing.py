"""Writing: stores tensors in arrays, a block of rows at a time, so that large entries need little memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_core import TensorDict
from tensordict_core.extension import Index, Meta, Node
from tensordict_store import nodes
from tensordict_store.arrays.dtypes import as_array, check_plain
from tensordict_store.arrays.group import Target
from tensordict_store.nodes import around, inside
from tensordict_store.staging import staged_folder

_BLOCK = 1 << 24
"""Bytes that are copied at once from one store to another; blocks of this size use the same memory again."""


def facts_of(meta: Meta) -> dict[str, Any]:
    """Return the metadata of a node for a file."""
    return nodes.facts_of(meta) | {"version": 1}


def reader(node: Any, key: str) -> Callable[[slice], Tensor]:
    """Return a function that reads rows of an entry of a store."""
    size = node._meta.batch_size

    def read(rows: slice) -> Tensor:
        value: Tensor = node._read(key, Index(rows, size) if size else None)
        return value if size or not value.ndim else value[rows]

    return read


def prepared_tensor(
    key: str, value: Tensor, read: Callable[[slice], Tensor], shape: torch.Size | None = None
) -> Callable[[Target], None]:
    """Return a function that stores a tensor, a block of rows at a time.

    Args:
        key: The key, for errors.
        value: The tensor, or a stand-in with its dtype.
        read: Returns rows of the tensor.
        shape: The shape, where that of ``value`` is another one: the stand-in in a view is that of the whole entry.

    Raises:
        TypeError: The tensor has no plain form.
    """
    check_plain(key, value, "an array")
    shape, dtype = value.shape if shape is None else shape, value.dtype

    def put(group: Target) -> None:
        array = group.put_array(key, shape, dtype)
        if not shape:
            array.write([], read(slice(None)))
            return
        # memory in the layout of the array is written at once, without a copy
        at_once = array.unit == 1 and value.is_cpu and value.is_contiguous()
        for start, stop in [(0, shape[0])] if at_once else _blocks(shape, dtype, array.unit):
            array.write([(start, stop), *((0, n) for n in shape[1:])], read(slice(start, stop)))

    return put


def memmap_in_blocks(td: Any, folder: str) -> Any:
    """Map a store onto a new folder of files, a block of rows at a time; the folder appears when it is complete."""
    with staged_folder(folder) as beside:
        _fill(_shapes(td).memmap_like(beside), td)
    return TensorDict.load_memmap(folder).lock_()


def _shapes(node: Any) -> TensorDict:
    """Return a tensordict of the shapes of a store, which takes no memory."""
    out = TensorDict({}, node._meta.batch_size, names=node._meta.names)
    for key, entry in node._peek_items():
        if not isinstance(entry, Node):
            out.set(key, torch.zeros((), dtype=entry.dtype, device="cpu").expand(entry.shape))
        elif type(entry) is type(node):
            out.set(key, _shapes(entry))
        elif (inner := inside(entry)) is not None:
            out.set(key, around(type(entry), _shapes(inner)))
        else:
            out.set(key, entry)
    return out


def _fill(target: Any, node: Any) -> None:
    for key, entry in node._peek_items():
        if isinstance(entry, Node):
            if type(entry) is type(node):
                _fill(target.get(key), entry)
            elif (inner := inside(entry)) is not None:
                _fill(inside(target.get(key)), inner)
            continue
        leaf, read = target.get(key), reader(node, key)
        if not entry.ndim:
            leaf.copy_(read(slice(None)))
            continue
        if not entry.numel():
            continue
        row = entry.shape[1:].numel() * entry.dtype.itemsize
        # written past the mapping: a new page of a mapped file costs a fault, and its zeros are written first
        with open(leaf.filename, "r+b", buffering=0) as file:
            for start, stop in _blocks(entry.shape, entry.dtype):
                _write_at(file.fileno(), leaf.offset + start * row, as_array(read(slice(start, stop))))


def _write_at(file: int, offset: int, values: np.ndarray[Any, Any]) -> None:
    """Write an array into an open file; mappings of the file have the new values too."""
    data = values.reshape(-1).view(np.uint8).data
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


def _blocks(shape: torch.Size, dtype: torch.dtype, unit: int = 1) -> Iterator[tuple[int, int]]:
    """Yield the ranges of rows that are copied at once; they hold whole units of rows."""
    rows = max(_BLOCK // max(shape[1:].numel() * dtype.itemsize * unit, 1), 1) * unit
    for start in range(0, shape[0], rows):
        yield start, min(start + rows, shape[0])
