"""Operands of binary operations, matched to the leaves of a tensordict.

A number or a tensor of one element applies to every leaf. A tensor is aligned with the batch dimensions, so a tensor of
the batch size scales whole rows of every leaf. A tensordict is matched by key; ``default`` is the value for leaves that
one side lacks.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.keys import unravel_key
from tensordict_core.base.meta import starts_with
from tensordict_core.base.node import Node, has_entries, is_leaf_tensor
from tensordict_core.base.predicates import is_leaf_nontensor
from tensordict_core.base.rebuild import KEEP, UNLOCKED, How
from tensordict_core.base.registry.types import containers

_NUMBERS = frozenset((bool, int, float))
"""The usual types of operands that apply to every leaf; the tests for tensors take ten times as long as this one."""

_SCALARS = (bool, int, float, complex, torch.SymInt, torch.SymFloat, np.number, np.bool_, numbers.Number)

OPERANDS = (int, float, Tensor, Node, *_SCALARS, np.ndarray, dict)
"""The types of values that `match` accepts."""


def batch_operand(td: Any, leaves: list[Tensor], other: Tensor) -> list[Tensor]:
    """Return the tensor ``other``, aligned with the batch dimensions, once per leaf."""
    if other.ndim == 0:
        return [other] * len(leaves)
    out: list[Tensor] = []
    td._line_up(other, len(td._meta.batch_size), out)
    return out


def lined_up(tensor: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """Return a tensor over the first dimensions of each leaf, with trailing dimensions of size 1 to broadcast."""
    dims = tensor.ndim
    wider = {
        ndim: torch.reshape(tensor, tensor.shape + (1,) * (ndim - dims)) if 0 < dims < ndim else tensor
        for ndim in {leaf.ndim for leaf in leaves}
    }
    return [wider[leaf.ndim] for leaf in leaves]


def without_last(mask: Tensor, dims: int) -> Tensor:
    """Return a mask without the dimensions of size 1 after the batch dimensions, as masks made of leaves have them.

    >>> without_last(torch.ones(3, 1), 1).shape
    torch.Size([3])
    """
    while mask.ndim > dims and mask.shape[-1] == 1:
        mask = mask.squeeze(-1)
    return mask


def over_batch_size(mask: Tensor, size: torch.Size) -> Tensor:
    """Return a mask over the first batch dimensions, expanded to all of them; further dimensions have size 1."""
    if not isinstance(mask, Tensor):
        raise TypeError(f"a mask is a bool tensor, got {type(mask).__name__}; compare or wrap it with torch.tensor")
    mask = without_last(mask, len(size))
    try:
        return torch.broadcast_to(torch.reshape(mask, mask.shape + (1,) * (len(size) - mask.ndim)), size)
    except RuntimeError:
        raise errors.bad_mask(mask.shape, size) from None


def match(name: str, td: Any, leaves: list[Tensor], other: Any) -> tuple[Any, bool]:
    """Return the operand for each leaf of ``td``, or one number for all; and whether it is one number.

    Raises:
        KeyError: ``other`` is a tensordict with other leaves.
        TypeError: ``other`` cannot be an operand.
    """
    if type(other) in _NUMBERS:
        return other, True
    if isinstance(other, Node):
        if isinstance(other, Tensor):  # an unbatched one, which is an operand as any other
            tensor: Any = other
            return batch_operand(td, leaves, tensor._tensor), False
        aligned = td._align(_broadcast_to(td, other), KEEP)
        # a lazy stack has the leaf of a key several times, so counts do not decide
        if len(aligned) != len(other._leaves()) or td._lazy_stack is not None or _has_nodes(aligned):
            mine, theirs = set(td._leaf_keys()), set(other._leaf_keys())
            if mine != theirs:
                raise errors.keys_mismatch(mine - theirs, theirs - mine)
        return aligned, False
    if isinstance(other, Tensor):
        return batch_operand(td, leaves, other), False
    if isinstance(other, _SCALARS):
        return other, True
    if isinstance(other, np.ndarray):
        device = leaves[0].device if leaves else "cpu"
        return batch_operand(td, leaves, torch.as_tensor(other, device=device)), False
    if isinstance(other, dict):
        # a lazy stack splits its operand along its stack dimension
        size = None if td._lazy_stack is None else td._meta.batch_size
        return match(name, td, leaves, containers.dense(other, batch_size=size))
    if td._is_non_tensor:  # has no leaves: values take no part in arithmetic
        return other, True
    raise errors.bad_operand(name, other)


def _has_nodes(found: list[Any]) -> bool:
    """Return whether a node was found under the key of a leaf."""
    return any(issubclass(kind, Node) and not issubclass(kind, Tensor) for kind in set(map(type, found)))


def _broadcast_to(td: Any, other: Any) -> Any:
    """Return an operand of another batch size whose leaves have all batch dimensions of a tree with lazy stacks.

    Elements of a lazy stack get their parts of it along the stack dimension. Each leaf is broadcast as torch does with
    dense tensors, from its last dimension; an operand that does not broadcast is returned as it is.
    """
    size = td._meta.batch_size
    if other._meta.batch_size == size or -1 in size or not holds_lazy(td):
        return other
    if holds(other, lambda node: node._is_opaque and not node._is_non_tensor):
        return other
    dims = _dims_of_leaves(td)
    if holds_ragged(other):
        own = other._meta.batch_size
        is_whole = len(own) < len(size) and any(dims.get(path) == n for path, n in _dims_of_leaves(other).items())
        return other if is_whole or not expands(own, size) else other.expand(size)
    out = other = other._solid()
    leaves = []
    for path, leaf in zip(other._leaf_keys(), other._leaves(), strict=True):
        shape = (*(1,) * (dims.get(path, leaf.ndim) - leaf.ndim), *leaf.shape)
        try:
            leaves.append(torch.broadcast_to(torch.reshape(leaf, shape), (*size, *shape[len(size) :])))
        except RuntimeError:
            return out
    return out._rebuild(
        iter(leaves), How(size=lambda own: torch.Size((*size, *own[len(size) :])), names=lambda _: None)
    )


def expands(own: torch.Size, size: torch.Size) -> bool:
    """Return whether one batch size can be expanded to another."""
    return len(own) <= len(size) and all(n in (1, m) for n, m in zip(reversed(own), reversed(size), strict=False))


def _dims_of_leaves(td: Any) -> dict[tuple[str, ...], int]:
    """Return the number of dimensions of each leaf of a tree, as it is without lazy stacks."""
    if td._is_lazy_stack:
        found = (_dims_of_leaves(element).items() for element in td.tensordicts)
        return {path: dims + 1 for items in found for path, dims in items}
    out: dict[tuple[str, ...], int] = {}
    for key, value in td._items():
        if is_leaf_tensor(value):
            out[(key,)] = value.ndim
        elif not value._is_opaque:
            out |= {(key, *path): dims for path, dims in _dims_of_leaves(value).items()}
    return out


def complete(td: Any, other: Any, default: Any) -> tuple[Any, Any]:
    """Return both tensordicts with the same leaves: the common ones (``"intersection"``), or all, with ``default``."""
    if isinstance(default, str) and default != "intersection":
        raise ValueError(f"default={default!r} is unknown; pass a number, a tensor, 'intersection' or None")
    if td._is_lazy_stack:
        # the keys of the elements may differ
        elements = zip(td.tensordicts, other._unbind(td.stack_dim), strict=True)
        pairs = [complete(mine, theirs, default) for mine, theirs in elements]
        return td._restacked([left for left, _ in pairs]), td._restacked([right for _, right in pairs])
    if apart := dict.fromkeys((*keys_where(td, holds_ragged), *keys_where(other, holds_ragged))):
        return _complete_apart(td, other, list(apart), default)
    other = other._solid()
    if default == "intersection":
        mine, theirs = td._leaf_keys(is_leaf_nontensor), set(other._leaf_keys(is_leaf_nontensor))
        common, leaves = [key for key in mine if key in theirs], set(td._leaf_keys())
        # values take no part in arithmetic, so those of this side stay as without a default
        return td.select(*(key for key in mine if key in theirs or key not in leaves)), other.select(*common)
    mine, theirs = td._leaf_keys(), other._leaf_keys()
    left, right = td._clone(False), other._clone(False)
    for side, keys, source in ((left, set(mine), other), (right, set(theirs), td)):
        for key in source._leaf_keys():
            if key not in keys:
                side.set(key, _default_like(source.get(key), default))
    return left, right


def _default_like(leaf: Any, default: Any) -> Tensor:
    """Return the default in the shape of a leaf; an unbatched tensor for an unbatched one."""
    value = torch.as_tensor(default, device=leaf.device)
    filled = torch.broadcast_to(value.to(dtype_of_default(leaf, default)), leaf.shape)
    return cast(Any, leaf)._make(filled, leaf._meta) if isinstance(leaf, Node) else filled


def _complete_apart(td: Any, other: Any, apart: Sequence[str], default: Any) -> tuple[Any, Any]:
    """Return both tensordicts with the same leaves; nested ragged stacks, without a dense form, are completed each."""
    left, right = complete(td.exclude(*apart), other.exclude(*apart), default)
    for key in apart:
        mine, theirs = td._get(key), other._get(key)
        if mine is not None and theirs is not None:
            mine, theirs = complete(mine, theirs, default)
        elif default == "intersection":
            continue
        else:
            given = theirs if mine is None else mine
            filled = given._rebuild(iter([_default_like(leaf, default) for leaf in given._leaves()]), UNLOCKED)
            mine, theirs = (filled, theirs) if mine is None else (mine, filled)
        left._set(key, mine)
        right._set(key, theirs)
    ordered = left.empty()
    for key in dict.fromkeys((*td._keys(), *left._keys())):
        if (value := left._get(key)) is not None:
            ordered._set(key, value)
    return ordered, right


def dtype_of_default(leaf: Tensor, default: Any) -> torch.dtype:
    """Return the dtype of a default beside a leaf: of the result of both; that of a bool leaf beside 0 and 1."""
    if leaf.dtype is torch.bool and not isinstance(default, Tensor) and default in (0, 1):
        return torch.bool
    return torch.result_type(leaf, default)


def broadcast_how(td: Any, other: Any, how: How) -> How:
    """Return ``how`` with the batch size that an operand, a tensor or a tensordict, broadcasts the tensordict to.

    The result of an operand that is a tensor with dimensions is not locked, as in the reference.
    """
    if type(other) in _NUMBERS:
        return how
    size = td._meta.batch_size
    is_node = isinstance(other, Node) and not isinstance(other, Tensor)
    if is_node:
        theirs = other._meta.batch_size
    elif isinstance(other, Tensor) and other.ndim:
        theirs, how = other.shape, UNLOCKED
    else:
        return how
    if theirs == size:
        return how
    try:
        new = torch.broadcast_shapes(size, theirs)
    except RuntimeError:
        if is_node and (starts_with(size, theirs) or starts_with(theirs, size)):
            return how  # one declares more of the shape that both have
        raise errors.no_broadcast(theirs, size) from None
    if new == size:
        return how
    return grown(size, new, is_node, how.lock)


def grown(size: torch.Size, new: torch.Size, check: bool, lock: bool) -> How:
    """Return the rule for nodes whose batch dimensions of size ``size`` are broadcast to ``new``."""
    dims, added = len(size), (None,) * (len(new) - len(size))
    return How(
        size=lambda own: torch.Size((*new, *own[dims:])),
        names=lambda own: own and (*added, *own),
        check=check,
        lock=lock,
    )


def spread(td: Any, other: Any) -> tuple[Any, Any]:
    """Return the tensordict and an operand, such that they line up element by element where there are lazy stacks.

    A lazy stack keeps its elements apart, and each takes its part of the operand, which is expanded to the batch size
    of the stack. The number of elements cannot grow: the stack becomes dense, or is expanded where it is ragged.
    """
    if type(other) in _NUMBERS:
        return td, other
    size = td._meta.batch_size
    is_node = isinstance(other, Node)
    theirs = other._meta.batch_size if is_node else other.shape if isinstance(other, Tensor) else size
    if theirs == size or -1 in size or -1 in theirs:
        return td, other
    try:
        new = torch.broadcast_shapes(size, theirs)
    except RuntimeError:
        return td, other  # what does not broadcast is refused where the operands are matched
    apart = is_node and td._lazy_stack is not None and not (starts_with(size, theirs) or starts_with(theirs, size))
    if new == size:
        return td, other.expand(size) if apart else other
    return td.expand(new) if holds_ragged(td) else td._solid(), other


def holds_ragged(td: Any) -> bool:
    """Return whether a tree is, or has, a lazy stack without a dense form: shapes or keys differ between elements."""
    stack = td._lazy_stack
    if stack is not None:
        return bool(stack._is_ragged())
    return any(holds_ragged(node) for node in td._nodes() if not node._is_opaque)


def holds(td: Any, test: Callable[[Any], bool]) -> bool:
    """Return whether a node of a tree passes a test."""
    return test(td) or any(holds(node, test) for node in td._nodes())


def holds_lazy(td: Any) -> bool:
    """Return whether a tree is, or has, a lazy stack."""
    return holds(td, lambda node: node._lazy_stack is not None)


def keys_where(td: Any, test: Callable[[Any], bool]) -> list[str]:
    """Return the keys of the nested tensordicts that pass a test; none for a lazy stack."""
    if td._lazy_stack is not None:
        return []
    return [key for key, value in td._items() if has_entries(value) and test(value)]


def by_parts(td: Any, keys: Sequence[str], operation: Callable[[Any, str | None], Any]) -> Any:
    """Return the results of an operation on some nested nodes with their keys, and on the rest with ``None``."""
    rest = operation(td.exclude(*keys), None)
    results = {key: operation(td._get(key), key) for key in keys}
    whole = rest.empty()
    for key in dict.fromkeys((*td._keys(), *rest._keys())):
        whole._set(key, results[key] if key in results else rest._get(key))
    return whole.lock_() if rest._locked else whole


def with_leaves_as(td: Any, other: Any) -> Any:
    """Return a tree with each leaf expanded to the shape that the leaf under its key has in ``other``.

    Raises:
        KeyError: ``other`` lacks a leaf.
        RuntimeError: A size other than 1 would change.
    """
    leaves, targets = td._pairs(other) or (td._leaves(), td._align(other, KEEP))
    smaller = []
    for i, (leaf, target) in enumerate(zip(leaves, targets, strict=True)):
        if not is_leaf_tensor(target):
            raise errors.not_a_node(td._leaf_keys()[i], leaf)
        if leaf.shape != target.shape:
            smaller.append(i)
    if not smaller:
        return td._clone(False)
    for i in smaller:
        try:
            leaves[i] = torch.broadcast_to(leaves[i], targets[i].shape)
        except RuntimeError:
            key = unravel_key(td._leaf_keys()[i])
            raise errors.not_expandable(key, leaves[i].shape, targets[i].shape) from None
    dims = len(td._meta.batch_size)
    how = How(check=True)
    if any(1 in size[dims:] for _, size in td._leaf_places()):  # leaves may expand those dimensions to different sizes
        how = How(size=lambda size: size[:dims], names=lambda names: names and names[:dims], check=True)
    return td._rebuild(iter(leaves), how)
