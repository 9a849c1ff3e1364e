"""Dispatch of ``torch`` functions and operators to methods: ``torch.abs(td)`` calls ``td.abs()``.

Operation records name their ``torch`` functions. Operators of a tensor and a tensordict get handlers of their own:
Python calls the operator of a tensor on the left first (``x < td``), and Dynamo calls that of a tensor on either side,
so ``td - x`` arrives as ``Tensor.__rsub__(x, td)``. Handlers call methods by name, because Dynamo would dispatch an
operator symbol to the tensor again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tensordict_core.base.node import Node
from tensordict_core.base.rebuild import UNLOCKED
from tensordict_core.base.torch_table import implements
from tensordict_core.ops.factories.operands import broadcast_how, match
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
"""Functions of two operands: the method to call if the tensordict is the first operand, and if it is the second."""

_REFLECTED = {
    "__rsub__": "__sub__",
    "__rdiv__": "__truediv__",
    "__rfloordiv__": "__floordiv__",
    "__rmod__": "__mod__",
    "__rpow__": "__pow__",
}
"""Reflected methods of a tensor (the second operand), and the method of the tensordict (the first operand)."""


def register() -> None:
    """Register handlers for the functions of all operation records, then for operators."""
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
    """Return a handler of two operands, either of which may be the tensordict."""
    swapped = next((op for op in operators if op.startswith("__r")), "__r" + operators[0][2:] if operators else None)

    def handler(first: Any, second: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(first, Node):
            return getattr(first, name)(second, *args, **kwargs)
        if args or kwargs:
            return _by_leaf(name, first, second, *args, **kwargs)
        if swapped is None or not hasattr(second, swapped):
            return NotImplemented
        return getattr(second, swapped)(first)

    return handler


def _by_leaf(name: str, first: Any, second: Any, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """Return ``torch.<name>(first, leaf, ...)`` for each leaf of the second operand, a tensordict."""
    leaves = second._leaves()
    operands, is_number = match(name, second, leaves, first)
    function = getattr(torch, name)
    columns = zip([operands] * len(leaves) if is_number else operands, leaves, strict=True)
    result = second._rebuild(
        iter([function(mine, leaf, *args, **kwargs) for mine, leaf in columns]), broadcast_how(second, first, UNLOCKED)
    )
    return result if out is None else out.update_(result)


def _either_side(method: str, mirrored: str) -> Callable[..., Any]:
    def handler(first: Any, second: Any) -> Any:
        return getattr(first, method)(second) if isinstance(first, Node) else getattr(second, mirrored)(first)

    return handler


def _swapped(method: str) -> Callable[..., Any]:
    def handler(tensor: Any, td: Any) -> Any:
        return getattr(td, method)(tensor)

    return handler
