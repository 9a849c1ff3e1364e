"""`tensorclass`: the decorator, which makes a subclass of `TensorClass` of a class that is written like a dataclass."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, dataclass_transform, overload

from tensordict_class.base import CastFilter, TensorClass
from tensordict_class.construct import WRITTEN

__all__ = ["tensorclass"]

T = TypeVar("T")

_WRITTEN = frozenset(
    {"__dict__", "__weakref__", "__dataclass_fields__", "__dataclass_params__", "__match_args__"}
    | {"_rules", "_types", "_flags", "_declaration", "_casts", "_plain", "_restarts"}
)
"""What `dataclasses`, `TensorClass` or Python put on a class, and will put on the new one."""


@overload
def tensorclass(cls: type[T], /) -> type[T]: ...
@overload
def tensorclass(
    *,
    autocast: bool = False,
    frozen: bool = False,
    nocast: bool = False,
    shadow: bool = False,
    tensor_only: bool = False,
    skip_post_init_on_rebuild: bool = False,
    cast_filter: CastFilter | None = None,
    kw_only: bool = False,
) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field, dataclasses.Field))
def tensorclass(
    cls: type[Any] | None = None,
    /,
    *,
    autocast: bool = False,
    frozen: bool = False,
    nocast: bool = False,
    shadow: bool = False,
    tensor_only: bool = False,
    skip_post_init_on_rebuild: bool = False,
    cast_filter: CastFilter | None = None,
    kw_only: bool = False,
) -> Any:
    """Make a tensorclass of a class with annotated fields; bare or with flags.

    Subclassing `TensorClass` says the same to type checkers too, and is the better choice in new code.

    Args:
        cls: The class, if the decorator stands bare.
        autocast: Values are cast to the annotated types.
        frozen: Fields cannot be assigned once an instance is made.
        nocast: Numbers and arrays are kept as they are; by default they become tensors.
        shadow: Fields may have the names of members, which they hide.
        tensor_only: Every field is a tensor or a tensordict.
        skip_post_init_on_rebuild: ``__post_init__`` does not run on the results of operations (by default it does).
        cast_filter: Says of a nested key and a leaf whether ``to(dtype)``, ``float()`` and their kind cast it.
        kw_only: Fields are keyword-only arguments of the constructor.

    Raises:
        AttributeError: A field has the name of a member and ``shadow`` is not set.
        TypeError: Flags exclude each other.

    >>> from tensordict_class import tensorclass
    >>> @tensorclass
    ... class Point:
    ...     x: torch.Tensor
    ...     label: str = "origin"
    >>> points = torch.stack([Point(torch.zeros(2)), Point(torch.ones(2))])
    >>> points.x.shape, points[0].label
    (torch.Size([2, 2]), 'origin')
    """
    flags: dict[str, Any] = {
        "autocast": autocast,
        "frozen": frozen,
        "nocast": nocast,
        "shadow": shadow,
        "tensor_only": tensor_only,
        "skip_post_init_on_rebuild": skip_post_init_on_rebuild,
        "cast_filter": cast_filter,
        "kw_only": kw_only,
    }
    given = {name: value for name, value in flags.items() if value}

    def define(cls: type[Any]) -> type[Any]:
        if issubclass(cls, TensorClass) and not given:
            return cls  # defining it as a subclass of a tensorclass made it one
        return _subclass(cls, given)

    return define if cls is None else define(cls)


def _subclass(cls: type[Any], flags: dict[str, Any]) -> type[Any]:
    body = _body(cls)
    result = types.new_class(cls.__name__, _bases(cls), flags, lambda namespace: namespace.update(body))
    _move_cells(body, cls, result)
    return result


def _bases(cls: type[Any]) -> tuple[type[Any], ...]:
    """The bases of a class with `TensorClass` among them: behind mixins, which may override its members."""
    if issubclass(cls, TensorClass):
        return cls.__bases__
    last: list[type[Any]] = [base for base in cls.__bases__ if base is Generic or base is Protocol]
    first = [base for base in cls.__bases__ if base is not object and base not in last]
    return (*first, TensorClass, *last)


def _body(cls: type[Any]) -> dict[str, Any]:
    """The namespace of a class as its author wrote it, even if `dataclasses` or `TensorClass` worked on it."""
    body = dict(vars(cls))
    by_dataclass = "__dataclass_params__" in body
    for name in ("__init__", "__repr__", "__eq__", "__hash__", "__new__"):
        if name in body and _is_written(body[name], by_dataclass):
            del body[name]
    body = {name: value for name, value in body.items() if name not in _WRITTEN}
    fields = vars(cls).get("__dataclass_fields__", {})
    for name in inspect.get_annotations(cls):
        field = fields.get(name)
        if field is not None and (name in body or not _has_no_default(field)):
            body[name] = _fresh(field)
    body["__qualname__"] = cls.__qualname__
    return body


def _is_written(member: Any, by_dataclass: bool) -> bool:
    """Whether the author of a class did not write a method: `dataclasses` did, or `TensorClass`."""
    if member is None or hasattr(member, WRITTEN) or getattr(member, "__module__", None) == TensorClass.__module__:
        return True
    code = getattr(member, "__code__", None)
    return by_dataclass and code is not None and code.co_filename in ("<string>", dataclasses.__file__)


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _fresh(field: dataclasses.Field[Any]) -> Any:
    """The ``field(...)`` call that gave a field (a class variable: its value)."""
    if getattr(field, "_field_type", None) is getattr(dataclasses, "_FIELD_CLASSVAR", field):
        return field.default
    options: dict[str, Any] = {
        name: getattr(field, name) for name in ("init", "repr", "hash", "compare", "metadata", "kw_only")
    }
    for name in ("default", "default_factory"):
        if getattr(field, name) is not dataclasses.MISSING:
            options[name] = getattr(field, name)
    return dataclasses.field(**options)


def _move_cells(body: dict[str, Any], old: type[Any], new: type[Any]) -> None:
    """Make ``super()`` without arguments find the new class: functions hold the old one in a cell."""
    for member in body.values():
        for function in _functions(member):
            for cell in function.__closure__ or ():
                try:
                    holds_old = cell.cell_contents is old
                except ValueError:  # an empty cell
                    continue
                if holds_old:
                    cell.cell_contents = new


def _functions(member: Any) -> list[types.FunctionType]:
    if isinstance(member, property):
        return [f for f in (member.fget, member.fset, member.fdel) if isinstance(f, types.FunctionType)]
    member = inspect.unwrap(getattr(member, "__func__", member))
    return [member] if isinstance(member, types.FunctionType) else []
