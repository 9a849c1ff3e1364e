"""Unpickling of non-tensor values, where the caller of a load allows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict_memmap.schema import nontensor
from tensordict_memmap.schema.node import Node, Value, nodes, subject


class PickleNotAllowed(ValueError, RuntimeError):
    """A save holds a pickled value, and the caller does not allow to unpickle it."""


def unpickle(schema: Node, read: Callable[[Value], Any], where: str, allowed: bool | None) -> None:
    """Fill in the pickled values of a schema.

    Args:
        schema: The schema.
        read: Unpickles a value.
        where: The path of the save, which errors name.
        allowed: Whether values may be unpickled; None puts None in their place.

    Raises:
        PickleNotAllowed: There is a pickled value, and none may be unpickled.
        ValueError: A stack is not a list of values.
    """
    pickled = [node for node in nodes(schema) if isinstance(node, Value) and node.pickle is not None]
    if allowed is None:
        for value in pickled:
            value.stack = False
        return
    if pickled and not allowed:
        raise PickleNotAllowed(
            f"{subject(pickled[0].key, 'the value')} was pickled, and unpickling runs code from the file; pass "
            f"allow_pickle=True if you trust who wrote {where}"
        )
    for value in pickled:
        value.value = read(value)
        if value.stack:
            if not isinstance(value.value, list):
                raise ValueError(
                    f"{subject(value.key, 'the value')} in {where} is not a list of values; the file is damaged: "
                    "save again"
                )
            value.batch_size = nontensor.stack_size(value.value, value.batch_size)
