"""Shadowing: a field that hides a member hides it from users of the class, not from core's operations.

Core's algorithms call ``td.keys()`` or ``td.set(...)``; on a class with a field named ``keys`` they would find a
tensor. So the visible members of such a class run on a twin that wraps the same tensordict: an instance of a class with
the same fields and no properties for them. Results of the twin's class are converted back.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from tensordict_class.instance import Instance
from tensordict_core.extension import TensorCollection, operations


def reach_past(cls: type[Any], shadowed: Iterable[str]) -> None:
    """Make the visible members of a class work although fields hide others.

    No member calls an operation on leaves (``mean``, ``sin``), so hiding one has no effect on others.
    """
    harmless = {spec.name for spec in operations()}
    if all(name in harmless for name in shadowed):
        return
    # under the name of the class, because saving the twin saves the class
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
