"""Dispatch of ``torch`` functions and operators to methods: ``torch.abs(td)`` calls ``td.abs()``.

Operation records name their ``torch`` functions. A call that the method takes runs the method. Arguments that only
``torch`` knows (``rounding_mode``, ``decimals``), and a tensordict that is not the first operand, run the function leaf
by leaf. ``out`` takes the result of either. No argument is dropped.

Operators of a tensor and a tensordict get handlers of their own: Python calls the operator of a tensor on the left
first (``x < td``), and Dynamo calls that of a tensor on either side, so ``td - x`` arrives as
``Tensor.__rsub__(x, td)``. Handlers call methods by name, because Dynamo would dispatch an operator symbol to the
tensor again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.node import Node
from tensordict_core.base.rebuild import SAME, UNLOCKED, How
from tensordict_core.base.registry.torch_functions import implements
from tensordict_core.ops.factories.operands import broadcast_how, match, spread
from tensordict_core.ops.factories.spec import OpSpec, operations
from tensordict_core.ops.shape.combine import write_out

_COMPARISONS = {
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

_FORWARD = {"__floordiv__": "__rfloordiv__"}
"""Methods of a tensor (the first operand) that do not call a function of the table, and those of the tensordict."""

_REFLECTED = {
    "__rsub__": "__sub__",
    "__rdiv__": "__truediv__",
    "__rfloordiv__": "__floordiv__",
    "__rmod__": "__mod__",
    "__rpow__": "__pow__",
}
"""Reflected methods of a tensor (the second operand), and the method of the tensordict (the first operand)."""

_SECOND = {"pow": "exponent", "clamp_min": "min", "clamp_max": "max"}
"""The names of the second operand in torch where it is not ``other``."""

_TERNARY = {
    "lerp": ("input", "end", "weight"),
    "addcmul": ("input", "tensor1", "tensor2"),
    "addcdiv": ("input", "tensor1", "tensor2"),
}
"""The names of three operands in torch."""


def operand_names(name: str, family: str) -> tuple[str, ...]:
    """Return the names of the operands of a ``torch`` function, which may be given by name.

    >>> operand_names("pow", "binary")
    ('input', 'exponent')
    """
    if family == "ternary":
        return _TERNARY[name]
    return ("input",) if family in ("unary", "test", "reduce") else ("input", _SECOND.get(name, "other"))


def register() -> None:
    """Register handlers for the functions of all operation records, then for operators."""
    for spec in operations():
        if spec.torch_functions and spec.family in _HANDLERS:
            implements(*spec.torch_functions)(_HANDLERS[spec.family](spec))
    for name, (first, second) in _COMPARISONS.items():
        functions = [getattr(owner, name) for owner in (Tensor, torch) if hasattr(owner, name)]
        implements(*functions)(_either_side(name, first, second))
    for name, first in (_REFLECTED | _FORWARD).items():
        implements(getattr(Tensor, name))(_swapped(first))


def _given(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the operands and the positional arguments after them; operands given by name leave ``kwargs``."""
    missing = names[len(args) :]
    return (*args, *[kwargs.pop(name) for name in missing if name in kwargs]) if missing and kwargs else args


def with_out(name: str, result: Any, out: Any) -> Any:
    """Return the result of a function, or ``out`` with the result written into it.

    Raises:
        TypeError: The function has several results, or one that is not a tensordict.
    """
    if out is not None and not (isinstance(result, Node) and isinstance(out, Node)):
        raise errors.unknown_argument(name, "out")
    return result if out is None else write_out(name, result, out)


