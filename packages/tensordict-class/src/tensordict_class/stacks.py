"""Lazy stacks of instances: the members that a lazy stack has and a dense tensordict lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict_core import LazyStackedTensorDict

_ADDING = frozenset({"append", "extend", "insert"})
STACK_MEMBERS = _ADDING | {"get_nestedtensor", "hook_in", "hook_out", "stack_dim", "tensordicts", "valid_keys"}
"""The members that an instance has while it wraps a lazy stack."""


def stack_member(instance: Any, name: str) -> Any:
    """Return a member of the lazy stack that an instance wraps; methods that add elements take instances.

    >>> import torch
    >>> from tensordict_class import TensorClass
    >>> from tensordict_core import lazy_stack
    >>> class Point(TensorClass):
    ...     x: torch.Tensor
    >>> points = lazy_stack([Point(torch.zeros(2)), Point(torch.zeros(3))])
    >>> points.append(Point(torch.zeros(4)))
    >>> points.batch_size, points.stack_dim
    (torch.Size([3]), 0)
    """
    member = getattr(instance._tensordict, name)
    return _unwrapping(instance, member, name) if name in _ADDING else member


def _unwrapping(instance: Any, add: Callable[..., None], name: str) -> Callable[..., None]:
    def call(*args: Any) -> None:
        *position, value = args
        if isinstance(value, list | tuple):
            value = type(instance)._unwrapped(value, name)
        else:
            (value,) = type(instance)._unwrapped([value], name)
        add(*position, value)

    call.__name__ = name
    return call


def keys_anywhere(td: Any) -> set[str]:
    """Return the keys of a tensordict; of a lazy stack those that any of its elements has."""
    if isinstance(td, LazyStackedTensorDict):
        return {key for part in td.tensordicts for key in keys_anywhere(part)}
    return set(td.keys())
