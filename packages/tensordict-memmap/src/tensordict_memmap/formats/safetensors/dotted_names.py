"""Dotted names: nested structures that follow from the names of tensors alone, as in published checkpoints.

Names take less time to read than a description of the structure. A save whose names determine the structure has no
description but a digest of its names, by which a load detects changed names. If all nodes have the same batch size,
both are stored: a load uses the names if the digest matches, and the description otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import orjson
import torch
from xxhash import xxh3_64_hexdigest

from tensordict_core import TensorDict
from tensordict_core.extension import Meta, add_node, dense, dense_locked, entries
from tensordict_memmap.schema.node import Dense

DIGEST = "tensordict_dotted"
"""The name of the digest in the metadata of a file."""

_DEEPEST = 64
_META = Meta(torch.Size(()))
_START = '{"version":1,"root":{"batch_size":['


def digest(record: str, names: Collection[str]) -> str:
    """Return the digest of a description and of the names of the tensors, in the order of their bytes.

    Args:
        record: The record; an empty text where there is none.
        names: The names.

    >>> digest("{}", ["a.b"]) == digest("{}", ["a.c"])
    False
    """
    return xxh3_64_hexdigest("\0".join((record, *names)).encode("utf-8", "surrogatepass"))


def follows(node: Dense, start: str, size: tuple[int, ...]) -> bool:
    """Return whether a node and the names of its entries follow from the names of the tensors below it.

    Args:
        node: The node.
        start: The joined key of the node, and a dot behind it; empty for the root.
        size: The batch size of the root.

    >>> inner = Dense(("a",), "", ())
    >>> [follows(Dense((), "", (), entries={name: inner}), "", ()) for name in ("a", "a.b")]
    [True, False]
    """
    return node.names is None and node.batch_size == size and are_parts(node.entries, start)


def are_parts(names: Collection[str], start: str) -> bool:
    """Return whether the joined keys of entries can be split into their parts again.

    Args:
        names: The names of the entries of a node.
        start: The joined key of the node, and a dot behind it; empty for the root.
    """
    return bool(names) and all(names) and "." not in "".join(names) and start.count(".") < _DEEPEST


def size_of_all(record: str, tensors: Mapping[str, torch.Tensor], found: str) -> torch.Size | None:
    """Return the batch size of all nodes of a save whose names determine the rest of its structure; None if uncertain.

    Args:
        record: The record.
        tensors: All tensors of the save.
        found: The digest that is stored beside the schema.
    """
    if found != digest(record, tensors) or not record.startswith(_START):
        return None
    try:
        size = torch.Size(orjson.loads(record[len(_START) - 1 : record.index("]") + 1]))
    except (ValueError, TypeError):
        return None
    dims = len(size)
    return None if dims and any(tensor.shape[:dims] != size for tensor in tensors.values()) else size


class _Places:
    """The entries of each node by the part of a name before its last dot; those of the root if there is no such node.

    Args:
        root: An empty tensordict, made just now.
        known: The names of all tensors.
    """

    def __init__(self, root: TensorDict, known: Collection[str]) -> None:
        self.known = known
        self.root = entries(root)
        self.found = {"": self.root}
        self.nodes = {"": root}

    def add(self, start: str) -> dict[str, Any]:
        """Make the node of a prefix that is new, and return its entries."""
        above, dot, key = start.rpartition(".")
        place = self.root
        if key and start not in self.known and start.count(".") < _DEEPEST - 1:
            outer = self.found.get(above)
            if outer is None:
                outer = self.add(above)
            if outer is not place or not dot:
                node = self.nodes[start] = add_node(self.nodes[above], key)
                place = entries(node)
        self.found[start] = place
        return place


def by_names(tensors: Mapping[str, torch.Tensor], meta: Meta = _META, *, locked: bool = False) -> TensorDict:
    """Return a nested tensordict by the dots in names; a name whose prefix is a tensor itself is not split.

    Args:
        tensors: The tensors by name.
        meta: The metadata of all nodes.
        locked: Whether the result is locked, and all of its nodes.

    >>> sorted(by_names({"a.b": torch.ones(1), "c": torch.ones(1), "c.d": torch.ones(1)}).keys())
    ['a', 'c', 'c.d']
    """
    made = dense_locked({}, meta, ()) if locked else dense({}, meta)
    places = _Places(made, tensors)
    root, get, add = places.root, places.found.get, places.add
    for name, tensor in tensors.items():
        start, _, last = name.rpartition(".")
        place = get(start)
        if place is None:
            place = add(start)
        if place is root or not last:
            root[name] = tensor
        else:
            place[last] = tensor
    return made
