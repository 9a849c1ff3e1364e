"""Tensor specs: ``attrs()`` returns device, dtype and shape of each leaf as a tensordict, which ``to`` accepts.

A `TensorAttrs` describes one leaf. This module builds trees of them from trees of tensors, and applies them to the
leaves of another tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict_core.base.meta import as_device
from tensordict_core.base.node import Node, has_entries, is_leaf_tensor
from tensordict_core.base.registry.types import containers

FIELDS = ("device", "dtype", "shape")


class TensorSpecs(Node):
    """``attrs``."""

    __slots__ = ()

    def attrs(self, *, fields: Sequence[str] = FIELDS, num_threads: int | None = None) -> Any:
        """Return device, dtype and shape of each leaf, as a tensordict of `TensorAttrs` under the same keys.

        The result has no batch size and no device; non-tensor data are kept. A field in which the elements of a lazy
        stack differ is ``None``; a common shape includes the stack dimension. ``other.to(td.attrs())`` moves and casts
        each leaf of another tensordict to the device and dtype of the leaf of this one.

        Args:
            fields: Any of ``"device"``, ``"dtype"`` and ``"shape"``; the others are ``None``.
            num_threads: Accepted for compatibility; nothing is copied.

        Raises:
            ValueError: A field has another name.

        >>> attrs = TensorDict({"a": torch.zeros(2), "b": {"c": torch.ones(2).bool()}}, [2]).attrs(fields=["dtype"])
        >>> attrs["b", "c"]
        TensorAttrs(tgt_device=None, tgt_dtype=torch.bool, tgt_shape=None)
        """
        return _described(self, _wanted(fields))


def _wanted(fields: Sequence[str]) -> tuple[bool, ...]:
    """Return for each of `FIELDS` whether it is requested."""
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    for name in names:
        if name not in FIELDS:
            raise ValueError(f"attrs() has the fields 'device', 'dtype' and 'shape', got {name!r}; pass some of those")
    return tuple(field in names for field in FIELDS)


def describe_leaf(leaf: Tensor, fields: Sequence[str]) -> Any:
    """Return the spec of one tensor.

    >>> describe_leaf(torch.zeros(2), ("dtype",)).tgt_dtype
    torch.float32
    """
    return _described(leaf, _wanted(fields))


def _described(node: Any, wanted: tuple[bool, ...]) -> Any:
    if is_leaf_tensor(node):
        facts: tuple[Any, ...] = (node.device, node.dtype, node.shape)
        return containers.attrs(*(fact if wants else None for fact, wants in zip(facts, wanted, strict=True)))
    if node._is_non_tensor:
        return node._clone(False)
    if node._is_opaque:
        return _described(node._tensor, wanted)
    stack = node._lazy_stack
    if stack is not None and stack.tensordicts:
        return _spec_of_stack([_described(part, wanted) for part in stack.tensordicts], stack.stack_dim)
    return containers.dense({key: _described(value, wanted) for key, value in node._items()})


def _spec_of_stack(parts: list[Any], dim: int) -> Any:
    """Return the specs of a lazy stack from the specs of its elements."""
    first = parts[0]
    if any(type(part) is not type(first) for part in parts):
        return first
    if isinstance(first, containers.attrs):
        values = list(zip(*(part._value for part in parts), strict=True))
        device, dtype, shape = [one[0] if all(other == one[0] for other in one) else None for one in values]
        return containers.attrs(device, dtype, None if shape is None else (*shape[:dim], len(parts), *shape[dim:]))
    if first._is_non_tensor:
        return first._stack(parts, dim) if all(p.batch_size == first.batch_size for p in parts) else first
    keys = dict.fromkeys(key for part in parts for key in part._keys())
    columns = {key: [part._get(key) for part in parts if part._get(key) is not None] for key in keys}
    return containers.dense({key: _spec_of_stack(column, dim) for key, column in columns.items()})


def describes(other: Any) -> bool:
    """Return whether a tensordict holds specs of leaves rather than leaves.

    >>> describes(TensorDict({"a": {"b": 1}}).attrs()), describes(TensorDict({"a": {"b": 1}}))
    (True, False)
    """
    if isinstance(other, containers.attrs):
        return True
    if not has_entries(other):
        return False
    return any(describes(value) for _, value in other._peek_items() if not is_leaf_tensor(value))


def _find(attrs: Any, path: tuple[str, ...]) -> Any:
    """Return the spec of the leaf at ``path``: the one under its key or under a key above it."""
    for key in path:
        if isinstance(attrs, containers.attrs) or attrs is None:
            break
        attrs = attrs._get(key)
    return attrs if isinstance(attrs, containers.attrs) else None


def as_described(td: Any, attrs: Any, non_blocking: bool | None) -> tuple[list[Tensor], torch.device | None]:
    """Return the leaves of ``td`` on the devices and with the dtypes of their specs, and their common device.

    Leaves without a spec are shared. The device is ``None`` if the leaves are on several devices or ``td`` has none.
    """
    leaves = []
    for path, leaf in zip(td._leaf_keys(), td._leaves(), strict=True):
        found = _find(attrs, path)
        if found is not None:
            device = as_device(found.tgt_device)
            leaf = leaf.to(
                leaf.device if device is None else device,
                leaf.dtype if found.tgt_dtype is None else found.tgt_dtype,
                non_blocking=bool(non_blocking),
            )
        leaves.append(leaf)
    devices = {leaf.device for leaf in leaves}
    known = td._meta.device is not None and len(devices) == 1
    return leaves, devices.pop() if known else td._meta.device if not devices else None
