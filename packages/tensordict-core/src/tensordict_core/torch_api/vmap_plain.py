"""Arguments and results of ``torch.vmap`` that are not flattened: plain tensordicts, mapped leaf by leaf.

A leaf without shape yet, a stacked parameter of lazy modules, has a method ``_mapped_without_shape(dim, level)``, which
returns its replacement in the mapped function.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch._functorch.vmap as torch_vmap
from torch import Tensor

from tensordict_core.base.meta import Meta, names_or_none
from tensordict_core.base.node import Node
from tensordict_core.base.predicates import TENSORS
from tensordict_core.base.rebuild import How
from tensordict_core.base.tracing import is_compiling, mapped_dim
from tensordict_core.containers.delegating import Delegating
from tensordict_core.containers.dense import TensorDict
from tensordict_core.containers.nontensor.data import NonTensorData
from tensordict_core.containers.unbatched import UnbatchedTensor


def dim_functions() -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """Return the functions that hide a dimension of a tensor from a mapped function, and that show it in its results.

    Torch's ``vmap`` calls wrappers of them, which Dynamo knows and which take a microsecond otherwise.
    """
    owner = torch_vmap if is_compiling() else torch._C._functorch
    return owner._add_batch_dim, owner._remove_batch_dim


class Mapped(list[Any]):
    """Non-tensor values along a dimension that ``vmap`` maps: a function inside sees all; they come out again."""


class PlainArgument(NamedTuple):
    """An argument of a mapped function that is a tensordict of tensors; the argument list holds one leaf in its place.

    Its methods are those that ``vmap`` calls on a tensor.
    """

    td: TensorDict
    leaf: Tensor

    def size(self, dim: int) -> int:
        """Return the size of a batch dimension."""
        return self.td._meta.batch_size[dim]

    def tensor_split(self, places: Sequence[int], dim: int) -> list[PlainArgument]:
        """Return the parts for each chunk of a ``vmap`` in chunks."""
        bounds = [0, *places, self.td._meta.batch_size[dim]]
        rows = [(slice(None),) * dim + (slice(a, b),) for a, b in itertools.pairwise(bounds)]
        td: Any = self.td
        return [PlainArgument(td[row], self.leaf) for row in rows]

    def mapped(self, dim: int | None, level: int) -> TensorDict:
        """Return the tensordict inside ``vmap``: without the dimension, which each leaf keeps out of sight."""
        out = _mapped(self.td, dim, level)
        return out.lock_() if self.td._locked else out


def plain_arguments(in_dims: Any, args: Sequence[Any]) -> dict[int, PlainArgument]:
    """Return the arguments that need not be flattened, by position: at most one batch dimension is mapped."""
    dims = in_dims if type(in_dims) is tuple else (in_dims,) * len(args)
    plain = {}
    for i, (source, dim) in enumerate(zip(args, dims, strict=False)):
        arg = source._now() if isinstance(source, Delegating) and source._is_mapped_plainly else source
        if type(arg) is TensorDict and (dim is None or (type(dim) is int and 0 <= dim < len(arg._meta.batch_size))):
            leaf = _first_of_plain(arg)
            if leaf is _NONE:  # torch reads the size of the dimension from a tensor
                leaf = torch.empty(arg._meta.batch_size, device="meta")
            if leaf is not None:
                plain[i] = PlainArgument(arg, leaf)
    return plain


_NONE: Any = object()
"""Stands for the first leaf of a tensordict without leaves."""


def _first_of_plain(td: TensorDict) -> Any:
    """Return the first leaf of a tensordict of plain tensordicts, tensors and single values, or `_NONE`.

    ``None`` where it holds anything else.
    """
    first = _NONE
    for child in td._entries.values():
        if type(child) in TENSORS:
            leaf: Any = child
        elif type(child) is TensorDict:
            leaf = _first_of_plain(child)
        elif type(child) is NonTensorData:  # one value, which each row has
            leaf = _NONE
        else:
            leaf = _NONE if hasattr(child, "_mapped_without_shape") else None
        if leaf is None:
            return None
        first = leaf if first is _NONE else first
    return first


def plain_outputs(outputs: Any, out_dims: Any, size: int, level: int) -> dict[int | None, Any]:
    """Return the outputs of a mapped function that need not be flattened, with the dimension that ``vmap`` inserts.

    Args:
        outputs: The result of the function: an object or a tuple.
        out_dims: The position of the dimension, for each of them or for all.
        size: The size of the dimension.
        level: The level of the ``vmap``.

    Returns:
        The tensordicts by position in a tuple; the one that is not in a tuple, under ``None``.
    """
    if type(outputs) is not tuple:
        return {None: _with_dim(outputs, out_dims, size, level)} if _is_plain_output(outputs, out_dims, level) else {}
    dims = out_dims if type(out_dims) is tuple else (out_dims,) * len(outputs)
    parts = enumerate(zip(outputs, dims, strict=False))
    return {i: _with_dim(td, dim, size, level) for i, (td, dim) in parts if _is_plain_output(td, dim, level)}


def _is_plain_output(td: Any, dim: Any, level: int) -> bool:
    if not (type(td) is TensorDict and type(dim) is int and 0 <= dim <= len(td._meta.batch_size) and _is_plain(td)):
        return False
    # torch before 2.14 puts the dimension of a leaf that it only repeats in front, whatever dimension is asked for
    return not dim or (not is_compiling() and all(mapped_dim(leaf, level) is not None for leaf in td._leaves()))


def _is_plain(td: TensorDict) -> bool:
    """Return whether a plain tensordict holds such tensordicts, tensors and single values only."""
    return all(
        type(child) in TENSORS
        or (type(child) is TensorDict and _is_plain(child))
        or (type(child) is NonTensorData and type(child._value) is not Mapped)
        for child in td._entries.values()
    )


def _with_dim(td: TensorDict, dim: int, size: int, level: int) -> Any:
    how = How(
        size=lambda own: torch.Size((*own[:dim], size, *own[dim:])),
        names=lambda names: names and (*names[:dim], None, *names[dim:]),
        lock=True,
    )
    _, remove_batch_dim = dim_functions()
    return td._rebuild(iter([remove_batch_dim(leaf, level, size, dim) for leaf in td._leaves()]), how)


def _mapped(td: TensorDict, dim: int | None, level: int) -> TensorDict:
    add_batch_dim, _ = dim_functions()
    entries = {
        key: _mapped(child, dim, level)
        if type(child) is TensorDict
        else child
        if dim is None
        else add_batch_dim(child, dim, level)
        if type(child) in TENSORS
        else child._at_positions(None, _without_dim(child._meta, dim))
        if type(child) is NonTensorData
        else child._mapped_without_shape(dim, level)
        for key, child in td._entries.items()
    }
    return TensorDict._make(entries, td._meta if dim is None else _without_dim(td._meta, dim))


def _without_dim(meta: Meta, dim: int) -> Meta:
    size, names = meta.batch_size, meta.names
    names = None if names is None else names_or_none((*names[:dim], *names[dim + 1 :]))
    return Meta(torch.Size((*size[:dim], *size[dim + 1 :])), meta.device, names)


# containers that a vmap takes as leaves ------------------------------------------------------------------------------


def hidden_dim(node: Any, dim: int, level: int) -> Any:
    """Return a container inside ``vmap``, with a batch dimension hidden in its leaves; ``None`` if it is not regular.

    Args:
        node: The container.
        dim: The dimension.
        level: The level of the ``vmap``.
    """
    if not (0 <= dim < len(node._meta.batch_size) and _is_regular(node, level)):
        return None
    how = How(
        size=lambda own: torch.Size((*own[:dim], *own[dim + 1 :])),
        names=lambda names: names and names_or_none((*names[:dim], *names[dim + 1 :])),
        lock=True,
    )
    add_batch_dim, _ = dim_functions()
    leaves = zip(node._leaves(), node._leaf_places(), strict=True)  # an unbatched tensor has no dimension to hide
    return node._rebuild(iter([add_batch_dim(leaf, dim, level) if size else leaf for leaf, (_, size) in leaves]), how)


def shown_dim(node: Any, dim: int, size: int, level: int) -> Any:
    """Return a container outside of ``vmap``, with the mapped dimension at ``dim``; ``None`` if it is not regular."""
    if not (0 <= dim <= len(node._meta.batch_size) and _is_regular(node, level)):
        return None
    if dim and not all(mapped_dim(leaf, level) is not None for leaf in node._leaves()):
        return None
    return _with_dim(node, dim, size, level)


def _is_regular(node: Any, level: int) -> bool:
    """Return whether the leaves of a container are all that ``vmap`` changes: no lazy stack, no value for each row."""
    if type(node) is UnbatchedTensor:
        return mapped_dim(node._tensor, level) is None
    if type(node) is NonTensorData:
        return type(node._value) is not Mapped
    if node._is_opaque or node._lazy_stack is not None:
        return False
    return all(not isinstance(child, Node) or _is_regular(child, level) for child in node._entries.values())
