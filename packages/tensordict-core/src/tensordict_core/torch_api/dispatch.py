"""The dispatch table of ``torch`` functions: filled from the records, and by hand where an operation is its own.

``torch.abs(td)`` finds ``td.abs`` because the record of ``abs`` names ``torch.abs``. Everything that is no operation on
leaves registers itself with `implements`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tensordict_core.base.node import Node
from tensordict_core.ops.factories.spec import operations

__all__ = ["HANDLERS", "implements", "register_operations"]

HANDLERS: dict[Any, Callable[..., Any]] = {}
"""From a ``torch`` function to what runs instead when one of its arguments is a tensordict."""

F = TypeVar("F", bound=Callable[..., Any])


def implements(*functions: Any) -> Callable[[F], F]:
    """Register a function to run in place of ``torch`` functions for tensordicts."""

    def register(handler: F) -> F:
        for function in functions:
            HANDLERS[function] = handler
        return handler

    return register


def _method(name: str) -> Callable[..., Any]:
    def handler(first: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("out", None) if kwargs.get("out", 0) is None else None
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


def register_operations() -> None:
    """Fill the table from the records; called once, when the operation families are complete."""
    for spec in operations():
        for function in spec.torch_functions:
            HANDLERS[function] = (
                _reflected(spec.name, spec.operators) if spec.family == "binary" else _method(spec.name)
            )
