"""Dispatch: call a function of a tensordict with tensors.

Positional arguments follow the order of the input keys, and keyword arguments have their names; the result is the
entries of the output keys. A call with a tensordict costs one type check.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from tensordict_core import NestedKey, TensorDict, unravel_key
from tensordict_core.extension import Node
from tensordict_nn import errors
from tensordict_nn.settings import Block, Setting

DISPATCHES: Setting[bool] = Setting(True)


class set_dispatch(Block):
    """Context manager and decorator that enable or disable `dispatch`.

    Args:
        mode: Whether functions with `dispatch` accept tensors; otherwise arguments are passed on unchanged.
        thread_local: Whether the block affects this thread only.

    >>> from tensordict_nn import TensorDictModule
    >>> module = TensorDictModule(lambda x: x + 1, in_keys=["x"], out_keys=["y"])
    >>> with set_dispatch(True):
    ...     module(x=torch.zeros(2))
    tensor([1., 1.])
    """

    setting = DISPATCHES

    def __init__(self, mode: bool = True, *, thread_local: bool = False) -> None:
        super().__init__(mode, thread_local)


def _optional(call: Callable[..., Any], position: int) -> Callable[..., Any]:
    """Make the tensordict optional in the signature, by which ``torch.export`` binds its inputs."""
    signature = inspect.signature(call)
    parameters = list(signature.parameters.values())
    if all(p.default is not p.empty or p.kind > p.POSITIONAL_OR_KEYWORD for p in parameters[position + 1 :]):
        parameters[position] = parameters[position].replace(default=None)
        vars(call)["__signature__"] = signature.replace(parameters=parameters)  # inspect reads this attribute
    return call


def _more_positional(function: Callable[..., Any], position: int) -> float:
    """Return how many positional arguments a function takes from a position; none of them a tensordict."""
    count = 0
    for parameter in list(inspect.signature(function).parameters.values())[position:]:
        if parameter.kind is parameter.VAR_POSITIONAL:
            return math.inf
        if parameter.kind > parameter.POSITIONAL_OR_KEYWORD or parameter.name == "tensordict_out":
            break
        count += 1
    return count


class dispatch:
    """Decorator for functions and methods whose first argument is ``tensordict``: they also accept tensors instead.

    The decorator is used with or without arguments. If the environment variable ``DISPATCH_TDNN_MODULES`` is ``0`` at
    import, it returns functions unchanged.

    Args:
        separator: The string with which the levels of a nested key are joined to the name of a keyword argument.
        source: The input keys, or the name of the attribute that holds them.
        dest: The output keys, or the name of the attribute that holds them.
        auto_batch_size: Whether the batch size of the new tensordict is the longest shape prefix that its entries
            share.

    Raises:
        RuntimeError: The first argument has another name, or an input is given twice.

    >>> class AddOne(torch.nn.Module):
    ...     in_keys, out_keys = [("nested", "a")], ["b"]
    ...     @dispatch
    ...     def forward(self, tensordict):
    ...         return tensordict.set("b", tensordict["nested", "a"] + 1)
    >>> AddOne()(torch.zeros(2)), AddOne()(nested_a=torch.ones(2))
    (tensor([1., 1.]), tensor([2., 2.]))
    """

    DEFAULT_SEPARATOR = "_"
    DEFAULT_SOURCE = "in_keys"
    DEFAULT_DEST = "out_keys"

    def __new__(cls, separator: Any = DEFAULT_SEPARATOR, *args: Any, **kwargs: Any) -> Any:
        """Return a decorator or, used bare, the decorated function."""
        if callable(separator):
            return cls()(separator)
        return super().__new__(cls)

    def __init__(
        self,
        separator: str = DEFAULT_SEPARATOR,
        source: str | Sequence[NestedKey] = DEFAULT_SOURCE,
        dest: str | Sequence[NestedKey] = DEFAULT_DEST,
        auto_batch_size: bool = True,
    ) -> None:
        self.separator = separator
        self.source = source
        self.dest = dest
        self.auto_batch_size = auto_batch_size

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function."""
        names = list(inspect.signature(function).parameters)
        is_method = names[:1] != ["tensordict"]
        if names[is_method : is_method + 1] != ["tensordict"]:
            raise errors.not_dispatchable(function, names)
        if os.environ.get("DISPATCH_TDNN_MODULES") == "0":
            return function
        most = _more_positional(function, is_method + 1)
        if not is_method:

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                if (args and isinstance(args[0], Node)) or ("tensordict" in kwargs and not args):
                    return function(*args, **kwargs)
                return self._call(None, function, args, kwargs, most)

            return _optional(call, 0)

        @functools.wraps(function)
        def call_method(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
            if args and isinstance(args[0], Node):
                return function(owner, *args, **kwargs) if kwargs else function(owner, *args)
            if "tensordict" in kwargs and "tensordict" not in self._keys(owner, self.source):
                return function(owner, *args, **kwargs)
            return self._call(owner, functools.partial(function, owner), args, kwargs, most)

        return _optional(call_method, 1)

    def _keys(self, owner: Any, keys: str | Sequence[NestedKey]) -> list[Any]:
        found = getattr(owner, keys) if isinstance(keys, str) else keys
        return [unravel_key(key) for key in ([found] if isinstance(found, str) else found)]

    def _name(self, key: str | tuple[str, ...]) -> str:
        return key if isinstance(key, str) else self.separator.join(key)

    def _call(
        self, owner: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], most: float
    ) -> Any:
        """Call the function with a tensordict of the arguments; those after the inputs stay arguments."""
        if not DISPATCHES.get():
            return function(*args, **kwargs)
        source = self._keys(owner, self.source)
        more = args[len(source) :]
        if len(more) > most:
            raise errors.too_many_arguments(owner, len(args), source)
        td = TensorDict({})
        for key, value in zip(source, args, strict=False):
            if self._name(key) in kwargs:
                raise errors.given_twice(self._name(key))
            td.set(key, value)
        for key in source[len(args) :]:
            name = self._name(key)
            if name in kwargs:
                td.set(key, kwargs.pop(name))
        if self.auto_batch_size:
            td.auto_batch_size_()
        result = function(td, *more, **kwargs)
        out = tuple(result[key] for key in self._keys(owner, self.dest) if key != "_")
        return out[0] if len(out) == 1 else out
