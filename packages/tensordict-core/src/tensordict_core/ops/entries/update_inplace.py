"""In-place writes: ``update_``, ``update_at_`` and the algorithm behind all writes into existing entries.

``_plan_write`` walks a source of values and the target tree together and collects the writes in a `WritePlan`, which
checks all of them before it writes the first. An index restricts a write to a part of the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.entry import as_tensor, non_tensor_entry, stacked_nodes, to_entry
from tensordict_core.base.index import Index
from tensordict_core.base.keys import NestedKey, unravel_key, unravel_key_to_tuple
from tensordict_core.base.meta import Meta, starts_with
from tensordict_core.base.node import Node, has_entries, is_leaf_tensor
from tensordict_core.base.registry.types import containers
from tensordict_core.base.write_plan import WritePlan, broadcast_to, broadcasts, expand_to


def pairs(source: Any) -> Iterable[tuple[Any, Any]]:
    """Return the keys and values of a tensordict, a dictionary, or another mapping.

    Raises:
        TypeError: The source has no items.
    """
    if isinstance(source, Node):
        return source._items()
    try:
        return source.items() if type(source) is dict else list(source.items())
    except AttributeError:
        raise errors.not_a_source(source) from None


def as_paths(keys: Iterable[NestedKey] | None) -> list[tuple[str, ...]] | None:
    """Return keys as tuples; ``None`` means all keys."""
    if keys is None:
        return None
    if isinstance(keys, str):
        return [(keys,)]
    if not isinstance(keys, Iterable):
        raise TypeError(f"keys_to_update is a sequence of keys, got {keys!r}; wrap a single key in a list")
    paths = [unravel_key_to_tuple(key) for key in keys]
    if () in paths:
        raise errors.empty_key()
    return paths


def restricted(source: Any, chosen: list[tuple[str, ...]] | None) -> Any:
    """Return the part of a source of values under some keys; keys that it lacks are ignored.

    >>> restricted({"a": 1, "b": {"c": 2, "d": 3}}, [("b", "c")])
    {'b': {'c': 2}}
    """
    if chosen is None:
        return source
    if isinstance(source, Node):
        return source.select(*chosen, strict=False)
    tree: dict[str, Any] = {}
    for path in sorted(chosen, key=len, reverse=True):  # so that a node replaces the keys below it
        level = tree
        for name in path[:-1]:
            level = level.setdefault(name, {})
        level[path[-1]] = None
    return _restricted(source, tree)


def _restricted(source: Any, tree: dict[str, Any]) -> Any:
    """Return the part of a source under the keys of a tree, in which ``None`` means the whole entry."""
    if isinstance(source, Node):
        return source.select(*_paths(tree), strict=False)
    out = {}
    for key, value in pairs(source):
        below: Any = tree
        for name in unravel_key_to_tuple(key):
            below = below.get(name, {})
            if below is None:
                break
        if below is None:
            out[key] = value
        elif below and isinstance(value, dict | Node):
            out[key] = _restricted(value, below)
    return out


def _paths(tree: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the path of each whole entry of a tree of `_restricted`."""
    for name, below in tree.items():
        yield from ((name,),) if below is None else ((name, *path) for path in _paths(below))


def over_rows(value: Any, index: Index, ndim: int) -> Any:
    """Return a tensor of batch shape with trailing dimensions of size 1, to broadcast to a leaf; or another value."""
    if is_leaf_tensor(value) and 0 < value.ndim <= len(index.size):
        return torch.reshape(value, value.shape + (1,) * (ndim - index.dims))
    return value


