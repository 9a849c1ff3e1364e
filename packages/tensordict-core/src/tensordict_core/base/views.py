"""Views: the live results of ``keys()``, ``values()`` and ``items()``, optionally nested or of leaves only."""

from __future__ import annotations

from collections import abc
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Self

from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.errors.types import StackError
from tensordict_core.base.keys import unravel_key_to_tuple
from tensordict_core.base.rebuild import IsLeaf


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]


def _pairs(view: _View, node: Any, reads: bool, sort: bool) -> Collection[tuple[str, Any]]:
    """Return the keys and entries of a node that a view shows; without ``reads`` the results of ``_peek``.

    The elements of a lazy stack are entries with their numbers as keys if `NESTED_TENSORS_AS_LISTS` asks for it.
    """
    pairs: Collection[tuple[str, Any]]
    if type(entries := node._entries) is dict:
        pairs = entries.items()
    elif node._is_lazy_stack and getattr(view.is_leaf, "opens_lazy_stacks", False):
        pairs = [(str(i), element) for i, element in enumerate(node.tensordicts)]
    else:
        pairs = node._items() if reads else node._peek_items()
    return sorted(pairs, key=_first) if sort else pairs


def _shown_and_opened(view: _View, value: Any) -> tuple[bool, bool]:
    """Return whether a view shows a value, and whether it shows the entries of the value."""
    # tensors with first-class dimensions are no instances of Tensor; unbatched tensors are nodes, too
    is_tensor, is_leaf = isinstance(value, Tensor) or not hasattr(value, "_is_opaque"), view.is_leaf
    leaf = is_tensor if is_leaf is None else is_leaf(type(value))
    return leaf or not view.leaves_only, view.include_nested and not is_tensor and not value._is_opaque


def _shows_tensors(view: _View) -> bool:
    return not view.leaves_only or view.is_leaf is None or view.is_leaf(Tensor)


# The four walks are the same loop, written out: one loop with a case for each view takes half as long again. A nested
# tensordict comes before its entries. `tensors` is the result of `_shows_tensors`.


def _walk_keys(view: _View, tensors: bool, node: Any, prefix: tuple[str, ...], found: list[Any]) -> list[Any]:
    """Append the keys that a view shows of a node to a list, without reading entries, and return the list."""
    for key, value in _pairs(view, node, False, view.sort):
        # join_key, inlined: the call would double the cost of an entry
        name = prefix + (key,) if prefix else key  # noqa: RUF005  # half the time of unpacking
        if type(value) is Tensor:
            if tensors:
                found.append(name)
            continue
        shown, opens = _shown_and_opened(view, value)
        if shown:
            found.append(name)
        if opens:
            _walk_keys(view, tensors, value, (*prefix, key), found)
    return found


def _walk_values(view: _View, tensors: bool, node: Any, found: list[Any]) -> list[Any]:
    """Append the entries that a view shows of a node to a list, and return the list."""
    for _, value in _pairs(view, node, True, view.sort):
        if type(value) is Tensor:
            if tensors:
                found.append(value)
            continue
        shown, opens = _shown_and_opened(view, value)
        if shown:
            found.append(value)
        if opens:
            _walk_values(view, tensors, value, found)
    return found


def _walk_items(view: _View, tensors: bool, node: Any, prefix: tuple[str, ...], found: list[Any]) -> list[Any]:
    """Append the keys and entries that a view shows of a node to a list, and return the list."""
    for key, value in _pairs(view, node, True, view.sort):
        name = prefix + (key,) if prefix else key  # noqa: RUF005  # half the time of unpacking
        if type(value) is Tensor:
            if tensors:
                found.append((name, value))
            continue
        shown, opens = _shown_and_opened(view, value)
        if shown:
            found.append((name, value))
        if opens:
            _walk_items(view, tensors, value, (*prefix, key), found)
    return found


def _count(view: _View, tensors: bool, node: Any) -> int:
    """Return the number of entries that the walks collect, without reading entries or making keys."""
    found = 0
    for _, value in _pairs(view, node, False, False):
        if type(value) is Tensor:
            found += tensors
            continue
        shown, opens = _shown_and_opened(view, value)
        found += shown
        if opens:
            found += _count(view, tensors, value)
    return found


