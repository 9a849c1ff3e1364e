"""Operators that a tensor is asked for although a tensordict stands on one side: its own operator answers.

Python asks a tensor on the left first (``x < td``), and Dynamo asks a tensor on either side: ``td - x`` comes as
``Tensor.__rsub__(x, td)``. The methods are called by name, because Dynamo would ask the tensor again for the symbol.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from tensordict_core.base.node import Node
from tensordict_core.torch_api.dispatch import HANDLERS

__all__ = ["find_listed", "register_operators"]

_EITHER_SIDE = {
    **{"eq": ("__eq__", "__eq__"), "__eq__": ("__eq__", "__eq__"), "ne": ("__ne__", "__ne__")},
    **{"__ne__": ("__ne__", "__ne__"), "lt": ("__lt__", "__gt__"), "le": ("__le__", "__ge__")},
    **{"gt": ("__gt__", "__lt__"), "ge": ("__ge__", "__le__"), "pow": ("__pow__", "__rpow__")},
    "__pow__": ("__pow__", "__rpow__"),
    **{"bitwise_and": ("__and__", "__and__"), "__and__": ("__and__", "__and__")},
    **{"bitwise_or": ("__or__", "__or__"), "__or__": ("__or__", "__or__")},
    **{"bitwise_xor": ("__xor__", "__xor__"), "__xor__": ("__xor__", "__xor__")},
}
"""Functions of two operands: the method of a tensordict that comes first, and of one that comes second."""
_REFLECTED = {
    "__rsub__": "__sub__",
    "__rdiv__": "__truediv__",
    "__rfloordiv__": "__floordiv__",
    "__rmod__": "__mod__",
    "__rpow__": "__pow__",
}
"""Methods of a tensor that comes second: the method of the tensordict that comes first."""

_LISTED: list[tuple[Any, Callable[..., Any]]] = []


def register_operators() -> None:
    """Put them into the dispatch table, over what the records say of functions of the same name."""
    for name, (first, second) in _EITHER_SIDE.items():
        handler = _either_side(first, second)
        _register(getattr(Tensor, name), handler)
        if hasattr(torch, name):
            _register(getattr(torch, name), handler)
    for name, first in _REFLECTED.items():
        _register(getattr(Tensor, name), _swapped(first))


def find_listed(function: Any) -> Callable[..., Any] | None:
    """The handler of a method of Tensor that is written in Python: Dynamo misses such keys of dictionaries (2.13)."""
    for listed, handler in _LISTED:
        if listed is function:
            return handler
    return None


def _register(function: Any, handler: Callable[..., Any]) -> None:
    if isinstance(function, FunctionType):
        _LISTED.append((function, handler))
    else:
        HANDLERS[function] = handler


def _either_side(method: str, mirrored: str) -> Callable[..., Any]:
    def handler(first: Any, second: Any) -> Any:
        return getattr(first, method)(second) if isinstance(first, Node) else getattr(second, mirrored)(first)

    return handler


def _swapped(method: str) -> Callable[..., Any]:
    def handler(tensor: Any, td: Any) -> Any:
        return getattr(td, method)(tensor)

    return handler
