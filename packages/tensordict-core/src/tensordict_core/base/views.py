"""Views: the live results of ``keys()``, ``values()`` and ``items()``, optionally nested or of leaves only."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.errors.types import StackError
from tensordict_core.base.keys import unravel_key_to_tuple

if TYPE_CHECKING:
    from tensordict_core.base.rebuild import IsLeaf

__all__ = ["ItemsView", "KeysView", "ValuesView", "ViewOptions"]


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]


class ViewOptions(NamedTuple):
    """What a view shows: entries of nested tensordicts too, leaves only, and in alphabetical order."""

    include_nested: bool
    leaves_only: bool
    is_leaf: IsLeaf | None
    sort: bool


def _opens(node: Any, is_leaf: Any) -> bool:
    """Return whether the elements of a lazy stack are listed one by one, which `NESTED_TENSORS_AS_LISTS` asks for."""
    return node._is_lazy_stack and getattr(is_leaf, "opens_lazy_stacks", False)


def _elements(stack: Any) -> list[tuple[str, Any]]:
    """Return the elements of a lazy stack with their numbers as keys."""
    return [(str(i), element) for i, element in enumerate(stack.tensordicts)]


def _walk(node: Any, options: ViewOptions, prefix: tuple[str, ...], show: type[_View], found: list[Any]) -> list[Any]:
    """Append what a view shows of a node to a list, a nested tensordict before its entries, and return the list."""
    nested, leaves, is_leaf, sort = options
    values, keys = show is ValuesView, show is KeysView
    if is_leaf is not None and _opens(node, is_leaf):
        pairs = _elements(node)
    else:
        pairs = node._peek_items() if keys else node._items()  # keys are shown without reading the entries
    for key, value in sorted(pairs, key=_first) if sort else pairs:
        if type(value) is Tensor:
            leaf = True
        else:
            leaf = isinstance(value, Tensor) or (is_leaf is not None and is_leaf(type(value)))
        if leaf or not leaves:
            if values:
                found.append(value)
            else:
                # join_key, inlined: the call would double the cost of an entry
                name = (*prefix, key) if prefix else key
                found.append(name if keys else (name, value))
        if not leaf and nested and not value._is_opaque:
            _walk(value, options, (*prefix, key), show, found)
    return found


def _before(found: list[Any], error: StackError) -> Iterator[Any]:
    """Yield the values before an entry that does not stack, then raise its error: a search may end before it."""
    yield from found
    raise error


def _count(node: Any, options: ViewOptions) -> int:
    """Return the number of entries that `_walk` collects, without reading entries or making keys."""
    nested, leaves, is_leaf, _ = options
    found = 0
    for _, value in _elements(node) if is_leaf is not None and _opens(node, is_leaf) else node._peek_items():
        if type(value) is Tensor:
            found += 1
            continue
        leaf = isinstance(value, Tensor) or (is_leaf is not None and is_leaf(type(value)))
        found += leaf or not leaves
        if nested and not leaf and not value._is_opaque:
            found += _count(value, options)
    return found


class _View:
    """The base class of the three views; ``options`` is ``None`` for the entries of the tensordict alone."""

    __slots__ = ("options", "td")

    def __init__(self, td: Any, options: ViewOptions | None = None) -> None:
        self.td = td
        self.options = options

    def __len__(self) -> int:
        # list() asks for the length before it iterates
        if self.options is not None:
            return _count(self.td, self.options)
        if self.td._stores_entries:
            return len(self.td._entries)
        keys = self.td._keys()
        try:
            return len(keys)
        except TypeError:  # an iterator
            return len(list(keys))

    def __iter__(self) -> Iterator[Any]:
        raise TypeError  # pragma: no cover - each view defines it

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"


class KeysView(_View):
    """The live keys of a tensordict; nested keys are tuples. Supports ``in``, set operations and comparison."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        if self.options is None:
            return iter(self.td._entries if self.td._stores_entries else self.td._keys())
        return iter(_walk(self.td, self.options, (), KeysView, []))

    def __contains__(self, key: object) -> bool:
        options = self.options
        if type(key) is str and (options is None or not options.leaves_only):
            return self.td._peek(key) is not None
        path = unravel_key_to_tuple(key)  # type: ignore[arg-type]  # it refuses other objects
        if not path:
            raise errors.bad_key(key)
        if len(path) != 1 and (options is None or not options.include_nested):
            return False
        value = self.td._peek_path(path)
        if value is None:
            return False
        return (
            options is None
            or not options.leaves_only
            or isinstance(value, Tensor)
            or (options.is_leaf is not None and options.is_leaf(type(value)))
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
        if self.options is None:
            return iter([value for _, value in self.td._items()])
        found: list[Any] = []
        try:
            return iter(_walk(self.td, self.options, (), ValuesView, found))
        except StackError as error:
            return _before(found, error)


class ItemsView(_View):
    """The live pairs of keys and entries of a tensordict."""

    __slots__ = ()

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        if self.options is None:
            return iter(self.td._items())
        return iter(_walk(self.td, self.options, (), ItemsView, []))


abc.KeysView.register(KeysView)
abc.ValuesView.register(ValuesView)
abc.ItemsView.register(ItemsView)
