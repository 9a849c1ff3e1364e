"""Elements: how the elements of a lazy stack lie in one value, one behind the other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict_core import NonTensorStack
from tensordict_core.extension import Node
from tensordict_store.redis.layout import Record, tensor_record
from tensordict_store.redis.ranges import as_bytes
from tensordict_store.redis.tree import Change, Path, encoded

__all__ = ["add_elements", "ends_of", "named", "runs_of", "shape_of"]


def shape_of(record: Record, number: int) -> torch.Size:
    """Return the shape of one element."""
    if record.shapes is not None:
        return record.shapes[number]
    assert record.shape is not None
    return record.shape[1:]


def named(part: Any, names: Any) -> Any:
    """Return a part of a stack with the names of its dimensions, which the elements do not have."""
    if names is not None:
        part._put_names(names)
    return part


def ends_of(record: Record, count: int) -> list[int]:
    """Return where each element starts in the value, and where the last one ends.

    >>> ends_of(Record(torch.int8, None, shapes=(torch.Size([3]), torch.Size([4]))), 2)
    [0, 3, 7]
    """
    assert record.dtype is not None
    sizes = (shape_of(record, i).numel() * record.dtype.itemsize for i in range(count))
    return [0, *itertools.accumulate(sizes)]


def runs_of(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ranges of neighbours in rising numbers.

    >>> runs_of([1, 2, 5])
    [(1, 3), (5, 6)]
    """
    out: list[tuple[int, int]] = []
    for number in numbers:
        if out and out[-1][1] == number:
            out[-1] = (out[-1][0], number + 1)
        else:
            out.append((number, number + 1))
    return out


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
