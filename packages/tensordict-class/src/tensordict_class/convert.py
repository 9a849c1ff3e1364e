"""Conversion of dataclasses: a tensorclass with the fields of a dataclass, and instances of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tensordict_class.base import TensorClass
from tensordict_class.derive import convert_dataclass


def from_dataclass(
    obj: Any,
    *,
    dest_cls: type[Any] | None = None,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
    batch_size: Sequence[int] | int | None = None,
    frozen: bool = False,
    autocast: bool = False,
    nocast: bool = False,
    inplace: bool = False,
    shadow: bool = False,
    tensor_only: bool = False,
    device: torch.device | str | int | None = None,
) -> Any:
    """Convert a dataclass to a tensorclass, or an instance of one to an instance of the tensorclass.

    A dataclass has one tensorclass for each set of flags, so instances that were converted one by one can be stacked.
    Fields that hold dataclass instances are converted too.

    Args:
        obj: A dataclass or an instance of one.
        dest_cls: The tensorclass of the result; by default one is made.
        auto_batch_size: Whether the batch size is the longest shape prefix that all fields share.
        batch_dims: The maximum number of batch dimensions.
        batch_size: The batch size.
        frozen: See `TensorClass`.
        autocast: See `TensorClass`.
        nocast: See `TensorClass`.
        inplace: Whether the new class has the name of the dataclass instead of that name with the suffix ``_tc``. The
            dataclass is not changed.
        shadow: See `TensorClass`.
        tensor_only: See `TensorClass`.
        device: The device to which tensors are moved.

    Raises:
        TypeError: ``obj`` is not a dataclass, or ``dest_cls`` has other fields.

    >>> import dataclasses
    >>> from tensordict_class import from_dataclass
    >>> @dataclasses.dataclass
    ... class Point:
    ...     x: torch.Tensor
    ...     label: str = "origin"
    >>> point = from_dataclass(Point(torch.zeros(3)), auto_batch_size=True)
    >>> point[:2].x, point.label, type(point).__name__
    (tensor([0., 0.]), 'origin', 'Point_tc')
    """
    return convert_dataclass(
        obj,
        TensorClass,
        dest_cls=dest_cls,
        inplace=inplace,
        device=device,
        auto_batch_size=auto_batch_size,
        batch_dims=batch_dims,
        batch_size=batch_size,
        frozen=frozen,
        autocast=autocast,
        nocast=nocast,
        shadow=shadow,
        tensor_only=tensor_only,
    )
