"""Names of generated methods, for `help()`, `inspect` and `pickle`.

A factory returns a plain function without the name of its attribute, class and module. The class decorator
`owns_methods` sets them, so that ``pickle.dumps(TensorDict.abs)`` works.
"""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

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
