"""Deferred tensordicts: a `TensorDict` whose entries are created on first access.

Some operations return a tensordict that most callers do not read, such as the parameters that
``with params.to_module(...)`` replaced. Creating its nodes would take longer than the operation. A deferred tensordict
creates them on first access and becomes a plain `TensorDict`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict_core.base.meta import Meta
from tensordict_core.containers.dense import TensorDict


class _Deferred(TensorDict):
    """A tensordict whose ``_entries`` is not set yet."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        # Python calls this method for the slot that `deferred` leaves unset
        if name != "_entries":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        annotations: Any = self._annotations  # `deferred` has set "make"
        entries = self._entries = annotations.pop("make")()
        self.__class__ = TensorDict  # type: ignore[assignment]  # a deferred tensordict becomes a plain one, of the same slots
        return entries


def deferred(make: Callable[[], dict[str, Any]], meta: Meta) -> TensorDict:
    """Return a tensordict with the entries that ``make`` returns, called on first access.

    Args:
        make: A function that returns entries that are valid for ``meta``.
        meta: The metadata.

    >>> td = deferred(lambda: {"a": torch.zeros(2)}, TensorDict({})._meta)
    >>> td["a"]
    tensor([0., 0.])
    """
    self = object.__new__(_Deferred)
    self._start(meta)
    self._annotations = {"make": make}
    return self


def is_deferred(td: Any) -> bool:
    """Return whether a tensordict is deferred and its entries are not created yet.

    >>> is_deferred(TensorDict({}))
    False
    """
    return type(td) is _Deferred
