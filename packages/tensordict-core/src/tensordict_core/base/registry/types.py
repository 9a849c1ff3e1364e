"""Type registry: containers that lower layers construct, and classes of saved objects by name.

`base` and `ops` do not import containers, and core does not import satellites; they look classes up here. A satellite
declares its types as entry points of the group ``tensordict_core.types``, so a saved object can be loaded before the
program imports the package that defines its class.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

ENTRY_POINT_GROUP = "tensordict_core.types"


class Containers:
    """Core's container classes, for the layers below them; each class is set by the module that defines it.

    To test the type of a node, use the attributes of `Node` instead.
    """

    dense: Any
    lazy: Any
    view: Any
    reshaped: Any
    non_tensor: Any
    non_tensor_stack: Any
    unbatched: Any
    attrs: Any


containers = Containers()

_by_name: dict[str, type[Any]] = {}
_names: dict[type[Any], str] = {}
_entry_points_read: dict[str, Any] = {}


def type_name(cls: type[Any]) -> str:
    """Return the stable name of a class: its registered name, or ``module:qualname``.

    The name of a class in ``__main__`` is its qualname.

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
    """Register a class under a stable name, so that saved objects of the class can be loaded.

    A redefinition of a class, such as by a notebook cell that runs twice, replaces the earlier one.

    Args:
        cls: The class.
        name: The name; by default ``module:qualname``, and ``qualname`` alone for classes of a script.

    Raises:
        ValueError: A class with another module or qualname is registered under the name.

    >>> class Point: ...
    >>> register_type(Point, name="docs:Point") is Point
    True
    """
    name = type_name(cls) if name is None else name
    other = _by_name.get(name)
    if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(
            f"the name {name!r} is registered for {other.__module__}.{other.__qualname__} and cannot name "
            f"{cls.__module__}.{cls.__qualname__} too; register one of them under another name"
        )
    _by_name[name] = cls
    _names[cls] = name
    return cls


def find_type(name: str) -> type[Any] | None:
    """Return the class that is registered under a name, or declared as an entry point; otherwise ``None``.

    The module in a name is never imported: only entry points of installed distributions are loaded.

    >>> find_type("unknown:Type") is None
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
