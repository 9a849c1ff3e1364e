"""Rows of nested tensors of the jagged layout: what torch does for other tensors, component by component.

Torch (2.13) neither slices nor concatenates them along their first dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["cat_leaves", "leaf_part", "split_leaf"]


def _is_jagged(leaf: Tensor) -> bool:
    return leaf.is_nested and leaf.layout is torch.jagged


def _of(components: Sequence[Tensor], like: Tensor) -> Tensor:
    """Return components as one nested tensor; without any, one of no rows like another."""
    if components:
        return torch.nested.as_nested_tensor(list(components), layout=torch.jagged)
    start = like.offsets()[:1]  # type: ignore[attr-defined]  # jagged tensors have it, without annotation
    return torch.nested.nested_tensor_from_jagged(like.values()[:0], start)


def leaf_part(leaf: Tensor, idx: Any) -> Tensor:
    """Return ``leaf[idx]`` for an index of the batch dimensions.

    >>> ragged = torch.nested.nested_tensor([torch.zeros(1), torch.ones(2)], layout=torch.jagged)
    >>> leaf_part(ragged, slice(1, None)).unbind()
    (tensor([1., 1.]),)
    """
    if not _is_jagged(leaf) or idx == ():
        return leaf[idx]
    first, *rest = idx if isinstance(idx, tuple) else (idx,)
    if first is None or isinstance(first, int):
        return leaf[idx]
    components = leaf.unbind()
    rows = torch.arange(len(components))[first]
    if rest or rows.ndim != 1:
        return leaf[idx]
    return _of([components[i] for i in rows.tolist()], leaf)


def split_leaf(leaf: Tensor, sizes: Sequence[int], dim: int) -> Sequence[Tensor]:
    """Return consecutive pieces of a leaf along a dimension, as ``torch.split``."""
    if dim or not _is_jagged(leaf):
        return torch.split_with_sizes(leaf, sizes, dim)
    components, pieces, start = leaf.unbind(), [], 0
    for n in sizes:
        pieces.append(_of(components[start : start + n], leaf))
        start += n
    return pieces


def cat_leaves(leaves: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return the concatenation of leaves along a dimension, as ``torch.cat``."""
    if dim or not all(_is_jagged(leaf) for leaf in leaves):
        return torch.cat(list(leaves), dim)
    return _of([component for leaf in leaves for component in leaf.unbind()], leaves[0])
