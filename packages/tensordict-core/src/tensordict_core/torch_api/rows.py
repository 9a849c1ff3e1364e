"""Rows compared by one entry: `isin`, `remove_duplicates`, `group_by`; and `expand_right`, which adds dimensions.

Rows are the slices of an entry along a batch dimension. ``torch.unique`` finds the equal ones, so values are compared
exactly and in one sort.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.keys import NestedKey
from tensordict_core.base.node import Node

DeviceType: TypeAlias = torch.device | str | int
"""A device, its name, or the number of an accelerator."""

IndexType: TypeAlias = int | slice | str | Tensor | list[Any] | tuple[Any, ...] | None
"""The index of ``td[...]``."""


def _column(function: str, td: Any, key: NestedKey, dim: int) -> tuple[Tensor, int]:
    """Return the entry under ``key`` and the dimension counted from the front."""
    size = td.batch_size
    if not -len(size) <= dim < len(size):
        raise ValueError(f"dim {dim} is none of the {len(size)} batch dimensions of {list(size)}; {function} takes one")
    value = td.get(key, None)
    if value is None:
        raise errors.missing_key(key, td.keys(), type(td).__name__)
    if not isinstance(value, Tensor):
        raise KeyError(
            f"{function} compares tensors, but key {key!r} holds a {type(value).__name__}; name a leaf of it"
        )
    return value, dim % len(size)


def isin(input: Any, reference: Any, key: NestedKey, dim: int = 0) -> Tensor:
    """Return which rows of a tensordict have a value under ``key`` that a row of another tensordict has.

    Args:
        input: The tensordict whose rows are looked up.
        reference: The tensordict in which they are looked up.
        key: The entry to compare; a row is its slice along ``dim``.
        dim: The batch dimension.

    Returns:
        A bool tensor of the length of ``dim``.

    Raises:
        KeyError: There is no tensor under ``key`` in one of them.
        ValueError: ``dim`` is not a batch dimension, or the rows differ in shape.

    >>> one, other = TensorDict({"x": torch.tensor([1, 2, 3])}, [3]), TensorDict({"x": torch.tensor([3, 1])}, [2])
    >>> isin(one, other, "x")
    tensor([ True, False,  True])
    """
    mine, dim = _column("isin", input, key, dim)
    if len(reference.batch_size) != len(input.batch_size):
        raise ValueError(
            f"isin compares rows of equally many batch dimensions, got the batch sizes {list(input.batch_size)} and "
            f"{list(reference.batch_size)}; reshape one of them"
        )
    theirs, _ = _column("isin", reference, key, dim)
    if mine.shape[:dim] + mine.shape[dim + 1 :] != theirs.shape[:dim] + theirs.shape[dim + 1 :]:
        raise ValueError(
            f"isin compares rows of one shape, but key {key!r} has the shapes {list(mine.shape)} and "
            f"{list(theirs.shape)}, which differ beside dim {dim}; reshape one of them"
        )
    _, group = torch.unique(torch.cat([mine, theirs], dim), dim=dim, return_inverse=True)
    return torch.isin(group[: mine.shape[dim]], group[mine.shape[dim] :])


def remove_duplicates(input: Any, key: NestedKey, dim: int = 0, *, return_indices: bool = False) -> Any:
    """Remove rows whose value under ``key`` an earlier row has; the result is sorted by that value.

    Args:
        input: The tensordict.
        key: The entry to compare; a row is its slice along ``dim``.
        dim: The batch dimension.
        return_indices: Whether to return, for each row, the position of its value in the result too.

    Returns:
        The tensordict; with ``return_indices``, that and an integer tensor of the length of ``dim``.

    Raises:
        KeyError: There is no tensor under ``key``.
        ValueError: ``dim`` is not a batch dimension.

    >>> td = TensorDict({"x": torch.tensor([7, 1, 7, 3]), "y": torch.arange(4)}, [4])
    >>> remove_duplicates(td, "x")["y"]
    tensor([1, 3, 0])
    """
    column, dim = _column("remove_duplicates", input, key, dim)
    values, group = torch.unique(column, dim=dim, return_inverse=True)
    count = column.shape[dim]
    first = torch.full((values.shape[dim],), count, dtype=torch.int64, device=column.device)
    first.scatter_reduce_(0, group, torch.arange(count, device=column.device), "amin")
    result = input._select_rows((slice(None),) * dim + (first,))
    return (result, group) if return_indices else result


def expand_right(tensor: Any, shape: Sequence[int]) -> Any:
    """Add dimensions to a tensor on the right and expand it to a shape, without a copy.

    Args:
        tensor: The tensor, or a tensordict, whose batch size is expanded.
        shape: The shape; it starts with that of the tensor, except for sizes of 1.

    Raises:
        RuntimeError: ``shape`` does not start with the shape of ``tensor``.

    >>> expand_right(torch.arange(2), (2, 3))
    tensor([[0, 0, 0],
            [1, 1, 1]])
    """
    own = tuple(tensor.shape)
    if len(shape) < len(own) or any(n not in (1, m) for n, m in zip(own, shape, strict=False)):
        raise RuntimeError(
            f"the shape {list(own)} cannot be expanded on the right to {list(shape)}, which must start with it up to "
            "sizes of 1; reshape the tensor first"
        )
    return tensor.reshape(own + (1,) * (len(shape) - len(own))).expand(tuple(shape))


def expand_as_right(tensor: Any, dest: Any) -> Any:
    """Add dimensions to a tensor on the right and expand it to the shape of another, without a copy.

    Args:
        tensor: The tensor, or a tensordict of which the batch size is expanded.
        dest: The tensor or tensordict whose shape is taken.

    Raises:
        RuntimeError: The shape of ``dest`` does not start with that of ``tensor``.

    >>> expand_as_right(torch.arange(2), torch.zeros(2, 3)).shape
    torch.Size([2, 3])
    """
    return expand_right(tensor, dest.shape)


def group_by(tensordict: Any, key: NestedKey) -> tuple[Tensor | list[Any], tuple[Any, ...]]:
    """Split a tensordict into groups of rows that have the same value under ``key``.

    Args:
        tensordict: A tensordict with a batch dimension; rows are its slices along the first.
        key: The entry to compare: a tensor, or non-tensor values that can be hashed and sorted.

    Returns:
        The sorted unique values, a tensor or a list; and for each a tensordict of its rows, in their original order.
        The groups are views of one tensordict of all rows, of the same type as the input.

    Raises:
        ValueError: There is no batch dimension.
        KeyError: There is no such entry.
        TypeError: The entry is a tensordict, or its values cannot be hashed or sorted.

    >>> td = TensorDict({"episode": torch.tensor([2, 0, 2]), "reward": torch.arange(3.0)}, [3])
    >>> values, groups = group_by(td, "episode")
    >>> values, [group["reward"].tolist() for group in groups]
    (tensor([0, 2]), [[1.0], [0.0, 2.0]])
    """
    if not tensordict.batch_size:
        raise ValueError("group_by() groups rows, and the batch size is []; set td.batch_size first")
    entry = tensordict.get(key, None)
    if entry is None:
        raise errors.missing_key(key, tensordict.keys(), type(tensordict).__name__)
    if isinstance(entry, Tensor):
        values, inverse = torch.unique(entry, dim=None if entry.ndim == 1 else 0, return_inverse=True)
    elif isinstance(entry, Node) and entry._is_non_tensor:
        values, inverse = _unique_values(key, entry)
        inverse = inverse.to(tensordict.device)
    else:
        raise TypeError(
            f"group_by() compares tensors or non-tensor values, but key {key!r} holds a {type(entry).__name__}; name a "
            "leaf of it"
        )
    if not len(values):
        return values, ()
    counts = torch.bincount(inverse, minlength=len(values))
    return values, tuple(tensordict[torch.argsort(inverse, stable=True)].split(counts.tolist(), 0))


def _unique_values(key: NestedKey, entry: Any) -> tuple[list[Any], Tensor]:
    """Return the sorted non-tensor values of rows without repetition, and for each row the position of its value."""
    rows = [_hashable(value) for value in entry.maybe_to_stack().tolist()]
    try:
        values = sorted(set(rows))
    except TypeError as error:
        raise TypeError(
            f"the values of key {key!r} cannot be grouped ({error}); group by an entry whose values can be hashed and "
            "sorted"
        ) from None
    positions = {value: i for i, value in enumerate(values)}
    return values, torch.tensor([positions[row] for row in rows], dtype=torch.int64, device="cpu")


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
