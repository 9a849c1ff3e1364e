"""Delegating containers: reads and shape operations are those of another tensordict, which is made when they run.

A view is made of its parent's entries, a parameter container of its parameters. Both keep entries in their own way and
build a tensordict of the same tensors, with `Delegating._now`, for everything that does not change entries.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from tensordict_core.containers.collection import TensorDictBase

__all__ = ["Delegating", "delegate"]


def delegate(name: str) -> Callable[..., Any]:
    """Returns a method that calls the method ``name`` of the tensordict that ``_now`` makes."""

    def method(self: Any, *args: Any) -> Any:
        return getattr(self._now(), name)(*args)

    method.__name__ = name
    return method


class Delegating(TensorDictBase, abstract=True):
    """A container that asks a tensordict of the same tensors for reads and shape operations."""

    __slots__ = ()

    @abstractmethod
    def _now(self) -> Any:
        """A tensordict of the tensors that this container holds now."""

    _collect_aligned = delegate("_collect_aligned")
    _line_up = delegate("_line_up")
    _rebuild = delegate("_rebuild")
    _index = delegate("_index")
    _reshape = delegate("_reshape")
    _unbind = delegate("_unbind")

    @classmethod
    def _stack(cls, items: Sequence[Any], dim: int) -> Any:
        now = [_made(item) for item in items]
        return type(now[0])._stack(now, dim)

    @classmethod
    def _cat(cls, items: Sequence[Any], dim: int) -> Any:
        now = [_made(item) for item in items]
        return type(now[0])._cat(now, dim)


def _made(item: Any) -> Any:
    return item._now() if isinstance(item, Delegating) else item
