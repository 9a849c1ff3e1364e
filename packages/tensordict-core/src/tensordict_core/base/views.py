"""Views: the live results of ``keys()``, ``values()`` and ``items()``, optionally nested or of leaves only."""

from __future__ import annotations

from collections import abc
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.errors.types import StackError
from tensordict_core.base.keys import unravel_key_to_tuple
from tensordict_core.base.rebuild import IsLeaf

__all__ = ["ItemsView", "KeysView", "Lookup", "ValuesView", "ViewOptions"]


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]


class ViewOptions(NamedTuple):
    """The options of a view: entries of nested tensordicts, too; leaves only; in alphabetical order."""

    include_nested: bool
    leaves_only: bool
    is_leaf: IsLeaf | None
    sort: bool


def _pairs(node: Any, options: ViewOptions, reads: bool) -> Collection[tuple[str, Any]]:
    """Return the keys and entries of a node that a view shows; without ``reads`` the results of ``_peek``.

    The elements of a lazy stack are entries with their numbers as keys if `NESTED_TENSORS_AS_LISTS` asks for it.
    """
    pairs: Collection[tuple[str, Any]]
    if type(entries := node._entries) is dict:
        pairs = entries.items()
    elif node._is_lazy_stack and getattr(options.is_leaf, "opens_lazy_stacks", False):
        pairs = [(str(i), element) for i, element in enumerate(node.tensordicts)]
    else:
        pairs = node._items() if reads else node._peek_items()
    return sorted(pairs, key=_first) if options.sort else pairs


def _is_leaf(value: Any, is_leaf: IsLeaf | None) -> bool:
    return isinstance(value, Tensor) if is_leaf is None else is_leaf(type(value))


def _shows_tensors(options: ViewOptions) -> bool:
    return not options.leaves_only or options.is_leaf is None or options.is_leaf(Tensor)


def _opens(value: Any, options: ViewOptions) -> bool:
    """Return whether a view shows the entries of a value, which may be a leaf itself."""
    return options.include_nested and not isinstance(value, Tensor) and not value._is_opaque


# The four walks are the same loop, written out: one loop with a case for each view takes half as long again. A nested
# tensordict comes before its entries.


def _walk_keys(node: Any, options: ViewOptions, prefix: tuple[str, ...], found: list[Any]) -> list[Any]:
    """Append the keys that a view shows of a node to a list, without reading entries, and return the list."""
    tensors = _shows_tensors(options)
    for key, value in _pairs(node, options, False):
        name = (*prefix, key) if prefix else key  # join_key, inlined: the call would double the cost of an entry
        if type(value) is Tensor:
            if tensors:
                found.append(name)
            continue
        leaf = _is_leaf(value, options.is_leaf)
        if leaf or not options.leaves_only:
            found.append(name)
        if _opens(value, options):
            _walk_keys(value, options, (*prefix, key), found)
    return found


def _walk_values(node: Any, options: ViewOptions, found: list[Any]) -> list[Any]:
    """Append the entries that a view shows of a node to a list, and return the list."""
    tensors = _shows_tensors(options)
    for _, value in _pairs(node, options, True):
        if type(value) is Tensor:
            if tensors:
                found.append(value)
            continue
        leaf = _is_leaf(value, options.is_leaf)
        if leaf or not options.leaves_only:
            found.append(value)
        if _opens(value, options):
            _walk_values(value, options, found)
    return found


def _walk_items(node: Any, options: ViewOptions, prefix: tuple[str, ...], found: list[Any]) -> list[Any]:
    """Append the keys and entries that a view shows of a node to a list, and return the list."""
    tensors = _shows_tensors(options)
    for key, value in _pairs(node, options, True):
        name = (*prefix, key) if prefix else key
        if type(value) is Tensor:
            if tensors:
                found.append((name, value))
            continue
        leaf = _is_leaf(value, options.is_leaf)
        if leaf or not options.leaves_only:
            found.append((name, value))
        if _opens(value, options):
            _walk_items(value, options, (*prefix, key), found)
    return found


