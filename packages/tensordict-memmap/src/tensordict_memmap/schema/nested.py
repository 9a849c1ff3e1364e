"""Nested tensors from their stored parts: the values of all components in one row, and the shape of each."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch


def nested_of(
    values: torch.Tensor, rows: Sequence[Sequence[int]], *, jagged: bool, ragged: int = 1, dims: int = 0
) -> torch.Tensor:
    """Return a nested tensor, a view of its values where torch has one.

    Args:
        values: The values of the components, one after the other, in one dimension.
        rows: The shape of each component.
        jagged: Whether its layout is ``torch.jagged``; otherwise it is ``torch.strided``.
        ragged: The dimension of a jagged tensor that differs between components; it is stored as the first one.
        dims: The number of dimensions of the components of a jagged tensor that has none.

    Raises:
        RuntimeError, IndexError, TypeError, AssertionError: The shapes are invalid, or do not match the values.

    >>> [part.tolist() for part in nested_of(torch.arange(3), [[1], [2]], jagged=True).unbind()]
    [[0], [1, 2]]
    """
    counts = [prod(row) for row in rows]
    has_bytes = type(values) is torch.Tensor and not values.is_meta  # fake tensors have none either
    made: torch.Tensor
    if jagged and not rows and dims:  # torch makes no such tensor from a list
        flat = values.view(0, *[0] * (dims - 1))
        made = torch.nested.nested_tensor_from_jagged(flat, torch.zeros(1, dtype=torch.int64, device="cpu"))
    elif jagged and rows and has_bytes and all(row[1:] == rows[0][1:] for row in rows):
        offsets = torch.tensor([0, *(row[0] for row in rows)], device=values.device).cumsum(0)
        made = torch.nested.nested_tensor_from_jagged(values.view(int(offsets[-1]), *rows[0][1:]), offsets)
    elif not jagged and rows and has_bytes:
        made = _strided_view(values, rows, counts)
    else:
        parts = [part.view(row) for part, row in zip(torch.split(values, counts), rows, strict=True)] if rows else []
        layout = torch.jagged if jagged else torch.strided
        made = torch.nested.nested_tensor(parts, dtype=values.dtype, device=values.device, layout=layout)
    return made.transpose(1, ragged) if ragged != 1 else made


def _strided_view(values: torch.Tensor, rows: Sequence[Sequence[int]], counts: Sequence[int]) -> torch.Tensor:
    """Return a strided nested tensor as a view of the values; ``counts`` are the numbers of elements of components."""
    strides = [[prod(row[dim + 1 :]) for dim in range(len(row))] for row in rows]
    starts = torch.tensor([0, *counts[:-1]], device="cpu").cumsum(0)
    sizes = torch.tensor(rows, dtype=torch.int64, device="cpu"), torch.tensor(strides, dtype=torch.int64, device="cpu")
    view: torch.Tensor = torch._nested_view_from_buffer(values, *sizes, starts)
    return view


def shape_of(tensor: torch.Tensor) -> torch.Size | torch.Tensor:
    """Return the shape of a tensor; that of a strided nested tensor is a 2D tensor, a row for each component.

    Raises:
        TypeError: The tensor is a jagged nested tensor, whose memory no single tensor has.

    >>> shape_of(torch.ones(2, 3))
    torch.Size([2, 3])
    """
    if not tensor.is_nested:
        return tensor.shape
    if tensor.layout is torch.jagged:
        raise TypeError(
            "a jagged nested tensor consists of values and offsets, which one MemoryMappedTensor cannot hold; put it "
            "into a tensordict, which is saved with it, or pass its values()"
        )
    rows: torch.Tensor = tensor._nested_tensor_size()
    return rows if rows.ndim else rows.new_empty(0, 0)  # without components


def count_of(rows: torch.Tensor) -> int:
    """Return the number of elements of a nested tensor whose components have the shapes in the rows of a tensor.

    >>> count_of(torch.tensor([[2, 3], [1, 3]]))
    9
    """
    return int(rows.prod(1).sum())


def values(nested: torch.Tensor) -> torch.Tensor:
    """Return the values of all components of a strided one in one row, without a copy if they are stored so."""
    if nested.requires_grad:  # torch warns where `detach` makes a strided nested tensor
        nested = nested.detach()
    if nested.is_contiguous():
        stored = nested.values()  # the whole storage, which a view may share with others
        if stored.numel() == nested.numel():
            return stored
    parts = [part.reshape(-1) for part in nested.unbind()]
    return torch.cat(parts) if parts else torch.empty(0, dtype=nested.dtype, device="cpu")
