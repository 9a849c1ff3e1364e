"""Operations that a lazy stack maps over its elements: keys, metadata, updates.

The result is a lazy stack of the results of the elements; no entries are stacked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.entry import to_entry
from tensordict_core.base.meta import as_batch_size, names_or_none
from tensordict_core.base.node import Node, has_entries, is_leaf_tensor
from tensordict_core.base.options import current as options
from tensordict_core.base.registry.types import containers
from tensordict_core.base.shape_op import normal_dim
from tensordict_core.base.write_plan import UpdatePlan
from tensordict_core.containers.collection import TensorDictBase
from tensordict_core.ops.io.compact import mixed
from tensordict_core.ops.io.format import describe, in_braces, indented

_DETAILS = ("show_grad", "show_is_contiguous", "show_is_view", "show_storage_size", "plain")
"""The print options whose values only the stacked tensor has."""


def _list_shape(item: Any) -> tuple[int, ...] | None:
    """Return the shape of the tensor that a list of lists of numbers makes, ``None`` if it makes none."""
    if isinstance(item, int | float | complex):
        return ()
    inner = {_list_shape(part) for part in item} if isinstance(item, list) and item else {None}
    shape = inner.pop()
    return None if inner or shape is None else (len(item), *shape)


def _each(name: str, changes: bool = False) -> Any:
    """Return the method ``name``, mapped over the elements.

    Args:
        name: The method.
        changes: Whether it changes keys, so no element may be locked.
    """
    general = getattr(TensorDictBase, name)

    @functools.wraps(general)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        tds = self.tensordicts
        if not tds:
            return general(self, *args, **kwargs)
        if changes:
            self._refuse_locked("keys would change")
            return self._joined(_once(lambda td: getattr(td, name)(*args, **kwargs), tds))
        return self._joined([getattr(td, name)(*args, **kwargs) for td in tds])

    return method


def _once(change: Callable[..., Any], tds: Sequence[Any], *columns: Sequence[Any]) -> list[Any]:
    """Map a function that changes its argument over elements, of which several may be one tensordict."""
    results: dict[int, Any] = {}
    for td, *arguments in zip(tds, *columns, strict=True):
        if id(td) not in results:
            results[id(td)] = change(td, *arguments)
    return [results[id(td)] for td in tds]


class LazyElementwise(TensorDictBase, abstract=True):
    """Operations on keys and metadata, element by element."""

    __slots__ = ()

    exclude = _each("exclude")
    filter_empty_ = _each("filter_empty_")
    filter_non_tensor_data = _each("filter_non_tensor_data")
    _flattened = _each("_flattened")
    _flatten_ = _each("_flatten_", changes=True)
    _unflattened = _each("_unflattened")
    _rename = _each("_rename", changes=True)
    _move = _each("_move", changes=True)
    _collect = _each("_collect")
    _collect_places = _each("_collect_places")
    rename_keys = _each("rename_keys")
    create_nested = _each("create_nested", changes=True)

    def _unflatten_(self: Any, separator: str) -> Any:
        if any(separator in key for td in self.tensordicts for key in td._keys()):
            self._refuse_locked("keys would change")
        return self._joined(_once(lambda td: td._unflatten_(separator), self.tensordicts)) if self.tensordicts else self

    def _joined(self: Any, results: Sequence[Any], dim: int | None = None) -> Any:
        """Return the results of all elements as one.

        Args:
            results: A result of each element: a tensordict, a tuple of them, or ``None``.
            dim: The stack dimension of the result; that of this stack by default.
        """
        first = results[0]
        if first is None:
            return None
        if isinstance(first, tuple):
            return tuple(self._joined(column, dim) for column in zip(*results, strict=True))
        if all(result is td for result, td in zip(results, self.tensordicts, strict=True)):
            return self
        return self._restacked(results, dim)

    def __contains__(self: Any, key: Any) -> bool:
        """Return whether all elements have an entry under a key (also a nested one), or a tensordict is an element."""
        if isinstance(key, Node):
            return any(td is key for td in self.tensordicts)
        if not isinstance(key, str | tuple) or key == ():
            raise errors.bad_key(key)
        tds = self.tensordicts
        return bool(tds) and all(key in td for td in tds)

    def select(
        self: Any,
        *keys: Any,
        inplace: bool = False,
        strict: bool = True,
        as_tensordict: bool = False,
    ) -> Any:
        """Return a lazy stack of the elements with the entries under some keys."""
        if len(keys) == 1 and isinstance(keys[0], list):
            keys = tuple(keys[0])
        if strict:
            for key in keys:
                if key not in self:
                    self._peek_entry(key)  # raises the error
        results = [td.select(*keys, inplace=inplace, strict=strict) for td in self.tensordicts]
        return self._joined(results) if results else self

    def split_keys(self: Any, *key_sets: Any, inplace: bool = False, default: Any = ..., **kwargs: Any) -> Any:
        """Return one lazy stack per set of keys, and one of the remaining entries."""
        tds = self.tensordicts
        if not tds:
            return super().split_keys(*key_sets, inplace=inplace, default=default, **kwargs)
        key_sets = tuple(self._as_key_sets(key_sets))  # for all elements alike
        defaults = self._parts_of_default(default, (key for key_set in key_sets for key in key_set))
        options = {"inplace": inplace, **kwargs}
        return self._joined(_once(lambda td, part: td.split_keys(*key_sets, default=part, **options), tds, defaults))

    def _parts_of_default(self: Any, default: Any, keys: Iterable[Any]) -> Sequence[Any]:
        """Return the default value of each element for missing entries; a tensor has the batch size of the stack."""
        missing = [] if default is ... else [key for key in keys if key not in self]
        entry = to_entry(self._meta, missing[0], default) if missing else None
        if isinstance(entry, Tensor):
            return cast(Sequence[Any], entry.unbind(self._stack_dim))
        return [default] * len(self.tensordicts)

    def separates(self: Any, *keys: Any, default: Any = ..., strict: bool = True, filter_empty: bool = True) -> Any:
        """Remove the entries under some keys from the elements and return them in a lazy stack."""
        tds = self.tensordicts
        options: Any = {"strict": strict, "filter_empty": filter_empty}
        if not tds:
            return super().separates(*keys, default=default, **options)
        if strict and default is ...:
            for key in keys:
                if key not in self:
                    self._peek_entry(key)  # raises the error
        defaults = self._parts_of_default(default, keys)
        return self._restacked(_once(lambda td, part: td.separates(*keys, default=part, **options), tds, defaults))

    def repeat_interleave(
        self: Any, repeats: Any, dim: int | None = None, *, output_size: int | None = None, inplace: bool = False
    ) -> Any:
        """Return a lazy stack with each slice along a batch dimension repeated; by default of the flattened batch."""
        at = self.stack_dim if dim is None else normal_dim(dim, self._meta.batch_size)
        if at != self.stack_dim and self._is_ragged():
            inner = at - (at > self.stack_dim)
            parts = [td.repeat_interleave(repeats, inner, output_size=output_size) for td in self.tensordicts]
            result = self._restacked(parts)
            return self._in_place(result.lock_() if self._locked else result, inplace)
        return super().repeat_interleave(repeats, dim, output_size=output_size, inplace=inplace)

    def softmax(self: Any, dim: int, dtype: torch.dtype | None = None) -> Any:
        """Return the softmax of every leaf along a batch dimension; elements that are lazy stacks stay so."""
        tds, at = self.tensordicts, normal_dim(dim, self._meta.batch_size)
        if tds and at != self.stack_dim:
            inner = at - (at > self.stack_dim)
            return self._restacked([td.softmax(inner, dtype) for td in tds])
        if not (tds and all(td._is_lazy_stack for td in tds)):
            return super().softmax(dim, dtype)
        if len({(td.stack_dim, len(td.tensordicts)) for td in tds}) > 1:
            return super().softmax(dim, dtype)
        outer = at - (tds[0].stack_dim < at)
        columns = [type(column[0])._lazy(column, outer) for column in zip(*(td.tensordicts for td in tds), strict=True)]
        rows = zip(*(column.softmax(outer, dtype)._unbind(outer) for column in columns), strict=True)
        return self._restacked([td._restacked(row) for td, row in zip(tds, rows, strict=True)])

    def _in_slices(self: Any, result: Any, dim: int) -> Any:
        """Return a result that was computed densely, as a lazy stack of its slices along a dimension."""
        if result._is_lazy_stack or not self.tensordicts or not result._meta.batch_size[dim]:
            return result
        parts = result._unbind(dim)
        stack = self._as_own(type(parts[0])._lazy(parts, dim))
        if result._meta.names is not None:
            stack._put_names(result._meta.names)
        return stack.lock_() if result._locked else stack

    def empty(self: Any, recurse: bool = False, *, batch_size: Any = None, names: Any = None, **kwargs: Any) -> Any:
        """Return a lazy stack of empty elements; a plain tensordict if the batch size does not start with that of this.

        The arguments are those of `TensorDict.empty`.
        """
        own, dim = self._meta.batch_size, self.stack_dim
        size = own if batch_size is None else as_batch_size(batch_size)
        if not self.tensordicts or size[: len(own)] != own:
            return super().empty(recurse, batch_size=batch_size, names=names, **kwargs)
        if size != own:
            kwargs["batch_size"] = size[:dim] + size[dim + 1 :]
        stack = self._restacked([td.empty(recurse, **kwargs) for td in self.tensordicts])
        if names is not None:
            stack.names = names
        return stack

    def is_contiguous(self: Any) -> bool:
        """Return ``False``, because the elements have separate memory."""
        return False

    def set(self: Any, key: Any, item: Any, inplace: bool | None = False, **kwargs: Any) -> Any:
        """Store an entry; a list of tensors that cannot be stacked is stored one by one in the elements."""
        if isinstance(item, list) and self._is_one_for_each(item):
            for td, part in zip(self.tensordicts, item, strict=True):
                td.set(key, part, inplace, **kwargs)
            return self
        if inplace and type(key) is str and self._is_tensor_of_some(key):
            return self.update({key: item}, inplace=True, **kwargs)
        return super().set(key, item, inplace, **kwargs)

    _store = set

    def _entries_of_some(self: Any, key: str) -> list[Any]:
        """Return the entries of the elements, or of their elements, that have one; none where all have it."""
        found: list[Any] = []
        for td in self.tensordicts if self._peek(key) is None else ():
            entry = td._peek(key)
            if entry is not None:
                found.append(entry)
            elif (stack := td._lazy_stack) is not None:
                found += stack._entries_of_some(key)
        return found

    def _is_tensor_of_some(self: Any, key: str) -> bool:
        """Return whether only some elements have an entry, and it is a tensor in all of them."""
        found = self._entries_of_some(key)
        return bool(found) and all(map(is_leaf_tensor, found))

    def _is_one_for_each(self: Any, items: list[Any]) -> bool:
        """Return whether a list has a tensor or a list of numbers for each element, and they differ in shape."""
        if self.stack_dim or len(items) != len(self.tensordicts) or not options.list_to_stack:
            return False
        lists = all(isinstance(item, list) for item in items)
        if not lists and not all(isinstance(item, Tensor) for item in items):
            return False
        shapes = {_list_shape(item) if lists else tuple(item.shape) for item in items}
        return None not in shapes and len(shapes) > 1

    # updates ---------------------------------------------------------------------------------------------------------

    def _parts(self: Any, source: Any) -> Sequence[Any] | None:
        """Return the parts of an operand for each element; ``None`` if it is not a tensordict of this length."""
        stack: Any = source if has_entries(source) else None
        if stack is None or len(stack._meta.batch_size) <= self.stack_dim:
            return None
        parts: Sequence[Any] = stack._unbind(self.stack_dim)
        return parts if len(parts) == len(self.tensordicts) else None

    def _plan_update(self: Any, source: Any, plan: UpdatePlan, prefix: tuple[str, ...]) -> None:
        parts = self._parts(source)
        if parts is None:
            if isinstance(source, dict):
                source = self._plan_partial_nodes(source, plan, prefix)
            super()._plan_update(source, plan, prefix)
            return
        if self._locked and not plan.inplace:
            raise errors.locked("update()")
        for td, part in zip(self.tensordicts, parts, strict=True):
            td._plan_source(part, plan, prefix)

    def _plan_partial_nodes(self: Any, source: dict[Any, Any], plan: UpdatePlan, prefix: tuple[str, ...]) -> Any:
        """Plan the updates of nested tensordicts that only some elements have, which keep them; return the others."""
        rest, tds = {}, self.tensordicts
        for key, value in self._gathered(source.items()):
            if not isinstance(value, dict) or not self._entries_of_some(key):
                rest[key] = value
                continue
            if self._locked:
                raise errors.locked("update()")
            nested = containers.dense(value, batch_size=self._meta.batch_size, device=self._meta.device)
            for td, part in zip(tds, nested.unbind(self._stack_dim), strict=True):
                td._plan_update({key: part}, plan, prefix)
        return rest

    def _plan_set(self: Any, key: str, item: Any, plan: UpdatePlan, prefix: tuple[str, ...]) -> Any:
        value = super()._plan_set(key, item, plan, prefix)
        if value is None:
            return None
        self._refuse_locked(f"set({key!r})")
        if not (plan.inplace and is_leaf_tensor(value) and self._is_tensor_of_some(key)):
            return value
        for td, part in zip(self.tensordicts, self._parts_of_entry(value), strict=True):
            entry = td._plan_set(key, part, plan, prefix)  # None for elements that have the entry, which is written
            if entry is not None:
                plan.then(functools.partial(td._set, key, entry))
        return None

    # locks -----------------------------------------------------------------------------------------------------------

    def _are_elements_locked(self: Any) -> bool:
        tds = self.tensordicts
        return bool(tds) and all(td.is_locked for td in tds)

    def _refuse_locked(self: Any, what: str) -> None:
        """Refuse a change of entries where an element is locked, though this stack is not."""
        dense = containers.dense
        for td in self.tensordicts:
            if td._locked or (type(td) is not dense and td.is_locked):
                raise errors.locked(what)

    # metadata --------------------------------------------------------------------------------------------------------

    def _inner(self: Any, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return values for the batch dimensions, without that of the stack dimension."""
        return (*values[: self.stack_dim], *values[self.stack_dim + 1 :])

    def _change_batch_size(self: Any, size: torch.Size) -> None:
        old = self._meta
        if size == old.batch_size:
            return
        dim = self.stack_dim
        if len(size) <= dim or size[dim] != len(self.tensordicts):
            raise errors.StackDimError(
                f"Modifying the batch size of a lazy representation of a tensordict to {list(size)} is not permitted: "
                f"that does not keep the stack dim {dim} of size {len(self.tensordicts)}; make it dense first with "
                "to_tensordict()"
            )
        for td in self.tensordicts:
            td._change_batch_size(torch.Size(self._inner(size)))
        self._set_meta(old.fitted(size))

    def _put_names(self: Any, names: tuple[str | None, ...] | None) -> None:
        self._set_meta(self._meta.named(names))
        inner = None if names is None else names_or_none(self._inner(names))
        for td in self.tensordicts:
            td._put_names(inner)

    def auto_batch_size_(
        self: Any,
        batch_dims: int | None = None,
        keep_compliant_size: bool = False,
    ) -> Any:
        """Set the batch size to the longest that the entries of each element share, of one length for all elements.

        The stack dimension is kept, and sizes that differ between elements are -1.
        """
        if keep_compliant_size and batch_dims is not None and self.batch_dims == batch_dims:
            return self
        name = self._stack_name
        for td in self.tensordicts:
            td.auto_batch_size_(None if batch_dims is None else max(batch_dims - 1, self.stack_dim))
        if self.tensordicts:
            shortest = sorted([td._meta.batch_size for td in self.tensordicts], key=len)[0]
            for td in self.tensordicts:
                td._change_batch_size(td._meta.batch_size[: len(shortest)])
            if len(shortest) < self.stack_dim:
                raise RuntimeError(
                    f"an element has the batch size {list(shortest)} only, which does not reach the stack dim "
                    f"{self.stack_dim}; make the stack dense first with to_tensordict()"
                )
            self._set_meta(self._make(self.tensordicts, self.stack_dim, name)._meta)
        return self

    @property
    def depth(self: Any) -> int:
        """The number of levels of nested tensordicts below this one."""
        depths: list[int] = [td.depth for td in self.tensordicts]
        return max([0, *depths])

    # printing --------------------------------------------------------------------------------------------------------

    def _describe(self: Any, key: str) -> str:
        column = [td._peek(key) for td in self.tensordicts]
        if kinds := mixed(column):
            return kinds
        first = column[0]
        if not is_leaf_tensor(first):
            try:
                return repr(self._get(key))
            except RuntimeError:  # nodes of several batch sizes, which no single entry represents
                return f"mixed({type(first).__name__})"
        try:
            shape: Any = self._shape_of(key)
        except RuntimeError:  # not even their numbers of dimensions agree
            shape = "ragged"
        dtype = first.dtype if len({entry.dtype for entry in column}) == 1 else "mixed"
        stacks = dtype != "mixed" and shape != "ragged" and -1 not in shape
        if stacks and any(options.printing[detail] for detail in _DETAILS):
            return describe(self._get(key))
        return describe(first, shape=shape, dtype=dtype, is_shared=self.is_shared())

    def _exclusive_keys(self: Any) -> dict[int, list[str]]:
        common = set(self._keys())
        own = {i: sorted(set(td._keys()) - common) for i, td in enumerate(self.tensordicts)}
        return {i: keys for i, keys in own.items() if keys}

    def _repr_meta(self: Any) -> list[str]:
        exclusive = []
        for i, keys in self._exclusive_keys().items():
            described = self.tensordicts[i]._describe
            exclusive.append(f"{i} ->" + ",".join(indented(f"\n{key}: {described(key)}") for key in keys))
        return [f"exclusive_fields={in_braces(exclusive)}", *super()._repr_meta(), f"stack_dim={self.stack_dim}"]
