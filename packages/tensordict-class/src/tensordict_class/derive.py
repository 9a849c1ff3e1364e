"""Conversion of dataclasses: a tensorclass of a dataclass's fields, and instances of it."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Sequence
from typing import Any

import torch

from tensordict_class.decorator import tensorclass
from tensordict_core import TensorDict

__all__ = ["from_dataclass"]


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
    """The tensorclass of a dataclass, or an instance of it with the values of an instance.

    A dataclass has one tensorclass for each set of flags, so instances that were converted one by one can be stacked.
    Fields that hold dataclass instances are converted with them.

    Args:
        obj: A dataclass or an instance of one.
        dest_cls: The tensorclass of the result; by default one is made.
        auto_batch_size: Whether the batch size is the longest that all fields share.
        batch_dims: The most batch dimensions to take.
        batch_size: The batch size.
        frozen: As of `TensorClass`.
        autocast: As of `TensorClass`.
        nocast: As of `TensorClass`.
        inplace: Whether the new class has the name of the dataclass (which stays as it is) rather than one ending in
            ``_tc``.
        shadow: As of `TensorClass`.
        tensor_only: As of `TensorClass`.
        device: Where tensors are moved.

    Raises:
        TypeError: It is no dataclass; ``dest_cls`` has other fields.

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
    if not dataclasses.is_dataclass(obj):
        raise TypeError(
            f"from_dataclass takes a dataclass or an instance of one, got {type(obj).__name__}; "
            "decorate its class with @dataclass"
        )
    flags = {"frozen": frozen, "autocast": autocast, "nocast": nocast, "shadow": shadow, "tensor_only": tensor_only}
    given = frozenset(name for name, value in flags.items() if value)
    if isinstance(obj, type):
        return _class_of(obj, given, inplace)
    cls = _class_of(type(obj), given, inplace) if dest_cls is None else dest_cls
    values = {field.name: _value(getattr(obj, field.name), given, device) for field in dataclasses.fields(obj)}
    instance = cls(**values, batch_size=batch_size, device=device)
    if auto_batch_size or (batch_dims is not None and batch_size is None):
        instance.auto_batch_size_(batch_dims)
    return instance


def _value(value: Any, flags: frozenset[str], device: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and not hasattr(value, "batch_size"):
        options: dict[str, Any] = dict.fromkeys(flags, True)
        return from_dataclass(value, device=device, **options)
    return value


@functools.cache
def _class_of(cls: type[Any], flags: frozenset[str], inplace: bool) -> type[Any]:
    if issubclass(cls, TensorDict) or hasattr(cls, "from_tensordict"):
        return cls
    name = cls.__name__ if inplace else f"{cls.__name__}_tc"
    body = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")}
    copy = types.new_class(name, cls.__bases__, {}, lambda namespace: namespace.update(body))
    copy.__qualname__ = cls.__qualname__.removesuffix(cls.__name__) + name
    options: dict[str, Any] = dict.fromkeys(flags, True)
    return tensorclass(**options)(copy)
