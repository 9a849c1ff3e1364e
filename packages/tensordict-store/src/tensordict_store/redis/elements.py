"""Elements: how the elements of a lazy stack lie in one value, one behind the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensordict_core import NonTensorStack
from tensordict_core.extension import Node
from tensordict_store.redis.layout import Record, tensor_record
from tensordict_store.redis.ranges import as_bytes
from tensordict_store.redis.tree import Change, Path, encoded

__all__ = ["add_elements", "named"]


def named(part: Any, names: Any) -> Any:
    """Return a part of a stack with the names of its dimensions, which the elements do not have."""
    if names is not None:
        part._put_names(names)
    return part


def add_elements(path: Path, elements: list[Any], change: Change, allow_pickle: bool) -> None:
    """Append the entry, or the entries of the node, that the elements have under one path.

    Raises:
        KeyError: The elements differ in their keys.
        TypeError: An entry cannot be stored.
    """
    name = ".".join(path)
    first = elements[0] if elements else None
    if isinstance(first, Tensor):
        records = [tensor_record(name, one) for one in elements]
        if any(record.dtype != first.dtype for record in records):
            raise TypeError(f"the elements of {name!r} differ in dtype and cannot be stored as one; convert them first")
        shapes = tuple(one.shape for one in elements)
        same = len(set(shapes)) == 1
        shape = torch.Size((len(elements), *first.shape)) if same else None
        content = b"".join(map(as_bytes, elements))
        change.puts.append((path, Record(first.dtype, shape, shapes=None if same else shapes), content))
    elif isinstance(first, Node) and first._is_non_tensor:
        if all(one._is_shared for one in elements):
            values = NonTensorStack.from_list([one.data for one in elements], batch_size=[len(elements)])
        else:
            size = [len(elements), *first._meta.batch_size]
            values = NonTensorStack.from_list([one.maybe_to_stack().tolist() for one in elements], batch_size=size)
        change.puts.append((path, *encoded(name, values, allow_pickle)))
    elif isinstance(first, Node) and not first._is_opaque:
        keys = [str(key) for key in first._keys()]
        for one in elements:
            if set(one._keys()) != set(keys):
                raise KeyError(
                    f"the elements differ in their keys at {name or 'the root'!r}: {sorted(keys)} and "
                    f"{sorted(one._keys())}; a stored stack has the same keys in all of them"
                )
        change.nodes[path] = {"keys": keys}
        for key in keys:
            add_elements((*path, key), [one._get(key) for one in elements], change, allow_pickle)
    elif elements:
        raise TypeError(
            f"the entry {name!r} is {type(first).__name__}, which cannot be stored on a server; store it as a tensor"
        )
