"""``td[index]`` and ``td[index] = value``: an index is read once (`_index`) and applied to every entry.

A write looks at every entry first, and writes then: it is all or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import EllipsisType
from typing import Any, Self, TypeAlias, overload

import numpy as np
import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.entry import to_entry
from tensordict_core.base.index import Index
from tensordict_core.base.keys import unravel_key
from tensordict_core.base.meta import Meta
from tensordict_core.base.node import Node
from tensordict_core.base.registry import containers
from tensordict_core.base.write_plan import Writes
from tensordict_core.ops.access import Access

__all__ = ["Indexing", "Rows"]

Rows: TypeAlias = (
    int | slice | range | EllipsisType | Tensor | np.ndarray[Any, Any] | Sequence[int] | Sequence[Sequence[int]] | None
)
"""What selects along one batch dimension (or several, for a mask or ``...``)."""


class Indexing(Node):
    """``td[index]``, ``td[index] = value``, and what follows from them."""

    __slots__ = ()

    @overload
    def __getitem__(self, index: str | tuple[str, ...]) -> Tensor: ...
    @overload
    def __getitem__(self, index: Rows | tuple[Rows, ...]) -> Self: ...
    @overload
    def __getitem__(self, index: Any) -> Any: ...
    def __getitem__(self, index: Any) -> Any:
        """An entry by key, or the part of every entry that ``index`` selects along the batch dimensions.

        Args:
            index: A key (a string or a tuple of strings), or an integer, slice, ``None``, ``...``, tensor, mask, array,
                list, range, bool, or a tuple of them.

        Returns:
            For a key the entry: a tensor, a nested tensordict, or a non-tensor value. For an index a tensordict of this
            kind; a lazy stack gives one of its elements for an integer. What a key holds is known at run time only, and
            is a tensor nearly always, so that is what type checkers see. For the other entries there are ``td.get``,
            whose result they take for any type, and nested keys (``td["next", "reward"]``).

        Raises:
            KeyError: There is no such key.
            IndexError: The index does not fit the batch size.

        >>> td = TensorDict({"a": torch.arange(6).view(3, 2)}, batch_size=[3])
        >>> td[1]["a"], td[torch.tensor([2, 0])]["a"][:, 0]
        (tensor([2, 3]), tensor([4, 0]))
        """
        if type(index) is str:
            value = self._get(index)
            if value is None:
                raise errors.missing_key(index, self._keys(), type(self).__name__)
            return (
                value
                if type(value) is Tensor
                else value._entry_value(self, index)
                if isinstance(value, Node)
                else value
            )
        if type(index) is tuple and _is_path(index):
            return self._get_path_value(index)
        return self._index(Index(index, self._meta.batch_size))

    def __setitem__(self, index: Any, value: Any) -> None:
        """Store an entry by key, or write ``value`` into the part of every entry that ``index`` selects.

        Keys that ``value`` has and the tensordict lacks are made first, filled with zeros (empty values for non-tensor
        data), so an empty tensordict can be filled row by row.

        Raises:
            RuntimeError: The tensordict is locked and a key is new, or shapes do not fit.

        >>> td = TensorDict({}, batch_size=[3])
        >>> td[1] = TensorDict({"a": torch.ones(2)})
        >>> td["a"].sum(), td["a"].shape
        (tensor(2.), torch.Size([3, 2]))
        """
        if type(index) is str or (type(index) is tuple and _is_path(index)):
            self.set(index, value)
            return
        self._index_put(Index(index, self._meta.batch_size), value)

    def __getitems__(self, indices: Any) -> Any:
        """The rows that a ``DataLoader`` asks for, in one indexing; collate them with ``lambda batch: batch``."""
        return self[torch.from_numpy(np.asarray(indices, dtype=np.int64))]  # faster than torch reads a list

    def __len__(self) -> int:
        """The size of the first batch dimension (0 without one).

        >>> len(TensorDict({}, batch_size=[3, 4]))
        3
        """
        size = self._meta.batch_size
        return size[0] if size else 0

    def __iter__(self) -> Iterator[Self]:
        """The slices along the first batch dimension.

        Raises:
            RuntimeError: There is no batch dimension.

        >>> [row["a"].item() for row in TensorDict({"a": torch.arange(2)}, batch_size=[2])]
        [0, 1]
        """
        if not self._meta.batch_size:
            raise errors.no_batch_dim("iteration over the rows of a tensordict")
        return iter(self._unbind(0))

    def get_at(self, key: Any, index: Any = ..., default: Any = ..., *, idx: Any = ...) -> Any:
        """The entry of a key, indexed along the batch dimensions; ``default`` (``None``) where there is no such key.

        >>> td = TensorDict({"a": torch.arange(3)}, batch_size=[3])
        >>> td.get_at("a", 1), td.get_at("b", 1)
        (tensor(1), None)
        """
        value = Access.get(self, key)  # type: ignore[arg-type]  # every container that indexes has the access of one
        if value is None:
            return None if default is ... else default
        return value[idx if index is ... else index]

    def set_at_(self, key: Any, value: Any, index: Any, *, non_blocking: bool = False) -> Self:
        """Write a value into the part of an entry that ``index`` selects.

        Raises:
            KeyError: There is no such key.

        >>> td = TensorDict({"a": torch.zeros(3)}, batch_size=[3])
        >>> td.set_at_("a", 1.0, [0, 2])["a"]
        tensor([1., 0., 1.])
        """
        parent, name = self._find_parent(key)
        if parent._peek(name) is None:
            raise errors.missing_key(key, parent._keys(), type(self).__name__)
        parent._set_entry_at(name, Index(index, parent._meta.batch_size), value)
        return self

    def _set_entry_at(self, name: str, index: Index, value: Any) -> None:
        """Write a value into the part of an entry that ``index`` selects; containers that hold slices override it."""
        entry = self._get(name)
        if not isinstance(entry, Node):
            _write(entry, index, value, name)
            return
        source = value if isinstance(value, Node) else to_entry(Meta(index.size), name, value)
        replaced = entry._put_node(index, source)
        if replaced is not entry or replaced is not self._peek(name):  # a view reads values, and keeps none
            self._set(name, replaced, False)

    def _write_at(self, index: Index, value: Any) -> None:
        """Write ``value`` at ``index`` of every entry: the one algorithm of indexed writes."""
        if isinstance(value, dict):
            value = containers.dense(value, batch_size=index.size, device=self._meta.device)
        if not isinstance(value, Node):
            self._write_plain_at(index, value)
            return
        self._check_fits(index, value)
        pairs = list(value._items())
        self._check_entries(index, pairs, ())
        if any([type(source) is not Tensor and isinstance(source, Node) for _, source in pairs]):
            pairs.sort(key=_is_tensor_or_tree)  # what keeps values elsewhere may refuse, so they go first
        writes: Writes | None = None
        for key, source in pairs:
            entry = self._get(key)
            if entry is None:
                entry = self._make_room(key, source, index)
            if isinstance(entry, Tensor):
                if type(entry) is not Tensor and index.gives_views:
                    part = entry[index.idx]
                    if part.shape == source.shape:
                        writes = Writes() if writes is None else writes
                        writes.add(key, part, source)  # leaves that are kept elsewhere are written together
                        continue
                _write(entry, index, source.to(entry.device) if source.device != entry.device else source, key)
            else:
                replaced = entry._put_node(index, source)
                if replaced is not entry:
                    self._set(key, replaced, False)
        if writes is not None:
            writes.run()

    def _write_plain_at(self, index: Index, value: Any) -> None:
        if value is None or isinstance(value, str | bytes | list):
            raise errors.bad_indexed_value(value)
        if getattr(value, "shape", ()):
            self._check_plain(index, value, ())
        for key, entry in self._items():
            if isinstance(entry, Node):
                if not entry._is_opaque:
                    entry._index_put(index, value)
                continue
            _write(entry, index, _over_rows(value, index, entry), key)

    def _check_put(self, index: Index, value: Any) -> None:
        """Refuse a write at ``index`` that does not fit, before anything is written. A lazy stack asks its elements.

        Raises:
            RuntimeError: A shape does not fit, or a key is new and the node that would hold it locked.
            KeyError: One of two entries is a tensor and the other a node.
        """
        if isinstance(value, Node):
            self._check_fits(index, value)
            self._check_entries(index, value._items(), ())
        elif getattr(value, "shape", ()):
            self._check_plain(index, value, ())

    def _check_plain(self, index: Index, value: Any, prefix: tuple[str, ...]) -> None:
        """Refuse a tensor or an array that one of the leaves cannot take at ``index``."""
        for key, entry in self._items():
            if not isinstance(entry, Node):
                shape = _over_rows(value, index, entry).shape
                expected = index.size + entry.shape[index.dims :]
                if not _broadcasts(shape, expected):
                    raise errors.indexed_write_shape(unravel_key((*prefix, key)), shape, expected)
            elif _checks_itself(entry):
                entry._check_put(index, value)
            elif not entry._is_opaque:
                entry._check_plain(index, value, (*prefix, key))

    def _check_fits(self, index: Index, value: Node) -> None:
        got = value._meta.batch_size
        if got == index.size:
            return
        # a nested node's batch size may be longer than the root's, and so may the value's that is written there
        expected = index.size + self._meta.batch_size[index.dims :]
        expected = expected[: max(len(got), len(index.size))]
        if not _broadcasts(got, expected):
            raise RuntimeError(
                f"indexed write needs a value of batch size {list(index.size)}, got {list(got)}; "
                "expand or index the value to that batch size"
            )

    def _check_entries(self, index: Index, pairs: Iterable[tuple[str, Any]], prefix: tuple[str, ...]) -> None:
        """Refuse what cannot be written at ``index``, before anything is.

        Raises:
            RuntimeError: A shape does not fit, or a key is new and the node that would hold it locked.
            KeyError: One of two entries is a tensor and the other a node.
        """
        dims, size, peek = index.dims, index.size, self._peek
        known: torch.Size | None = None
        expected = size
        for key, source in pairs:
            entry = peek(key)
            if entry is None:
                if self._locked:
                    raise errors.locked(f"the indexed write would add key {unravel_key((*prefix, key))!r}")
            elif type(entry) is Tensor or not isinstance(entry, Node):
                if type(source) is not Tensor and isinstance(source, Node):
                    raise errors.not_a_node(unravel_key((*prefix, key)), entry)
                shape = entry.shape
                if shape != known:  # neighbours often have one shape, and taking it apart costs most here
                    known, expected = shape, size + shape[dims:]
                shape = source.shape
                if shape != expected and not _broadcasts(shape, expected):
                    raise errors.indexed_write_shape(unravel_key((*prefix, key)), shape, expected)
            elif not isinstance(source, Node):
                raise errors.not_a_node(unravel_key((*prefix, key)), source)
            elif _checks_itself(entry) and not source._is_opaque:
                entry._check_put(index, source)
            elif not (entry._is_opaque or source._is_opaque):
                entry._check_entries(index, source._items(), (*prefix, key))

    def _make_room(self, key: str, source: Any, index: Index) -> Any:
        """A new entry of this node's batch size that ``source`` can be written into at ``index``."""
        size = self._meta.batch_size
        if isinstance(source, Tensor):
            trailing = source.shape[len(index.size) + len(size) - index.dims :]
            entry: Any = torch.zeros((*size, *trailing), dtype=source.dtype, device=source.device)
        else:
            entry = source._room(size, index)
        self._set(key, entry, False)
        return entry