def _of_each_leaf(spec: OpSpec) -> Callable[..., Any]:
    """Return the handler of a function of one operand: of a unary operation or a test."""
    name = spec.name
    function = spec.torch_functions[0]

    def handler(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        td, *rest = _given(("input",), args, kwargs)
        if not isinstance(td, Node):
            raise errors.only_first(name, td)
        if rest or kwargs:
            how = SAME if spec.family == "unary" else UNLOCKED
            return with_out(
                name, td._rebuild(iter([function(leaf, *rest, **kwargs) for leaf in td._leaves()]), how), out
            )
        return with_out(name, getattr(td, name)(), out)

    return handler


def _of_two(spec: OpSpec) -> Callable[..., Any]:
    """Return the handler of a function of two operands, either of which may be the tensordict."""
    name, operators, function = spec.name, spec.operators, spec.torch_functions[0]
    swapped = next((op for op in operators if op.startswith("__r")), "__r" + operators[0][2:] if operators else None)
    names = operand_names(name, "binary")

    def handler(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        first, second, *rest = _given(names, args, kwargs)
        if isinstance(first, Node):
            if not rest and not kwargs.keys() - _OPTIONS:
                return with_out(name, getattr(first, name)(second, **kwargs), out)
        elif not rest and not kwargs and swapped is not None and hasattr(second, swapped):
            return with_out(name, getattr(second, swapped)(first), out)
        return with_out(name, by_leaf(name, function, (first, second), *rest, **kwargs), out)

    return handler


_OPTIONS = frozenset(("alpha", "default"))
"""The keyword arguments of methods with two operands."""


def _of_three(spec: OpSpec) -> Callable[..., Any]:
    """Return the handler of a function of three operands, any of which may be the tensordict."""
    name, function = spec.name, spec.torch_functions[0]
    names = operand_names(name, "ternary")

    def handler(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        first, second, third, *rest = _given(names, args, kwargs)
        if isinstance(first, Node):
            return with_out(name, getattr(first, name)(second, third, *rest, **kwargs), out)
        return with_out(name, by_leaf(name, function, (first, second, third), *rest, **kwargs), out)

    return handler


def by_leaf(name: str, function: Any, operands: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
    """Return a function of each leaf of the first tensordict among the operands and of its matches in the others.

    Other operands are numbers, ``None``, tensors that are aligned with the batch dimensions, and tensordicts.

    >>> td = TensorDict({"a": torch.tensor([7.0])}, [1])
    >>> by_leaf("div", torch.div, (15.0, td), rounding_mode="floor")["a"]
    tensor([2.])
    """
    td, columns, how = line_up(name, operands)
    return td._rebuild(iter([function(*column, *args, **kwargs) for column in columns]), how)


def line_up(name: str, operands: tuple[Any, ...]) -> tuple[Any, list[tuple[Any, ...]], How]:
    """Return the first tensordict among operands, the operands of each of its leaves, and the rule for the result.

    >>> td = TensorDict({"a": torch.tensor([7.0])}, [1])
    >>> line_up("add", (2.0, td))[1]
    [(2.0, tensor([7.]))]
    """
    at = next(i for i, operand in enumerate(operands) if isinstance(operand, Node))
    td = operands[at]
    others = [*operands[:at], *operands[at + 1 :]]
    for i, other in enumerate(others):
        td, others[i] = spread(td, other)
    leaves = td._leaves()
    columns: list[Any] = []
    how = SAME
    for operand in others:
        matched, is_number = (None, True) if operand is None else match(name, td, leaves, operand)
        columns.append([matched] * len(leaves) if is_number else matched)
        wider = broadcast_how(td, operand, SAME)
        how = how if wider is SAME else wider
    columns.insert(at, leaves)
    return td, list(zip(*columns, strict=True)), how


def as_method(name: str, **renamed: str) -> Callable[..., Any]:
    """Return a handler that calls the method ``name``; ``renamed`` maps argument names of torch to those of it."""

    def handler(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        for theirs, ours in renamed.items():
            if theirs in kwargs:
                kwargs[ours] = kwargs.pop(theirs)
        if not args:
            args = (kwargs.pop("tensor" if "tensor" in kwargs else "input"),)
        if not isinstance(args[0], Node):
            raise errors.only_first(name, args[0])
        return with_out(name, getattr(args[0], name)(*args[1:], **kwargs), out)

    return handler


_HANDLERS: dict[str, Callable[[OpSpec], Callable[..., Any]]] = {
    "unary": _of_each_leaf,
    "test": _of_each_leaf,
    "binary": _of_two,
    "ternary": _of_three,
    "reduce": lambda spec: as_method(spec.name),
}
"""The handler of each family of operations; those of comparisons are in `_COMPARISONS`."""


def _either_side(name: str, method: str, mirrored: str) -> Callable[..., Any]:
    names = operand_names(name, "compare")

    def handler(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        first, second = _given(names, args, kwargs)
        if kwargs:
            raise errors.unknown_argument(name, next(iter(kwargs)))
        result = getattr(first, method)(second) if isinstance(first, Node) else getattr(second, mirrored)(first)
        return with_out(name, result, out)

    return handler


def _swapped(method: str) -> Callable[..., Any]:
    def handler(tensor: Any, td: Any) -> Any:
        return getattr(td, method)(tensor)

    return handler
