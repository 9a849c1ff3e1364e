"""Signatures: expand typed ``**options`` to keyword arguments in ``inspect.signature``.

Functions that share keyword arguments name them once, in a `TypedDict`, and take ``**options: Unpack[Options]``, which
type checkers read. `with_options` lists the arguments at run time, for `help()`, `inspect.signature` and docs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ForwardRef, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class _Elsewhere:
    """A default that is chosen elsewhere; signatures show it as ``...``, like stubs."""

    def __repr__(self) -> str:
        return "..."


_ELSEWHERE = _Elsewhere()


def check_options(name: str, options: Mapping[str, object], known: Any) -> None:
    """Check that a function takes all keyword arguments.

    Args:
        name: The name of the function.
        options: The keyword arguments of the call.
        known: The `TypedDict` of the keyword arguments that the function takes.

    Raises:
        TypeError: A keyword argument is unknown.
    """
    for key in options:
        if key not in known.__annotations__:
            raise TypeError(
                f"{name}() got an unexpected keyword argument {key!r}; "
                f"its options are {', '.join(known.__annotations__)}"
            )


def with_options(options: Any, default: Any = _ELSEWHERE) -> Callable[[F], F]:
    """Show the keys of a `TypedDict` as keyword-only parameters of a function that takes them as ``**options``.

    Args:
        options: The `TypedDict`.
        default: The default of every parameter in the signature, or a mapping with the default of each.

    >>> import inspect
    >>> "existsok" in inspect.signature(TensorDict.save).parameters
    True
    """

    def spell_out(function: F) -> F:
        signature = inspect.signature(function)
        named = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        for name, hint in options.__annotations__.items():
            annotation = hint.__forward_arg__ if isinstance(hint, ForwardRef) else hint
            value = default[name] if isinstance(default, Mapping) else default
            named.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=annotation))
        vars(function)["__signature__"] = signature.replace(parameters=named)
        return function

    return spell_out
