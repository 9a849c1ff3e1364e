"""Names of generated methods: what `help()`, `inspect` and `pickle` see of a method that a factory made.

A factory returns a plain function, which knows neither its name nor its class nor its module. The class decorator
`owns_methods` sets all three, so that ``pickle.dumps(TensorDict.abs)`` finds the function again.
"""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

__all__ = ["owns_methods"]

C = TypeVar("C", bound=type)


def owns_methods(cls: C) -> C:
    """Name the functions that factories made for a class after the attribute, the class and its module.

    >>> import pickle
    >>> TensorDict.abs.__qualname__, pickle.loads(pickle.dumps(TensorDict.abs)) is TensorDict.abs
    ('Pointwise.abs', True)
    """
    for name, member in vars(cls).items():
        if isinstance(member, FunctionType) and "<locals>" in member.__qualname__:
            member.__name__, member.__qualname__, member.__module__ = name, f"{cls.__qualname__}.{name}", cls.__module__
    return cls
