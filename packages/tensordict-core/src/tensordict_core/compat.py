"""Compatibility: public functions and constants that programs import from private modules of the reference.

Published programs import a few functions that belong to no container: a strict ``zip``, the batch size of an indexed
tensordict, a timer by name, functions by version of a module. They are public here, under plain names;
``tensordict-suite`` provides them under the names that those programs use.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from types import ModuleType, TracebackType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from tensordict_core.base import keys, ragged
from tensordict_core.base.index import Index
from tensordict_core.base.json_form import DTYPES
from tensordict_core.base.keys import NestedKey
from tensordict_core.base.predicates import NESTED_TENSORS_AS_LISTS
from tensordict_core.base.shape_op import normal_dim
from tensordict_core.base.views import KeysView
from tensordict_core.containers.collection import TensorCollection
from tensordict_core.containers.dense import TensorDict
from tensordict_core.containers.lazy import LazyStackedTensorDict
from tensordict_core.containers.reshaped import ReshapedView
from tensordict_core.ops.compat.versions import implement_for
from tensordict_core.torch_api.pytree import flatten_node, flatten_node_with_keys, unflatten_node

__all__ = [
    "DTYPES",
    "ENTRY_TYPES",
    "HAS_H5",
    "KEY_ERROR",
    "KEY_TYPE_ERROR",
    "LOCK_ERROR",
    "NESTED_TENSORS_AS_LISTS",
    "PYTREE_LAZY_TYPES",
    "PYTREE_TYPES",
    "EntryType",
    "KeysView",
    "ReshapedView",
    "as_bool",
    "batch_size_after",
    "check_pytree_node",
    "flatten_node",
    "flatten_node_with_keys",
    "get_json_backend",
    "implement_for",
    "inferred_size",
    "is_batched",
    "is_key",
    "is_key_or_keys",
    "is_namedtuple",
    "is_non_tensor_type",
    "json_dumps",
    "logger",
    "passes_through",
    "reduced",
    "set_json_backend",
    "shape_of",
    "timeit",
    "unflatten_node",
    "unravel_key_to_tuple",
    "without_ellipsis",
    "wrap_dim",
    "zip_strict",
]

ENTRY_TYPES: tuple[type[Any], ...] = (Tensor, TensorCollection)
"""The types of entries: tensors and containers."""

EntryType = Tensor | TensorCollection
"""The type of an entry, for annotations."""

PYTREE_TYPES: tuple[type[Any], ...] = (TensorDict,)
"""The dense containers that are nodes of pytrees; subclasses are instances of it."""

PYTREE_LAZY_TYPES: tuple[type[Any], ...] = (LazyStackedTensorDict,)
"""The lazy stacks that are nodes of pytrees."""

LOCK_ERROR = "Cannot modify locked TensorDict"
"""The beginning of the message if entries of a locked tensordict would change."""

KEY_ERROR = 'key "{}" not found in {} with keys {}'
"""The beginning of the message for a missing key, with places for the key, the type and the keys."""

KEY_TYPE_ERROR = "Only NestedKeys are supported"
"""The beginning of the message if a value is not a key."""

HAS_H5 = importlib.util.find_spec("h5py") is not None
"""Whether h5py is installed."""

logger = logging.getLogger("tensordict")
"""The logger of this library and of programs that log through it."""

zip_strict = functools.partial(zip, strict=True)
"""``zip`` that raises a ``ValueError`` if the lengths differ."""


def batch_size_after(batch_size: torch.Size, index: Any) -> torch.Size:
    """Return the batch size of the result of an index.

    Args:
        batch_size: The batch size.
        index: Any index of a tensordict.

    Raises:
        IndexError: The index does not fit the batch size.

    >>> batch_size_after(torch.Size([3, 4]), (slice(2), 0))
    torch.Size([2])
    """
    return Index(index, torch.Size(batch_size)).size


def wrap_dim(dim: int, shape: Sequence[int] | None, ndim: int | None = None) -> int:
    """Return a dimension counted from the front.

    Args:
        dim: The dimension, from ``-ndim`` to ``ndim - 1``.
        shape: The shape that has the dimensions.
        ndim: The number of dimensions, where there is no shape.

    Raises:
        IndexError: There is no such dimension.

    >>> wrap_dim(-1, torch.Size([3, 4]))
    1
    """
    size = torch.Size(shape if shape is not None else [1] * (ndim or 0))
    return normal_dim(dim, size)


def is_key(value: Any) -> bool:
    """Return whether a value is a nested key.

    >>> is_key(("a", "b")), is_key(["a"])
    (True, False)
    """
    return isinstance(value, NestedKey)


def is_key_or_keys(value: Any) -> bool:
    """Return whether a value is a nested key, or a list or tuple of nested keys, which may be empty.

    >>> is_key_or_keys(("a", "b")), is_key_or_keys(["a", ("b", "c")]), is_key_or_keys([]), is_key_or_keys(["a", 1])
    (True, True, True, False)
    """
    return isinstance(value, NestedKey) or (
        isinstance(value, list | tuple) and all(isinstance(key, NestedKey) for key in value)
    )


def unravel_key_to_tuple(key: Any) -> tuple[str, ...]:
    """Return a nested key as a flat tuple, and the empty tuple for any other value, such as an index.

    >>> unravel_key_to_tuple(("a", ("b",))), unravel_key_to_tuple(0), unravel_key_to_tuple(("a", 0))
    (('a', 'b'), (), ())
    """
    return keys.unravel_key_to_tuple(key) if isinstance(key, NestedKey) else ()


def is_non_tensor_type(cls: type) -> bool:
    """Return whether a type is that of non-tensor data.

    >>> from tensordict_core import NonTensorData
    >>> is_non_tensor_type(NonTensorData), is_non_tensor_type(TensorDict)
    (True, False)
    """
    return getattr(cls, "_is_non_tensor", False)


def shape_of(value: Any) -> torch.Size:
    """Return the shape of an entry; sizes that differ between the components of a strided nested tensor are -1.

    >>> shape_of(torch.zeros(2, 3)), shape_of(torch.nn.UninitializedBuffer())
    (torch.Size([2, 3]), torch.Size([-1]))
    """
    if isinstance(value, UninitializedParameter | UninitializedBuffer):
        return torch.Size([-1])
    shape: torch.Size = ragged.shape_of(value) if isinstance(value, Tensor) else value.shape
    return shape


def as_bool(text: str) -> bool:
    """Return the truth value of a string, as in environment variables and configurations.

    Args:
        text: One of y, yes, t, true, on, 1, n, no, f, false, off and 0, in any case.

    Raises:
        ValueError: The string is none of these.

    >>> as_bool("yes"), as_bool("0")
    (True, False)
    """
    spelled = {"y": True, "yes": True, "t": True, "true": True, "on": True, "1": True}
    spelled |= {"n": False, "no": False, "f": False, "false": False, "off": False, "0": False}
    value = spelled.get(text.lower())
    if value is None:
        raise ValueError(f"{text!r} is not a truth value; use one of {', '.join(spelled)}")
    return value


class timeit(ContextDecorator):
    """Adds up the times of blocks and functions under a name; a context manager and a decorator.

    Args:
        name: The name under which the times are added up.

    >>> with timeit("step"):
    ...     pass
    >>> calls = timeit("step")(len)("abc")
    >>> timeit.counts()["step"]
    2
    >>> timeit.erase()
    """

    _REG: ClassVar[dict[str, list[Any]]] = {}

    def __init__(self, name: str) -> None:
        self.name = name
        self._start = 0.0

    def _recreate_cm(self) -> Self:
        return type(self)(self.name)  # each call has a start of its own

    def __enter__(self) -> Self:
        self._start = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        spent = time.perf_counter() - self._start
        _, total, calls = self._REG.get(self.name, [0.0, 0.0, 0])
        self._REG[self.name] = [(total + spent) / (calls + 1), total + spent, calls + 1]

    @classmethod
    def counts(cls) -> dict[str, int]:
        """Return the number of calls of each name."""
        return {name: calls for name, (_, _, calls) in cls._REG.items()}

    @classmethod
    def print(cls, prefix: str | None = None) -> None:
        """Log the mean and the total of each name, the largest total first."""
        for name, (mean, total, calls) in sorted(cls._REG.items(), key=lambda item: -item[1][1]):
            logger.info("%s%s: %.6f ms a call, %d calls, %.6f s", prefix or "", name, mean * 1000, calls, total)

    @classmethod
    def erase(cls) -> None:
        """Forget all times."""
        cls._REG.clear()


_json: list[str] = ["json"]


def set_json_backend(backend: str) -> None:
    """Choose the module that `json_dumps` writes with.

    Args:
        backend: ``"json"`` or ``"orjson"``.

    Raises:
        ValueError: The backend is not known.

    >>> set_json_backend("json")
    """
    if backend not in ("json", "orjson"):
        raise ValueError(f"unknown JSON backend {backend!r}; use 'json' or 'orjson'")
    importlib.import_module(backend)
    _json[0] = backend


def get_json_backend() -> ModuleType:
    """Return the module that `json_dumps` writes with.

    >>> get_json_backend().__name__
    'json'
    """
    return importlib.import_module(_json[0])


def json_dumps(data: Any, **kwargs: Any) -> bytes:
    """Return data as JSON, written by the chosen backend.

    Args:
        data: Anything that the backend writes.
        **kwargs: Arguments of its function ``dumps``.

    >>> json_dumps({"a": [1, 2]})
    b'{"a":[1,2]}'
    """
    if _json[0] == "orjson":
        found: bytes = get_json_backend().dumps(data, **kwargs)
        return found
    return json.dumps(data, **{"separators": (",", ":"), **kwargs}).encode()


def passes_through(value: Any) -> bool:
    """Return whether operations on tensors leave an entry as it is: non-tensor data and unbatched tensors.

    >>> passes_through(torch.zeros(1))
    False
    """
    return isinstance(value, TensorCollection) and bool(value._is_opaque)


def is_namedtuple(value: Any) -> bool:
    """Return whether a value is a named tuple.

    >>> is_namedtuple((1, 2)), is_namedtuple(torch.max(torch.zeros(2), 0))
    (False, False)
    """
    return isinstance(value, tuple) and hasattr(value, "_fields")


def is_batched(tensor: Tensor) -> bool:
    """Return whether a tensor is the row of a batch inside ``torch.vmap``.

    >>> is_batched(torch.zeros(1))
    False
    """
    return bool(torch._C._functorch.is_batchedtensor(tensor))


def inferred_size(shape: Sequence[int], numel: int) -> list[int]:
    """Return a shape with the size in place of -1.

    Raises:
        RuntimeError: No size makes that number of elements.

    >>> inferred_size([-1, 2], 6)
    [3, 2]
    """
    return list(torch.empty(numel, device="meta").view(*shape).shape)


def without_ellipsis(index: Any, batch_size: Sequence[int]) -> tuple[Any, ...]:
    """Return an index with slices in the place of ``...``.

    Raises:
        RuntimeError: The index has several ellipses, or more parts than there are dimensions.

    >>> without_ellipsis((..., 0), [3, 2])
    (slice(None, None, None), 0)
    """
    parts = index if isinstance(index, tuple) else (index,)
    at = [i for i, part in enumerate(parts) if part is ...]
    if not at:
        return parts
    taken = (
        sum(
            part.ndim if isinstance(part, Tensor) and part.dtype == torch.bool else 1
            for part in parts
            if part is not None
        )
        - 1
    )
    if len(at) > 1:
        raise RuntimeError(
            f"An index can only have one ellipsis, got {len(at)} in {index}; write slices for the others"
        )
    if taken > len(batch_size):
        raise RuntimeError(
            f"Not enough dimensions in TensorDict of batch size {list(batch_size)} for {index}; leave some out"
        )
    return (*parts[: at[0]], *[slice(None)] * (len(batch_size) - taken), *parts[at[0] + 1 :])


def check_pytree_node(cls: type[Any]) -> None:
    """Check that a class is a node of pytrees, as all container classes are from their definition on.

    Raises:
        TypeError: The class is not a container.

    >>> class Batch(TensorDict): ...
    >>> check_pytree_node(Batch)
    """
    if not issubclass(cls, TensorCollection):
        raise TypeError(f"{cls.__name__} is not a tensordict class; use torch.utils._pytree.register_pytree_node")


def reduced(td: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a function and its arguments that make a tensordict again, as ``__reduce__`` of pickle does.

    >>> function, arguments = reduced(TensorDict({"a": torch.zeros(2)}, [2]))
    >>> function(*arguments).batch_size
    torch.Size([2])
    """
    function, arguments, *state = td.__reduce_ex__(4)
    return _made_again, (function, arguments, state[0] if state else None)


def _made_again(function: Callable[..., Any], arguments: tuple[Any, ...], state: Any) -> Any:
    made = function(*arguments)
    if state is not None:
        made.__setstate__(state)
    return made
