"""Conversion of values to entries: checks and converts every value that is stored in a tensordict.

Tensors and nodes are checked against the batch size and the device; numbers, arrays and lists of numbers become
tensors; dictionaries become tensordicts; any other value becomes non-tensor data.
"""

from __future__ import annotations

import numbers
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.index import is_first_class
from tensordict_core.base.meta import Meta, starts_with
from tensordict_core.base.node import Node
from tensordict_core.base.options import current as options
from tensordict_core.base.ragged import shape_of
from tensordict_core.base.registry.types import containers


def as_tensor(value: Any, device: torch.device | None = None) -> Tensor | None:
    """Convert a number, an array, or nested lists of them or of tensors to one tensor; other values give ``None``.

    A list of tuples gives ``None``: each tuple is one value, as in a list of strings.

    >>> as_tensor([1, 2]), as_tensor("text"), as_tensor([(1, 2), (3, 4)])
    (tensor([1, 2]), None, None)
    """
    if isinstance(value, Tensor):
        return value if device is None or value.device == device else value.to(device)
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.kind not in "biufc":
            return None
        return torch.as_tensor(value, device=device)
    if isinstance(value, numbers.Number):
        return torch.tensor(value, device=device)
    if isinstance(value, list | tuple):
        if value:
            return _tensor_of_list(value, device)
        return torch.tensor([], device=device)
    return None


def _tensor_of_list(value: Any, device: torch.device | None) -> Tensor | None:
    outer, first = value, value[0]
    while isinstance(first, list | tuple) and first:
        if isinstance(outer, list) and isinstance(first, tuple):
            return None
        outer, first = first, first[0]
    if isinstance(first, str | bytes | dict | None.__class__) or _is_node(first):  # torch reads nodes as empty rows
        return None
    try:
        if isinstance(first, Tensor) and isinstance(value[0], list | tuple):
            return torch.stack([cast("Tensor", as_tensor(v, device)) for v in value])
        if any(isinstance(v, Tensor) for v in value):
            return torch.stack([torch.as_tensor(v, device=device) for v in value])
        if any(isinstance(v, np.ndarray) for v in value):
            array = np.asarray(value)
            return torch.as_tensor(array, device=device) if array.dtype.kind in "biufc" else None
        return torch.tensor(value, device=device)
    except (TypeError, ValueError, RuntimeError):
        return None


def to_entry(meta: Meta, key: Any, value: Any, *, non_blocking: bool = False) -> Any:
    """Return the entry that a node with metadata ``meta`` stores for ``value``.

    Raises:
        RuntimeError: The value does not start with the batch size.
    """
    if isinstance(value, Node):
        return _node_entry(meta, key, value, non_blocking)
    size = meta.batch_size
    if not isinstance(value, Tensor) and not is_first_class(value):
        if isinstance(value, dict):
            return containers.dense(value, batch_size=size, device=meta.device, names=meta.names)
        tensor = as_tensor(value)
        if tensor is None:
            stacked = stacked_nodes(value)
            if stacked is not value:
                return _node_entry(meta, key, stacked, non_blocking)
            return non_tensor_entry(meta, value)
        value = tensor
    if size:
        try:
            fits = starts_with(value.shape, size)
        except RuntimeError:  # strided nested tensors have no shape
            if not starts_with(shape_of(value), size):
                raise errors.batch_mismatch(key, shape_of(value), size) from None
        else:
            if not fits:
                raise errors.batch_mismatch(key, value.shape, size)
    if meta.device is not None and value.device != meta.device:
        value = value.to(meta.device, non_blocking=non_blocking)
    return value


def to_entry_over(old: Any, meta: Meta, key: Any, value: Any) -> Any:
    """Return the entry for a value that is written into an entry in place: over non-tensor data, every value is one.

    Raises:
        RuntimeError: The value does not start with the batch size.
    """
    if isinstance(old, Node) and old._is_non_tensor and not isinstance(value, Node):
        return non_tensor_entry(meta, value)
    return to_entry(meta, key, value)


