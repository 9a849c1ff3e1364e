"""Fields: reads the declarations of a class body, once when the class is defined.

The standard library's `dataclasses` reads them, so defaults, ``field(...)``, ``kw_only``, ``InitVar``, class variables
and inheritance work as usual, and so do ``dataclasses.fields``, ``replace`` and ``asdict``. This module adds the names
that fields may not have, and the descriptor that reads a field from the wrapped tensordict.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from typing import Any, NamedTuple

from torch import Tensor

from tensordict_class import errors
from tensordict_core.extension import TensorCollection, constant_when_traced

_ALWAYS_FREE = frozenset({"data", "isinf", "long", "short"})
"""Members that a field may hide without ``shadow``: classes of saved data have fields of these names."""


if sys.version_info >= (3, 14):  # annotations are evaluated when they are read
    import annotationlib

    def own_annotations(cls: type[Any]) -> dict[str, Any]:
        """Return the annotations in the body of a class; names that are not defined (yet) are forward references."""
        return annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF)

else:

    def own_annotations(cls: type[Any]) -> dict[str, Any]:
        """Return the annotations in the body of a class."""
        return inspect.get_annotations(cls)


class Declaration(NamedTuple):
    """The declarations of a class.

    Attributes:
        fields: The fields, inherited ones first.
        names: Their names.
        init_vars: The ``InitVar`` pseudo-fields, which are passed to ``__post_init__``.
        arguments: Fields and pseudo-fields in the order of the constructor.
        own: The names that the class itself annotates.
        shadowed: The names of members that fields hide.
    """

    fields: tuple[dataclasses.Field[Any], ...]
    names: tuple[str, ...]
    init_vars: tuple[dataclasses.Field[Any], ...]
    arguments: tuple[dataclasses.Field[Any], ...]
    own: tuple[str, ...]
    shadowed: frozenset[str]


def declare(cls: type[Any], *, base: type[Any], shadow: bool, kw_only: bool, frozen: bool) -> Declaration:
    """Read the annotations of a class body.

    Args:
        cls: The class.
        base: The class whose members no field may hide.
        shadow: Whether fields may hide members.
        kw_only: Whether the class's own fields are keyword-only arguments of the constructor.
        frozen: Whether instances are frozen.

    Raises:
        AttributeError: A field hides a member, and ``shadow`` is false.
        TypeError: A field without a default follows one with a default.
        ValueError: A default is mutable.
    """
    own = tuple(own_annotations(cls))
    inherited: dict[str, dataclasses.Field[Any]] = {}
    for parent in reversed(cls.__mro__[1:]):
        inherited.update(parent.__dict__.get("__dataclass_fields__", {}))
    for name in own:
        if name not in cls.__dict__:
            # dataclasses would take an inherited reader or method of this name for the default
            setattr(cls, name, _same_default(inherited.get(name)))
    documented = cls.__doc__
    cls.__doc__ = documented or cls.__name__  # without it, dataclasses computes a signature
    _process(cls, base, kw_only, frozen)
    fields = dataclasses.fields(cls)
    names = tuple(f.name for f in fields)
    if not documented:
        cls.__doc__ = f"{cls.__name__}({', '.join(names)})"
    declared = cls.__dataclass_fields__
    init_vars = tuple(f for name, f in declared.items() if _is_init_var(f) and name not in names)
    shadowed = frozenset(name for name in names if name not in _ALWAYS_FREE and hasattr(base, name))
    for name in names:
        if name in shadowed and (not shadow or name[0] == "_"):
            raise errors.reserved_name(cls, name, base.__name__)
    arguments = tuple(f for f in declared.values() if f in fields or f in init_vars)
    return Declaration(fields, names, init_vars, arguments, own, shadowed)


def _process(cls: Any, base: type[Any], kw_only: bool, frozen: bool) -> None:
    """Make `dataclasses` read the fields of a class, and describe the methods that a tensorclass has."""
    # a tensorclass refuses writes itself, but dataclasses wants a subclass of a frozen class to be declared as frozen
    above = [parent for parent in cls.__mro__[1:] if "__dataclass_params__" in vars(parent)]
    declared = any(p.__dataclass_params__.frozen and (frozen or issubclass(p, base)) for p in above)
    dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only, frozen=declared)(cls)
    if declared:
        del cls.__setattr__, cls.__delattr__
    params = cls.__dataclass_params__
    params.init = params.repr = params.eq = True
    params.frozen = frozen


def _same_default(parent: dataclasses.Field[Any] | None) -> Any:
    if parent is None:
        return dataclasses.field()
    if parent.default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=parent.default_factory)
    return dataclasses.field(default=parent.default)


def default_of(field: Any) -> Any:
    """Return the default value of a field that has one."""
    return field.default if field.default is not dataclasses.MISSING else field.default_factory()


def has_no_default(field: dataclasses.Field[Any]) -> bool:
    """Return whether a field has neither a default nor a factory for one."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _is_init_var(field: dataclasses.Field[Any]) -> bool:
    # the standard library marks pseudo-fields with private objects
    return getattr(field, "_field_type", None) is getattr(dataclasses, "_FIELD_INITVAR", field)


def reader(name: str) -> property:
    """Make the property that reads a field; ``__setattr__`` of the class writes it.

    It reads the entries of the wrapped tensordict directly, which are a dictionary for a dense one.
    """

    def read(self: Any) -> Any:
        try:
            # one expression: a variable that is stored and loaded again costs a tenth of the read
            if type(value := self._tensordict._entries[name]) is Tensor:
                return value
        except KeyError:
            return None
        return value._entry_value() if isinstance(value, TensorCollection) else value

    read.__name__ = read.__qualname__ = name
    return property(read, doc=f"The field {name!r}.")


def install_readers(cls: type[Any], declaration: Declaration) -> None:
    """Add a property to a class for each field of its own, or of a plain dataclass among its bases."""
    for name in declaration.names:
        if name in declaration.own or not isinstance(inspect.getattr_static(cls, name, None), property):
            setattr(cls, name, reader(name))


@constant_when_traced
def has_setter(cls: type[Any], name: str) -> bool:
    """Return whether a class has an attribute of this name that instances can assign to, such as ``batch_size``."""
    return hasattr(getattr(cls, name, None), "__set__")
