"""Views: the live results of ``keys()``, ``values()`` and ``items()``, optionally nested or of leaves only."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tensordict_core.base.keys import unravel_key_to_tuple

if TYPE_CHECKING:
    from tensordict_core.base.rebuild import IsLeaf

__all__ = ["ItemsView", "KeysView", "ValuesView"]


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]


def _walk(
    node: Any, prefix: tuple[str, ...], nested: bool, leaves: bool, is_leaf: IsLeaf | None, sort: bool, read: bool
) -> Iterator[tuple[Any, Any]]:
    """Yield keys and entries, a nested tensordict before its entries.

    If ``read`` is false, entries are stand-ins (see `Node._peek`).
    """
    pairs = node._items() if read else node._peek_items()
    for key, value in sorted(pairs, key=_first) if sort else pairs:
        # join_key, inlined: the call would double the cost of an entry
        name = (*prefix, key) if prefix else key
        if type(value) is Tensor:
            yield name, value
            continue
        leaf = isinstance(value, Tensor) or (is_leaf is not None and is_leaf(type(value)))
        if leaf or not leaves:
            yield name, value
        if nested and not leaf and not value._is_opaque:
            yield from _walk(value, (*prefix, key), nested, leaves, is_leaf, sort, read)


def _count(node: Any, nested: bool, leaves: bool, is_leaf: IsLeaf | None) -> int:
    """Return the number of pairs that `_walk` yields, without reading entries or making keys."""
    found = 0
    for _, value in node._peek_items():
        if type(value) is Tensor:
            found += 1
            continue
        leaf = isinstance(value, Tensor) or (is_leaf is not None and is_leaf(type(value)))
        found += leaf or not leaves
        if nested and not leaf and not value._is_opaque:
            found += _count(value, nested, leaves, is_leaf)
    return found


class _View:
    """The base class of the three views."""

    _reads = True
    """Whether iteration reads the entries, which a lazy stack has to stack."""

    # most views have no options: without them only the tensordict is stored
    _is_plain = True
    include_nested = False
    leaves_only = False
    is_leaf: IsLeaf | None = None
    sort = False

    def __init__(
        self,
        td: Any,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: IsLeaf | None = None,
        sort: bool = False,
    ) -> None:
        self.td = td
        if include_nested or leaves_only or sort:
            self._is_plain = False
            self.include_nested = include_nested
            self.leaves_only = leaves_only
            self.is_leaf = is_leaf
            self.sort = sort

    def _pairs(self) -> Iterator[tuple[Any, Any]]:
        if self._is_plain:
            return iter(self.td._items())
        return _walk(self.td, (), self.include_nested, self.leaves_only, self.is_leaf, self.sort, self._reads)

    def __len__(self) -> int:
        # list() asks for the length before it iterates
        if not self.include_nested and not self.leaves_only:
            keys = self.td._keys()
            return len(keys if hasattr(keys, "__len__") else list(keys))
        return _count(self.td, self.include_nested, self.leaves_only, self.is_leaf)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError  # pragma: no cover - each view defines it

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"


class KeysView(_View):
    """The live keys of a tensordict; nested keys are tuples. Supports ``in``, set operations and comparison."""

    _reads = False

    def __iter__(self) -> Iterator[Any]:
        if self._is_plain:
            return iter(self.td._keys())
        return (key for key, _ in self._pairs())

    def __contains__(self, key: object) -> bool:
        if type(key) is str and not self.leaves_only:
            return self.td._peek(key) is not None
        path = unravel_key_to_tuple(key)  # type: ignore[arg-type]  # it refuses other objects
        if len(path) != 1 and not self.include_nested:
            return False
        value = self.td._peek_path(path)
        if value is None:
            return False
        return (
            not self.leaves_only
            or isinstance(value, Tensor)
            or (self.is_leaf is not None and self.is_leaf(type(value)))
        )

    def __eq__(self, other: object) -> bool:
        return set(self) == set(other) if hasattr(other, "__iter__") else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as for every class with __eq__

    def __and__(self, other: Any) -> set[Any]:
        return set(self) & set(other)

    def __or__(self, other: Any) -> set[Any]:
        return set(self) | set(other)

    def __sub__(self, other: Any) -> set[Any]:
        return set(self) - set(other)

    def __xor__(self, other: Any) -> set[Any]:
        return set(self) ^ set(other)

    __rand__ = __and__
    __ror__ = __or__
    __rxor__ = __xor__

    def __rsub__(self, other: Any) -> set[Any]:
        return set(other) - set(self)

    def isdisjoint(self, other: Any) -> bool:
        """Return whether no key is in ``other``."""
        return set(self).isdisjoint(other)


class ValuesView(_View):
    """The live entries of a tensordict."""

    def __iter__(self) -> Iterator[Any]:
        return iter([value for _, value in self._pairs()])


class ItemsView(_View):
    """The live pairs of keys and entries of a tensordict."""

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._pairs()


abc.KeysView.register(KeysView)
abc.ValuesView.register(ValuesView)
abc.ItemsView.register(ItemsView)
