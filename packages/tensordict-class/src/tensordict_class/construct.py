"""Construction: generates the ``__init__`` of a class for its fields, so that Python binds the arguments.

Besides the fields it takes ``batch_size``, ``device``, ``names`` and ``lock``. If every value is a plain tensor, the
instance is built in one step; other values pass through the rules of their fields one by one.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from tensordict_class import errors
from tensordict_class.fields import Declaration
from tensordict_core import TensorDict
from tensordict_core.extension import Meta, as_batch_size, as_device, as_names, dense, dense_locked

META_ARGUMENTS = ("batch_size", "device", "names", "lock")
"""The keyword arguments of every constructor besides the fields."""


WRITTEN = "__written_by_tensorclass__"
"""The attribute that marks a generated ``__init__``."""


_UNKNOWN = "__unknown_arguments"
"""The parameter that takes keyword arguments that are no fields."""


_CONSTANTS = {bool, int, float, str, bytes, type(None)}


class _Factory:
    """The default of a field with a factory, which makes a value for each instance."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __repr__(self) -> str:
        return "<factory>"


def _refuse(self: Any, unknown: dict[str, Any]) -> None:
    """Raise an error for keyword arguments that are no fields.

    Raises:
        UnexpectedArgumentError: Always; it is a `TypeError` and an `AttributeError`.
    """
    raise errors.unexpected_arguments(type(self), unknown, type(self)._rules)


def start(
    self: Any, values: dict[str, Any], batch_size: Any, device: Any, names: Any, lock: Any, casts: bool, frozen: bool
) -> None:
    """Make the tensordict of a new instance and store the values.

    Args:
        self: The instance.
        values: The values of the fields, in order.
        batch_size: See `TensorDict`.
        device: See `TensorDict`.
        names: See `TensorDict`.
        lock: Whether the instance is locked.
        casts: Whether tensors pass through the rules of the fields, too.
        frozen: Whether the class is frozen.
    """
    size = as_batch_size(batch_size)
    dims = len(size)
    first = size[0] if dims else 0
    if casts:
        meta, rules = Meta(size, as_device(device)), self._rules
        values = {name: None if value is None else rules[name](value, meta) for name, value in values.items()}
    plain = device is None
    if plain:
        for value in values.values():
            if value.__class__ is not Tensor:
                plain = False
                break
            if dims:
                # the shape is sliced only for several batch dimensions: a slice costs more than all else here
                shape = value.shape
                if not shape or shape[0] != first or (dims > 1 and shape[:dims] != size):
                    plain = False
                    break
    if plain:
        meta = Meta(size, None, as_names(names, dims))
        made = dense_locked(values, meta, ()) if lock or frozen else dense(values, meta)
        object.__setattr__(self, "_tensordict", made)
        return
    td = TensorDict({}, size, device, names)
    object.__setattr__(self, "_tensordict", td)
    for name, value in values.items():
        if value is None:
            continue
        if casts:
            td.set(name, value)
        else:
            self._assign(name, value)
    if lock or frozen:
        self.lock_()


def start_by_attributes(
    self: Any, values: dict[str, Any], batch_size: Any, device: Any, names: Any, lock: Any, casts: bool, frozen: bool
) -> None:
    """Make the tensordict of a new instance, and set its attributes one by one.

    This is `start` for a class that overrides ``__setattr__``, which may change values.
    """
    object.__setattr__(self, "_tensordict", TensorDict({}, as_batch_size(batch_size), device, names))
    for name, value in values.items():
        setattr(self, name, value)
    if lock:
        self.lock_()


