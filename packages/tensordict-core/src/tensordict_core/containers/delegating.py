"""Delegating containers: run reads and shape operations on a temporary tensordict of the same tensors.

Views and parameter containers store entries in other ways than a dictionary. For every method that does not change
entries, they make a tensordict of the same tensors with `Delegating._now`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from tensordict_core.containers.collection import TensorDictBase


def delegate(name: str) -> Callable[..., Any]:
    """Return a method that calls the method ``name`` of the tensordict that ``_now`` makes."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._now(), name)(*args, **kwargs)

    method.__name__ = name
    return method


class Delegating(TensorDictBase, abstract=True):
    """The base class of containers that delegate reads and shape operations to a temporary tensordict."""

    __slots__ = ()

    _is_mapped_plainly = False
    """Whether functions that ``vmap`` maps get the tensordict of `_now` instead of a container of this class."""

    @abstractmethod
    def _now(self) -> Any:
        """Return a tensordict of the tensors that this container holds now."""

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
