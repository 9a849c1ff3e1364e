"""Combining tensordicts: ``stack``, ``cat`` and their lazy and mixed forms.

Nested tensordicts under one key are combined by the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from tensordict_core.base import errors
from tensordict_core.base.meta import as_names, check_devices
from tensordict_core.base.node import Node, has_entries
from tensordict_core.base.options import current as options
from tensordict_core.base.shape_op import normal_dim
from tensordict_core.base.tracing import constant_when_traced

N = TypeVar("N", bound=Node)
"""The type of the tensordicts and of the result."""


def check_out(what: str, out: Any) -> None:
    """Check that ``out`` is a tensordict.

    Raises:
        TypeError: It is not.
    """
    if not isinstance(out, Node):
        raise errors.bad_out(what, out)


def write_out(what: str, result: Any, out: Any) -> Any:
    """Write a result into the entries of ``out``, and return ``out``.

    Raises:
        RuntimeError: The result depends on tensors that require gradients, which ``out`` would not.
        RuntimeError: An entry of ``out`` has a dtype that loses the values of the result, such as an integer one.
    """
    check_out(what, out)
    if torch.is_grad_enabled() and any(leaf.requires_grad for leaf in result._leaves()):
        raise errors.out_requires_grad(what)
    _check_dtypes(what, result, out)
    return out.update_(result)


def _write_all(what: str, result: Any, out: Any) -> Any:
    """Write a result into ``out``, and add the entries that it lacks unless it is locked."""
    if out._locked or not any(out._peek_path(key) is None for key in result._leaf_keys()):
        return write_out(what, result, out)
    return fill_out(what, result, out)


def fill_out(what: str, result: Any, out: Any) -> Any:
    """Write a result into ``out``, whose missing entries are added, and return ``out``.

    Raises:
        RuntimeError: ``out`` is locked, or an entry has a dtype that loses the values of the result.
    """
    check_out(what, out)
    if out._locked:
        raise errors.locked(f"{what} with out= would add entries")
    _check_dtypes(what, result, out)
    return out.update(result, inplace=True)


@constant_when_traced
def _can_cast(source: torch.dtype, target: torch.dtype) -> bool:
    """Return the result of ``torch.can_cast``, which Dynamo takes for an operation on tensors."""
    return torch.can_cast(source, target)


def _check_dtypes(what: str, result: Any, out: Any) -> None:
    for key, leaf in zip(result._leaf_keys(), result._leaves(), strict=True):
        old = out._peek_path(key)
        if isinstance(old, torch.Tensor) and not _can_cast(leaf.dtype, old.dtype):
            raise errors.out_dtype(what, key, leaf.dtype, old.dtype)


def _nodes(items: Any, what: str) -> list[Any]:
    nodes = list(items)
    if not nodes:
        raise RuntimeError(
            f"{what} expects a non-empty list of tensordicts: the items cannot be empty; give at least one"
        )
    if not all([issubclass(kind, Node) for kind in {*map(type, nodes)}]):
        i = [isinstance(node, Node) for node in nodes].index(False)
        raise TypeError(
            f"{what} takes tensordicts only, got {type(nodes[i]).__name__} at position {i}; "
            "convert it with from_any first"
        )
    return nodes


def stack(input: Sequence[N], dim: int = 0, *, out: Any = None) -> N:
    """Stack tensordicts of one batch size and one key set along a new batch dimension; every leaf is copied once.

    ``torch.stack`` does the same at run time, but its annotations allow tensors only; this function has useful static
    types.

    Args:
        input: The tensordicts.
        dim: The position of the new dimension.
        out: A tensordict into which the result is written.

    Raises:
        RuntimeError: Batch sizes, keys or shapes differ; ``lazy_stack`` and ``maybe_dense_stack`` allow that.

    >>> tds = [TensorDict({"a": torch.zeros(3)}, [3]) for _ in range(2)]
    >>> stack(tds, 1)["a"].shape
    torch.Size([3, 2])
    """
    result: N = _stack_nodes(_nodes(input, "stack"), dim)
    return result if out is None else _write_all("stack", result, out)


def _stack_nodes(nodes: list[Any], dim: int) -> Any:
    """Stack nodes; an error if their batch sizes differ."""
    _check_kinds(nodes, "stack")
    sizes = [node._meta.batch_size for node in nodes]
    size = sizes[0]
    if sizes.count(size) != len(sizes):
        i = next(i for i, own in enumerate(sizes) if own != size)
        raise errors.StackError(
            f"stacking tensordicts requires them to have congruent batch sizes, and tensordict {i} has "
            f"{list(sizes[i])} where tensordict 0 has {list(size)}; expand or index them to one"
        )
    dim = normal_dim(dim, size, extra=1)
    return lazy_stack(nodes, dim) if options.lazy_legacy else _stack_same(nodes, dim)


def _stack_same(nodes: list[Any], dim: int) -> Any:
    """Stack nodes of one batch size by the container that can hold all of them."""
    return common_container(nodes)._stack(nodes, dim)


def common_container(nodes: Sequence[Any]) -> Any:
    """Return the type whose ``_stack`` and ``_cat`` combine these nodes: a lazy stack's, or the first's.

    >>> td = TensorDict({"a": torch.zeros(2)}, [2])
    >>> common_container([td, lazy_stack([td, td])]).__name__
    'LazyStackedTensorDict'
    """
    for node in nodes:
        if node._combines_others:
            return type(node)
    return type(nodes[0])


def _check_kinds(nodes: Sequence[Any], what: str) -> None:
    """Refuse to combine tensordicts with non-tensor values or unbatched tensors, or these with each other."""
    if len({*map(type, nodes)}) == 1:
        return
    first = nodes[0]
    kind = (first._is_opaque, first._is_non_tensor)
    for i, node in enumerate(nodes):
        if (node._is_opaque, node._is_non_tensor) != kind:
            raise errors.not_stackable(
                what, f"position {i} has a {type(node).__name__} where position 0 has a {type(first).__name__}"
            )


def _all_nodes(column: Sequence[Any], what: str) -> list[Any]:
    """Check that all entries under one key are nodes, and return them as a list."""
    nodes = list(column)
    for i, node in enumerate(nodes):
        if not isinstance(node, Node):
            raise errors.not_stackable(
                what, f"one tensordict has a tensor where another has a nested one (position {i})"
            )
    _check_kinds(nodes, what)
    return nodes


def stack_nodes(column: Sequence[Any], dim: int) -> Any:
    """Stack the nested nodes under one key, which must have one batch size."""
    nodes = _all_nodes(column, "stack")
    size = nodes[0]._meta.batch_size
    if any(node._meta.batch_size != size for node in nodes):
        raise errors.not_stackable(
            "stack", f"nested tensordicts have the batch sizes {[list(n._meta.batch_size) for n in nodes]}"
        )
    return _stack_same(nodes, dim)


def cat_nodes(column: Sequence[Any], dim: int) -> Any:
    """Concatenate the nested nodes under one key."""
    return common_container(_all_nodes(column, "cat"))._cat(column, dim)


def cat(input: Sequence[N], dim: int = 0, *, out: Any = None) -> N:
    """Concatenate tensordicts of one key set along a batch dimension; every leaf is copied once.

    Args:
        input: The tensordicts; their batch sizes may differ in ``dim`` only.
        dim: The batch dimension.
        out: A tensordict into which the result is written.

    Raises:
        KeyError: Keys differ.
        RuntimeError: Batch sizes differ in another dimension, or there is no batch dimension.

    >>> tds = [TensorDict({"a": torch.zeros(3)}, [3]) for _ in range(2)]
    >>> cat(tds, 0).batch_size
    torch.Size([6])
    """
    nodes = _nodes(input, "cat")
    size = nodes[0]._meta.batch_size
    if not size:
        raise errors.no_batch_dim("cat")
    _check_kinds(nodes, "cat")
    at = normal_dim(dim, size)
    for i, node in enumerate(nodes):
        own = node._meta.batch_size
        if own == size:
            continue
        if len(own) != len(size) or own[:at] != size[:at] or own[at + 1 :] != size[at + 1 :]:
            raise RuntimeError(
                f"the tensordict at position {i} has batch size {list(own)}, and that at position 0 {list(size)}: cat "
                f"needs sizes that differ in dimension {at} only; expand or index them first"
            )
    result: N = common_container(nodes)._cat(nodes, at)
    return result if out is None else _write_all("cat", result, out)


def lazy_stack(
    input: Sequence[Any],
    dim: int = 0,
    *,
    out: Any = None,
    stack_dim_name: str | None = None,
    strict_shape: bool = False,
) -> Any:
    """Stack tensordicts without a copy: the result holds them as elements and combines an entry when it is read.

    Args:
        input: The tensordicts; entries may differ in shape and keys.
        dim: The position of the new dimension.
        out: A tensordict into which the result is written.
        stack_dim_name: The name of the new dimension.
        strict_shape: Whether the tensordicts must have one batch size; otherwise sizes that differ read as -1.

    Raises:
        RuntimeError: The batch sizes differ in number, or at all if ``strict_shape``.

    >>> tds = [TensorDict({"a": torch.zeros(n)}) for n in (2, 3)]
    >>> td = lazy_stack(tds, stack_dim_name="trial")
    >>> td.batch_size, td.names
    (torch.Size([2]), ['trial'])
    """
    nodes = _nodes(input, "lazy_stack")
    first = nodes[0]
    at = normal_dim(dim, first._meta.batch_size, extra=1)
    if strict_shape:
        for i, node in enumerate(nodes):
            if node._meta.batch_size != first._meta.batch_size:
                raise errors.elements_differ(i, node._meta.batch_size, first._meta.batch_size)
    check_devices(nodes)
    result = type(first)._lazy(nodes, at)
    if stack_dim_name is not None:
        names = result._dim_names()
        names[at] = stack_dim_name
        result._set_meta(result._meta.named(as_names(names, len(names))))
    return result if out is None else _write_all("lazy_stack", result, out)


def maybe_dense_stack(input: Sequence[Any], dim: int = 0, out: Any = None, strict: bool = False) -> Any:
    """Stack tensordicts densely if ``stack`` allows it, and lazily otherwise; nested tensordicts likewise, each.

    Args:
        input: The tensordicts.
        dim: The position of the new dimension.
        out: A tensordict into which the result is written; entries that it lacks are added unless it is locked.
        strict: Has no effect: keys that only some of the tensordicts have are in a lazy stack, and none is dropped.

    >>> type(maybe_dense_stack([TensorDict({"a": torch.zeros(n)}) for n in (2, 3)])).__name__
    'LazyStackedTensorDict'
    """
    nodes = _nodes(input, "maybe_dense_stack")
    result = _maybe_dense(nodes, normal_dim(dim, nodes[0]._meta.batch_size, extra=1))
    return result if out is None else _write_all("maybe_dense_stack", result, out)


def _maybe_dense(nodes: list[Any], dim: int) -> Any:
    try:
        return _stack_nodes(nodes, dim)
    except errors.StackError:
        keys = list(nodes[0]._keys())
        below = [key for key in keys if all(has_entries(node._peek(key)) for node in nodes)]
        same_keys = all(set(node._keys()) == set(keys) for node in nodes)
        if below and same_keys and all(node._lazy_stack is None for node in nodes):
            try:
                rest = stack([node.exclude(*below) for node in nodes], dim)
            except errors.StackError:
                return lazy_stack(nodes, dim)
            result = rest.empty()
            for key in keys:
                parts = [node._get(key) for node in nodes] if key in below else None
                result._set(key, rest._get(key) if parts is None else _maybe_dense(parts, dim))
            return result
        return lazy_stack(nodes, dim)
