"""``update`` and ``replace``: many entries at once, from another tensordict or a dictionary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Self

from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.keys import NestedKey, unravel_key_to_tuple
from tensordict_core.base.meta import Meta, starts_with
from tensordict_core.base.node import Node, has_entries
from tensordict_core.base.rebuild import IsLeaf
from tensordict_core.base.registry.types import containers
from tensordict_core.base.write_plan import UpdatePlan
from tensordict_core.ops.entries.update_inplace import InPlaceUpdating, as_paths, pairs, restricted


def _copied(value: Any, clone: bool, meta: Meta) -> Any:
    """Return the entry that an update stores for a value: a copy if ``clone``, or a shallow one of a tensordict."""
    if isinstance(value, Node):
        return value._clone(clone)
    if clone and isinstance(value, dict):
        return containers.dense({}, batch_size=meta.batch_size, device=meta.device).update(value, True)
    return value.clone() if clone and isinstance(value, Tensor) else value


class Updating(InPlaceUpdating):
    """``update`` and ``replace``."""

    __slots__ = ()

    def update(
        self,
        input_dict_or_td: Any = None,
        clone: bool = False,
        inplace: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[NestedKey] | None = None,
        is_leaf: IsLeaf | None = None,
        update_batch_size: bool = False,
        ignore_lock: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Store the entries of another tensordict or dictionary; nested ones are merged.

        All values are checked before the first one is stored or written, so a failed update changes nothing.

        Args:
            input_dict_or_td: The tensordict or dictionary with the new entries.
            clone: Whether tensors are copied.
            inplace: Whether values are written into entries that exist.
            non_blocking: Whether moves may be asynchronous.
            keys_to_update: The keys to update; by default all.
            is_leaf: Node types that are stored as a whole rather than merged.
            update_batch_size: Whether this tensordict gets the batch size of the source.
            ignore_lock: Whether entries of a locked tensordict may be replaced.
            **kwargs: Entries by name; they are stored after those of ``input_dict_or_td``, which may be omitted.

        Raises:
            RuntimeError: A value does not fit the batch size, or the tensordict is locked.

        >>> TensorDict({"a": {"b": 1}}).update({"a": {"c": 2}})["a"].sorted_keys
        ['b', 'c']
        """
        source = kwargs if input_dict_or_td is None or input_dict_or_td is self else input_dict_or_td
        more = {} if source is kwargs else kwargs
        if not (clone or inplace or update_batch_size or more) and keys_to_update is None and is_leaf is None:
            store = self._storing_all(source, nested=True)
            if store is not None:
                store()
                return self
        with self.unlock_() if self._locked and ignore_lock else nullcontext():
            chosen = as_paths(keys_to_update)
            source, more = restricted(source, chosen), restricted(more, chosen)
            if update_batch_size and isinstance(source, Node):
                if more:  # both are checked before the old entries are removed
                    source, more = source.replace(more), {}
                self._take_batch_sizes(source, chosen, inplace)
            self._check_source(source)
            plan = UpdatePlan(clone, inplace, non_blocking, is_leaf, self)
            self._plan_update(source, plan, ())
            if more:
                self._plan_update(more, plan, ())
            plan.run(non_blocking)
        return self

    def _check_source(self, source: Any) -> None:
        """Refuse a source without entries whose batch size differs; entries of other sources tell by their shapes."""
        if has_entries(source):
            theirs, mine = source._meta.batch_size, self._meta.batch_size
            dims = min(len(theirs), len(mine))
            if theirs[:dims] != mine[:dims] and not any(True for _ in source._keys()):
                raise errors.source_batch_size(theirs, mine, False)

    def _take_batch_sizes(self, source: Any, chosen: list[tuple[str, ...]] | None, inplace: bool) -> None:
        """Take over the batch size of a source, or only those of nested tensordicts if they alone differ."""
        if source._meta.batch_size != self._meta.batch_size:
            if inplace:
                raise errors.source_batch_size(source._meta.batch_size, self._meta.batch_size, inplace)
            self._take_batch_size(source, chosen)
        elif self._lazy_stack is None:
            for key in self._keys():
                mine, theirs = self._peek(key), source._peek(key)
                if has_entries(mine) and has_entries(theirs):
                    mine._take_batch_sizes(theirs, None, inplace)

    def _take_batch_size(self, source: Any, chosen: list[tuple[str, ...]] | None) -> None:
        """Take over the batch size and metadata of a source that replaces all entries."""
        if self._locked:
            raise errors.locked("update() with update_batch_size=True would replace its entries")
        kept = {
            key for key in self._keys() if source._get(key) is None or (chosen is not None and (key,) not in chosen)
        }
        if kept:
            raise RuntimeError(
                "update_batch_size needs a source with all keys, "
                f"but {sorted(kept)} would keep the old batch size "
                f"{list(self._meta.batch_size)}; exclude them first"
            )
        if (stack := self._lazy_stack) is not None:
            at = stack.stack_dim
            if len(source._meta.batch_size) <= at:
                raise errors.source_batch_size(source._meta.batch_size, self._meta.batch_size, False)
            stack.tensordicts[:] = [part._clone(False) for part in source._unbind(at)]
            self._set_meta(source._meta)
            return
        for key in list(self._keys()):
            mine: Any = self._peek(key)
            theirs: Any = source._peek(key)
            if has_entries(mine) and has_entries(theirs):
                mine._take_batch_size(theirs, None)  # the nested tensordict stays the same object
            else:
                self._del(key)
        self._set_meta(source._meta)

    def _plan_source(self, source: Any, plan: UpdatePlan, prefix: tuple[str, ...]) -> None:
        """Plan to store the entries of a source in this node, which is below the one that is updated."""
        # nested sources were tried from the root, and trying them again on each level takes quadratic time
        storing = None if plan.clone or plan.inplace else self._storing_all(source, nested=False)
        if storing is not None:
            plan.then(storing)
            return
        if isinstance(source, Node):
            self._check_source(source)
        self._plan_update(source, plan, prefix)

    def _plan_update(self, source: Any, plan: UpdatePlan, prefix: tuple[str, ...]) -> None:
        """Plan to store the entries of a source; nested nodes are merged."""
        items = pairs(source)
        if not all([type(key) is str for key, _ in items]):
            items = self._gathered(items)
        meta, store = self._meta, self._storing()
        as_is = store is not None and not (plan.clone or plan.inplace or self._locked) and meta.device is None
        stored: list[tuple[str, Any]] = []
        for key, value in items:
            if as_is and type(value) is Tensor and not value.is_nested and starts_with(value.shape, meta.batch_size):
                stored.append((key, value))  # the result of _plan_set
                continue
            old = self._peek(key)
            nested = _is_source(value)
            merges = plan.is_leaf is None or type(value) is _Level or not plan.is_leaf(type(value))
            if nested and merges and has_entries(old):
                merged = _plan_merge(old, value, plan, (*prefix, key))
                if merged is not old:
                    stored.append((key, merged))
                continue
            if plan.clone or nested:
                value = _copied(value, plan.clone, meta)
            entry = self._plan_set(key, value, plan, prefix)
            if entry is not None:
                stored.append((key, entry))
                if nested and meta.names is None and isinstance(entry, Node) and entry._meta.names is not None:
                    plan.then(partial(self._adopt_names, entry))
        if stored:
            plan.then(partial(self._set_each if store is None else store, stored))

    def _as_lazy_as(self, source: Any) -> Any:
        """Return this node, or its lazy stack of slices if ``source`` is a lazy stack whose entries do not stack."""
        stack = source._lazy_stack
        if stack is None or self._lazy_stack is not None or self._locked:
            return self
        dim = stack.stack_dim
        return self.to_lazystack(dim) if len(self._meta.batch_size) > dim and stack._is_ragged() else self

    def _set_each(self, entries: Iterable[tuple[str, Any]]) -> None:
        for key, entry in entries:
            self._set(key, entry)

    def _storing_all(self, source: Any, *, nested: bool) -> Callable[[], None] | None:
        """Return a function that stores a source of plain tensors under string keys at once; ``None`` for others.

        Args:
            source: The source.
            nested: Whether nested sources are merged in the same way, where there is a nested tensordict under their
                key; otherwise they are others.
        """
        meta = self._meta
        store = None if self._locked or meta.device is not None else self._storing()
        if store is None or (isinstance(source, Node) and type(source._entries) is not dict):
            return None  # reading the entries of a lazy stack would stack them
        items = pairs(source)
        if not items:
            return None
        size = meta.batch_size
        dims = len(size)
        first = size[0] if dims else None
        merges: list[Callable[[], None]] = []
        for key, value in items:
            if type(key) is not str:
                return None
            if type(value) is not Tensor:
                old: Any = self._peek(key) if nested and _is_source(value) else None
                merge = old._storing_all(value, nested=True) if _is_source(old) else None
                if merge is None:
                    return None
                merges.append(merge)
                continue
            try:
                shape = value.shape
            except RuntimeError:  # strided nested tensors have no shape
                return None
            # starts_with is inlined for one dimension, because the call takes a third of the time of an entry
            if not (shape and shape[0] == first if dims == 1 else starts_with(shape, size)):
                return None
        if not merges:
            return partial(store, items)
        return partial(_store_all, store, [item for item in items if type(item[1]) is Tensor], merges)

    def _gathered(self, items: Iterable[tuple[Any, Any]]) -> list[tuple[str, Any]]:
        """Return the items of a source; those under nested keys are collected in one dictionary for each node.

        Raises:
            KeyError: A nested key has a parent that is a leaf, or is the start of another one and has a leaf.
        """
        out: dict[str, Any] = {}
        for key, value in items:
            path = unravel_key_to_tuple(key)
            if not path:
                raise errors.empty_key()
            node: Any = self
            for depth, name in enumerate(path[:-1]):
                node = node._peek(name)
                if node is None:
                    break
                if not _is_source(node):
                    raise errors.not_a_node(path[: depth + 1], node)
            _gather(out, path, 0, value)
        return list(out.items())

    def replace(self, *args: Any, **kwargs: Any) -> Self:
        """Return a shallow copy with some entries replaced.

        Args:
            *args: A dictionary or tensordict with the new values.
            **kwargs: New values by name; they take precedence over those of the dictionary.

        Returns:
            A shallow copy; this tensordict itself if there are no new values.

        >>> TensorDict({"a": 1}).replace(a=2)["a"]
        tensor(2)
        """
        if len(args) > 1:
            raise RuntimeError(
                "Only a single argument containing a dictionary-like structure of entries to replace can be passed to "
                f"replace, got {len(args)}; merge them first"
            )
        if not args and not kwargs:
            return self
        if args and args[0] is None:
            raise errors.not_a_source(None)
        out = self._clone(False)
        for source in (*args, kwargs):
            if not isinstance(source, dict) or source:  # a tensordict has no truth value
                out.update(source)
        return out