def _is_tensor_or_tree(pair: tuple[str, Any]) -> bool:
    """Whether an entry is none of values alone."""
    return isinstance(pair[1], Tensor) or not pair[1]._is_opaque


def _checks_itself(entry: Node) -> bool:
    """Whether the entries of a node are parts of others, or have parts, so that a look at them shows other shapes."""
    inmost = entry._inmost()
    return inmost._holds_slices or isinstance(inmost, containers.view)


def _broadcasts(got: Sequence[int], expected: torch.Size) -> bool:
    """Whether an indexed write takes a value of one shape where another is selected, as torch does."""
    while len(got) > len(expected) and got[0] == 1:
        got = got[1:]
    try:
        return bool(torch.broadcast_shapes(got, expected) == expected)
    except RuntimeError:
        return False


def _over_rows(value: Any, index: Index, entry: Tensor) -> Any:
    """A tensor over batch dimensions with those of a leaf behind them; other values as they are."""
    if isinstance(value, Tensor) and 0 < value.ndim <= len(index.size):
        return value.reshape(value.shape + (1,) * (entry.ndim - index.dims))
    return value


def _write(entry: Tensor, index: Index, value: Any, key: str) -> None:
    """Write into part of a leaf; an error says which leaf, and what it takes there."""
    try:
        entry[index.idx] = value
    except RuntimeError as error:
        expected = entry[index.idx].shape
        got = getattr(value, "shape", ())
        if not _broadcasts(got, expected):
            raise errors.indexed_write_shape(key, got, expected) from None
        error.add_note(f"while writing into part of key {key!r}")
        raise


def _is_path(index: tuple[Any, ...]) -> bool:
    """Whether a tuple is a nested key (strings and tuples of strings only) and not an index."""
    for part in index:
        if type(part) is not str and not (type(part) is tuple and _is_path(part)):
            return False
    return bool(index)
