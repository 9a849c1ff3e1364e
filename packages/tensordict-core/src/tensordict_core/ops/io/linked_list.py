"""`LinkedList`: a list of rows whose assignments write to the tensordict.

The values of a `NonTensorStack` are read as such a list too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tensordict_core.base import errors
from tensordict_core.base.index import Index
from tensordict_core.base.node import Node


def _fixed_length(change: str) -> TypeError:
    return TypeError(f"{change}, but the number of rows of a tensordict is fixed; make a plain list with list(rows)")


def _detaching(name: str) -> Any:
    """Return a list method that moves elements: from then on the list is a plain one, whose elements belong to it."""
    change = getattr(list, name)

    def method(self: Any, *args: Any) -> Any:
        result = change(self, *args)
        self._linked = 0
        return result

    method.__name__ = name
    method.__doc__ = f"""Change this list alone, as `list.{name}`; afterwards no element writes to the tensordict."""
    return method


class LinkedList(list[Any]):
    """The rows of a tensordict as a list; assigning an element writes it to the tensordict.

    Elements that are added or removed change the list alone, because the number of rows of the tensordict is fixed.

    Args:
        items: The elements.
        source: The object that they were read from; ``source[i] = value`` must write a row. ``None`` if only the
            elements of inner lists can be written.

    >>> td = TensorDict({"a": torch.zeros(2)}, [2])
    >>> rows = td.tolist(as_linked_list=True)
    >>> rows[1] = {"a": 1.0}
    >>> td["a"]
    tensor([0., 1.])
    """

    def __init__(self, items: Iterable[Any] = (), source: Any = None) -> None:
        super().__init__(items)
        self._source = source
        self._linked = len(self)  # so many elements in front write to the source

    def tolist(self) -> list[Any]:
        """Return the elements as a plain list; nested lists are converted too."""
        return [item.tolist() if isinstance(item, LinkedList) else item for item in self]

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice):
            positions = range(len(self))[index]
            values = list(value)
            self._check(positions, values)
            for position, one in zip(positions, values, strict=True):
                self[position] = one
            return
        position = range(len(self))[index]
        inner = self[position]
        if isinstance(inner, LinkedList):
            inner[:] = value if isinstance(value, list) else [value] * len(inner)
            return
        if position < self._linked:
            self._source[position] = value
        super().__setitem__(index, value)

    def _check(self, positions: range, values: list[Any]) -> None:
        """Refuse lists of other lengths before the first element is written."""
        if len(values) != len(positions):
            raise _fixed_length(f"{len(values)} elements would replace {len(positions)}")
        for position, one in zip(positions, values, strict=True):
            inner = self[position]
            if isinstance(inner, LinkedList) and isinstance(one, list):
                inner._check(range(len(inner)), one)

    insert = _detaching("insert")
    pop = _detaching("pop")
    remove = _detaching("remove")
    clear = _detaching("clear")
    __delitem__ = _detaching("__delitem__")

    def sort(self, **kwargs: Any) -> None:
        """Sort the rows and write each to its new position."""
        self[:] = sorted(self, **kwargs)

    def reverse(self) -> None:
        """Reverse the rows and write each to its new position."""
        self[:] = list(self)[::-1]

    def __reduce__(self) -> Any:
        # a copy or a pickle is a plain list, because there is no tensordict to write to
        return list, (list(self),)


class _Positions:
    """The target of a list of values: adjacent positions of a `NonTensorStack`."""

    __slots__ = ("_first", "_holder", "_key", "_rows", "_stack")

    def __init__(self, stack: Any, first: int, holder: Any, key: str) -> None:
        self._stack, self._rows, self._first = stack, stack._rows, first
        self._holder, self._key = holder, key

    def __setitem__(self, number: int, value: Any) -> None:
        stack, position = self._stack, self._first + number
        holder = stack if self._holder is None else self._holder
        if stack._locked or holder._locked:
            raise errors.locked("a value of a non-tensor entry would be replaced")
        if stack._rows is not self._rows or -1 in holder._meta.batch_size:
            raise RuntimeError(
                "the batch size of the entry changed since this list of values was read, or it has a ragged "
                "dimension; read the list again, or write to the elements of the stack"
            )
        flat = stack._flat
        old, flat[position] = flat[position], value._entry_value() if isinstance(value, Node) else value
        if not holder._inmost()._makes_entries:
            return
        # reading made this stack, and its values belong to the elements of a lazy stack or to the parent of a view
        size = holder._meta.batch_size
        rest = position // stack._meta.batch_size[len(size) :].numel()
        at: list[int] = []
        for n in reversed(size):
            rest, place = divmod(rest, n)
            at.insert(0, place)
        index = Index(tuple(at), size)
        try:
            holder._put_entry(self._key, index, stack._index(index))
        except BaseException:
            flat[position] = old
            raise


def linked_values(stack: Any, holder: Any, key: str) -> LinkedList:
    """Return the values of a `NonTensorStack`, read from a container, as nested lists that write through."""
    size, flat = stack._meta.batch_size, stack._flat_values()
    n = size[-1]
    if len(size) == 1:
        return LinkedList(flat, _Positions(stack, 0, holder, key))
    starts = range(0, size[:-1].numel() * n, n) if n else [0] * size[:-1].numel()
    rows = [LinkedList(flat[start : start + n], _Positions(stack, start, holder, key)) for start in starts]
    for dim in range(len(size) - 2, 0, -1):
        n = size[dim]
        rows = [LinkedList(rows[i * n : (i + 1) * n], None) for i in range(size[:dim].numel())]
    return LinkedList(rows, None)
