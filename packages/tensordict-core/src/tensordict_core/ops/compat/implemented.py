"""Methods that other distributions implement: the signature and the documentation are here, the code is there."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from tensordict_core.base.registry.plugins import satellite

F = TypeVar("F", bound=Callable[..., Any])


def implemented_by(package: str) -> Callable[[F], F]:
    """Make a method without a body call the function of its name in another package, imported on first use.

    The function takes the arguments of the method, a class method's without the class. Defaults are those of the
    function, which tests compare with those that the method shows.

    >>> @implemented_by("operator")
    ... def neg(self): ...
    >>> neg(3)
    -3
    """

    def implement(method: F) -> F:
        name, signature = method.__name__, inspect.signature(method)
        of_class = next(iter(signature.parameters)) == "cls"

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)  # the function may call the first argument otherwise
            return getattr(satellite(package, f"TensorDict.{name}"), name)(*bound.args[of_class:], **bound.kwargs)

        return call  # type: ignore[return-value]  # of the signature of the method

    return implement