def write_init(
    cls: type[Any], declaration: Declaration, *, casts: bool, frozen: bool, plain_setattr: Any
) -> Callable[..., None]:
    """Generate the ``__init__`` of a class.

    Args:
        cls: The class.
        declaration: Its fields.
        casts: Whether tensors pass through the rules of the fields, too.
        frozen: Whether instances are locked once they are made.
        plain_setattr: The ``__setattr__`` of all classes that do not override it.
    """
    _check_order(declaration)
    overrides = cls.__setattr__ is not plain_setattr and not frozen
    scope: dict[str, Any] = {"_start": start_by_attributes if overrides else start}
    positional, keywords, made, values = _write_fields(declaration, scope)
    names = set(declaration.names)
    meta = [name for name in META_ARGUMENTS if name not in names]
    keywords += [f"{name}=False" if name == "lock" else f"{name}=None" for name in meta]
    passed = ", ".join(name if name in meta else "None" for name in META_ARGUMENTS)
    arguments = ", ".join(["self", *positional, *(["*", *keywords] if keywords else []), f"**{_UNKNOWN}"])
    scope["_refuse"] = _refuse
    lines = [
        f"def __init__({arguments}):",
        f"    if {_UNKNOWN}: _refuse(self, {_UNKNOWN})",
        *made,
        f"    _start(self, {{{', '.join(values)}}}, {passed}, {casts}, {frozen})",
    ]
    if hasattr(cls, "__post_init__"):
        lines.append(f"    self.__post_init__({', '.join(f.name for f in declaration.init_vars)})")
    exec("\n".join(lines), scope)
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    setattr(init, WRITTEN, True)
    init.__annotations__ = {f.name: f.type for f in declaration.arguments if f.init} | {"return": None}
    vars(init)["__signature__"] = _signature(declaration, meta)
    return init


_SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
_SHOWN_META = {
    name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
    for name in META_ARGUMENTS
    if name != "lock"
}


def _signature(declaration: Declaration, meta: Sequence[str]) -> inspect.Signature:
    """Return the signature that programs read: the fields, batch size, device and names, without ``lock``.

    It is made from parameters, because `inspect.signature` of the function takes as long as the rest of the class.
    """
    positional = [_SELF]
    keywords: list[inspect.Parameter] = []
    for field in declaration.arguments:
        if field.init:
            kind = inspect.Parameter.KEYWORD_ONLY if field.kw_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
            default = _default(field)
            shown = inspect.Parameter.empty if default is dataclasses.MISSING else default
            found = inspect.Parameter(field.name, kind, default=shown, annotation=field.type)
            (keywords if field.kw_only else positional).append(found)
    keywords += [_SHOWN_META[name] for name in meta if name in _SHOWN_META]
    return inspect.Signature([*positional, *keywords], return_annotation=None)


def _write_fields(declaration: Declaration, scope: dict[str, Any]) -> tuple[list[str], list[str], list[str], list[str]]:
    """Generate the parts of the source of an ``__init__`` that depend on the fields.

    Args:
        declaration: The fields.
        scope: Receives the defaults and their factories, under the names that the source uses.

    Returns:
        Positional arguments, keyword-only arguments, the lines that make defaults, and the items of the entries.
    """
    positional: list[str] = []
    keywords: list[str] = []
    made: list[str] = []
    values: list[str] = []
    for field in declaration.arguments:
        name = field.name
        default = _default(field)
        has_default = default is not dataclasses.MISSING
        value = "None"
        if isinstance(default, _Factory):
            value = f"_make_{name}()"
            scope[f"_make_{name}"] = default.make
        elif has_default:
            value = f"_default_{name}"
            scope[value] = default
        source = name if field.init else value
        if field.init:
            # Dynamo builds only constants among the defaults of a function
            constant = type(default) in _CONSTANTS
            argument = f"{name}={value if constant else '...'}" if has_default else name
            (keywords if field.kw_only else positional).append(argument)
            if has_default and not constant:
                made.append(f"    if {name} is ...: {name} = {value}")
        if field not in declaration.init_vars:
            values.append(f"{name!r}: {source}")
    return positional, keywords, made, values


def _check_order(declaration: Declaration) -> None:
    seen: str | None = None
    for field in declaration.arguments:
        if not field.init or field.kw_only:
            continue
        if _default(field) is not dataclasses.MISSING:
            seen = field.name
        elif seen is not None:
            raise TypeError(
                f"non-default argument {field.name!r} follows default argument {seen!r}; move it to the front, or make "
                "it kw_only"
            )


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return _Factory(field.default_factory)
    return field.default
