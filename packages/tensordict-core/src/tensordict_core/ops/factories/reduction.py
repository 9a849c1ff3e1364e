"""Reduction driver: applies a reduction of one tensor to a tree, and computes batch sizes and names of the result.

A reduction is over all dimensions (``dim=None``), batch dimensions, or each leaf's own dimensions (``"feature"``). Each
reduction supplies a kernel, a function of a tensor and dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.keys import NestedKey, unravel_key, unravel_key_to_tuple
from tensordict_core.base.meta import Meta, Names, names_or_none
from tensordict_core.base.node import Node, has_entries
from tensordict_core.base.rebuild import How
from tensordict_core.base.registry.types import containers
from tensordict_core.base.shape_op import normal_dim

BatchDims: TypeAlias = "int | Sequence[int] | Literal['feature']"
"""The reduced dimensions: batch dimensions, or ``"feature"`` for each leaf's own."""

Dim: TypeAlias = "BatchDims | None"
"""The reduced dimensions; ``None`` for everything."""

Dims: TypeAlias = "int | tuple[int, ...] | None"
"""Dimensions of a tensor counted from the front: one, several, or all."""

KeyTransform: TypeAlias = Callable[[str], NestedKey]
"""A function that returns the key of an entry in the result."""

N = TypeVar("N", bound=Node)

Kernel = Callable[[Tensor, Dims, bool], Any]
"""A reduction of one tensor: ``kernel(tensor, dims, keepdim)``, as torch's functions."""


def batch_dims(td: Any, dim: Any) -> tuple[int, ...]:
    """Return batch dimensions, given as one or a sequence, counted from the front.

    Raises:
        IndexError: One is outside the batch dimensions.
    """
    size = td._meta.batch_size
    rule = "dim must be greater than or equal to -tensordict.batch_dims and smaller than tensordict.batch_dims"
    dims = tuple([normal_dim(d, size, rule=rule) for d in ((dim,) if isinstance(dim, int) else dim)])
    if len(set(dims)) < len(dims):
        raise RuntimeError(f"a dim appears multiple times in the list of dims {dim}; give each once")
    return dims


