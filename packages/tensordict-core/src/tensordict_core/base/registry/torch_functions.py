"""Table of ``torch`` functions: the handlers that ``__torch_function__`` of a tensordict calls.

The modules of `tensordict_core.torch_api` and satellites add handlers with `implements`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

_HANDLERS: dict[Any, Callable[..., Any]] = {}
_PYTHON_HANDLERS: list[tuple[Any, Callable[..., Any]]] = []
"""Handlers of Python functions, latest first; a list, because Dynamo (2.13) does not find such keys in dictionaries."""

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
    """Return the handler of a ``torch`` function, or ``None``."""
    handler = _HANDLERS.get(function)
    if handler is None:
        for known, handler_of_known in _PYTHON_HANDLERS:
            if known is function:
                return handler_of_known
    return handler