def structured(array: np.ndarray[Any, Any] | np.void, device: Any = None) -> Any:
    """Return a tensordict of the fields of a structured array, whose shape is the batch size.

    Fields share the memory of the array where their alignment allows it; strings and objects are non-tensor data.

    >>> structured(np.zeros(3, dtype=[("x", "f4"), ("n", "u1")])).batch_size
    torch.Size([3])
    """
    names = array.dtype.names or ()
    return containers.dense({name: _field(array, name) for name in names}, batch_size=array.shape, device=device)


def _field(array: np.ndarray[Any, Any] | np.void, name: str) -> Any:
    column = np.asarray(array[name])
    if column.dtype.names is not None:
        return structured(column)
    if column.dtype.kind not in "biufc":
        return containers.non_tensor_stack.from_list(column.tolist(), batch_size=array.shape)
    if not column.dtype.isnative or any(step % column.itemsize for step in column.strides):
        column = column.astype(column.dtype.newbyteorder("="))  # torch counts strides in elements
    return torch.from_numpy(column)


def _is_node(value: Any) -> bool:
    return isinstance(value, Node) and not isinstance(value, Tensor)


def stacked_nodes(value: Any) -> Any:
    """Return a list of nodes (of lists of nodes) and a structured array as one node; other values as they are.

    Lists are returned as they are where the options say that lists are no stacks.
    """
    if isinstance(value, np.ndarray):
        return value if value.dtype.names is None else structured(value)
    stacked = _stacked(value) if type(value) is list and options.list_to_stack else None
    return value if stacked is None else stacked


def _stacked(value: Any) -> Node | None:
    """Return a list of nodes, or of lists of nodes, as one node; ``None`` if it has something else."""
    if not isinstance(value, list) or not value:
        return None
    parts: list[Any] = []
    for item in value:
        part = item if _is_node(item) else _stacked(item)
        if part is None:
            return None
        parts.append(part)
    return cast("Node", torch.stack(parts))


def _node_entry(meta: Meta, key: Any, value: Node, non_blocking: bool) -> Node:
    own = value._meta
    if own is meta:
        return value
    size = meta.batch_size
    if isinstance(value, Tensor):  # an unbatched one has the batch size of its tensordict and no device of its own
        tensor: Tensor = getattr(value, "_tensor")  # noqa: B009 (an attribute that a type checker does not know)
        made: Node = containers.unbatched._make(tensor if meta.device is None else tensor.to(meta.device), meta)
        return made
    if not starts_with(own.batch_size, size):
        # a nested tensordict with fewer batch dimensions is copied (shallowly) with those of its parent
        value = value._clone(False)
        try:
            value._change_batch_size(size)
        except RuntimeError as error:
            error.add_note(f"while storing it under key {key!r}")
            raise
    if meta.device is not None and value._meta.device != meta.device:
        value = value.to(meta.device, non_blocking=non_blocking)
    if meta.names is not None:
        nested = value._meta.names or (None,) * len(value._meta.batch_size)
        if any(
            mine is not None and theirs is not None and mine != theirs
            for mine, theirs in zip(meta.names, nested, strict=False)
        ):
            raise errors.entry_names(key, nested[: len(size)], meta.names)
        names = meta.names + nested[len(size) :]
        twice = [name for name in nested[len(size) :] if name is not None and name in meta.names]
        if twice:
            raise errors.name_of_nested(twice[0], names)
        if names != nested:
            value = value._clone(False)
            value._put_names(names)
    return value


def non_tensor_entry(meta: Meta, value: Any) -> Any:
    """Return the non-tensor entry for a value; a list of the batch size holds one value for each position.

    Raises:
        SizeError: A list is not of the batch size.
    """
    if isinstance(value, list) and value and options.list_to_stack:
        size = meta.batch_size or None
        made = containers.non_tensor_stack.from_list(value, batch_size=size, device=meta.device)
    else:
        made = containers.non_tensor(value, batch_size=meta.batch_size, device=meta.device)
    if meta.names is not None:
        made._put_names(meta.names)
    return made
