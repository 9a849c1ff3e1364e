"""Handlers of ``torch`` functions: what ``__torch_function__`` of a tensordict runs.

The table is empty at first. The modules of `tensordict_core.torch_api` and satellites fill it with `implements`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

__all__ = ["find_handler", "implements"]

_HANDLERS: dict[Any, Callable[..., Any]] = {}
_PYTHON_HANDLERS: list[tuple[Any, Callable[..., Any]]] = []
"""Handlers of functions written in Python, the latest first: Dynamo (2.13) misses such keys of dictionaries."""

F = TypeVar("F", bound=Callable[..., Any])


def implements(*functions: Any) -> Callable[[F], F]:
    """Register a function to run in place of ``torch`` functions when one of their arguments is a tensordict.

    >>> @implements(torch.special.erf)
    ... def erf(td):
    ...     return td.erf()
    >>> torch.special.erf(TensorDict({"a": torch.zeros(1)}))["a"]
    tensor([0.])
    """

    def register(handler: F) -> F:
        for function in functions:
            if isinstance(function, FunctionType):
                _PYTHON_HANDLERS.insert(0, (function, handler))
            else:
                _HANDLERS[function] = handler
        return handler

    return register


def find_handler(function: Any) -> Callable[..., Any] | None:
    """Returns the handler of a ``torch`` function, or ``None``."""
    handler = _HANDLERS.get(function)
    if handler is None:
        for known, handler_of_known in _PYTHON_HANDLERS:
            if known is function:
                return handler_of_known
    return handler
