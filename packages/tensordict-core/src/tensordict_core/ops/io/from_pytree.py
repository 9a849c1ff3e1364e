"""`from_pytree` and `to_pytree`: tensordicts that keep the types of the Python containers they were made from.

Each node keeps the type and the context of its container in a non-tensor entry. The entry survives operations, and
``to_pytree`` restores the containers from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as registry

from tensordict_core.base.entry import as_tensor
from tensordict_core.base.node import Node, has_entries
from tensordict_core.base.registry.types import containers
from tensordict_core.ops.io.from_python import sized

PYTREE_KEY = "_pytree_type"
"""The entry of a node that holds the type and the context of its Python container."""


def from_pytree(
    pytree: Any,
    *,
    batch_size: Sequence[int] | int | None = None,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
) -> Any:
    """Return a tensordict of a pytree that keeps the types of its containers, so that ``to_pytree`` can restore it.

    Dictionaries of strings keep their keys, and the fields of named tuples are keys; the children of every other
    container get ``"0"``, ``"1"``, ...

    Args:
        pytree: The pytree; leaves are tensors, numbers, or anything else as non-tensor data.
        batch_size: The batch size.
        auto_batch_size: Whether the batch size is the longest that all leaves share.
        batch_dims: The maximum number of batch dimensions.

    Returns:
        The tensordict; a leaf is returned unchanged.

    >>> from tensordict_core import from_pytree
    >>> td = from_pytree([torch.zeros(2), {"a": (torch.ones(2), "text")}])
    >>> td["1", "a", "0"]
    tensor([1., 1.])
    >>> (td + 1).to_pytree()
    [tensor([1., 1.]), {'a': (tensor([2., 2.]), 'text')}]
    """
    td = _pytree_node(pytree)
    if not has_entries(td):
        return td
    return sized(td, {"auto_batch_size": auto_batch_size or None, "batch_dims": batch_dims, "batch_size": batch_size})


def _pytree_node(tree: Any) -> Any:
    if isinstance(tree, Node):
        return tree
    root = id(tree)  # and not the tree: a cycle of references inside tree_flatten holds what the function holds
    leaves, spec = registry.tree_flatten(tree, is_leaf=lambda node: id(node) != root)
    if spec.type is None:
        return tree
    keys = list(tree) if isinstance(tree, dict) else list(tree._fields) if registry.is_namedtuple_instance(tree) else []
    if not all(type(key) is str for key in keys) or len(keys) != len(leaves) or PYTREE_KEY in keys:
        keys = [str(i) for i in range(len(leaves))]
    entries: dict[str, Any] = {}
    for key, leaf in zip(keys, leaves, strict=True):
        value = _pytree_node(leaf)
        known = isinstance(value, Tensor | Node) or as_tensor(value) is not None
        entries[key] = value if known else containers.non_tensor(value)
    entries[PYTREE_KEY] = containers.non_tensor((spec.type, spec.context))
    return containers.dense(entries)


def to_pytree(node: Any) -> Any:
    """Return the pytree from which ``from_pytree`` made a tensordict; others are returned unchanged."""
    if not isinstance(node, Node):
        return node
    kind = node._get(PYTREE_KEY)
    if kind is None:
        return node._plain_value() if node._is_opaque else node
    values = [to_pytree(value) for key, value in node._items() if key != PYTREE_KEY]
    pair = kind._entry_value()
    while isinstance(pair, list):  # one for each position of a batch, all the same
        pair = pair[0]
    container, context = pair
    return registry.SUPPORTED_NODES[container].unflatten_fn(values, context)