def _before(found: list[Any], error: StackError) -> Iterator[Any]:
    """Yield the values before an entry that does not stack, then raise its error: a search may end before it."""
    yield from found
    try:
        raise error
    finally:
        del error  # its traceback holds this frame: a cycle would keep what was found


class _View:
    """The base class of the three views.

    `Access.keys` and its siblings set the attributes themselves: a constructor would take as long as a small loop.

    Attributes:
        td: The tensordict.
        include_nested: Whether the view shows the entries of nested tensordicts.
        leaves_only: Whether the view leaves out nested tensordicts.
        is_leaf: The function that tells whether an entry of a type is a leaf; by default tensors are.
        sort: Whether the view is in alphabetical order.
        is_flat: Whether it shows the entries of the tensordict alone, as a dictionary does.

    >>> keys = TensorDict({"a": 0}).keys(include_nested=True)
    >>> keys.include_nested, keys.leaves_only, keys.sort
    (True, False, False)
    """

    __slots__ = ("include_nested", "is_flat", "is_leaf", "leaves_only", "sort", "td")

    td: Any
    include_nested: bool
    leaves_only: bool
    is_leaf: IsLeaf | None
    sort: bool
    is_flat: bool

    @property
    def tensordict(self) -> Any:
        """The tensordict that the view shows."""
        return self.td

    def __len__(self) -> int:  # list() asks for it too
        if self.is_flat:
            return len(self.td._entries)
        return _count(self, _shows_tensors(self), self.td)

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

    def values(self) -> abc.ValuesView[Any]:
        """Return a live view of the entries."""
        return ValuesView.flat(self._node)  # type: ignore[return-value]  # it is registered as one

    def items(self) -> abc.ItemsView[str, Any]:
        """Return a live view of the pairs of keys and entries."""
        return ItemsView.flat(self._node)  # type: ignore[return-value]  # it is registered as one


class KeysView(_View):
    """The live keys of a tensordict; nested keys are tuples. Supports ``in``, set operations and comparison."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        if self.is_flat:
            return iter(self.td._entries)
        return iter(_walk_keys(self, _shows_tensors(self), self.td, (), []))

    def __contains__(self, key: object) -> bool:
        if type(key) is str and not self.leaves_only:
            return self.td._peek(key) is not None
        path = unravel_key_to_tuple(key) if isinstance(key, str | tuple) else ()
        if not path:
            raise errors.bad_key(key, "TensorDict keys are always strings")
        if len(path) != 1 and not self.include_nested:
            return False
        value = self.td._peek_path(path)
        return value is not None and _shown_and_opened(self, value)[0]

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


class _Advancing(_View):
    """A view that ``next`` advances, for programs that call ``next(td.values(True, True))``.

    Attributes:
        rest: The iterator over what ``next`` has not returned, once it was called; ``iter(view)`` returns it then.
    """

    __slots__ = ("rest",)

    rest: Iterator[Any] | None

    @classmethod
    def flat(cls, td: Any) -> Self:
        """Return the view of the entries of a tensordict alone."""
        view = cls()
        view.td, view.include_nested, view.leaves_only = td, False, False
        view.is_leaf, view.sort, view.is_flat, view.rest = None, False, True, None
        return view

    def __next__(self) -> Any:
        if self.rest is None:
            self.rest = iter(self)
        return next(self.rest)


class ValuesView(_Advancing):
    """The live entries of a tensordict."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        if self.rest is not None:
            return self.rest
        if self.is_flat:
            return iter([value for _, value in self.td._items()])
        found: list[Any] = []
        try:
            return iter(_walk_values(self, _shows_tensors(self), self.td, found))
        except StackError as error:
            return _before(found, error)


class ItemsView(_Advancing):
    """The live pairs of keys and entries of a tensordict."""

    __slots__ = ()

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        if self.rest is not None:
            return self.rest
        if self.is_flat:
            return iter(self.td._items())
        return iter(_walk_items(self, _shows_tensors(self), self.td, (), []))


abc.KeysView.register(KeysView)
abc.ValuesView.register(ValuesView)
abc.ItemsView.register(ItemsView)
