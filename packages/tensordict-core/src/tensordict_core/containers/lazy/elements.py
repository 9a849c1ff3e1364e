"""Elements of a lazy stack: the check of their types, and their common metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tensordict_core.base import errors
from tensordict_core.base.meta import Meta, names_or_none
from tensordict_core.base.node import has_entries, is_leaf_tensor


def check_element(td: Any, where: str = "") -> None:
    """Refuse an object that cannot be an element of a lazy stack; ``where`` is its place, for the error."""
    if not has_entries(td):
        raise TypeError(
            f"a lazy stack takes TensorDictBase instances but got {type(td)}{where}; convert it with from_any first"
        )


def _common_size(tds: Sequence[Any], strict: bool) -> torch.Size:
    """Return the batch size of all elements; -1 where they differ."""
    size: torch.Size = tds[0]._meta.batch_size
    for i, td in enumerate(tds):
        own = td._meta.batch_size
        if own == size:
            continue
        if strict or len(own) != len(size):
            raise errors.elements_differ(i, own, tds[0]._meta.batch_size)
        size = torch.Size([n if n == m else -1 for n, m in zip(size, own, strict=True)])
    return size


def meta_of(tds: Sequence[Any], dim: int, name: str | None, strict: bool = False) -> Meta:
    """Return the metadata of a stack of elements along a dimension, whose name is given.

    Raises:
        RuntimeError: The batch sizes differ in number, or at all if ``strict``, or the names differ.
    """
    first = tds[0]._meta
    size = first.batch_size
    device, names = first.device, first.names
    for td in tds:
        meta = td._meta
        if meta is first:
            continue
        if meta.names != names:
            raise errors.names_differ(names, meta.names, len(size))
        if meta.batch_size != size:
            size = _common_size(tds, strict)
            break
    if device is not None and any(td._meta.device != device for td in tds):
        device = None
    if names is not None or name is not None:
        inner = names or (None,) * len(size)
        names = names_or_none((*inner[:dim], name, *inner[dim:]))
    return Meta(torch.Size((*size[:dim], len(tds), *size[dim:])), device, names)


def broadcast_part(leaf: Any, operand: Any, dim: int, i: int, n: int) -> Any:
    """Return the part of an operand that is broadcast with a leaf of element ``i`` of a lazy stack of ``n`` elements.

    The operand has no batch dimension for the stack dim, and is broadcast with the leaves of the stack as torch does,
    from their last dimension.
    """
    if not is_leaf_tensor(operand):
        return operand
    at = dim - (leaf.ndim + 1 - operand.ndim)
    if at < 0:
        return operand
    return operand.expand(*operand.shape[:at], n, *operand.shape[at + 1 :]).select(at, i)
