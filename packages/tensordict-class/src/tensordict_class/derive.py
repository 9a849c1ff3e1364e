"""Derivation: makes a tensorclass of a plain class or a dataclass, and instances of it of dataclass instances.

The functions take the base class of the result, so this module is a layer below `TensorClass` and does not import it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol

from tensordict_class import errors
from tensordict_class.construct import WRITTEN
from tensordict_class.fields import has_no_default, own_annotations
from tensordict_core import TensorDict

_GENERATED = frozenset(
    {"__dict__", "__weakref__", "__dataclass_fields__", "__dataclass_params__", "__match_args__"}
    | {"_rules", "_types", "_flags", "_declaration", "_casts", "_plain", "_restarts"}
)
"""Members that `dataclasses`, `TensorClass` or Python add to a class, and will add to the new one."""

_FLAGS = "_flags_of_decorator"
"""The member that passes flags to the new class: a metaclass need not take them as class keywords."""


# --- classes


def derive(cls: type[Any], base: type[Any], flags: Mapping[str, Any], name: str | None = None) -> type[Any]:
    """Make a subclass of ``base`` with the fields and members of a class, which stays unchanged.

    Args:
        cls: A class with annotated fields; it may be a dataclass, or a subclass of ``base`` already.
        base: The base class.
        flags: The class keywords.
        name: The name of the new class; that of ``cls`` by default.
    """
    body = _body(cls, base)
    name = name or cls.__name__
    body["__qualname__"] = cls.__qualname__.removesuffix(cls.__name__) + name
    body[_FLAGS] = dict(flags)
    keywords = {"metaclass": type(cls)}
    return types.new_class(name, _bases(cls, base), keywords, lambda namespace: namespace.update(body))


def take_flags(cls: type[Any]) -> dict[str, Any]:
    """Return the flags that `derive` gives a class, and remove them from it."""
    if _FLAGS not in vars(cls):
        return {}
    flags: dict[str, Any] = vars(cls)[_FLAGS]
    delattr(cls, _FLAGS)
    return flags


def _bases(cls: type[Any], base: type[Any]) -> tuple[type[Any], ...]:
    """Return the bases of a class with ``base`` among them: behind mixins, which may override its members."""
    if issubclass(cls, base):
        return cls.__bases__
    last: list[type[Any]] = [parent for parent in cls.__bases__ if parent is Generic or parent is Protocol]
    first = [parent for parent in cls.__bases__ if parent is not object and parent not in last]
    return (*first, base, *last)


def _body(cls: type[Any], base: type[Any]) -> dict[str, Any]:
    """Return the namespace of a class as its author wrote it, without members of `dataclasses` or `TensorClass`."""
    body = dict(vars(cls))
    by_dataclass = "__dataclass_params__" in body
    for name in ("__init__", "__repr__", "__eq__", "__hash__", "__new__"):
        if name in body and _is_generated(body[name], by_dataclass, base):
            del body[name]
    body = {name: value for name, value in body.items() if name not in _GENERATED}
    fields = vars(cls).get("__dataclass_fields__", {})
    for name in own_annotations(cls):
        field = fields.get(name)
        if field is not None and (name in body or not has_no_default(field)):
            body[name] = _field_call(field)
    return body


def _is_generated(member: Any, by_dataclass: bool, base: type[Any]) -> bool:
    """Return whether `dataclasses` or `TensorClass` made a method, and not the author of the class."""
    if member is None or hasattr(member, WRITTEN) or getattr(member, "__module__", None) == base.__module__:
        return True
    code = getattr(inspect.unwrap(member), "__code__", None)  # dataclasses wrap their repr
    return by_dataclass and code is not None and code.co_filename in ("<string>", dataclasses.__file__)


def _field_call(field: dataclasses.Field[Any]) -> Any:
    """Return a ``field(...)`` with the options of a field; for a class variable its value."""
    if getattr(field, "_field_type", None) is getattr(dataclasses, "_FIELD_CLASSVAR", field):
        return field.default
    options: dict[str, Any] = {name: getattr(field, name) for name in ("init", "repr", "hash", "compare", "metadata")}
    if field.kw_only:  # other fields are as the new class says
        options["kw_only"] = True
    for name in ("default", "default_factory"):
        if getattr(field, name) is not dataclasses.MISSING:
            options[name] = getattr(field, name)
    return dataclasses.field(**options)


def move_cells(old: type[Any], new: type[Any]) -> None:
    """Make ``super()`` without arguments find a class that replaces another one.

    Functions refer to their class in a closure cell, and both classes have the same functions.
    """
    for name in vars(old):
        for function in _functions(vars(new).get(name)):
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


# --- instances


def convert_dataclass(
    obj: Any,
    base: Any,
    *,
    dest_cls: type[Any] | None = None,
    inplace: bool = False,
    device: Any = None,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
    batch_size: Sequence[int] | int | None = None,
    **flags: bool,
) -> Any:
    """Convert a dataclass or an instance of one, as ``from_dataclass`` documents.

    Args:
        obj: A dataclass or an instance of one.
        base: The base class of tensorclasses.
        dest_cls: The tensorclass of the result; by default one is made.
        inplace: Whether the new class has the name of the dataclass.
        device: The device to which tensors are moved.
        auto_batch_size: Whether the batch size is the longest shape prefix that all fields share.
        batch_dims: The maximum number of batch dimensions.
        batch_size: The batch size.
        **flags: The flags of the new class.

    Raises:
        TypeError: The object is not a dataclass.
        ValueError: ``dest_cls`` lacks a field.
    """
    if not dataclasses.is_dataclass(obj):
        raise TypeError(
            f"Expected a dataclass input, got a {type(obj)} input instead; decorate its class with @dataclass"
        )
    given = frozenset(name for name, value in flags.items() if value)
    if isinstance(obj, type):
        return _class_of(obj, base, given, inplace)

    nested: dict[str, Any] = {"device": device, **flags}

    def converted(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type) and not hasattr(value, "batch_size"):
            return convert_dataclass(value, base, **nested)
        return value

    cls = _class_of(type(obj), base, given, inplace) if dest_cls is None else dest_cls
    values = {field.name: converted(getattr(obj, field.name)) for field in dataclasses.fields(obj)}
    if foreign := values.keys() - getattr(cls, "_rules", values).keys():
        raise errors.foreign_keys(cls, foreign, cls._rules)
    return make_instance(cls, values, batch_size, device, auto_batch_size, batch_dims)


def make_instance(
    cls: type[Any], values: dict[str, Any], batch_size: Any, device: Any, auto_batch_size: bool, batch_dims: int | None
) -> Any:
    """Make an instance of a tensorclass with a given or computed batch size."""
    instance = cls(**values, batch_size=batch_size, device=device)
    if auto_batch_size or (batch_dims is not None and batch_size is None):
        instance.auto_batch_size_(batch_dims)
    return instance


@functools.cache
def _class_of(cls: Any, base: Any, flags: frozenset[str], inplace: bool) -> Any:
    if issubclass(cls, TensorDict) or hasattr(cls, "from_tensordict"):
        return cls
    return derive(cls, base, dict.fromkeys(flags, True), cls.__name__ if inplace else f"{cls.__name__}_tc")
