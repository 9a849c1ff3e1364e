"""Opaque nodes: nodes without entries, the base class of non-tensor data and unbatched tensors.

They are nodes, because they have a batch size, a device and a lock, and they have no keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tensordict_core.base import errors
from tensordict_core.base.index import Index
from tensordict_core.base.meta import Meta
from tensordict_core.containers.collection import TensorCollection


class OpaqueNode(TensorCollection, abstract=True):
    """A node without entries; subclasses define its value, and where the state of a node is kept."""

    __slots__ = ()

    _is_opaque = True
    _noun = "tensorclass"

    def _keys(self) -> Iterable[str]:
        return ()

    def _get(self, key: str) -> Any:
        return None

    def _plain_value(self) -> Any:
        """Return the result of ``td[key]`` without lists that write through to the entry."""
        return self._entry_value()

    def _new(self, entries: dict[str, Any], meta: Meta) -> Any:
        """Return a copy for a result without entries, such as that of ``select``: it keeps the value."""
        return super()._new(entries, meta) if entries or meta != self._meta else self._clone(False)

    def is_empty(self) -> bool:
        """Return ``False``, because there is a value."""
        return False

    def _view_at(self, index: Index) -> Any:
        return self._index(index)

    def _put_node(self, index: Index, source: Any) -> Any:
        """Write values into the positions that an index selects; return this node, or the one that takes its place."""
        self._index_put(index, source)
        return self

    @classmethod
    def _lazy(cls, items: Sequence[Any], dim: int) -> Any:
        return cls._stack(items, dim)

    def _del(self, key: str) -> None:
        raise errors.missing_key(key, (), type(self).__name__)
