"""`SubTensorDict`: a live view of the part of a tensordict that an index selects.

It holds the parent and the index only. A read indexes the entries of the parent, and a write is a write into the parent
at the combined index. A new key is added to the whole parent, with zeros outside the view. An index of a view is
another view; results of operations are tensordicts that do not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

import torch

from tensordict_core.base import errors
from tensordict_core.base.entry import to_entry_over
from tensordict_core.base.index import Index
from tensordict_core.base.meta import Meta
from tensordict_core.base.node import Node, has_entries, is_leaf_tensor
from tensordict_core.base.registry.types import containers
from tensordict_core.base.write_plan import UpdatePlan, WritePlan, expand_to
from tensordict_core.containers.collection import TensorCollection
from tensordict_core.containers.custom import CustomContainer, unpickled
from tensordict_core.ops.indexing import key_path


class LiveView(CustomContainer, abstract=True):
    """A view of a tensordict, its parent: it has the keys and the lock of the parent, and a fixed batch size."""

    __slots__ = ("_annotations", "_holders", "_last_exit", "_meta", "_parent")

    def _show(self, parent: Any, meta: Meta) -> None:
        """Set the attributes of a view of a tensordict with other metadata."""
        self._parent = parent
        self._meta = meta
        self._holders = None
        self._annotations = None
        self._last_exit = None

    @property
    def _locked(self) -> bool:  # type: ignore[override]  # a slot elsewhere
        return bool(self._parent._locked)

    def _keys(self) -> Iterable[str]:
        keys: Iterable[str] = self._parent._keys()
        return keys

    def _del(self, key: str) -> None:
        self._parent._del(key)

    def _rename(self, old: str, new: str) -> None:
        self._parent._rename(old, new)

    def _move(self, old: tuple[str, ...], new: tuple[str, ...]) -> None:
        self._parent._move(old, new)

    def _change_batch_size(self, size: torch.Size) -> None:
        if size != self._meta.batch_size:
            remedy = "clone() the view to have a tensordict of its own"
            raise errors.fixed_batch_size(size, self._meta.batch_size, remedy)


class SubTensorDict(LiveView):
    """A live view of the part of a tensordict that an index selects; ``td.view_at(index)`` makes one.

    Args:
        source: The tensordict.
        idx: The index, as in ``source[idx]``.

    Raises:
        IndexError: The index does not fit the batch size.

    >>> td = TensorDict({"a": torch.zeros(3)}, [3])
    >>> SubTensorDict(td, 1).fill_("a", 1.0)["a"]
    tensor(1.)
    >>> td["a"]
    tensor([0., 1., 0.])
    """

    __slots__ = ("__dict__", "_part")

    _makes_entries = True
    _locks_with_parent = True

    def __init__(self, source: TensorCollection, idx: Any) -> None:
        self._start_at(source, Index(idx, source._meta.batch_size))

    def _start_at(self, parent: Any, part: Index) -> None:
        self._show(parent, part.meta(parent._meta))
        self._part = part
        if not part.gives_views:
            Node._copies_exist = True

    @classmethod
    def _make(cls, parent: Any, part: Index) -> Self:
        self = object.__new__(cls)
        self._start_at(parent, part)
        return self

    @property
    def parent(self) -> Any:
        """The tensordict that this is a view of.

        >>> td = TensorDict({"a": torch.zeros(3)}, [3])
        >>> td.view_at(0).parent is td
        True
        """
        return self._parent

    @property
    def idx(self) -> Any:
        """The index of the view.

        >>> TensorDict({"a": torch.zeros(3)}, [3]).view_at(0).idx
        0
        """
        return self._part.idx

    def get_parent_tensordict(self) -> Any:
        """Return the tensordict that this is a view of, as ``parent``.

        >>> td = TensorDict({"a": torch.zeros(3)}, [3])
        >>> td.view_at(0).get_parent_tensordict() is td
        True
        """
        return self._parent

    def _now(self) -> Any:
        """Return the part as a plain tensordict, of views or, for an index with tensors, of copies."""
        return self._named(self._parent._index(self._part))

    def _frame(self) -> Any:
        root = self._parent
        while isinstance(root, SubTensorDict):
            root = root._parent
        # the leaves of a part of a lazy stack are those of its elements
        return self._now() if root._lazy_stack is not None else super()._frame()

    def _named(self, part: Any) -> Any:
        """Return an indexed tensordict with the names of this view."""
        if self._meta.names != part._meta.names:
            part._put_names(self._meta.names)
        return part

    @property
    def _reads_copy(self) -> bool:
        """Whether indexing copies, so that a write into the result does not reach the parent."""
        return self._parent._reads_copy or not self._part.gives_views

    def _copies_below(self) -> bool:
        return self._reads_copy or self._parent._copies_below()

    # entries ---------------------------------------------------------------------------------------------------------

    if not TYPE_CHECKING:  # the overloads are those of the general method

        def __getitem__(self, index: Any) -> Any:
            """Return an entry by key, or a view of a part of this view."""
            if isinstance(index, str) or (type(index) is tuple and key_path(index)):
                return super().__getitem__(index)
            return self._view_at(Index(index, self._meta.batch_size))

    def _get(self, key: str) -> Any:
        value = self._parent._peek(key)
        if isinstance(value, Node):
            part = value._view_at(self._part)
            names = self._meta.names
            if names is not None:  # the parent may have other names
                part._set_meta(part._meta.named(names + (part._meta.names or (None,) * len(part.shape))[len(names) :]))
            return part
        return None if value is None else self._parent._read(key, self._part)

    def _peek(self, key: str) -> Any:
        value = self._parent._peek(key)
        return self._get(key) if isinstance(value, Node) else value

    def _shape_of(self, key: str) -> torch.Size:
        return self._part.part_of(self._parent._shape_of(key))

    def _read(self, key: str, index: Index | None) -> Any:
        if index is None:
            return self._get(key)
        return self._parent._read(key, self._within(index)) if self._reads_copy else self._get(key)[index.idx]

    def _set(self, key: str, value: Any) -> None:
        plan = WritePlan(adds=True)
        self._plan_part(key, self._part, self._expanded(key, value), plan, ())
        plan.run()

    @property
    def _adds_to_all(self) -> bool:
        """Whether the parent is a lazy stack, to all elements of which a new entry is added."""
        return bool(self._parent._is_lazy_stack and -1 not in self._parent._meta.batch_size)

    def _plan_part(self, key: str, part: Index, value: Any, plan: WritePlan, prefix: tuple[str, ...]) -> None:
        """Plan to write a value into a part of an entry of the parent; a new one is added to the whole parent."""
        if self._adds_to_all and not self._parent._has_anywhere(key):
            self._parent._plan_new(key, part, value, plan, prefix)
        else:
            self._parent._plan_entry(key, part, value, plan, prefix)

    def _plan_set(self, key: str, item: Any, plan: UpdatePlan, prefix: tuple[str, ...]) -> Any:
        value = super()._plan_set(key, item, plan, prefix)
        if value is not None:  # storing an entry of a view writes into the parent
            self._plan_part(key, self._part, self._expanded(key, value, prefix), plan, prefix)

    def _expanded(self, key: str, value: Any, prefix: tuple[str, ...] = ()) -> Any:
        """Return a valid entry in the shape of the leaf that it is written into, if that exists."""
        if not is_leaf_tensor(value) or not is_leaf_tensor(self._parent._peek(key)):
            return value
        shape = self._shape_of(key)
        return value if value.shape == shape else expand_to((*prefix, key) if prefix else key, value, shape)

    def _plan_write(self, index: Index | None, source: Any, plan: WritePlan, prefix: tuple[str, ...]) -> None:
        if index is None or (plan.adds and self._adds_to_all and isinstance(source, dict | Node)):
            super()._plan_write(index, source, plan, prefix)
        else:
            self._parent._plan_write(self._within(index), source, plan, prefix)

    def _plan_entry(self, key: str, index: Index | None, value: Any, plan: WritePlan, prefix: tuple[str, ...]) -> None:
        old = self._parent._peek(key)
        if index is not None and plan.adds and self._adds_to_all:
            if isinstance(old, Node) and not old._is_opaque:
                super()._plan_entry(key, index, value, plan, prefix)
            else:
                self._plan_part(key, self._within(index), value, plan, prefix)
            return
        if index is not None:
            index = self._within(index)
        else:
            if old is None or has_entries(old):
                super()._plan_entry(key, None, value, plan, prefix)
                return
            if not (plan.fills and isinstance(value, (int, float, complex)) and is_leaf_tensor(old)):
                path = (*prefix, key) if prefix else key
                value = self._expanded(key, to_entry_over(old, self._meta, path, value), prefix)
            index = self._part
        self._parent._plan_entry(key, index, value, plan, prefix)

    def _within(self, index: Index) -> Index:
        """Return the index of the parent that selects the same as an index of this view."""
        part, dims = self._part, self._part.dims + index.dims - len(self._part.size)
        if dims != part.dims:
            part = Index(part.idx, self._parent._meta.batch_size[:dims])
        return part.then(index)

    def select(self, *keys: Any, inplace: bool = False, strict: bool = True, as_tensordict: bool = False) -> Any:
        """Return the entries under some keys as a plain tensordict; ``inplace`` removes the others from the parent."""
        if inplace:
            return super().select(*keys, inplace=True, strict=strict)
        return self._named(self._parent.select(*keys, strict=strict, as_tensordict=as_tensordict)._index(self._part))

    def exclude(self, *keys: Any, inplace: bool = False) -> Any:
        """Return the entries under other keys as a plain tensordict; ``inplace`` removes the keys from the parent."""
        if inplace:
            return super().exclude(*keys, inplace=True)
        return self._named(self._parent.exclude(*keys)._index(self._part))

    # shape and copies -------------------------------------------------------------------------------------------------

    def _write_back(self, changed: Any) -> None:
        self._parent._index_put(self._part, changed)

    def _index(self, index: Index) -> Any:
        if not self._reads_copy:
            return self._now()._index(index)
        part = self._parent._index(self._within(index))  # copies the selected rows only
        part._put_names(index.names(self._meta.names))
        return part

    def __reduce__(self) -> Any:
        return unpickled, (self._now(),)  # a copy is not locked with the parent

    def _set_locked(self, locked: bool) -> None:
        if locked != self._locked:
            raise errors.lock_of_a_view(locked)

    def lock_(self) -> Self:
        """Raise an error unless the parent has this state: a view is locked with its parent.

        Raises:
            RuntimeError: The parent is not locked.
        """
        if not self._locked:
            self._set_locked(True)
        return self

    def unlock_(self) -> Self:
        """Raise an error unless the parent has this state: a view is locked with its parent.

        Raises:
            RuntimeError: The parent is locked.
        """
        if self._locked:
            self._set_locked(False)
        return self

    def is_memmap(self) -> bool:
        """Return ``False``: a view has no files of its own."""
        return False

    def memmap_(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an error: the entries are parts of those of the parent.

        Raises:
            RuntimeError: Always.
        """
        raise errors.moves_a_view("Converting a sub-tensordict values to memmap")

    def share_memory_(self) -> Self:
        """Raise an error: the entries are parts of those of the parent.

        Raises:
            RuntimeError: Always.
        """
        raise errors.moves_a_view("Casting a sub-tensordict values to shared memory")

    def detach_(self) -> Self:
        """Raise an error: the entries are parts of those of the parent.

        Raises:
            RuntimeError: Always.
        """
        raise errors.moves_a_view("Detaching a sub-tensordict in-place")


containers.view = SubTensorDict