def as_tuple(dims: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return the dimensions that a kernel is given, as a tuple."""
    return (dims,) if isinstance(dims, int) else dims


def _shortest(dims: tuple[int, ...]) -> int | tuple[int, ...]:
    """Return a single dimension as a number: torch parses it faster, and not every reduction takes several."""
    return dims[0] if len(dims) == 1 else dims


def reduced(dims: tuple[int, ...], keepdim: bool) -> How:
    """Return the rule for nodes whose batch dimensions ``dims`` are reduced."""
    if not keepdim and len(dims) == 1 and dims[0] < len(_ONE_LESS):
        return _ONE_LESS[dims[0]]
    return _reduced(dims, keepdim)


def _reduced(dims: tuple[int, ...], keepdim: bool) -> How:
    def size(own: torch.Size) -> torch.Size:
        if keepdim:
            return torch.Size([1 if i in dims else n for i, n in enumerate(own)])
        return torch.Size([n for i, n in enumerate(own) if i not in dims])

    def names(own: Names) -> Names:
        if own is None or keepdim:
            return own
        return names_or_none(tuple([name for i, name in enumerate(own) if i not in dims]))

    return How(size=size, names=names)


_ONE_LESS = tuple(_reduced((dim,), False) for dim in range(4))
"""The rules for one dimension of the first four, which are cached because they are the most frequent."""


def _collapsed(keepdim: bool) -> How:
    """Return the rule for nodes whose leaves are reduced to one element."""
    if keepdim:
        return How(size=lambda own: torch.Size([1] * len(own)), names=lambda own: own)
    return How(size=lambda own: torch.Size([]))


def batched(td: Any, is_leaf: Any = None) -> list[bool]:
    """Return for each leaf whether it has the batch dimensions of ``td``, which unbatched tensors lack."""
    dims = len(td._meta.batch_size)
    return [len(size) >= dims for _, size in td._leaf_places(is_leaf)]


def _each(td: Any, kernel: Kernel, dims: Dims, keepdim: bool, is_leaf: Any = None) -> list[Any]:
    leaves = td._leaves(is_leaf)
    results: list[Any] = []
    try:
        if td._nodes():
            for leaf, has_batch in zip(leaves, batched(td, is_leaf), strict=True):
                results.append(kernel(leaf, dims, keepdim) if has_batch else leaf)
        else:
            for leaf in leaves:
                results.append(kernel(leaf, dims, keepdim))
    except (RuntimeError, TypeError, IndexError) as error:
        error.add_note(f"while reducing key {unravel_key(td._leaf_keys(is_leaf)[len(results)])!r}")
        raise
    return results


def is_everything(dim: Dim) -> bool:
    """Return whether a reduction is over all dimensions, because none is given.

    Raises:
        TypeError: The value is not a dimension.
    """
    if dim is None or isinstance(dim, int | str):
        return dim is None
    if not hasattr(dim, "__len__"):
        raise TypeError(f"dim is an integer, several of them, 'feature' or None, got {dim!r}; pass one of these")
    return not len(dim)


def over_leaves(td: N, kernel: Kernel, dim: Dim, keepdim: bool, how: How | None = None) -> N:
    """Return the reduction of each leaf, in the structure of ``td``.

    ``how`` is the rule for the nodes if the kernel keeps its dimension.
    """
    td = td._solid()
    if isinstance(dim, str):
        return over_features(td, kernel, dim, keepdim)
    if is_everything(dim):
        return td._rebuild(iter(_each(td, kernel, None, keepdim)), _collapsed(keepdim))
    dims = batch_dims(td, dim)
    results = _each(td, kernel, _shortest(dims), keepdim)
    return td._rebuild(iter(results), reduced(dims, keepdim) if how is None else how)


def _is_node(kind: type[Any]) -> bool:
    return issubclass(kind, Node) and not kind._is_opaque


def check_feature(dim: str, keepdim: bool) -> None:
    """Refuse any string but ``"feature"``, and ``keepdim`` together with it."""
    if dim != "feature":
        raise TypeError(f"dim={dim!r} is not a dimension; pass an integer, a tuple of integers, 'feature' or None")
    if keepdim:
        raise TypeError(
            "dim='feature' is incompatible with keepdim=True, as the number of own dimensions differs between leaves; "
            "leave keepdim out"
        )


def over_features(td: N, kernel: Kernel, dim: str, keepdim: bool) -> N:
    """Return the reduction of each leaf over its own dimensions, those after its node's batch dimensions."""
    check_feature(dim, keepdim)
    at = len(td._meta.batch_size)

    def feature_kernel(entry: Any, dims: Any, keep: bool) -> Any:
        if isinstance(entry, Node):
            return over_features(entry, kernel, dim, keepdim)
        return kernel(features(entry, dims), dims, keep)

    return td._rebuild(iter(_each(td, feature_kernel, at, False, _is_node)), How(is_leaf=_is_node))


def features(leaf: Tensor, batch_dims: int) -> Tensor:
    """Return a leaf with its own dimensions flattened into one, of size 1 if it has none."""
    return leaf.unsqueeze(-1) if leaf.ndim == batch_dims else leaf.flatten(batch_dims)


def over_all(td: Any, kernel: Kernel, dim: Dim, keepdim: bool, name: str, associative: bool) -> Any:
    """Return the reduction of all leaves together, a tensor.

    Raises:
        ValueError: There is no leaf.
    """
    if is_everything(dim):
        if keepdim:
            raise TypeError(f"{name}(reduce=True) without dim returns a tensor without dimensions; leave keepdim out")
        leaves = _not_empty(td._leaves(), name)
        if len(leaves) == 1:
            return kernel(leaves[0], None, False)
        if associative and sum(leaf.numel() for leaf in leaves) > _JOINED:
            parts = [kernel(leaf, None, False) for leaf in leaves]
            dtype = parts[0].dtype
            for part in parts[1:]:
                dtype = torch.promote_types(dtype, part.dtype)
            return kernel(torch.stack([part.to(dtype) for part in parts]), None, False)
        return kernel(torch.cat([leaf.reshape(-1) for leaf in leaves]), None, False)
    td = td._solid()
    leaves = _not_empty([leaf for leaf, has_batch in zip(td._leaves(), batched(td), strict=True) if has_batch], name)
    if isinstance(dim, str):
        check_feature(dim, keepdim)
        size = len(td._meta.batch_size)
        return kernel(torch.cat([features(leaf, size) for leaf in leaves], size), (size,), False)
    dims = batch_dims(td, dim)
    try:
        joined = torch.cat(leaves, dims[0])
    except RuntimeError as error:
        shapes = ", ".join(
            f"{unravel_key(key)!r}: {list(leaf.shape)}" for key, leaf in zip(td._leaf_keys(), td._leaves(), strict=True)
        )
        raise RuntimeError(
            f"{name}(reduce=True, dim={dim}) concatenates the leaves along that dim, but their shapes "
            f"differ in another ({shapes}); reduce without dim, or reduce each leaf first"
        ) from error
    return kernel(joined, _shortest(dims), keepdim)


_JOINED = 1 << 16
"""The largest number of elements that are copied together: for few elements one call is faster than many."""


def _not_empty(leaves: list[Tensor], name: str) -> list[Tensor]:
    if not leaves:
        raise ValueError(
            f"{name}(reduce=True) reduces all leaves to one tensor, and this tensordict has none; check "
            "is_empty() first"
        )
    return leaves


def run(
    td: Any,
    kernel: Kernel,
    dim: Dim,
    keepdim: bool,
    reduce: bool | None,
    key_transform: KeyTransform | None,
    name: str,
    associative: bool = False,
) -> Any:
    """Return a reduction with all its options.

    Args:
        td: The tensordict.
        kernel: The reduction of one tensor.
        dim: The reduced dimensions.
        keepdim: Whether reduced batch dimensions stay as size 1.
        reduce: Whether all leaves are reduced together, to one tensor.
        key_transform: Renames the keys of the result.
        name: The operation, for messages.
        associative: Whether leaves may be reduced one by one before their results are reduced together.
    """
    if reduce:
        return over_all(td, kernel, dim, keepdim, name, associative)
    result = over_leaves(td, kernel, dim, keepdim)
    return result if key_transform is None else rename_levels(result, key_transform)


def rename_levels(td: Any, rename: KeyTransform) -> Any:
    """Return the same entries with every key, at every level, replaced by ``rename(key)``, from that level on.

    Raises:
        TypeError: The new key is not one.
        KeyError: Two keys of one level get the same name, or one of them passes through the entry of the other.
    """
    entries: dict[str, Any] = {}
    for key in td._keys():
        new = rename(key)
        path = unravel_key_to_tuple(new)
        if not path:
            raise errors.bad_key(new)
        *parents, last = path
        level = entries
        for name in parents:
            level = level.setdefault(name, {})
            if type(level) is not dict:
                raise _twice(new, key)
        if last in level:
            raise _twice(new, key)
        value = td._get(key)
        level[last] = rename_levels(value, rename) if has_entries(value) else value
    meta = Meta(td._meta.batch_size, td._meta.device, td._meta.names)
    return td._new({name: _level(value, meta) for name, value in entries.items()}, meta)


def _level(value: Any, meta: Meta) -> Any:
    """Return a level of nested keys as a tensordict; entries are returned."""
    if type(value) is not dict:
        return value
    return containers.dense._make({name: _level(one, meta) for name, one in value.items()}, meta)


def _twice(new: Any, key: str) -> KeyError:
    return KeyError(f"key_transform returns {new!r} for two keys, {key!r} and another; return different names")
