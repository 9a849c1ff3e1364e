"""Views: the live results of ``keys()``, ``values()`` and ``items()``, optionally nested or of leaves only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tensordict_core.base.keys import join_key, unravel_key

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
        kind = type(value)
        leaf = isinstance(value, Tensor) or (is_leaf is not None and is_leaf(kind))
        if leaf or not leaves:
            yield join_key(prefix, key), value
        if nested and not leaf and not value._is_opaque:
            yield from _walk(value, (*prefix, key), nested, leaves, is_leaf, sort, read)


class _View:
    """The base class of the three views."""

    __slots__ = ("include_nested", "is_leaf", "leaves_only", "sort", "td")

    _reads = True
    """Whether iteration reads the entries, which a lazy stack has to stack."""

    def __init__(self, td: Any, include_nested: bool, leaves_only: bool, is_leaf: IsLeaf | None, sort: bool) -> None:
        self.td = td
        self.include_nested = include_nested
        self.leaves_only = leaves_only
        self.is_leaf = is_leaf
        self.sort = sort

    def _pairs(self) -> Iterator[tuple[Any, Any]]:
        if not (self.include_nested or self.leaves_only or self.sort):
            return iter(self.td._items())
        return _walk(self.td, (), self.include_nested, self.leaves_only, self.is_leaf, self.sort, self._reads)

    def __len__(self) -> int:
        if not self.include_nested and not self.leaves_only:
            return len(list(self.td._keys()))
        return sum(1 for _ in self._pairs())

    def __iter__(self) -> Iterator[Any]:
        raise TypeError  # pragma: no cover - each view defines it

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"


class KeysView(_View):
    """The live keys of a tensordict; nested keys are tuples. Supports ``in``, set operations and comparison."""

    __slots__ = ()

    _reads = False

    def __iter__(self) -> Iterator[Any]:
        if not (self.include_nested or self.leaves_only or self.sort):
            return iter(self.td._keys())
        return (key for key, _ in self._pairs())

    def __contains__(self, key: object) -> bool:
        name = unravel_key(key)  # type: ignore[arg-type]  # it refuses other objects
        if type(name) is not str and not self.include_nested:
            return False
        value = self.td._peek_path((name,) if type(name) is str else name)
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

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        return iter([value for _, value in self._pairs()])


class ItemsView(_View):
    """The live pairs of keys and entries of a tensordict."""

    __slots__ = ()

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._pairs()
