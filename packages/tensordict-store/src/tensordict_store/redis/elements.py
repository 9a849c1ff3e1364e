"""Elements: the elements of a lazy stack in one value, one after the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensordict_core import NonTensorStack
from tensordict_core.extension import Node
from tensordict_store.redis.layout import Path, Record, tensor_record
from tensordict_store.redis.ranges import as_bytes
from tensordict_store.redis.tree import Change
from tensordict_store.redis.values import encoded


def add_elements(path: Path, elements: list[Any], change: Change, allow_pickle: bool) -> None:
    """Append the entry, or the entries of the node, that the elements have under one path.

    Raises:
        KeyError: The elements differ in their keys.
        TypeError: An entry cannot be stored.
    """
    name = ".".join(path)
    first = elements[0] if elements else None
    if isinstance(first, Tensor):
        change.puts.append((path, *_joined(name, elements)))
    elif isinstance(first, Node) and first._is_non_tensor:
        change.puts.append((path, *encoded(name, _values(elements), allow_pickle)))
    elif isinstance(first, Node) and not first._is_opaque:
        change.nodes[path] = {"keys": (keys := _shared_keys(name, elements))}
        for key in keys:
            add_elements((*path, key), [one._get(key) for one in elements], change, allow_pickle)
    elif elements:
        raise TypeError(
            f"the entry {name!r} is {type(first).__name__}, which cannot be stored on a server; store it as a tensor"
        )


def _joined(name: str, tensors: list[Tensor]) -> tuple[Record, bytes]:
    """Return the record of the tensors of all elements, and their bytes, one tensor after the other."""
    dtype = tensors[0].dtype
    if any(tensor_record(name, one).dtype != dtype for one in tensors):
        raise TypeError(f"the elements of {name!r} differ in dtype and cannot be stored as one; convert them first")
    shapes = tuple(one.shape for one in tensors)
    same = len(set(shapes)) == 1
    shape = torch.Size((len(tensors), *shapes[0])) if same else None
    return Record(dtype, shape, shapes=None if same else shapes), b"".join(map(as_bytes, tensors))


def _values(elements: list[Any]) -> NonTensorStack:
    """Return the values of all elements as one entry with a batch dimension more."""
    if all(one._is_shared for one in elements):
        return NonTensorStack.from_list([one.data for one in elements], batch_size=[len(elements)])
    size = [len(elements), *elements[0]._meta.batch_size]
    return NonTensorStack.from_list([one.maybe_to_stack().tolist() for one in elements], batch_size=size)


def _shared_keys(name: str, elements: list[Any]) -> list[str]:
    """Return the keys of a node, which are those of all elements."""
    keys = [str(key) for key in elements[0]._keys()]
    for one in elements:
        if set(one._keys()) != set(keys):
            raise KeyError(
                f"the elements differ in their keys at {name or 'the root'!r}: {sorted(keys)} and "
                f"{sorted(one._keys())}; a stored stack has the same keys in all of them"
            )
    return keys
