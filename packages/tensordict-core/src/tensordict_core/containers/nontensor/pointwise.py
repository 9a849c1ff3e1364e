"""Comparisons of non-tensor values and their choice by a mask, position by position.

The results of comparisons are bool tensors of the batch size; nothing else is computed with non-tensor values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.registry.types import containers
from tensordict_core.containers.nontensor.positions import broadcast
from tensordict_core.ops.factories.operands import expands, over_batch_size


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal; values that cannot be compared are the same only if identical.

    >>> same({"a": np.arange(3)}, {"a": np.arange(3)}), same(torch.zeros(2), torch.ones(2))
    (True, False)
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    try:
        if isinstance(a, np.ndarray):
            return np.array_equal(a, b)
        if isinstance(a, Tensor):
            return a.shape == b.shape and bool((a == b).all())
        return bool(a == b)
    except Exception:  # of arrays in containers, which have no truth value
        return _same_parts(a, b)


def _same_parts(a: Any, b: Any) -> bool:
    """Return whether two containers of one type have equal elements."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return False


def different(a: Any, b: Any) -> bool:
    """Return whether two values are not equal."""
    return not same(a, b)


def ordered(symbol: str, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], bool]:
    """Return an order of two values, as Python has it."""

    def order(a: Any, b: Any) -> bool:
        try:
            return bool(function(a, b))
        except TypeError:
            raise TypeError(
                f"'{symbol}' orders values as Python does, which has no order of {a!r} and {b!r}; compare them with "
                "== or take other values"
            ) from None

    return order


def logical(symbol: str, function: Callable[[bool, bool], bool]) -> Callable[[Any, Any], bool]:
    """Return a logical operation on two values, which are bools."""

    def combine(a: Any, b: Any) -> bool:
        for value in (a, b):
            if not isinstance(value, bool | np.bool_):
                raise TypeError(
                    f"'{symbol}' of non-tensor data combines bools, got {value!r}; compare the values first, or read "
                    "them with tolist()"
                )
        return bool(function(a, b))

    return combine


def compared(function: Callable[[Any, Any], bool], doc: str, *, of_any: bool = False) -> Any:
    """Return an operator that looks at the values of each position and gives a bool tensor of the batch size.

    Args:
        function: The comparison of two values.
        doc: Its docstring.
        of_any: Whether any other value is one for all positions; otherwise lists and tensors have one for each.
    """

    # typed as Any, because these replace operators that give tensordicts
    def method(self: Any, other: Any) -> Tensor:
        if of_any:
            plain = not getattr(type(other), "_is_non_tensor", False)
            right: Any = containers.non_tensor._make(other, self._meta) if plain else other
        else:
            right = self._operand("a comparison", other)
        a, b = self._meta.batch_size, right._meta.batch_size
        size = a if a == b else torch.broadcast_shapes(a, b)
        if self._is_shared and right._is_shared:
            return torch.full(size, function(self._value, right._value), device=self._meta.device)
        pairs = zip(broadcast(self._flat_values(), a, size), broadcast(right._flat_values(), b, size), strict=True)
        results = [function(x, y) for x, y in pairs]
        return torch.tensor(results, dtype=torch.bool, device=self._meta.device).reshape(size)

    method.__doc__ = doc
    return method


def choose(condition: Tensor, mine: Any, theirs: Any) -> Any:
    """Return the values of ``mine`` where a bool tensor over its batch dimensions is true, else those of ``theirs``.

    Raises:
        RuntimeError: The condition or the batch size of ``theirs`` cannot be expanded to that of ``mine``.

    >>> from tensordict_core import NonTensorStack
    >>> choose(torch.tensor([True, False]), NonTensorStack("a", "b"), NonTensorStack("c", "d")).tolist()
    ['a', 'd']
    """
    meta = mine._meta
    size, own = meta.batch_size, theirs._meta.batch_size
    if own != size and not expands(own, size):
        raise errors.values_shape(own, size)
    if own == size and mine._has_values_of(theirs):  # and a condition that is being traced is not read
        return mine._again()
    flags = over_batch_size(condition, size).reshape(-1).tolist()
    if all(flags):
        return mine._again()
    if theirs._is_shared and not any(flags):
        return theirs._at_positions(None, meta)
    triples = zip(flags, mine._flat_values(), broadcast(theirs._flat_values(), own, size), strict=True)
    return containers.non_tensor_stack._of([a if first else b for first, a, b in triples], meta)
