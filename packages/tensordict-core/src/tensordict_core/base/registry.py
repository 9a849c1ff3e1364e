"""The registry of types: core's containers for each other's use, and satellites' types by name.

Container modules cannot import each other in a circle, and core must rebuild types of distributions that it does not
know: both look here. Satellites declare their types as entry points of the group ``tensordict_core.types``, so a saved
object
finds its class before anyone imported the package that owns it.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

__all__ = ["ENTRY_POINT_GROUP", "containers", "find_type", "register_type", "type_name"]

ENTRY_POINT_GROUP = "tensordict_core.types"


class Containers:
    """Core's own containers, each put here by the module that defines it."""

    dense: Any
    lazy: Any
    view: Any
    non_tensor: Any
    non_tensor_stack: Any
    unbatched: Any
    attrs: Any


containers = Containers()

_by_name: dict[str, type[Any]] = {}
_names: dict[type[Any], str] = {}
_entry_points_read: dict[str, Any] = {}


def type_name(cls: type[Any]) -> str:
    """The stable name of a class: the one it was registered under, else ``module:qualname``.

    Classes of a script (module ``__main__``) go by their qualname alone.

    >>> class Local: ...
    >>> register_type(Local, name="docs:Local")
    <class '...Local'>
    >>> type_name(Local)
    'docs:Local'
    """
    known = _names.get(cls)
    if known is not None:
        return known
    return cls.__qualname__ if cls.__module__ == "__main__" else f"{cls.__module__}:{cls.__qualname__}"


def register_type(cls: type[Any], *, name: str | None = None) -> type[Any]:
    """Make a class known under a stable name, so that saved objects find it again.

    A class that is defined again under its old name (a notebook cell run twice) replaces the old one; two classes of
    different modules under one name are an error.

    Args:
        cls: The class.
        name: The name; by default ``module:qualname``, and ``qualname`` alone for classes of a script.

    Raises:
        ValueError: Another class has that name.

    >>> class Point: ...
    >>> register_type(Point, name="docs:Point") is Point
    True
    """
    name = type_name(cls) if name is None else name
    other = _by_name.get(name)
    if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(
            f"the name {name!r} stands for {other.__module__}.{other.__qualname__} already and cannot stand for "
            f"{cls.__module__}.{cls.__qualname__} too; register one of them under another name"
        )
    _by_name[name] = cls
    _names[cls] = name
    return cls


def find_type(name: str) -> type[Any] | None:
    """The class registered under a name, or declared under it by an installed distribution; ``None`` if there is none.

    Never imports what a name spells: only entry points that an installed distribution declares are loaded.

    >>> find_type("nobody:Nothing") is None
    True
    """
    found = _by_name.get(name)
    if found is not None:
        return found
    if not _entry_points_read:
        _entry_points_read.update({point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)})
    point = _entry_points_read.get(name)
    if point is None:
        return None
    cls: type[Any] = point.load()
    return cls