def _count(node: Any, options: ViewOptions) -> int:
    """Return the number of entries that the walks collect, without reading entries or making keys."""
    pairs = _pairs(node, options, False)
    tensors, found = _shows_tensors(options), 0
    for _, value in pairs:
        if type(value) is Tensor:
            found += tensors
            continue
        found += _is_leaf(value, options.is_leaf) or not options.leaves_only
        if _opens(value, options):
            found += _count(value, options)
    return found


def _before(found: list[Any], error: StackError) -> Iterator[Any]:
    """Yield the values before an entry that does not stack, then raise its error: a search may end before it."""
    yield from found
    raise error


class _View:
    """The base class of the three views; ``options`` is ``None`` for the entries of the tensordict alone.

    `Access.keys` and its siblings set the attributes themselves: a constructor would take as long as a small loop.
    """

    __slots__ = ("options", "td")

    td: Any
    options: ViewOptions | None

    @property
    def tensordict(self) -> Any:
        """The tensordict that the view shows."""
        return self.td

    @property
    def include_nested(self) -> bool:
        """Whether the view shows the entries of nested tensordicts.

        >>> keys = TensorDict({"a": 0}).keys(include_nested=True)
        >>> keys.include_nested, keys.leaves_only, keys.sort
        (True, False, False)
        """
        return self.options is not None and self.options.include_nested

    @property
    def leaves_only(self) -> bool:
        """Whether the view leaves out nested tensordicts."""
        return self.options is not None and self.options.leaves_only

    @property
    def is_leaf(self) -> IsLeaf | None:
        """The function that tells whether an entry of a type is a leaf; by default tensors are."""
        return None if self.options is None else self.options.is_leaf

    @property
    def sort(self) -> bool:
        """Whether the view is in alphabetical order."""
        return self.options is not None and self.options.sort

    def __len__(self) -> int:  # list() asks for it too
        options = self.options
        if options is None:
            return len(self.td._entries)
        return _count(self.td, options._replace(sort=False) if options.sort else options)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError  # pragma: no cover - each view defines it

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"


class Lookup(Mapping[str, Any]):
    """A mapping view of the entries of a container that keeps no dictionary."""

    __slots__ = ("_node",)

    def __init__(self, node: Any) -> None:
        self._node = node

    def __getitem__(self, key: str) -> Any:
        value = self._node._get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._node._keys()))  # adding an entry must not end a loop over the keys

    def __len__(self) -> int:
        return len(list(self._node._keys()))


class KeysView(_View):
    """The live keys of a tensordict; nested keys are tuples. Supports ``in``, set operations and comparison."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        if self.options is None:
            return iter(self.td._entries)
        return iter(_walk_keys(self.td, self.options, (), []))

    def __contains__(self, key: object) -> bool:
        options = self.options
        if type(key) is str and (options is None or not options.leaves_only):
            return self.td._peek(key) is not None
        path = unravel_key_to_tuple(key) if isinstance(key, str | tuple) else ()
        if not path:
            raise errors.bad_key(key, "TensorDict keys are always strings")
        if len(path) != 1 and (options is None or not options.include_nested):
            return False
        value = self.td._peek_path(path)
        if value is None:
            return False
        return options is None or not options.leaves_only or _is_leaf(value, options.is_leaf)

    def __eq__(self, other: object) -> bool:
        return set(self) == set(other) if hasattr(other, "__iter__") else NotImplemented

    def __le__(self, other: Any) -> bool:
        return set(self) <= set(other)

    def __lt__(self, other: Any) -> bool:
        return set(self) < set(other)

    def __ge__(self, other: Any) -> bool:
        return set(self) >= set(other)

    def __gt__(self, other: Any) -> bool:
        return set(self) > set(other)

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
            return iter(_walk_values(self.td, self.options, found))
        except StackError as error:
            return _before(found, error)


class ItemsView(_View):
    """The live pairs of keys and entries of a tensordict."""

    __slots__ = ()

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        if self.options is None:
            return iter(self.td._items())
        return iter(_walk_items(self.td, self.options, (), []))


abc.KeysView.register(KeysView)
abc.ValuesView.register(ValuesView)
abc.ItemsView.register(ItemsView)
