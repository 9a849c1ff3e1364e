"""Rows of nested tensors: operations that torch has for other tensors only, component by component.

Torch (2.13) neither slices nor concatenates them along their first dimension, and those of the strided layout have no
shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def aligned(source: Any, target: Any) -> Any:
    """Return a jagged nested tensor with the offsets of another one, if their components have the same shapes.

    Torch gives each jagged tensor a ragged size of its own, so that shapes of equal components compare as different.

    >>> one, other = (torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged) for _ in "ab")
    >>> one.shape == other.shape, aligned(one, other).shape == other.shape
    (False, True)
    """
    if source.layout is not torch.jagged or target.layout is not torch.jagged or source.shape == target.shape:
        return source
    dims = [[d for d, n in enumerate(leaf.shape) if not isinstance(n, int)] for leaf in (source, target)]
    same = (
        dims[0] == dims[1]
        and source.values().shape == target.values().shape
        and source.lengths() is None
        and target.lengths() is None
        and torch.equal(source.offsets(), target.offsets())
    )
    if not same:
        return source
    return torch.nested.nested_tensor_from_jagged(source.values(), target.offsets(), jagged_dim=dims[0][0])


def shape_of(leaf: Tensor) -> torch.Size:
    """Return the shape of a leaf, with -1 for the sizes in which the components of a strided nested tensor differ.

    >>> import warnings
    >>> with warnings.catch_warnings(action="ignore"):  # torch calls them a prototype
    ...     strided = torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(2, 4)])
    >>> shape_of(strided)
    torch.Size([2, 2, -1])
    """
    if not leaf.is_nested or leaf.layout is not torch.strided:
        return leaf.shape
    sizes = zip(*[part.shape for part in leaf.unbind()], strict=True)
    return torch.Size((leaf.size(0), *[column[0] if len(set(column)) == 1 else -1 for column in sizes]))


def _of(components: Sequence[Tensor], like: Tensor) -> Tensor:
    """Return components as one nested tensor of a layout; without any, one of no rows like another."""
    if like.layout is torch.strided:
        return torch.nested.as_nested_tensor(list(components), dtype=like.dtype, device=like.device)
    if components:
        return torch.nested.as_nested_tensor(list(components), layout=torch.jagged)
    jagged: Any = like
    return torch.nested.nested_tensor_from_jagged(jagged.values()[:0], jagged.offsets()[:1])


def leaf_part(leaf: Tensor, idx: Any) -> Tensor:
    """Return ``leaf[idx]`` for an index of the batch dimensions.

    >>> ragged = torch.nested.nested_tensor([torch.zeros(1), torch.ones(2)], layout=torch.jagged)
    >>> leaf_part(ragged, slice(1, None)).unbind()
    (tensor([1., 1.]),)
    """
    if not leaf.is_nested or idx == ():
        return leaf[idx]
    first, *rest = idx if isinstance(idx, tuple) else (idx,)
    if first is None or isinstance(first, int):
        return leaf[idx]
    components = leaf.unbind()
    rows = torch.arange(len(components), device="cpu")[first]
    if rest or rows.ndim != 1:
        return leaf[idx]
    return _of([components[i] for i in rows.tolist()], leaf)


def split_leaf(leaf: Tensor, sizes: Sequence[int], dim: int) -> Sequence[Tensor]:
    """Return consecutive pieces of a leaf along a dimension, as ``torch.split``."""
    if dim or not leaf.is_nested:
        return torch.split_with_sizes(leaf, sizes, dim)
    components, pieces, start = leaf.unbind(), [], 0
    for n in sizes:
        pieces.append(_of(components[start : start + n], leaf))
        start += n
    return pieces


def cat_leaves(leaves: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return the concatenation of leaves along a dimension, as ``torch.cat``."""
    if dim or not all(leaf.is_nested and leaf.layout is leaves[0].layout for leaf in leaves):
        return torch.cat(list(leaves), dim)
    return _of([component for leaf in leaves for component in leaf.unbind()], leaves[0])
