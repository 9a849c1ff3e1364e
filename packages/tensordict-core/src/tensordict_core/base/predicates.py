"""Predicates of values and types: dtype checks for ``cast_filter``, and rules for ``is_leaf``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensordict_core.base.node import Node
from tensordict_core.base.tracing import is_compiling

TENSORS = (Tensor, torch.nn.Parameter)
"""The types of most leaves; ``type(value) in TENSORS`` is faster than ``isinstance``, which runs a metaclass."""


def _dtype(args: tuple[Any, ...], name: str) -> torch.dtype | None:
    if not args:
        raise TypeError(f"{name} takes a value, or a key and a value; give one")
    dtype = getattr(args[-1], "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else None


def is_bool(*args: Any) -> bool:
    """Return whether a value has the dtype ``torch.bool``.

    Args:
        *args: The value, or a key and the value, so the function can be passed as ``cast_filter``.

    >>> is_bool(torch.ones(1) > 0), is_bool("key", torch.ones(1))
    (True, False)
    """
    return _dtype(args, "is_bool") is torch.bool


def is_floating(*args: Any) -> bool:
    """Return whether a value, or the value after a key, has a floating-point dtype.

    >>> is_floating(torch.ones(1)), is_floating(torch.ones(1, dtype=torch.complex64))
    (True, False)
    """
    dtype = _dtype(args, "is_floating")
    return dtype is not None and dtype.is_floating_point


def is_inexact(*args: Any) -> bool:
    """Return whether a value, or the value after a key, has a floating-point or complex dtype.

    >>> td = TensorDict({"x": torch.ones(1), "n": torch.ones(1, dtype=torch.int64)})
    >>> td.to(torch.float16, cast_filter=is_inexact)["n"].dtype
    torch.int64
    """
    dtype = _dtype(args, "is_inexact")
    return dtype is not None and (dtype.is_floating_point or dtype.is_complex)


def is_integer(*args: Any) -> bool:
    """Return whether a value, or the value after a key, has an integer dtype other than ``torch.bool``.

    >>> is_integer(torch.ones(1, dtype=torch.uint8)), is_integer(torch.ones(1, dtype=torch.bool))
    (True, False)
    """
    dtype = _dtype(args, "is_integer")
    return dtype is not None and dtype is not torch.bool and not (dtype.is_floating_point or dtype.is_complex)


def in_shared_memory(tensor: Tensor) -> bool:
    """Return whether a tensor is in shared memory; ``False`` for tensors without storage (meta, fake, wrapped).

    >>> in_shared_memory(torch.zeros(1)), in_shared_memory(torch.zeros(1).share_memory_())
    (False, True)
    """
    if is_compiling():  # the tensor is fake, and Dynamo breaks the graph at is_shared
        return False
    try:
        return bool(tensor.is_shared())
    except Exception:
        return False


def is_tensor_collection(datatype: type | Any) -> bool:
    """Return whether a type, or the type of an object, is a tensordict, a tensorclass or non-tensor data.

    >>> is_tensor_collection(TensorDict), is_tensor_collection({}), is_tensor_collection(TensorDict({}))
    (True, False, True)
    """
    kind = datatype if isinstance(datatype, type) else type(datatype)
    return issubclass(kind, Node) and not issubclass(kind, Tensor)


def is_tensorclass(obj: type | Any) -> bool:
    """Return whether a type, or the type of an object, is a tensorclass.

    >>> is_tensorclass(TensorDict)
    False
    """
    return getattr(obj if isinstance(obj, type) else type(obj), "_is_tensorclass_instance", False)


def default_is_leaf(cls: type) -> bool:
    """Return whether a type is a leaf type: any type except tensordicts, tensorclasses and non-tensor data.

    >>> default_is_leaf(torch.Tensor), default_is_leaf(TensorDict)
    (True, False)
    """
    return not issubclass(cls, Node) or issubclass(cls, Tensor)


def is_leaf_nontensor(cls: type) -> bool:
    """Return whether a type is a tensor or non-tensor data; pass it as ``is_leaf`` to include non-tensor data.

    >>> td = TensorDict({"a": "text", "b": torch.zeros(1), "c": {}})
    >>> list(td.keys(leaves_only=True, is_leaf=is_leaf_nontensor))
    ['a', 'b']
    """
    return issubclass(cls, Tensor) or (issubclass(cls, Node) and cls._is_opaque)


class _NestedTensorsAsLists:
    """The type of `NESTED_TENSORS_AS_LISTS`."""

    opens_lazy_stacks = True

    def __call__(self, cls: type) -> bool:
        return default_is_leaf(cls)

    def __repr__(self) -> str:
        return "NESTED_TENSORS_AS_LISTS"

    def __reduce__(self) -> str:
        return "NESTED_TENSORS_AS_LISTS"


NESTED_TENSORS_AS_LISTS = _NestedTensorsAsLists()
"""An ``is_leaf`` of ``keys``, ``values`` and ``items`` that lists the elements of lazy stacks, numbered by their keys.

>>> stack = lazy_stack([TensorDict({"a": torch.zeros(1)}), TensorDict({"a": torch.zeros(2)})])
>>> list(stack.keys(True, True, is_leaf=NESTED_TENSORS_AS_LISTS))
[('0', 'a'), ('1', 'a')]
"""


def is_non_tensor(data: Any) -> bool:
    """Return whether an object is non-tensor data.

    >>> from tensordict_core import NonTensorData
    >>> is_non_tensor(NonTensorData(1)), is_non_tensor(torch.zeros(()))
    (True, False)
    """
    return getattr(type(data), "_is_non_tensor", False)
