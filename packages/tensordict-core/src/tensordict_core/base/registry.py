"""Registry of types: containers that lower layers construct, and types of other distributions by name.

`base` and `ops` import no container, and core imports no satellite; both find the classes here. A satellite declares
its types as entry points of the group ``tensordict_core.types``, so a saved object finds its class before a program
imports the package that defines it.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

__all__ = ["ENTRY_POINT_GROUP", "containers", "find_type", "register_type", "type_name"]

ENTRY_POINT_GROUP = "tensordict_core.types"


class Containers:
    """Constructors of core's containers for the layers below them; the module that defines a container sets its own.

    To ask for the type of a node, use the attributes of `Node` instead.
    """

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
    """Returns the stable name of a class: the one it was registered under, else ``module:qualname``.

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
    """Register a class under a stable name, so that saved objects find it again.

    A class that is defined again under the same name (a notebook cell run twice) replaces the earlier one. Two
    different classes under one name are an error.

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
    """Returns the class registered under a name or declared by an installed distribution, else ``None``.

    A name alone imports nothing: only entry points that an installed distribution declares are loaded.

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
