"""Conversion of pydantic models: a tensorclass of a model's fields, and instances of it.

A model checks what comes from outside, a tensorclass computes on it, so fields and values are taken over; validators,
serializers and methods are not. pydantic is imported when a model is converted.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import types
from collections.abc import Sequence
from typing import Any, ForwardRef, Union, get_args, get_origin

import torch

from tensordict_class.base import TensorClass

__all__ = ["from_pydantic"]


def from_pydantic(
    obj: Any,
    *,
    dest_cls: type[Any] | None = None,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
    batch_size: Sequence[int] | int | None = None,
    device: torch.device | str | int | None = None,
    **flags: bool,
) -> Any:
    """The tensorclass of a pydantic model, or an instance of it with the values of an instance.

    A model has one tensorclass for each set of flags, so instances that were converted one by one can be stacked.
    Fields that hold models are converted with them. The way back is the model's own: ``Model(**instance.to_dict())``.

    Args:
        obj: A subclass of ``pydantic.BaseModel`` or an instance of one.
        dest_cls: The tensorclass of the result; by default one is made, named after the model and ``_tc``.
        auto_batch_size: Whether the batch size is the longest that all fields share.
        batch_dims: The most batch dimensions to take.
        batch_size: The batch size.
        device: Where tensors are moved.
        **flags: As of `TensorClass`: ``frozen``, ``autocast``, ``nocast``, ``shadow``, ``tensor_only``.

    Raises:
        ImportError: pydantic is not installed.
        TypeError: It is no model; ``dest_cls`` has other fields.

    >>> import pydantic
    >>> from tensordict_class import from_pydantic
    >>> class Point(pydantic.BaseModel, arbitrary_types_allowed=True):
    ...     x: torch.Tensor
    ...     label: str = "origin"
    >>> point = from_pydantic(Point(x=torch.zeros(3)), auto_batch_size=True)
    >>> point[:2].x, point.label, type(point).__name__
    (tensor([0., 0.]), 'origin', 'Point_tc')
    """
    base = _base_model()
    model: Any = obj if isinstance(obj, type) else type(obj)
    if not issubclass(model, base):
        raise TypeError(
            f"from_pydantic takes a pydantic model or an instance of one, got {model.__name__}; "
            "derive its class from pydantic.BaseModel, or use from_dataclass"
        )
    given = frozenset(name for name, value in flags.items() if value)
    if obj is model:
        return _class_of(model, given)
    cls = _class_of(model, given) if dest_cls is None else dest_cls
    values = {name: _value(getattr(obj, name), base, device, flags) for name in model.model_fields}
    instance = cls(**values, batch_size=batch_size, device=device)
    if auto_batch_size or (batch_dims is not None and batch_size is None):
        instance.auto_batch_size_(batch_dims)
    return instance


def _base_model() -> Any:
    try:
        return importlib.import_module("pydantic").BaseModel
    except ModuleNotFoundError:
        raise ImportError("from_pydantic needs pydantic: pip install 'tensordict-class[pydantic]'") from None


def _value(value: Any, base: Any, device: Any, flags: dict[str, bool]) -> Any:
    options: dict[str, Any] = {**flags}
    return from_pydantic(value, device=device, **options) if isinstance(value, base) else value


@functools.cache
def _class_of(model: Any, flags: frozenset[str]) -> type[Any]:
    """The class of a model: keyword-only as models are, so that a required field may follow an optional one."""
    base = _base_model()
    name = f"{model.__name__}_tc"
    body: dict[str, Any] = {
        "__module__": model.__module__,
        "__qualname__": model.__qualname__.removesuffix(model.__name__) + name,
        "__doc__": model.__doc__,
        "__annotations__": {},
    }
    _underway.add(model)
    try:
        for key, info in model.model_fields.items():
            body["__annotations__"][key] = _annotation(info.annotation, base, model, flags)
            if not (info.is_required() or getattr(info, "default_factory_takes_validated_data", False)):
                body[key] = _default(info, base, flags)
    finally:
        _underway.discard(model)
    options: dict[str, Any] = dict.fromkeys(flags, True) | {"kw_only": True}
    return types.new_class(name, (TensorClass,), options, lambda namespace: namespace.update(body))


_underway: set[Any] = set()
"""The models whose classes are being made: a field of one of them, in a circle of models, is annotated with `Any`."""


def _annotation(annotation: Any, base: Any, model: Any, flags: frozenset[str]) -> Any:
    """An annotation with tensorclasses in the place of models."""
    if get_origin(annotation) in (Union, types.UnionType):
        return Union[tuple(_annotation(part, base, model, flags) for part in get_args(annotation))]  # noqa: UP007 (X | Y takes no tuple)
    if annotation is model:
        return ForwardRef(f"{model.__name__}_tc")
    if isinstance(annotation, type) and issubclass(annotation, base):
        return Any if annotation in _underway else _class_of(annotation, flags)
    return annotation


def _default(info: Any, base: Any, flags: frozenset[str]) -> Any:
    if info.default_factory is None and isinstance(info.default, str | bytes | int | float | None):
        return info.default
    options = dict.fromkeys(flags, True)
    # the model's own way to a default copies mutable ones
    return dataclasses.field(
        default_factory=lambda: _value(info.get_default(call_default_factory=True), base, None, options)
    )
