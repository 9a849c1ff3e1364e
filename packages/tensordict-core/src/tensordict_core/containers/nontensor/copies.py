"""Copies of non-tensor values, as ``clone`` makes them: lists and dictionaries of a clone are its own."""

from __future__ import annotations

import copy
from typing import Any

from tensordict_core.base.tracing import is_compiling

_NEVER_CHANGED = frozenset({type(None), bool, int, float, complex, str, bytes, type})


def copied(values: list[Any], deep: bool = True) -> list[Any]:
    """Return a list of deep copies of the values; objects that occur several times in them do so in the copies.

    A value that cannot be copied, as a lock or a result of autograd, is in both lists, and every value in compiled
    functions, where Dynamo does not copy objects.

    Args:
        values: The values.
        deep: Whether they are copied; otherwise the list has the same values.

    >>> values = [["a"], "b"]
    >>> copied(values) == values, copied(values)[0] is values[0]
    (True, False)
    """
    if not deep or is_compiling() or _NEVER_CHANGED.issuperset(map(type, values)):
        return list(values)
    memo: dict[int, Any] = {}
    return [_copied(value, memo) for value in values]


def copied_one(value: Any) -> Any:
    """Return a deep copy of a value, as `copied` makes it.

    >>> value = ["a"]
    >>> copied_one(value) == value, copied_one(value) is value
    (True, False)
    """
    return value if type(value) in _NEVER_CHANGED or is_compiling() else _copied(value, {})


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # an object raises what it likes, from TypeError of pickle to RuntimeError of torch
        return value
