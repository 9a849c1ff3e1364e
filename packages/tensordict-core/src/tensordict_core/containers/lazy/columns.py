"""Columns of a lazy stack: the entries of its elements under one key, combined into one value.

Tensors of one shape are stacked, and nodes are stacked lazily. Tensors of several shapes become a nested tensor, or are
padded to the longest.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.node import Node, is_leaf_tensor
from tensordict_core.base.registry.types import containers
from tensordict_core.base.tracing import is_compiling


def combined(key: Any, column: Sequence[Any], dim: int) -> Any:
    """Return the entries of a column as one: a stacked tensor, or a lazy stack of nodes.

    Raises:
        RuntimeError: The entries are tensors of several shapes, or tensors and nodes.
    """
    first = column[0]
    if is_leaf_tensor(first):
        if is_compiling() and any(getattr(entry, "shape", None) != first.shape for entry in column):
            # an error of torch.stack would end the trace
            raise errors.ragged(key, [getattr(entry, "shape", None) for entry in column])
        try:
            stacked = torch.stack(list(column), dim)
            if not isinstance(stacked, Node):
                return stacked
            raise errors.mixed_column(key)  # torch takes unbatched tensors for tensors
        except (RuntimeError, TypeError) as error:
            shapes = [getattr(entry, "shape", None) for entry in column]
            if any(not is_leaf_tensor(entry) for entry in column):
                raise errors.mixed_column(key) from None
            if any(shape != shapes[0] for shape in shapes):
                raise errors.ragged(key, shapes) from None
            error.add_note(f"while stacking key {key!r}")
            raise
    if not all(isinstance(entry, Node) for entry in column):
        raise errors.mixed_column(key)
    if len({(entry._is_opaque, entry._is_non_tensor) for entry in column}) > 1:
        raise errors.mixed_column(key)
    if isinstance(first, containers.unbatched) and not first._stacks(column):
        raise errors.unbatched_column(key)
    return type(first)._lazy(column, dim)


def as_nested(column: Sequence[Tensor], layout: torch.layout | None) -> Tensor:
    """Return the tensors of a column as one nested tensor (jagged by default), whose components are the tensors."""
    return torch.nested.as_nested_tensor(list(column), layout=torch.jagged if layout is None else layout)


def as_padded(column: Sequence[Tensor], dim: int, side: str, value: float) -> Tensor:
    """Return the tensors of a column, each padded to the longest in every dimension, and stacked.

    Raises:
        ValueError: ``side`` is neither ``"left"`` nor ``"right"``, or the tensors differ in rank.
    """
    check_padding_side(side)
    if len({tensor.ndim for tensor in column}) > 1:
        raise ValueError(
            f"padding needs tensors of one rank, got shapes {[list(t.shape) for t in column]}; "
            "read them with as_list=True"
        )
    longest = [max(sizes) for sizes in zip(*(tensor.shape for tensor in column), strict=True)]
    return torch.stack([padded_to(tensor, longest, side, value) for tensor in column], dim)


def padded_to(tensor: Tensor, shape: Sequence[int], side: str, value: float) -> Tensor:
    """Return a tensor padded to a shape, in front (``"left"``) or behind (``"right"``) in every dimension.

    >>> padded_to(torch.ones(1), [2], "left", 0.0)
    tensor([0., 1.])
    """
    ends: list[int] = []
    for n, length in zip(reversed(tensor.shape), reversed(shape), strict=True):
        ends.extend((length - n, 0) if side == "left" else (0, length - n))
    return torch.nn.functional.pad(tensor, ends, value=value) if any(ends) else tensor


def check_padding_side(side: str) -> None:
    """Check a ``padding_side`` option.

    Raises:
        ValueError: It is neither ``"left"`` nor ``"right"``.
    """
    if side not in ("left", "right"):
        raise ValueError(f"padding_side is 'left' or 'right', got {side!r}; choose one of the two")


def stacked_lists(columns: Sequence[Any], dim: int) -> list[Any]:
    """Return nested lists as one, with a new dimension at ``dim``; ``None`` fills the positions that a list lacks.

    >>> stacked_lists([["a"], ["b", "c"]], 0), stacked_lists([["a"], ["b", "c"]], 1)
    ([['a'], ['b', 'c']], [['a', 'b'], [None, 'c']])
    """
    if not dim:
        return list(columns)
    rows = itertools.zip_longest(*(column or [] for column in columns))
    return [stacked_lists(row, dim - 1) for row in rows]
