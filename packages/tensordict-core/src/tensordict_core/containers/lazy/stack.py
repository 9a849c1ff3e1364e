"""`LazyStackedTensorDict`: a list of tensordicts that is read like a stack along one dimension.

Entries are stacked when they are read, and elements may differ in the shapes of their entries, in their keys and in
their batch sizes. The keys are those that all elements have. Operations on leaves are mapped over the elements, writes
change the elements, and unbinding the stack dimension returns the elements themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.meta import Meta, as_batch_size, as_device, check_devices
from tensordict_core.base.node import Node, is_leaf_tensor
from tensordict_core.base.predicates import is_non_tensor
from tensordict_core.base.rebuild import KEEP, How, IsLeaf
from tensordict_core.base.registry.types import containers
from tensordict_core.base.shape_op import Unsqueeze
from tensordict_core.containers.collection import TensorCollection
from tensordict_core.containers.lazy.columns import combined
from tensordict_core.containers.lazy.elements import broadcast_part, check_element, meta_of
from tensordict_core.containers.lazy.elementwise import LazyElementwise
from tensordict_core.containers.lazy.from_dicts import LazyBuilding
from tensordict_core.containers.lazy.indexing import LazyIndexing
from tensordict_core.containers.lazy.ragged import LazyRagged
from tensordict_core.containers.lazy.shape import LazyReshaping


def _has_meta_of(td: Any, other: Any) -> bool:
    """Return whether two nodes without names have the same batch size and device."""
    one, two = td._meta, other._meta
    return one.names is two.names is None and one.batch_size == two.batch_size and one.device == two.device


class LazyStackedTensorDict(LazyIndexing, LazyReshaping, LazyRagged, LazyElementwise, LazyBuilding):
    """A stack of tensordicts that are kept separate; entries are stacked when they are read.

    Args:
        *tensordicts: The elements.
        stack_dim: The batch dimension along which they are stacked.
        hook_out: A function that is called with each entry that is read; returns the value to return.
        hook_in: A function that is called with each value that is written; returns the value to store.
        batch_size: The batch size of the elements, for a stack without elements; otherwise that of the stack.
        device: The device to which the elements are moved; by default they stay on their devices.
        names: A name (or ``None``) for each batch dimension.
        stack_dim_name: The name of the stack dimension alone.
        strict_shape: Whether all elements must have the same batch size; otherwise sizes that differ are -1.

    Raises:
        RuntimeError: The batch sizes differ in number, or at all if ``strict_shape``; or ``batch_size`` is not that of
            the stack.
        TypeError: An element is not a tensordict.

    >>> td = LazyStackedTensorDict(TensorDict({"a": torch.zeros(3)}), TensorDict({"a": torch.ones(3)}))
    >>> td["a"].shape, td[1]["a"]
    (torch.Size([2, 3]), tensor([1., 1., 1.]))
    >>> ragged = LazyStackedTensorDict(TensorDict({"a": torch.zeros(1)}), TensorDict({"a": torch.ones(2)}))
    >>> ragged.get("a", as_list=True)
    [tensor([0.]), tensor([1., 1.])]
    """

    __slots__ = (
        "__dict__",
        "_annotations",
        "_holders",
        "_last_exit",
        "_locked",
        "_meta",
        "_stack_dim",
        "hook_in",
        "hook_out",
        "tensordicts",
    )

    _combines_others = True
    _is_lazy_stack = True
    _makes_entries = True

    tensordicts: list[Any]
    """The elements, in order."""
    hook_out: Callable[[Any], Any] | None
    """Called with each entry that is read; returns the value to hand out."""
    hook_in: Callable[[Any], Any] | None
    """Called with each value that is written; returns the value to store."""

    def __init__(
        self,
        *tensordicts: Any,
        stack_dim: int = 0,
        hook_out: Callable[[Any], Any] | None = None,
        hook_in: Callable[[Any], Any] | None = None,
        batch_size: Sequence[int] | int | None = None,
        device: torch.device | str | int | None = None,
        names: Sequence[str | None] | None = None,
        stack_dim_name: str | None = None,
        strict_shape: bool = False,
    ) -> None:
        tds = list(tensordicts)
        for i, td in enumerate(tds):
            check_element(td, f" at position {i}")
        target = as_device(device)
        if target is not None:
            tds = [td if td._meta.device == target else td.to(target) for td in tds]
        check_devices(tds)
        inner = tds[0]._meta.batch_size if tds else as_batch_size(batch_size)
        dims = len(inner) + 1
        if not -dims <= stack_dim < dims:
            raise errors.bad_dim(stack_dim, torch.Size((len(tds), *inner)))
        dim = stack_dim % dims
        if tds:
            meta = meta_of(tds, dim, stack_dim_name, strict_shape)
            if batch_size is not None and as_batch_size(batch_size) != meta.batch_size:
                raise errors.stack_batch_size(as_batch_size(batch_size), meta.batch_size)
        else:
            meta = Meta(torch.Size((*inner[:dim], 0, *inner[dim:])), target)
        self._start_stack(tds, dim, meta)
        self.hook_out = hook_out
        self.hook_in = hook_in
        if names is not None:
            self.names = names

    def _start_stack(self, tds: list[Any], dim: int, meta: Meta) -> None:
        self._start(meta)
        self.tensordicts = tds
        self._stack_dim = dim
        self.hook_out = None
        self.hook_in = None

    @classmethod
    def _make(cls, tds: Sequence[Any], dim: int, name: str | None = None) -> Self:
        """Return a stack of elements that are known to be valid."""
        self = object.__new__(cls)
        tds = list(tds)
        self._start_stack(tds, dim, meta_of(tds, dim, name))
        return self

    def _as_own(self, result: Any) -> Any:
        """Return a lazy stack in the class of this one, which may be a subclass; anything else as it is."""
        if type(self) is not containers.lazy is type(result):
            return self._make(result.tensordicts, result._stack_dim)
        return result

    def _restacked(self, tds: Iterable[Any], dim: int | None = None) -> Any:
        """Return a stack of other elements with this one's name and hooks."""
        tds = list(tds)
        dim = self._stack_dim if dim is None else dim
        result = self._as_own(type(tds[0])._lazy(tds, dim))
        stack, name = result._lazy_stack, self._stack_name
        if stack is not None:
            stack.hook_out, stack.hook_in = self.hook_out, self.hook_in
            if name is not None:
                stack._meta = meta_of(tds, dim, name)
        return result

    # the list --------------------------------------------------------------------------------------------------------

    @property
    def stack_dim(self) -> int:
        """The batch dimension along which the elements are stacked.

        >>> LazyStackedTensorDict(TensorDict({}, [2]), TensorDict({}, [2]), stack_dim=1).stack_dim
        1
        """
        return self._stack_dim

    @property
    def _stack_name(self) -> str | None:
        names = self._meta.names
        return None if names is None else names[self._stack_dim]

    def append(self, tensordict: Any) -> None:
        """Add an element at the end.

        Args:
            tensordict: A tensordict of the elements' batch size.

        Raises:
            RuntimeError: The stack is locked.
            ValueError: The batch size differs.
            TypeError: It is not a tensordict.

        >>> td = LazyStackedTensorDict(TensorDict({"a": 1}))
        >>> td.append(TensorDict({"a": 2}))
        >>> td["a"]
        tensor([1, 2])
        """
        self.insert(len(self.tensordicts), tensordict)

    def extend(self, tensordict: Any) -> None:
        """Add several elements at the end.

        Args:
            tensordict: A list of tensordicts, or a tensordict that is unbound along the stack dimension.

        Raises:
            RuntimeError: The stack is locked.
            ValueError: A batch size differs.

        >>> td = LazyStackedTensorDict(TensorDict({"a": 1}))
        >>> td.extend([TensorDict({"a": 2}), TensorDict({"a": 3})])
        >>> td["a"]
        tensor([1, 2, 3])
        """
        items = tensordict.unbind(self._stack_dim) if isinstance(tensordict, Node) else tensordict
        self._insert(len(self.tensordicts), items)

    def insert(self, index: int, tensordict: Any) -> None:
        """Add an element before position ``index``.

        Args:
            index: The position, as in ``list.insert``.
            tensordict: A tensordict of the elements' batch size.

        Raises:
            RuntimeError: The stack is locked.
            ValueError: The batch size differs.
            TypeError: It is not a tensordict.

        >>> td = LazyStackedTensorDict(TensorDict({"a": 1}))
        >>> td.insert(0, TensorDict({"a": 2}))
        >>> td["a"]
        tensor([2, 1])
        """
        self._insert(index, [tensordict])

    def _insert(self, index: int, items: Iterable[Any]) -> None:
        new = [self._as_element(item) for item in items]
        if not new:
            return
        tds, meta, dim = self.tensordicts, self._meta, self._stack_dim
        first = tds[0] if tds else None
        tds[index:index] = new
        # what was added fits the rest, so a loop that adds elements looks at each one once
        if first is not None and (tds[0] is first or _has_meta_of(tds[0], first)):
            size = meta.batch_size
            self._meta = Meta(torch.Size((*size[:dim], len(tds), *size[dim + 1 :])), meta.device, meta.names)
        else:
            self._meta = meta_of(tds, dim, self._stack_name)

    def _as_element(self, td: Any) -> Any:
        """Return a tensordict as this stack takes one more."""
        check_element(td)
        if self.is_locked:
            raise errors.locked("an element would be added")
        if self.tensordicts and _has_meta_of(td, self.tensordicts[0]):
            return td
        own = self._meta.batch_size
        inner = own[: self._stack_dim] + own[self._stack_dim + 1 :]
        new = td._meta.batch_size
        if len(new) != len(inner) or any(n != m and m != -1 for n, m in zip(new, inner, strict=True)):
            raise ValueError(
                f"Batch sizes in tensordicts differs: the elements of this lazy stack have {list(inner)}, and the new "
                f"one {list(new)}; expand or index it to that"
            )
        own_names = self._meta.names
        names = None if own_names is None else own_names[: self._stack_dim] + own_names[self._stack_dim + 1 :]
        if self.tensordicts and (td._meta.names or (None,) * len(new)) != (names or (None,) * len(new)):
            raise errors.names_differ(names, td._meta.names, len(new))
        device = self._meta.device
        if self.tensordicts and td._meta.device != device:
            raise errors.device_of_element(device, td._meta.device)
        return td

    # entries ---------------------------------------------------------------------------------------------------------

    def _keys(self) -> Any:
        tds = self.tensordicts
        if not tds:
            return ()
        first = tds[0]._keys()
        for td in tds[1:]:
            if td._keys() != first:
                tables = [set(td._keys()) for td in tds[1:]]
                return [key for key in first if all(key in table for table in tables)]
        return first

    def valid_keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: IsLeaf | None = None,
        *,
        sort: bool = False,
    ) -> Any:
        """Return the keys that all elements have, as ``keys``.

        >>> td = LazyStackedTensorDict(TensorDict({"a": 1, "b": 2}), TensorDict({"a": 1}))
        >>> list(td.valid_keys())
        ['a']
        """
        return self.keys(include_nested, leaves_only, is_leaf, sort=sort)

    def _column(self, key: str) -> list[Any] | None:
        column = []
        for td in self.tensordicts:
            entry = td._get(key)
            if entry is None:
                return None
            column.append(entry)
        return column or None

    def _get(self, key: str) -> Any:
        column = self._column(key)
        if column is None:
            return None
        if -1 in self._meta.batch_size and all(is_non_tensor(entry) for entry in column):
            value = containers.non_tensor_stack._ragged(column, self._values(key), self._meta)
        else:
            value = combined(key, column, self._stack_dim)
        if isinstance(value, Node):
            if (stack := value._lazy_stack) is not None:
                stack.hook_out, stack.hook_in = self.hook_out, self.hook_in
            if self._locked:
                value._set_locked(True)
            if self._meta.names is not None:
                value._set_meta(self._named_below(value._meta))
            return value
        return value if self.hook_out is None else self.hook_out(value)

    def _named_below(self, meta: Meta) -> Meta:
        """Return the metadata of a nested stack with the name of this stack dimension, unknown to its elements."""
        name = self._meta.names[self._stack_dim] if self._meta.names is not None else None
        dims = len(meta.batch_size)
        if name is None or dims <= self._stack_dim:
            return meta
        names = list(meta.names or (None,) * dims)
        names[self._stack_dim] = name
        return meta.named(tuple(names))

    def _peek(self, key: str) -> Any:
        tensor, entry = None, None
        for td in self.tensordicts:
            entry = td._peek(key)
            if entry is None:
                return None
            if tensor is None and is_leaf_tensor(entry):
                tensor = entry
        if tensor is not None or entry is None:
            return tensor
        try:
            return self._get(key)
        except RuntimeError:  # nodes that do not stack: any of them represents the entry
            return entry

    def _peek_items(self) -> Iterable[tuple[str, Any]]:
        return [(key, self._peek(key)) for key in self._keys()]

    def _set(self, key: str, value: Any) -> None:
        self._refuse_locked(f"set({key!r})")
        for td, part in zip(self.tensordicts, self._parts_of_entry(value), strict=True):
            device = td._meta.device
            if device is not None and is_leaf_tensor(part) and part.device != device:
                part = part.to(device)
            td._set(key, part)

    def _parts_of_entry(self, value: Any) -> Sequence[Any]:
        """Return the part of a valid entry that each element stores."""
        if self.hook_in is not None:
            value = self.hook_in(value)
        parts: Sequence[Any] = value.unbind(self._stack_dim) if is_leaf_tensor(value) else self._parts_of_node(value)
        return parts

    def _del(self, key: str) -> None:
        self._refuse_locked(f"del_({key!r})")
        for td in self.tensordicts:
            if td._peek(key) is not None:
                td._del(key)

    def _holders_of(self, path: tuple[str, ...]) -> list[tuple[Any, tuple[str, ...]]]:
        if len(path) > 1 and self._peek(path[0]) is None:
            return [(td, path) for td in self.tensordicts if td._peek(path[0]) is not None]
        return super()._holders_of(path)

    def _has_anywhere(self, key: str) -> bool:
        return any(td._has_anywhere(key) for td in self.tensordicts)

    # leaves ----------------------------------------------------------------------------------------------------------

    def _collect_aligned(
        self, other: Any, out: list[Any], missing: Any, is_leaf: IsLeaf | None, prefix: tuple[str, ...]
    ) -> None:
        tds = self.tensordicts
        if not isinstance(other, Node):
            others: Sequence[Any] = [None] * len(tds)
        elif len(other._meta.batch_size) <= self._stack_dim:
            for i, td in enumerate(tds):
                found: list[Any] = []
                td._collect_aligned(other, found, missing, is_leaf, prefix)
                leaves = td._leaves(is_leaf)
                out += [broadcast_part(*pair, self._stack_dim, i, len(tds)) for pair in zip(leaves, found, strict=True)]
            return
        else:
            others = other._unbind(self._stack_dim)
        if len(others) != len(tds):
            raise RuntimeError(
                f"the operands have {len(tds)} and {len(others)} elements along the stack dim {self._stack_dim}; "
                "index or expand one of them"
            )
        for td, part in zip(tds, others, strict=True):
            td._collect_aligned(part, out, missing, is_leaf, prefix)

    def _line_up(self, operand: Tensor, dims: int, out: list[Tensor]) -> None:
        # the operand's last dimension matches the last of the leading `dims` batch dimensions
        at = self._stack_dim - (dims - operand.ndim)
        if self._stack_dim >= dims or at < 0:
            dims -= self._stack_dim < dims
            for td in self.tensordicts:
                td._line_up(operand, dims, out)
            return
        n = len(self.tensordicts)
        parts = operand.expand(*operand.shape[:at], n, *operand.shape[at + 1 :]).unbind(at)
        for td, part in zip(self.tensordicts, parts, strict=True):
            td._line_up(part, dims - 1, out)

    def _rebuild(self, leaves: Iterator[Any], how: How) -> Any:
        tds = self.tensordicts
        if not tds:
            return self._clone(False)
        inner = how
        if how.size is not None and how.size(self._meta.batch_size) != self._meta.batch_size:
            raise RuntimeError(
                "a lazy stack cannot take results of another batch size, because it keeps its elements apart; "
                "combine it first with densify() or to_tensordict()"
            )
        if how.names is not None or how.size is not None:
            inner = How(
                device=how.device,
                lock=how.lock,
                is_leaf=how.is_leaf,
                prune=how.prune,
                prune_empty=how.prune_empty,
                check=how.check,
            )
        results = [td._rebuild(leaves, inner) for td in tds]
        if how.prune and all(result is None for result in results):
            return None
        device = {} if how.device is KEEP else {"device": how.device}
        results = [td.empty(**device) if result is None else result for td, result in zip(tds, results, strict=True)]
        result = self._restacked(results)
        if how.names is not None:
            result._put_names(how.names(self._meta.names))
        if how.lock and self._locked:
            result.lock_()
        return result

    # combined forms --------------------------------------------------------------------------------------------------

    def _solid(self, nested: bool = True) -> Any:
        if not self.tensordicts:
            return self._expanded_first()
        entries = {}
        for key in self._keys():
            value = self._get(key)
            entries[key] = value if is_leaf_tensor(value) or not nested else value._solid()
        return self._new(entries, self._meta)

    def _expanded_first(self) -> Any:
        """Return a dense tensordict of this batch size with keys and shapes of the first element, without a copy."""
        size = self._meta.batch_size
        if not self.tensordicts:
            return self._new({}, self._meta)
        first = self.tensordicts[0]
        own = first._meta.batch_size
        size = torch.Size((*own[: self._stack_dim], size[self._stack_dim], *own[self._stack_dim :]))
        one = first.select(*self._keys())._reshape(Unsqueeze(own, self._stack_dim)).expand(size)
        if self._stack_name is not None:
            one._put_names(self._meta.names)
        return one

    # life ------------------------------------------------------------------------------------------------------------

    def _clone(self, recurse: bool) -> Self:
        result = object.__new__(type(self))
        result._start_stack([td._clone(recurse) for td in self.tensordicts], self._stack_dim, self._meta)
        result.hook_out, result.hook_in = self.hook_out, self.hook_in
        return result

    def _nodes(self) -> Iterable[TensorCollection]:
        return self.tensordicts


containers.lazy = LazyStackedTensorDict
