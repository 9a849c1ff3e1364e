"""``torch`` functions and operators of operations on leaves: ``torch.abs(td)`` calls ``td.abs()``.

The records of operations name the functions. Operators that torch asks a tensor for although a tensordict stands on
one side are entered over the records: Python asks a tensor on the left first (``x < td``), and Dynamo asks a tensor on
either side, so ``td - x`` comes as ``Tensor.__rsub__(x, td)``. Handlers call methods by name, because Dynamo would ask
the tensor again for the symbol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tensordict_core.base.node import Node
from tensordict_core.base.torch_table import implements
from tensordict_core.ops.factories.spec import operations

__all__ = ["register"]

_EITHER_SIDE = {
    "eq": ("__eq__", "__eq__"),
    "__eq__": ("__eq__", "__eq__"),
    "ne": ("__ne__", "__ne__"),
    "__ne__": ("__ne__", "__ne__"),
    "lt": ("__lt__", "__gt__"),
    "le": ("__le__", "__ge__"),
    "gt": ("__gt__", "__lt__"),
    "ge": ("__ge__", "__le__"),
    "pow": ("__pow__", "__rpow__"),
    "__pow__": ("__pow__", "__rpow__"),
    "bitwise_and": ("__and__", "__and__"),
    "__and__": ("__and__", "__and__"),
    "bitwise_or": ("__or__", "__or__"),
    "__or__": ("__or__", "__or__"),
    "bitwise_xor": ("__xor__", "__xor__"),
    "__xor__": ("__xor__", "__xor__"),
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


def register() -> None:
    """Enter the functions of all records, then the operators, into the table of handlers."""
    for spec in operations():
        handler = _reflected(spec.name, spec.operators) if spec.family == "binary" else _method(spec.name)
        implements(*spec.torch_functions)(handler)
    for name, (first, second) in _EITHER_SIDE.items():
        functions = [getattr(owner, name) for owner in (Tensor, torch) if hasattr(owner, name)]
        implements(*functions)(_either_side(first, second))
    for name, first in _REFLECTED.items():
        implements(getattr(Tensor, name))(_swapped(first))


def _method(name: str) -> Callable[..., Any]:
    def handler(first: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("out", 0) is None:
            del kwargs["out"]
        return getattr(first, name)(*args, **kwargs)

    return handler


def _reflected(name: str, operators: tuple[str, ...]) -> Callable[..., Any]:
    """A handler for two operands of which only the second may be a tensordict."""
    swapped = next((op for op in operators if op.startswith("__r")), "__r" + operators[0][2:] if operators else None)

    def handler(first: Any, second: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(first, Node):
            return getattr(first, name)(second, *args, **kwargs)
        if swapped is None or not hasattr(second, swapped):
            return NotImplemented
        return getattr(second, swapped)(first)

    return handler


def _either_side(method: str, mirrored: str) -> Callable[..., Any]:
    def handler(first: Any, second: Any) -> Any:
        return getattr(first, method)(second) if isinstance(first, Node) else getattr(second, mirrored)(first)

    return handler


def _swapped(method: str) -> Callable[..., Any]:
    def handler(tensor: Any, td: Any) -> Any:
        return getattr(td, method)(tensor)

    return handler
