"""`TensorDict`: the container that keeps its entries in one dictionary.

The dictionary holds tensors and nested nodes. Shapes are checked once, when a value is stored. Results of operations
are built without checks, because an operation on valid leaves gives valid leaves.

An entry that is not a `Node` is a leaf. Code tests ``isinstance(value, Node)``, because ``isinstance(value, Tensor)``
runs Tensor's metaclass, which takes three times as long for parameters and nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.entry import to_entry
from tensordict_core.base.index import Index
from tensordict_core.base.keys import NestedKey, unravel_key_to_tuple
from tensordict_core.base.meta import (
    NO_META,
    Meta,
    as_batch_size,
    as_device,
    as_names,
    cat_meta,
    stacked_meta,
    starts_with,
    unbound_meta,
)
from tensordict_core.base.node import Node, has_entries, is_leaf_tensor
from tensordict_core.base.ragged import leaf_part, split_leaf
from tensordict_core.base.rebuild import How, IsLeaf
from tensordict_core.base.registry.types import containers
from tensordict_core.base.shape_op import ShapeOp
from tensordict_core.base.tracing import may_fuse, with_own_gradients
from tensordict_core.base.write_plan import WritePlan
from tensordict_core.containers.collection import TensorCollection, TensorDictBase
from tensordict_core.containers.combination import CAT, STACK, combined
from tensordict_core.ops.io.from_python import BuildOptions

if TYPE_CHECKING:
    from tensordict_core.containers.view import SubTensorDict

_clone_all: Callable[[list[Tensor]], Sequence[Tensor]] | None = getattr(torch, "_foreach_clone", None)


class TensorDict(TensorDictBase):
    """A dictionary of tensors that share their leading dimensions; it behaves like one tensor of that batch size.

    Args:
        source: Keys and values: tensors of shape ``[*batch_size, ...]``, numbers, arrays, nested dictionaries or
            tensordicts; anything else is kept as non-tensor data. Keys may be nested (tuples).
        batch_size: The leading dimensions that all entries share; by default none (``[]``), or those of ``source`` if
            it is a tensordict.
        device: The device to which every entry is moved; by default entries stay on their devices.
        names: A name (or ``None``) for each batch dimension.
        non_blocking: Whether moves to ``device`` may be asynchronous.
        lock: Whether the tensordict is locked from the start.
        **kwargs: Entries by name, instead of ``source``.

    Raises:
        RuntimeError: A value does not start with the batch size.

    >>> td = TensorDict({"obs": torch.zeros(3, 4), "nested": {"reward": torch.ones(3)}}, batch_size=[3])
    >>> td["nested", "reward"]
    tensor([1., 1., 1.])
    >>> td[0].batch_size, td.reshape(3, 1)["obs"].shape
    (torch.Size([]), torch.Size([3, 1, 4]))
    """

    __slots__ = ("__dict__", "_annotations", "_entries", "_holders", "_last_exit", "_locked", "_meta")

    if TYPE_CHECKING:
        # the methods return a TensorDict whatever the container; only here that is the class itself
        def to_tensordict(self, *, retain_none: bool | None = ...) -> Self: ...  # noqa: D102 (documented where it is defined)
        def view_at(self, index: Any) -> SubTensorDict: ...  # noqa: D102 (documented where it is defined)
        @classmethod
        def from_dict(cls, input_dict: Any, **options: Unpack[BuildOptions]) -> Self: ...  # noqa: D102 (documented where it is defined)
        @classmethod
        def fromkeys(cls, keys: Iterable[NestedKey], value: Any = ...) -> Self: ...  # noqa: D102 (documented where it is defined)
        @classmethod
        def from_tuple(cls, obj: tuple[Any, ...], **options: Unpack[BuildOptions]) -> Self: ...  # noqa: D102 (documented where it is defined)
        @classmethod
        def from_namedtuple(cls, named_tuple: Any, **options: Unpack[BuildOptions]) -> Self: ...  # noqa: D102 (documented where it is defined)

    def __init__(
        self,
        source: Mapping[Any, Any] | TensorCollection | None = None,
        batch_size: Sequence[int] | int | None = None,
        device: torch.device | str | int | None = None,
        names: Sequence[str | None] | None = None,
        non_blocking: bool | None = None,
        lock: bool = False,
        **kwargs: Any,
    ) -> None:
        if source is None:
            source = kwargs
        elif kwargs:
            raise ValueError(
                f"Either a dictionary or a sequence of kwargs must be provided, got a source and {sorted(kwargs)}; "
                "pass one of them"
            )
        given: Any = source  # what has no items() is refused below
        is_node = isinstance(given, Node)
        if batch_size is None and is_node:
            size = given._meta.batch_size
            names = given._meta.names if names is None else names
        else:
            size = as_batch_size(batch_size)
        if device is None and names is None:
            meta = Meta(size) if size else NO_META
        else:
            meta = Meta(size, as_device(device), as_names(names, len(size)))
        self._meta = meta
        self._entries: dict[str, Any] = {}
        self._locked = False
        self._holders = None
        self._annotations = None
        self._last_exit = None
        dims = len(size)
        entries = self._entries
        first = size[0] if dims else None
        plain = meta.device is None
        named: Node | None = None  # the first nested tensordict with dim names
        try:
            # a field of a tensorclass may hide items(), but not _items()
            items = given._items() if is_node else given.items()
        except AttributeError:
            raise errors.no_source(source) from None
        try:
            rest = iter(items)
            for key, value in rest:
                if type(key) is not str:  # the keys after it may start with it, or it with them
                    named = self._set_paths([(key, value), *rest], bool(non_blocking)) or named
                elif plain and type(value) is Tensor:
                    if dims:
                        shape = value.shape
                        # starts_with, inlined for one dimension: the call would double the cost of an entry
                        if not (shape and shape[0] == first if dims == 1 else starts_with(shape, size)):
                            raise errors.batch_mismatch(key, shape, size)
                    entries[key] = value
                else:
                    entries[key] = entry = to_entry(meta, key, value, non_blocking=bool(non_blocking))
                    if named is None and isinstance(entry, Node) and entry._meta.names is not None:
                        named = entry
        except RuntimeError:
            if not any(isinstance(value, Tensor) and value.is_nested for _, value in items):
                raise
            for key, value in items:  # some may be strided nested tensors, which have no shape
                self.set(key, value)
        if named is not None and meta.names is None:
            self._adopt_names(named)
        if lock:
            self.lock_()

    def _set_paths(self, items: Iterable[tuple[Any, Any]], non_blocking: bool) -> Node | None:
        """Store entries of which some have nested keys; return the first nested tensordict with dim names.

        Raises:
            KeyError: A key is the start of another one, and its value has no entries.
        """
        named: Node | None = None
        for key, value in items:
            path = unravel_key_to_tuple(key)
            if not path:
                raise errors.empty_key()
            held: Any = self
            for name in path:
                held = held._peek(name) if has_entries(held) else None
            if has_entries(held):
                if not (isinstance(value, dict) or has_entries(value)):
                    raise errors.start_of_a_key(path)
                self.update({key: value}, non_blocking=non_blocking)
                continue
            self.set(path, value, non_blocking=non_blocking)
            entry = self._entries[path[0]]
            if named is None and type(key) is str and isinstance(entry, Node) and entry._meta.names is not None:
                named = entry
        return named

    @classmethod
    def _make(cls, entries: dict[str, Any], meta: Meta) -> Self:
        """Return a tensordict of entries that are known to be valid."""
        self = object.__new__(cls)
        self._entries = entries
        self._meta = meta
        self._locked = False
        self._holders = None
        self._annotations = None
        self._last_exit = None
        return self

    def _new(self, entries: dict[str, Any], meta: Meta) -> Self:
        return self._make(entries, meta)

    def _mapped(self, result: Any) -> Any:
        return self._from_mapped(result)

    @classmethod
    def _from_mapped(cls, result: Any) -> Any:
        if cls is TensorDict or type(result) is not TensorDict:
            return result
        mine = cls._make(result._entries, result._meta)
        mine._annotations = result._annotations
        return mine.lock_() if result._locked else mine

    # entries ---------------------------------------------------------------------------------------------------------

    if not TYPE_CHECKING:  # the overloads are those of the general method

        def __getitem__(self, index: Any) -> Any:
            """Return an entry by key, or the part of every entry that ``index`` selects along the batch dimensions."""
            if type(index) is str and type(value := self._entries.get(index)) is Tensor:
                return value  # the most frequent call of all; the general method takes half as long again
            return TensorDictBase.__getitem__(self, index)

    def _keys(self) -> Iterable[str]:
        return self._entries.keys()

    def _get(self, key: str) -> Any:
        return self._entries.get(key)

    def _peek(self, key: str) -> Any:
        return self._entries.get(key)

    def _nested_for(self, name: str, key: tuple[str, ...], depth: int, made: list[tuple[Any, str]]) -> Any:
        child = self._entries.get(name)  # usually there already
        return child if type(child) is TensorDict else super()._nested_for(name, key, depth, made)

    def _items(self) -> Iterable[tuple[str, Any]]:
        return self._entries.items()

    def _set(self, key: str, value: Any) -> None:
        self._entries[key] = value

    def _storing(self) -> Callable[[Iterable[tuple[str, Tensor]]], None] | None:
        return self._entries.update

    def _del(self, key: str) -> None:
        del self._entries[key]

    def _rename(self, old: str, new: str) -> None:
        self._entries[new] = self._entries.pop(old)

    # leaves ----------------------------------------------------------------------------------------------------------

    def _leaves(self, is_leaf: IsLeaf | None = None) -> list[Any]:
        leaves = list(self._entries.values())
        for value in leaves:
            if type(value) is not Tensor and isinstance(value, Node):
                leaves = []
                self._collect(leaves, is_leaf)
                break
        return leaves

    def _pairs(self, other: Any) -> tuple[list[Tensor], list[Tensor]] | None:
        mine, theirs = self._entries, other._entries
        if type(theirs) is not dict or len(theirs) != len(mine):
            return None
        get = theirs.get
        operands: list[Any] = [get(key) for key in mine]
        leaves: list[Any] = list(mine.values())
        for value in operands:
            if type(value) is not Tensor:
                return _nested_pairs(leaves, operands)
        for value in leaves:
            if type(value) is not Tensor:
                return _nested_pairs(leaves, operands)
        return leaves, operands

    def _plan_write(self, index: Index | None, source: Any, plan: WritePlan, prefix: tuple[str, ...]) -> None:
        kind = type(source)
        if kind is not TensorDict and isinstance(source, Node):
            source = source._inmost()  # of a wrapper, what it holds
            kind = type(source)
        if kind is not TensorDict and (kind is not dict or index is not None):
            super()._plan_write(index, source, plan, prefix)
            return
        if index is not None:
            source = self._fitted(index, source, plan)
        theirs: dict[Any, Any] = source if kind is dict else source._entries
        get = self._entries.get
        if index is not None:
            for key, value in theirs.items():
                old: Any = get(key)
                if type(value) is Tensor and (type(old) is Tensor or is_leaf_tensor(old)):  # the result of _plan_entry
                    plan.add_at((*prefix, key) if prefix else key, old, index, value)
                else:
                    self._plan_entry(key, index, value, plan, prefix)
            return
        if may_fuse():
            self._plan_whole(theirs, plan, prefix)
        else:
            super()._plan_write(None, source, plan, prefix)

    def _plan_whole(self, theirs: dict[Any, Any], plan: WritePlan, prefix: tuple[str, ...]) -> None:
        """Plan to write values into the whole entries under the same keys."""
        get = self._entries.get
        keys, targets, sources = plan.keys, plan.targets, plan.sources
        for key, value in theirs.items():
            old: Any = get(key)
            if type(old) is Tensor and type(value) is Tensor:
                if old is not value:  # what `add` does; its call costs as much as the rest of this loop
                    keys.append((*prefix, key) if prefix else key)
                    targets.append(old)
                    sources.append(value)
            elif type(old) is TensorDict and type(value) is TensorDict:
                old._plan_whole(value._entries, plan, (*prefix, key))
            elif type(key) is str:
                self._plan_entry(key, None, value, plan, prefix)
            else:
                super()._plan_write(None, {key: value}, plan, prefix)

    def _rebuild(self, leaves: Iterator[Any], how: How) -> Any:
        entries: dict[str, Any] = {}
        is_leaf, check = how.is_leaf, how.check
        meta = self._meta if how.keeps_meta else how.meta(self._meta)
        size = meta.batch_size
        # with fewer than two batch dimensions, the first size decides whether to_entry would return the value unchanged
        ready = Tensor if meta.device is None and len(size) < 2 else None
        first = size[0] if size else None
        for key, value in self._entries.items():
            if type(value) is Tensor or not isinstance(value, Node) or (is_leaf is not None and is_leaf(type(value))):
                new = next(leaves)
            else:
                new = value._rebuild(leaves, how)
            if new is None:
                continue
            if check and not (
                type(new) is ready and (first is None or (not new.is_nested and (own := new.shape) and own[0] == first))
            ):
                new = to_entry(meta, key, new)
            entries[key] = new
        if how.prune and not entries and (self._entries or how.prune_empty):
            return None
        result = self._make(entries, meta)
        if how.lock and self._locked:
            result.lock_()
        return result

    # shape -----------------------------------------------------------------------------------------------------------

    def _index(self, index: Index) -> Any:
        try:
            entries = self._indexed(index)
        except RuntimeError:
            # index_select takes no strided nested tensors, and reports positions out of bounds as a RuntimeError
            if index.rows is None and not self._has_nested_tensors():
                raise
            entries = {
                key: value._index(index) if isinstance(value, Node) else leaf_part(value, index.idx)
                for key, value in self._entries.items()
            }
        return self._make(entries, index.meta(self._meta))

    def _has_nested_tensors(self) -> bool:
        return any(isinstance(value, Tensor) and value.is_nested for value in self._entries.values())

    def _indexed(self, index: Index) -> dict[str, Any]:
        """Return the parts of the entries that an index selects."""
        idx, rows = index.idx, index.rows
        if rows is None:
            return {
                key: value[idx]
                if type(value) is Tensor
                else value._index(index)
                if isinstance(value, Node)
                else leaf_part(value, idx)
                for key, value in self._entries.items()
            }
        at, select = index.at, torch.index_select
        return {
            key: select(value, at, rows)
            if type(value) is Tensor and value.is_cpu
            else value._index(index)
            if isinstance(value, Node)
            # tensor subclasses such as memory-mapped tensors have their own way to gather rows
            else select(value, at, rows)
            if at and value.is_cpu
            else leaf_part(value, idx)
            for key, value in self._entries.items()
        }

    def _reshape(self, op: ShapeOp) -> Any:
        result = self._make(op.entries(self._entries), op.meta(self._meta))
        if op.lock and self._locked:
            result.lock_()
        return result

    @classmethod
    def _stack(cls, items: Sequence[Any], dim: int) -> Any:
        return cls._make(combined(items, dim, STACK), stacked_meta(items, dim))

    @classmethod
    def _cat(cls, items: Sequence[Any], dim: int) -> Any:
        return cls._make(combined(items, dim, CAT), cat_meta(items, dim))

    def _unbind(self, dim: int) -> tuple[Any, ...]:
        size = self._meta.batch_size
        columns: dict[str, Sequence[Any]] = {
            key: torch.unbind(value, dim)
            if type(value) is Tensor or not isinstance(value, Node)
            else value._unbind(dim)
            for key, value in self._entries.items()
        }
        meta, make = unbound_meta(self._meta, dim), self._make
        return tuple(make({key: column[i] for key, column in columns.items()}, meta) for i in range(size[dim]))

    def _split(self, sizes: list[int], dim: int) -> Sequence[Any]:
        try:
            columns: dict[str, Sequence[Any]] = {
                key: torch.split_with_sizes(value, sizes, dim)
                if type(value) is Tensor
                else value._split(sizes, dim)
                if isinstance(value, Node)
                else split_leaf(value, sizes, dim)
                for key, value in self._entries.items()
            }
        except RuntimeError:  # as for an index
            if not self._has_nested_tensors():
                raise
            columns = {
                key: value._split(sizes, dim) if isinstance(value, Node) else split_leaf(value, sizes, dim)
                for key, value in self._entries.items()
            }
        old = self._meta
        before, after = old.batch_size[:dim], old.batch_size[dim + 1 :]
        metas = {n: old.resized(torch.Size((*before, n, *after)), old.names) for n in set(sizes)}
        make = self._make
        return [make({key: column[i] for key, column in columns.items()}, metas[n]) for i, n in enumerate(sizes)]

    # life ------------------------------------------------------------------------------------------------------------

    def _clone(self, recurse: bool) -> Self:
        if recurse:
            copies = iter(_copies([value for value in self._entries.values() if type(value) is Tensor]))
            entries = {
                key: next(copies)
                if type(value) is Tensor
                else value._clone(True)
                if isinstance(value, Node)
                else value.clone()  # some subclasses keep their type in this method only
                for key, value in self._entries.items()
            }
        else:
            entries = {
                key: value if not isinstance(value, Node) else value._clone(False)
                for key, value in self._entries.items()
            }
        return self._make(entries, self._meta)


def _copies(tensors: list[Tensor]) -> Sequence[Tensor]:
    """Return copies of plain tensors, made by one call of torch where it can."""
    if len(tensors) > 1 and _clone_all is not None and may_fuse():
        try:
            return with_own_gradients(_clone_all(tensors), tensors)
        except RuntimeError:  # it refuses integers together with tensors that require gradients
            pass
    return [torch.clone(tensor) for tensor in tensors]


def _nested_pairs(left: Iterable[Any], right: Iterable[Any]) -> tuple[list[Tensor], list[Tensor]] | None:
    """Return the leaves of matched entries; ``None`` unless all are plain tensors or tensordicts of these."""
    leaves: list[Tensor] = []
    operands: list[Tensor] = []
    for mine, theirs in zip(left, right, strict=True):
        if type(mine) is Tensor and type(theirs) is Tensor:
            leaves.append(mine)
            operands.append(theirs)
        elif type(mine) is type(theirs) is TensorDict and (pairs := mine._pairs(theirs)) is not None and pairs[0]:
            leaves += pairs[0]
            operands += pairs[1]
        else:
            return None
    return leaves, operands


containers.dense = TensorDict
