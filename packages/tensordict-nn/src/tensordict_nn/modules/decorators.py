"""`as_tensordict_module`: decorator that makes a `TensorDictModule` of a function or a method."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tensordict_core import NestedKey
from tensordict_nn.modules.base import as_keys
from tensordict_nn.modules.module import TensorDictModule


class as_tensordict_module:
    """Decorator of functions that read ``in_keys`` from a tensordict and write results at ``out_keys``.

    It works on functions and methods; called with tensors they return tensors.

    Args:
        in_keys: The keys of its arguments, in order.
        out_keys: The keys of its results, in order.

    >>> @as_tensordict_module(in_keys="c", out_keys="d")
    ... def add_one(c):
    ...     return c + 1
    >>> add_one(TensorDict({"c": 0}))["d"], add_one(c=torch.zeros(2))
    (tensor(1), tensor([1., 1.]))
    """

    def __init__(self, *, in_keys: Sequence[NestedKey] | NestedKey, out_keys: Sequence[NestedKey] | NestedKey) -> None:
        self.in_keys = as_keys(in_keys)
        self.out_keys = as_keys(out_keys)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function."""
        return _Decorated(function, self.in_keys, self.out_keys)


class _Decorated:
    """A function as a module; as an attribute of an instance, a module of the bound method."""

    def __init__(self, function: Callable[..., Any], in_keys: list[Any], out_keys: list[Any]) -> None:
        functools.update_wrapper(self, function)
        self.in_keys = in_keys
        self.out_keys = out_keys
        self._function = function
        self._module = TensorDictModule(function, in_keys, out_keys)
        self._owner: type[Any] | None = None

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._owner = owner

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        return TensorDictModule(self._function.__get__(instance), self.in_keys, self.out_keys)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._owner is not None and args and isinstance(args[0], self._owner):  # Owner.method(instance, ...)
            return self.__get__(args[0])(*args[1:], **kwargs)
        return self._module(*args, **kwargs)

    def __reduce__(self) -> str:
        """Pickle by name, as functions."""
        return str(self._function.__qualname__)
