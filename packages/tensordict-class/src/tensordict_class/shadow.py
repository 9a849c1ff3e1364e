"""Shadowing: a field that hides a member hides it from the class's users, not from core's operations.

Core's algorithms call ``td.keys()`` or ``td.set(...)``; on a class with a field named ``keys`` they would find a
tensor. So the members of such a class that are still visible run on a twin around the same tensordict: an instance of a
class with the same fields and no descriptors. What the twin gives comes back as the class.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from tensordict_class.instance import Instance
from tensordict_core.extension import TensorCollection, operations

__all__ = ["reach_past"]


def reach_past(cls: type[Any], shadowed: Iterable[str]) -> None:
    """Let the visible members of a class work although fields hide others.

    Operations on leaves (``mean``, ``sin``) are called by nobody but users, so hiding them needs nothing.
    """
    harmless = {spec.name for spec in operations()}
    if all(name in harmless for name in shadowed):
        return
    # under the class's own name, for what saves the twin saves the class
    twin = type(cls.__name__, (Instance,), {"__slots__": (), "__module__": cls.__module__})
    twin.__qualname__ = cls.__qualname__
    for name in ("_rules", "_types", "_flags", "_declaration", "_casts", "_plain"):
        setattr(twin, name, getattr(cls, name))
    hidden = set(cls._rules)
    for name in dir(TensorCollection):
        if name in hidden or (name[0] == "_" and name not in _OPERATORS):
            continue
        member = inspect.getattr_static(TensorCollection, name)
        if inspect.isfunction(member) and getattr(cls, name) is getattr(Instance, name):
            setattr(cls, name, _on_twin(getattr(Instance, name), twin))


_OPERATORS = frozenset(
    {"__getitem__", "__setitem__", "__iter__", "__contains__", "__enter__", "__exit__"}
    | {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"}
)


def _on_twin(method: Callable[..., Any], twin: type[Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _back(method(twin._shell(self._tensordict), *args, **kwargs), self, twin)

    return call


def _back(result: Any, self: Any, twin: type[Any]) -> Any:
    if type(result) is twin:
        return self if result._tensordict is self._tensordict else type(self)._wrap(result._tensordict)
    if isinstance(result, tuple):
        return tuple(_back(item, self, twin) for item in result)
    return result
