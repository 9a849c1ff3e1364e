"""Indexing: ``td[index]`` and ``td[index] = value``, for an index that is parsed once and applied to every entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, overload

import numpy as np
import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.entry import as_tensor
from tensordict_core.base.index import Index
from tensordict_core.base.keys import unravel_key_to_tuple
from tensordict_core.base.node import Node
from tensordict_core.base.rebuild import KEEP

Rows: TypeAlias = (
    int | slice | range | EllipsisType | Tensor | np.ndarray[Any, Any] | Sequence[int] | Sequence[Sequence[int]] | None
)
"""An index of one batch dimension (or of several, for a mask or ``...``)."""


class Indexing(Node):
    """``td[index]``, ``td[index] = value``, ``len(td)``, iteration, ``get_at`` and ``set_at_``."""

    __slots__ = ()

    if TYPE_CHECKING:
        _store: Callable[..., Any]

    @overload
    def __getitem__(self, index: str | tuple[str, ...]) -> Tensor: ...
    @overload
    def __getitem__(self, index: Rows | tuple[Rows, ...]) -> Self: ...
    @overload
    def __getitem__(self, index: Any) -> Any: ...
    def __getitem__(self, index: Any) -> Any:
        """Return an entry by key, or the part of every entry that ``index`` selects along the batch dimensions.

        Args:
            index: A key (a string or a tuple of strings), or an integer, slice, ``None``, ``...``, tensor, mask, array,
                list, range, bool, or a tuple of them.

        Returns:
            For a key, the entry: a tensor, a nested tensordict, or a non-tensor value. For an index, a tensordict of
            this type; an integer index of a lazy stack along its stack dimension returns the element. Type checkers
            assume that an entry is a tensor, because that is the usual case; for other entries use ``td.get``, whose
            static type is ``Any``, or a nested key (``td["next", "reward"]``).

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
                raise self._no_entry(index)
            return (
                value
                if type(value) is Tensor
                else value._entry_value(self, index)
                if isinstance(value, Node)
                else value
            )
        if type(index) is tuple and (path := key_path(index)):
            return self._get_path_value(path)
        if isinstance(index, str):  # of a subclass
            return self[str.__str__(index)]
        if self._locked:
            return self._locked_part(Index(index, self._meta.batch_size))
        return self._index(Index(index, self._meta.batch_size))

    def _no_entry(self, key: str) -> KeyError:
        """Return the error of reading an entry that there is not."""
        return errors.missing_key(key, self._keys(), type(self).__name__)

    def _locked_part(self, index: Index) -> Any:
        """Return the part of a locked tensordict; one row of shared or mapped memory is locked too, others are not.

        A key that is added to such a row would reach neither the file nor the other processes. Programs that work on
        slices add keys to them, as to a batch.
        """
        part = self._index(index)
        if (
            all(type(number) is int for number in index.parts)
            and not part._locked
            and (self._in_shared_memory() or self.is_memmap())
        ):
            part.lock_()
        return part

    def __setitem__(self, index: Any, value: Any) -> None:
        """Store an entry by key, or write ``value`` into the part of every entry that ``index`` selects.

        Keys that only ``value`` has are created, with zeros (``None`` for non-tensor data) in the other rows, so an
        empty tensordict can be filled row by row. A number, or a tensor or list of numbers, is written to every entry.

        Raises:
            RuntimeError: The tensordict is locked and a key is new, or shapes do not fit.

        >>> td = TensorDict({}, batch_size=[3])
        >>> td[1] = TensorDict({"a": torch.ones(2)})
        >>> td["a"].sum(), td["a"].shape
        (tensor(2.), torch.Size([3, 2]))
        """
        if isinstance(index, str) or (type(index) is tuple and key_path(index)):
            self._store(index, value)
            return
        if isinstance(value, np.generic):
            value = value.item()
        elif isinstance(value, list | tuple) and not self._is_opaque:
            tensor = as_tensor(value, self._meta.device)
            value = value if tensor is None else tensor
        self._index_put(Index(index, self._meta.batch_size), value)

    def __getitems__(self, indices: Any) -> Any:
        """Return the rows of a ``DataLoader`` batch with one index; use it with ``collate_fn=lambda batch: batch``.

        The rows of a store are a view, which writes reach; a worker of the ``DataLoader`` sends their values.
        """
        # faster than reading the list with torch
        return self[torch.from_numpy(np.asarray(indices, dtype=np.int64))]

    def _select_rows(self, index: Any) -> Any:
        """Return the part that an index with tensors selects, with entries of its own; no view of a store."""
        part = self[index]
        return part._solid() if part._copies_below() and not part._is_lazy_stack else part

    def __len__(self) -> int:
        """Return the size of the first batch dimension (0 without one).

        >>> len(TensorDict({}, batch_size=[3, 4]))
        3
        """
        size = self._meta.batch_size
        return size[0] if size else 0

    def __iter__(self) -> Iterator[Self]:
        """Iterate over the slices along the first batch dimension.

        Raises:
            TypeError: There is no batch dimension.

        >>> [row["a"].item() for row in TensorDict({"a": torch.arange(2)}, batch_size=[2])]
        [0, 1]
        """
        if not self._meta.batch_size:
            raise errors.not_iterable()
        return iter(self.unbind(0))

    def get_at(self, key: Any, index: Any = KEEP, default: Any = None, *, idx: Any = KEEP) -> Any:
        """Return the part of an entry that an index selects, or ``default`` if there is no such key.

        Args:
            key: A string or a nested key.
            index: The index, which may select along dimensions behind those of the batch, too.
            default: The value to return if there is no such key.
            idx: Another name of ``index``.

        Raises:
            TypeError: No index is given.

        >>> td = TensorDict({"a": torch.arange(3)}, batch_size=[3])
        >>> td.get_at("a", 1), td.get_at("b", 1)
        (tensor(1), None)
        """
        if index is not KEEP and idx is not KEEP:
            raise TypeError(f"get_at got index={index!r} and idx={idx!r}; give the index once")
        index = idx if index is KEEP else index
        if index is KEEP:
            raise TypeError("get_at needs an index of the entry; give one, or use get()")
        path = (key,) if type(key) is str else unravel_key_to_tuple(key)
        if not path:
            raise errors.empty_key()
        parent = self._peek_path(path[:-1])
        entry = parent._peek(path[-1]) if isinstance(parent, Node) else None
        if entry is None:
            return default
        if parent._reads_copy and not isinstance(entry, Node):
            own = entry.shape if parent._indexes_entries else parent._meta.batch_size
            return parent._read(path[-1], Index(index, own))
        return parent._get(path[-1])[index]

    def set_at_(self, key: Any, value: Any, index: Any, *, non_blocking: bool = False) -> Self:
        """Write a value into the part of an entry that an index selects.

        Args:
            key: A string or a nested key.
            value: A tensor that broadcasts to the selected part, or a number.
            index: The index, which may select along dimensions behind those of the batch, too.
            non_blocking: Whether a copy between devices may be asynchronous.

        Raises:
            KeyError: There is no such key.
            IndexError: This is a lazy stack or a view, and the index selects beyond the batch dimensions of the entry.

        >>> td = TensorDict({"a": torch.zeros(3, 2)}, batch_size=[3])
        >>> td.set_at_("a", 1.0, (..., 0))["a"][:, 0]
        tensor([1., 1., 1.])
        """
        parent, name = self._find_parent(key)
        prefix = () if type(key) is str else unravel_key_to_tuple(key)[:-1]
        parent._put_entry(name, _index_of_entry(parent, name, index), value, non_blocking, prefix)
        return self