class InPlaceUpdating(Node):
    """``update_``, ``update_at_``, ``copy_``, ``copy_at_``, and the plan of every in-place write."""

    __slots__ = ()

    def update_(
        self,
        input_dict_or_td: Any = None,
        clone: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[NestedKey] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Write the values of another tensordict or dictionary into the existing entries.

        Locked tensordicts allow it. Keys and shapes are checked before anything is written, so a call that raises
        changes nothing.

        Args:
            input_dict_or_td: The tensordict or dictionary with the values, which broadcast to their entries.
            clone: Has no effect, because values are always copied.
            non_blocking: Whether copies between devices may be asynchronous.
            keys_to_update: The keys to update; by default all.
            **kwargs: Values by name; they are written after those of ``input_dict_or_td``, which may be omitted.

        Raises:
            KeyError: The source has a tensor or a nested tensordict that this tensordict lacks. Non-tensor values that
                it lacks are left out, unless the source has nothing else.
            RuntimeError: Shapes differ, or an entry is a leaf of autograd that requires gradients.

        >>> td = TensorDict({"a": torch.zeros(2)}, lock=True)
        >>> td.update_({"a": torch.ones(2)})["a"]
        tensor([1., 1.])
        >>> td.update_(a=torch.zeros(2))["a"]
        tensor([0., 0.])
        """
        source = kwargs if input_dict_or_td is None or input_dict_or_td is self else input_dict_or_td
        chosen = as_paths(keys_to_update)
        if chosen is not None:
            source = restricted(source, chosen)
        elif isinstance(source, Node) and not starts_with(self._meta.batch_size, source._meta.batch_size):
            source = source.expand(self._meta.batch_size)
        plan = WritePlan(fills=True, root=self)
        try:
            self._plan_write(None, source, plan, ())
        except KeyError:
            if not isinstance(source, Node) or (kept := self._without_new_values(source)) is None:
                raise
            plan = WritePlan(fills=True, root=self)
            self._plan_write(None, kept, plan, ())
        if kwargs and source is not kwargs:
            self._plan_write(None, restricted(kwargs, chosen), plan, ())
        plan.run(non_blocking)
        return self

    def _without_new_values(self, source: Any) -> Any:
        """Return a source without non-tensor values that this tensordict lacks; ``None`` if it has none, or no other.

        Tensors in shared memory are written so by workers, which send the values by other ways.
        """
        items = list(source._peek_items())
        new = [k for k, v in items if isinstance(v, Node) and v._is_non_tensor and self._peek(k) is None]
        return source.exclude(*new) if 0 < len(new) < len(items) else None

    def _plan_write(self, index: Index | None, source: Any, plan: WritePlan, prefix: tuple[str, ...]) -> None:
        """Plan to write every entry of ``source`` into the entry of the same key, or into a part of it.

        Containers that hold other containers override it and pass on the parts of ``source``.

        Args:
            index: The part of the batch that is written; ``None`` for the whole batch. With an index, ``source`` is a
                tensordict or dictionary of its batch size, or a tensor or number for every leaf.
            source: The values.
            plan: The plan that collects the writes.
            prefix: The path of this node, for errors.

        Raises:
            KeyError: There is no such entry, or a value is a tensor and its entry a node, or the reverse.
            RuntimeError: A shape does not fit, or an entry would be added to a locked node.
        """
        if index is not None:
            if isinstance(source, dict):
                source = self._as_source(source, index.size)
            if not isinstance(source, Node):
                self._plan_fill(index, source, plan, prefix)
                return
            if source._is_opaque:  # has no entries, so nothing would be written
                raise errors.bad_indexed_value(source)
            source = self._fitted(index, source, plan)
        for key, value in pairs(source):
            if type(key) is str:
                self._plan_entry(key, index, value, plan, prefix)
            else:
                path = unravel_key_to_tuple(key)
                parent, name = self._find_parent(path)
                parent._plan_entry(name, index, value, plan, prefix + path[:-1])

    def _as_source(self, source: Any, size: torch.Size) -> Any:
        """Return the values for a part as a tensordict; a dictionary or a number for a non-tensor entry is a value."""
        values = self._with_values(source, size) if isinstance(source, dict) else source
        return containers.dense(values, batch_size=size, device=self._meta.device)

    def _with_values(self, source: dict[Any, Any], size: torch.Size) -> dict[Any, Any]:
        """Return a dictionary in which the dictionaries and numbers for non-tensor entries are non-tensor data."""
        out = dict(source)
        for key, value in source.items():
            if not isinstance(value, (dict, int, float, complex)):
                continue
            entry: Any = self
            for name in unravel_key_to_tuple(key):
                entry = entry._peek(name) if has_entries(entry) else None
            if isinstance(value, dict) and has_entries(entry):
                out[key] = entry._with_values(value, size)
            elif isinstance(entry, Node) and entry._is_non_tensor:
                out[key] = non_tensor_entry(Meta(size), value)
        return out

    def _check_fits(self, index: Index, source: Node) -> torch.Size:
        """Return the batch size that the batch size of a source is broadcast to."""
        got = source._meta.batch_size
        if got == index.size:
            return got
        # a nested node's batch size may be longer than the root's, and so may that of the value written there
        full = index.size + self._meta.batch_size[index.dims :]
        size = full[: max(len(got), len(index.size))]
        if not broadcasts(got, size):
            size = full
        if not broadcasts(got, size):
            raise RuntimeError(
                f"indexed destination TensorDict batch size is {torch.Size(index.size)}, which differs from the source "
                f"batch size {torch.Size(got)}; expand or index the source to that batch size"
            )
        return size

    def _fitted(self, index: Index, source: Any, plan: WritePlan) -> Any:
        """Return a source that fits a part; one with new entries, which no others tell the shape of, is expanded."""
        size, got = self._check_fits(index, source), source._meta.batch_size
        if got == size or not plan.adds or all(self._peek(key) is not None for key, _ in source._peek_items()):
            return source
        for _ in range(len(got) - len(size)):
            source = source.squeeze(0)
        return source.expand(size)

    def _plan_fill(self, index: Index, value: Any, plan: WritePlan, prefix: tuple[str, ...]) -> None:
        """Plan to write one tensor or number into a part of every leaf; non-tensor entries stay."""
        if value is None or isinstance(value, (str, bytes, list, tuple)):
            raise errors.bad_indexed_value(value)
        if isinstance(value, np.ndarray):
            value = torch.as_tensor(value, device=self._meta.device or "cpu")
        is_over_rows = is_leaf_tensor(value) and 0 < value.ndim <= len(index.size)
        for key, entry in self._peek_items():
            if not isinstance(entry, Node):
                new = over_rows(value, index, entry.ndim) if is_over_rows else value
                self._plan_leaf((*prefix, key) if prefix else key, key, entry, index, new, plan)
            elif not entry._is_opaque:
                entry._plan_write(index, value, plan, (*prefix, key))

    def _plan_entry(self, key: str, index: Index | None, value: Any, plan: WritePlan, prefix: tuple[str, ...]) -> None:
        """Plan to write a value into one entry, or into the part of it that an index selects.

        Arguments and errors are those of ``_plan_write``; a container overrides both.
        """
        old = self._peek(key)
        path = (*prefix, key) if prefix else key
        if old is None:
            if index is None or not plan.adds:
                raise errors.missing_key(path, self._keys(), type(self).__name__)
            self._plan_new(key, index, value, plan, prefix)
        elif not isinstance(old, Node):
            if index is None:
                filled = as_tensor(value) if plan.fills else None  # whose size of 1 is repeated
                value = to_entry(self._meta, path, value) if filled is None else filled
            elif isinstance(value, (np.ndarray, np.generic, list)):
                place = "cpu" if self._reads_copy else old.device  # entries of a store are known by a stand-in
                value = torch.as_tensor(value, dtype=old.dtype, device=place)
            if isinstance(value, (Node, dict)):
                opaque = isinstance(value, Node) and value._is_opaque
                raise errors.in_place_kind(path, value, old) if opaque else errors.not_a_node(path, old)
            self._plan_leaf(path, key, old, index, value, plan)
        elif old._is_opaque:
            old._plan_value(self, key, index, value, plan, prefix)
        elif isinstance(value := stacked_nodes(value), dict) or has_entries(value):
            old._plan_write(index, value, plan, (*prefix, key))
        else:
            raise errors.in_place_kind(path, value, old) if isinstance(value, Node) else errors.not_a_node(path, value)

    def _plan_leaf(
        self, path: NestedKey, key: str, leaf: Tensor, index: Index | None, value: Any, plan: WritePlan
    ) -> None:
        """Plan to write a tensor (with an index, also a number) into a leaf or a part of it."""
        if self._reads_copy:
            shape = leaf.shape
            if index is None:
                value = value if value.shape == shape else expand_to(path, value, shape, not self._meta.batch_size)
            else:
                value, part = torch.as_tensor(value, device="cpu"), index.part_of(shape)
                value = value if value.shape == part else broadcast_to(path, value, part)
            plan.put(self, key, index, value.to(leaf.dtype))
        elif index is None:
            plan.add(path, leaf, value)
        else:
            plan.add_at(path, leaf, index, value)

    def _plan_new(self, key: str, index: Index, source: Any, plan: WritePlan, prefix: tuple[str, ...]) -> None:
        """Plan to add an entry of this node's batch size whose part at ``index`` is ``source``."""
        if self._locked:
            raise errors.locked(f"the indexed write would add key {unravel_key((*prefix, key))!r}")
        plan.new = {} if plan.new is None else plan.new
        place, size = (id(self), key), self._meta.batch_size
        if not isinstance(source, Node | Tensor):
            source = to_entry(Meta(index.size), key, source)
        is_leaf = is_leaf_tensor(source)
        own = source.shape if is_leaf else source._meta.batch_size
        whole = torch.Size((*size, *own[len(index.size) + len(size) - index.dims :]))
        if place in plan.new:
            entry = plan.new[place][1]
        elif is_leaf:
            entry = torch.zeros(whole, dtype=source.dtype, device=source.device)
        else:
            entry = source._unwritten(whole)
        if is_leaf_tensor(entry):
            entry[index.idx] = broadcast_to((*prefix, key), source, index.part_of(entry.shape))
        elif entry._is_opaque:
            entry = entry._put_node(index, source)
        else:
            entry._index_put(index, source)
        plan.new[place] = (self, entry)

    def _index_put(self, index: Index, value: Any) -> None:
        """Write a tensordict, a tensor or a number into the part of every entry that an index selects."""
        plan = WritePlan(adds=True)
        self._plan_write(index, value, plan, ())
        plan.run()

    def _put_entry(
        self, key: str, index: Index | None, value: Any, non_blocking: bool = False, prefix: tuple[str, ...] = ()
    ) -> None:
        """Write a value into an entry, or into the part of it that an index selects; ``prefix`` is for errors."""
        plan = WritePlan(root=self, depth=len(prefix))
        entry = None if index is None else self._peek(key)
        if has_entries(entry):
            entry._plan_write(index, stacked_nodes(value), plan, (*prefix, key))
        else:
            self._plan_entry(key, index, value, plan, prefix)
        plan.run(non_blocking)

    def update_at_(
        self,
        input_dict_or_td: Any,
        idx: Any,
        clone: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[NestedKey] | None = None,
    ) -> Self:
        """Write the values of another tensordict or dictionary into the part of the entries that ``idx`` selects.

        Locked tensordicts allow it. Everything is checked before anything is written, as for ``update_``.

        Args:
            input_dict_or_td: The values; their batch size is that of ``self[idx]``, or broadcasts to it.
            idx: The index of batch positions.
            clone: Has no effect, because values are always copied.
            non_blocking: Whether copies between devices may be asynchronous.
            keys_to_update: The keys to update; by default all.

        Raises:
            KeyError: The source has an entry that this tensordict lacks.
            RuntimeError: A value does not broadcast to the part of its entry.

        >>> TensorDict({"a": torch.zeros(2)}, [2]).update_at_({"a": 1.0}, 0)["a"]
        tensor([1., 0.])
        """
        index = Index(idx, self._meta.batch_size)
        source = restricted(input_dict_or_td, as_paths(keys_to_update))
        if not isinstance(source, Node):
            source = self._as_source(source, index.size)
        plan = WritePlan()
        self._plan_write(index, source, plan, ())
        plan.run(non_blocking)
        return self

    def copy_(self, tensordict: Any, non_blocking: bool = False) -> Self:
        """Write the values of another tensordict into the existing entries, as ``update_``.

        >>> TensorDict({"a": torch.zeros(2)}, [2]).copy_(TensorDict({"a": torch.arange(2)}, [2]))["a"]
        tensor([0., 1.])
        """
        return self.update_(tensordict, non_blocking=non_blocking)

    def copy_at_(self, tensordict: Any, idx: Any, non_blocking: bool = False, *, fast: bool = True) -> Self:
        """Write the values of another tensordict into a part of the entries, as ``update_at_``.

        Args:
            tensordict: The values.
            idx: The index of batch positions.
            non_blocking: Whether copies between devices may be asynchronous.
            fast: Accepted for compatibility and ignored.

        >>> TensorDict({"a": torch.zeros(3)}, [3]).copy_at_(TensorDict({"a": torch.ones(2)}, [2]), slice(1, 3))["a"]
        tensor([0., 1., 1.])
        """
        return self.update_at_(tensordict, idx, non_blocking=non_blocking)
