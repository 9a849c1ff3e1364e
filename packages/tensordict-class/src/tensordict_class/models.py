"""Conversion of pydantic models: a tensorclass with the fields of a model, and instances of it.

Fields and values are converted; validators, serializers and methods are not. pydantic is imported when a model is
converted.
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
from tensordict_class.derive import make_instance


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
    """Convert a pydantic model to a tensorclass, or an instance of one to an instance of the tensorclass.

    A model has one tensorclass for each set of flags, so instances that were converted one by one can be stacked.
    Fields that hold models are converted too. ``Model(**instance.to_dict())`` converts back.

    Args:
        obj: A subclass of ``pydantic.BaseModel`` or an instance of one.
        dest_cls: The tensorclass of the result; by default one is made, named after the model with the suffix ``_tc``.
        auto_batch_size: Whether the batch size is the longest shape prefix that all fields share.
        batch_dims: The maximum number of batch dimensions.
        batch_size: The batch size.
        device: The device to which tensors are moved.
        **flags: Flags of `TensorClass`: ``frozen``, ``autocast``, ``nocast``, ``shadow``, ``tensor_only``.

    Raises:
        ImportError: pydantic is not installed.
        TypeError: ``obj`` is not a model, or ``dest_cls`` has other fields.

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
            f"{model.__name__} is not a pydantic model, and from_pydantic takes a model or an instance of one; derive "
            "the class from pydantic.BaseModel, or use from_dataclass"
        )
    given = frozenset(name for name, value in flags.items() if value)
    if obj is model:
        return _class_of(model, given)
    cls = _class_of(model, given) if dest_cls is None else dest_cls
    values = {name: _value(getattr(obj, name), base, device, flags) for name in model.model_fields}
    return make_instance(cls, values, batch_size, device, auto_batch_size, batch_dims)


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
    """Make the class of a model: keyword-only like models, so that a required field may follow an optional one."""
    base = _base_model()
    name = f"{model.__name__}_tc"
    body: dict[str, Any] = {
        "__module__": model.__module__,
        "__qualname__": model.__qualname__.removesuffix(model.__name__) + name,
        "__doc__": model.__doc__,
        "__annotations__": {},
    }
    _in_progress.add(model)
    try:
        for key, info in model.model_fields.items():
            body["__annotations__"][key] = _annotation(info.annotation, base, model, flags)
            if not (info.is_required() or getattr(info, "default_factory_takes_validated_data", False)):
                body[key] = _default(info, base, flags)
    finally:
        _in_progress.discard(model)
    options: dict[str, Any] = dict.fromkeys(flags, True) | {"kw_only": True}
    return types.new_class(name, (TensorClass,), options, lambda namespace: namespace.update(body))


_in_progress: set[Any] = set()
"""The models that are being converted: in a cycle of models, a field of one of them is annotated with `Any`."""


def _annotation(annotation: Any, base: Any, model: Any, flags: frozenset[str]) -> Any:
    """Replace models by tensorclasses in an annotation."""
    if get_origin(annotation) in (Union, types.UnionType):
        return Union[tuple(_annotation(part, base, model, flags) for part in get_args(annotation))]  # noqa: UP007 (X | Y takes no tuple)
    if annotation is model:
        return ForwardRef(f"{model.__name__}_tc")
    if isinstance(annotation, type) and issubclass(annotation, base):
        return Any if annotation in _in_progress else _class_of(annotation, flags)
    return annotation


def _default(info: Any, base: Any, flags: frozenset[str]) -> Any:
    if info.default_factory is None and isinstance(info.default, str | bytes | int | float | None):
        return info.default
    options = dict.fromkeys(flags, True)
    # get_default copies mutable defaults
    return dataclasses.field(
        default_factory=lambda: _value(info.get_default(call_default_factory=True), base, None, options)
    )
