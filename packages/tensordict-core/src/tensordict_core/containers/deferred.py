"""Deferred tensordicts: a `TensorDict` whose entries are made when they are first read.

An operation may return a tensordict that few callers read, such as the parameters that a ``with params.to_module(...)``
block replaced. Making its nodes would cost more than the operation; the deferred one costs an object, and is a plain
`TensorDict` from the first look on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict_core.base.meta import Meta
from tensordict_core.containers.dense import TensorDict

__all__ = ["deferred", "is_deferred"]


class _Deferred(TensorDict):
    """A tensordict whose slot of entries is not set yet."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        # Python calls this once, for the slot that `deferred` leaves unset.
        if name != "_entries":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        annotations: Any = self._annotations  # `deferred` has set "make"
        entries = self._entries = annotations.pop("make")()
        self.__class__ = TensorDict  # type: ignore[assignment]  # a deferred tensordict becomes a plain one, of the same slots
        return entries


def deferred(make: Callable[[], dict[str, Any]], meta: Meta) -> TensorDict:
    """Return a tensordict with the entries that ``make`` returns; it is called when they are first read.

    Args:
        make: Returns entries that are valid for ``meta``.
        meta: The metadata.

    >>> td = deferred(lambda: {"a": torch.zeros(2)}, TensorDict({})._meta)
    >>> td["a"]
    tensor([0., 0.])
    """
    self = object.__new__(_Deferred)
    self._meta = meta
    self._locked = False
    self._holders = None
    self._annotations = {"make": make}
    self._last_exit = None
    return self


def is_deferred(td: Any) -> bool:
    """Whether the entries of a deferred tensordict have not been read yet.

    >>> is_deferred(TensorDict({}))
    False
    """
    return type(td) is _Deferred