def _index_of_entry(parent: Any, name: str, index: Any) -> Index:
    """Return an index of an entry itself, whose dimensions may be more than those of the batch.

    Raises:
        IndexError: The index selects in the own dimensions of an entry that elements or another tensordict hold.
    """
    size = parent._meta.batch_size
    entry = parent._peek(name)
    if isinstance(entry, Node):
        return Index(index, size if entry._is_opaque else entry._meta.batch_size)
    if entry is None:
        return Index(index, size)
    inner = parent._inmost()
    if inner._indexes_entries or not (inner._makes_entries or inner._reads_copy):
        return Index(index, entry.shape)
    if not (type(index) is tuple and any(part is Ellipsis for part in index[:-1])):
        return Index(index, size)  # an ellipsis at the end leaves the own dimensions out
    shape = inner._shape_of(name)
    own = Index(index, torch.Size([max(n, 0) for n in shape])).of_leading(len(size))
    if own is None:
        raise errors.bad_index_count(len(shape), size)
    return own


def key_path(index: tuple[Any, ...]) -> tuple[str, ...]:
    """Return a nested key (strings and tuples of strings only) as a flat path; an empty one for an index."""
    for part in index:
        if type(part) is not str:
            break
    else:
        return index
    path: list[str] = []
    for part in index:
        inner = (str.__str__(part),) if isinstance(part, str) else key_path(part) if type(part) is tuple else ()
        if not inner:
            return ()
        path += inner
    return tuple(path)
