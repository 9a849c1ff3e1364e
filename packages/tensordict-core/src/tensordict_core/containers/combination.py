"""Combination: nodes of one key set, stacked or concatenated key by key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.node import Node
from tensordict_core.base.ragged import cat_leaves
from tensordict_core.base.registry.types import containers
from tensordict_core.ops.shape.combine import cat_nodes, stack_nodes


class Combination(NamedTuple):
    """The operation that combines nodes of one key set key by key: a stack or a concatenation.

    Attributes:
        name: The operation, as errors name it.
        verb: The operation, as notes of errors name it.
        leaves: Combines the tensors under one key along a dimension.
        nodes: Combines the nodes under one key along a dimension.
    """

    name: str
    verb: str
    leaves: Callable[..., Tensor]
    nodes: Callable[[Sequence[Any], int], Any]


STACK = Combination("stack", "stacking", torch.stack, stack_nodes)
CAT = Combination("cat", "concatenating", torch.cat, cat_nodes)


def _columns(items: Sequence[Any], how: Combination) -> Iterable[tuple[str, Any]]:
    """Return the keys of the nodes, each with the entries of all nodes under it.

    Raises:
        RuntimeError: Keys of nodes to stack differ.
        KeyError: Keys of nodes to concatenate differ.
    """
    tables: list[Any] = [item._entries for item in items]
    keys = [*tables[0]]
    try:
        rows = [table.values() if [*table] == keys else _in_order(table, keys) for table in tables]
    except KeyError:
        raise _keys_differ(tables, how) from None
    return zip(keys, zip(*rows))  # noqa: B905 (of one length)


def _in_order(table: Any, keys: list[str]) -> list[Any]:
    """Return the entries of a node in the order of the keys of another one; a ``KeyError`` if its keys differ."""
    if len(table) != len(keys):
        raise KeyError
    return [table[key] for key in keys]


def _keys_differ(tables: list[Any], how: Combination) -> Exception:
    """Return the error for tables of which one has other keys than the first."""
    keys = [*tables[0]]
    i, table = next((i, table) for i, table in enumerate(tables) if set(table) != set(keys))
    error = errors.keys_not_stackable(how.name, i, table, keys)
    return error if how is STACK else KeyError(str(error))


def combined(items: Sequence[Any], dim: int, how: Combination) -> dict[str, Any]:
    """Return the entries of nodes, combined along a dimension key by key."""
    columns, combine = _columns(items, how), how.leaves
    entries: dict[str, Any] = {}
    for key, column in columns:
        head = column[0]
        try:
            if type(head) is Tensor or not isinstance(head, Node):
                entry = combine(column, dim) if dim else combine(column)  # torch parses a second argument slowly
                if type(entry) is not Tensor and isinstance(entry, Node):  # torch takes unbatched tensors for tensors
                    raise _mixed(key, how)
                entries[key] = entry
            else:
                entries[key] = how.nodes(column, dim)
        except (RuntimeError, TypeError) as error:
            if how is CAT and all(isinstance(entry, Tensor) and entry.is_nested for entry in column):
                entries[key] = cat_leaves(column, dim)
                continue
            raise _not_combined(error, key, column, dim, how) from None
    return entries


def _not_combined(error: Exception, key: str, column: Sequence[Any], dim: int, how: Combination) -> Exception:
    """Return the error for entries of one key that cannot be combined."""
    if not isinstance(column[0], Node):
        if any(isinstance(entry, Node) for entry in column):
            return _mixed(key, how)
        shapes = {tuple(leaf.shape) for leaf in column}
        # cat adds up sizes along the dimension, so they may differ
        if len({shape if how is STACK else (*shape[:dim], *shape[dim + 1 :]) for shape in shapes}) > 1:
            return errors.not_stackable(
                how.name,
                f"{'The shapes of the tensors to stack is incompatible: ' * (how is STACK)}key {key!r} has the shapes "
                f"{sorted(shapes)}",
            )
        if len({(leaf.device, leaf.layout) for leaf in column}) > 1:
            return errors.not_stackable(how.name, f"key {key!r} has several devices or layouts")
    elif all(isinstance(entry, containers.unbatched) for entry in column):
        return errors.unbatched_values_differ(how.name, key)
    error.add_note(f"while {how.verb} key {key!r}")
    return error


def _mixed(key: str, how: Combination) -> Exception:
    return errors.not_stackable(how.name, f"key {key!r} is a tensor in one tensordict and a nested one in another")
