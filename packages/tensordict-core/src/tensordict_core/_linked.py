"""A list that writes through: replacing an element replaces the row of the tensordict that the list was made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn, SupportsIndex

__all__ = ["LinkedList"]


class LinkedList(list[Any]):
    """The rows of a tensordict as a list; an element that is replaced is written into the tensordict.

    The tensordict has a fixed number of rows, so the list has too.

    Args:
        items: The elements.
        source: What they were read from; ``source[i] = value`` must write a row.

    >>> td = TensorDict({"a": torch.zeros(2)}, [2])
    >>> rows = td.tolist(as_linked_list=True)
    >>> rows[1] = {"a": 1.0}
    >>> td["a"]
    tensor([0., 1.])
    """

    def __init__(self, items: Iterable[Any], source: Any) -> None:
        super().__init__(items)
        self._source = source

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice):
            positions = range(len(self))[index]
            values = list(value)
            if len(values) != len(positions):
                self._refuse(f"{len(positions)} elements were to be replaced by {len(values)}")
            for position, one in zip(positions, values, strict=True):
                self[position] = one
            return
        self._source[range(len(self))[index]] = value
        super().__setitem__(index, value)

    def _refuse(self, what: str) -> NoReturn:
        raise TypeError(
            f"the rows of a tensordict are of a fixed number, and {what}; take list(rows) for a list of its own"
        )

    def __delitem__(self, index: Any) -> None:
        self._refuse("one was to be deleted")

    def append(self, value: Any) -> None:
        """Refused: the length is fixed."""
        self._refuse("one was to be added")

    def extend(self, values: Iterable[Any]) -> None:
        """Refused: the length is fixed."""
        self._refuse("some were to be added")

    def insert(self, index: SupportsIndex, value: Any) -> None:
        """Refused: the length is fixed."""
        self._refuse("one was to be added")

    def pop(self, index: SupportsIndex = -1) -> NoReturn:
        """Refused: the length is fixed."""
        self._refuse("one was to be removed")

    def remove(self, value: Any) -> None:
        """Refused: the length is fixed."""
        self._refuse("one was to be removed")

    def clear(self) -> None:
        """Refused: the length is fixed."""
        self._refuse("all were to be removed")

    def __iadd__(self, values: Iterable[Any]) -> NoReturn:  # type: ignore[misc]  # list gives Self, this refuses
        self._refuse("some were to be added")

    def __imul__(self, times: SupportsIndex) -> NoReturn:
        self._refuse("the list was to be repeated")

    def sort(self, **kwargs: Any) -> None:
        """Sort the rows, each written to its new place."""
        self[:] = sorted(self, **kwargs)

    def reverse(self) -> None:
        """Reverse the rows, each written to its new place."""
        self[:] = list(self)[::-1]

    def __reduce__(self) -> Any:
        # a copy or a pickle is a list of its own: there is no tensordict on the other side
        return list, (list(self),)