class _Level(dict[str, Any]):
    """The entries of a source under nested keys with a common start; ``is_leaf`` is not called for them."""


def _store_all(
    store: Callable[[Iterable[tuple[str, Any]]], None], items: list[tuple[str, Any]], merges: list[Callable[[], None]]
) -> None:
    """Store the tensors of a node, and those of the nodes below it."""
    store(items)
    for merge in merges:
        merge()


def _is_source(value: Any) -> bool:
    """Return whether a value has entries that an update merges: a dictionary or a nested tensordict."""
    return isinstance(value, dict) or has_entries(value)


def _gather(level: dict[str, Any], path: tuple[str, ...], depth: int, value: Any) -> None:
    """Add a value under a nested key to a dictionary of dictionaries; the dictionaries of the source stay unchanged."""
    name = path[depth]
    held: Any = level.get(name)
    last = depth == len(path) - 1
    if name not in level:
        inner: Any = value
        if not last:
            inner = _Level()
            _gather(inner, path, depth + 1, value)
    elif not _is_source(held):
        if not last or _is_source(value):
            raise errors.not_a_node(path[: depth + 1], held)
        inner = value
    elif isinstance(held, Node):
        inner = held._clone(False)
        if last:
            inner.update(value)
        else:
            inner._store(path[depth + 1 :], value)
    elif not last:
        inner = held if type(held) is _Level else dict(held)
        _gather(inner, path, depth + 1, value)
    elif not _is_source(value):
        raise errors.start_of_a_key(path)
    elif isinstance(value, Node):
        inner = value._clone(False)
        inner.update(held).update(value)
    else:
        inner = dict(held)
        for key, item in value.items():
            _gather(inner, unravel_key_to_tuple(key), 0, item)
    level[name] = inner


def _plan_merge(node: Any, source: Any, plan: UpdatePlan, prefix: tuple[str, ...]) -> Any:
    """Plan to store a source in a nested node; return the node, or the lazy stack that replaces it."""
    merged = node._as_lazy_as(source) if isinstance(source, Node) else node
    merged._plan_source(source, plan, prefix)
    return merged
