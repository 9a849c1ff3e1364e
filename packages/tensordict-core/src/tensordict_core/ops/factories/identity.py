"""Names of generated methods: what `help()`, `inspect` and `pickle` see of a method that a factory made.

A factory returns a plain function, which knows neither the class nor the module that it ends up in. `finish` gives it
its name and docstring, and the class decorator `owns_methods` its qualified name and module, so that
``pickle.dumps(TensorDict.abs)`` finds it again.
"""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

__all__ = ["finish", "owns_methods"]

F = TypeVar("F")
C = TypeVar("C", bound=type)


def finish(function: F, name: str, doc: str) -> F:
    """The function, with the name and the docstring of the method that it becomes."""
    function.__name__ = name  # type: ignore[attr-defined]  # F is any function; a narrower bound would lose its signature
    function.__doc__ = doc
    return function


def owns_methods(cls: C) -> C:
    """Name the methods that factories made for a class after the class and its module.

    >>> import pickle
    >>> pickle.loads(pickle.dumps(TensorDict.abs)) is TensorDict.abs
    True
    """
    for name, member in vars(cls).items():
        if isinstance(member, FunctionType) and member.__name__ == name and "<locals>" in member.__qualname__:
            member.__module__, member.__qualname__ = cls.__module__, f"{cls.__qualname__}.{name}"
    return cls
