"""`tensorclass`: the decorator that converts a class with annotated fields to a `TensorClass`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar, Unpack, dataclass_transform, overload

from tensordict_class.base import CastFilter, TensorClass
from tensordict_class.derive import derive, move_cells
from tensordict_core.extension import check_options, with_options

T = TypeVar("T")


class ClassFlags(TypedDict, total=False):
    """The flags of `tensorclass`; its docstring explains each."""

    autocast: bool
    frozen: bool
    nocast: bool
    shadow: bool
    tensor_only: bool
    skip_post_init_on_rebuild: bool
    cast_filter: CastFilter | None
    kw_only: bool


# The first overload has the mark, because pyright does not see one behind another decorator of the implementation.
@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field, dataclasses.Field))
@overload
def tensorclass(cls: type[T], /) -> type[T]: ...
@overload
def tensorclass(**flags: Unpack[ClassFlags]) -> Callable[[type[T]], type[T]]: ...
@with_options(ClassFlags)
def tensorclass(cls: type[Any] | None = None, /, **flags: Unpack[ClassFlags]) -> Any:
    """Convert a class with annotated fields to a tensorclass; used with or without flags.

    New code should subclass `TensorClass` instead, which type checkers understand better.

    Args:
        cls: The class, if the decorator is used without flags.
        autocast: Values are cast to the annotated types.
        frozen: Fields cannot be assigned once an instance is made.
        nocast: Numbers and arrays stay unchanged; by default they become tensors.
        shadow: Fields may have the names of methods and attributes, which they hide.
        tensor_only: Every field is a tensor or a tensordict.
        skip_post_init_on_rebuild: ``__post_init__`` is not called on the results of operations; by default it is.
        cast_filter: A function of nested key and leaf that returns whether ``to(dtype)``, ``float()`` and similar
            methods cast the leaf.
        kw_only: Fields are keyword-only arguments of the constructor.

    Raises:
        AttributeError: A field has the name of a method or attribute, and ``shadow`` is not set.
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
    check_options("tensorclass", flags, ClassFlags)
    given = {name: value for name, value in flags.items() if value}

    def define(cls: type[Any]) -> type[Any]:
        if issubclass(cls, TensorClass) and _has_flags(cls, given):
            return cls  # it is such a tensorclass already
        result = derive(cls, TensorClass, given)
        if not hasattr(cls, "__abstractmethods__"):  # abstract methods of a plain class do not forbid instances
            type.__setattr__(result, "__abstractmethods__", frozenset())
        move_cells(cls, result)
        return result

    return define if cls is None else define(cls)


def _has_flags(cls: type[TensorClass], given: dict[str, Any]) -> bool:
    fields = [cls.__dataclass_fields__[name] for name in cls._declaration.own] if "kw_only" in given else []
    return given.items() <= {**cls._flags._asdict(), "kw_only": all(field.kw_only for field in fields)}.items()
