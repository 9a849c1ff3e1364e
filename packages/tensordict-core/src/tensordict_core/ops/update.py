"""Updates: many entries at once, from another tensordict or a dictionary; and parts of a tensordict by key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Self

from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.keys import NestedKey, unravel_key_to_tuple
from tensordict_core.base.meta import Meta, as_batch_size, as_device, as_names, starts_with
from tensordict_core.base.node import Node
from tensordict_core.base.rebuild import KEEP, IsLeaf
from tensordict_core.base.registry import containers
from tensordict_core.base.write_plan import Merge
from tensordict_core.ops.update_inplace import InPlaceUpdating, chosen_paths, descend

__all__ = ["Updating"]


class Updating(InPlaceUpdating):
    """``update`` and its kind; ``select``, ``exclude`` and their kind."""

    __slots__ = ()

    # updates ---------------------------------------------------------------------------------------------------------

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
        """Store all entries of another tensordict or dictionary, or none; nested ones are merged.

        Every value is looked at before the first is stored or written.

        Args:
            input_dict_or_td: Where the entries come from.
            clone: Whether tensors are copied.
            inplace: Whether values are written into entries that exist.
            non_blocking: Whether moves may be asynchronous.
            keys_to_update: The keys to take; by default all.
            is_leaf: Node types that are stored as a whole rather than merged.
            update_batch_size: Whether this tensordict takes the batch size of the source.
            ignore_lock: Whether entries of a locked tensordict may be replaced.
            **kwargs: Entries by name, after those of ``input_dict_or_td`` or instead of it.

        Raises:
            RuntimeError: A value does not fit the batch size, or the tensordict is locked.

        >>> TensorDict({"a": {"b": 1}}).update({"a": {"c": 2}})["a"].sorted_keys
        ['b', 'c']
        """
        source = kwargs if input_dict_or_td is None or input_dict_or_td is self else input_dict_or_td
        more = {} if source is kwargs else kwargs
        if self._locked and ignore_lock:
            with self.unlock_():  # type: ignore[attr-defined]  # of another family
                return self.update(
                    source,
                    clone,
                    inplace,
                    non_blocking=non_blocking,
                    keys_to_update=keys_to_update,
                    is_leaf=is_leaf,
                    update_batch_size=update_batch_size,
                    **more,
                )
        if not (clone or inplace or update_batch_size or more) and keys_to_update is None:
            store = self._storing_all(source)
            if store is not None:
                store()
                return self
        chosen = chosen_paths(keys_to_update)
        if update_batch_size and isinstance(source, Node) and source._meta.batch_size != self._meta.batch_size:
            if more:  # looked at before the old entries go
                source, more = source.replace(more), {}  # type: ignore[attr-defined]  # of this family
            self._take_batch_size(source, chosen)
        merge = Merge(clone, inplace, non_blocking, is_leaf)
        self._plan_merge(source, chosen, merge, ())
        if more:
            self._plan_merge(more, chosen, merge, ())
        merge.writes.run(non_blocking)
        return self

    def _take_batch_size(self, source: Any, chosen: set[tuple[str, ...]] | None) -> None:
        """Take the metadata of a source that replaces all entries."""
        if self._locked:
            raise errors.locked("update() with update_batch_size=True would replace its entries")
        kept = {key for key in self._keys() if source._get(key) is None or descend(chosen, key) != (True, None)}
        if kept:
            raise RuntimeError(
                "update_batch_size needs a source with all keys, "
                f"but {sorted(kept)} would keep the old batch size "
                f"{list(self._meta.batch_size)}; exclude them first"
            )
        self._set_meta(source._meta)
        for key in list(self._keys()):
            self._del(key)

    def _plan_merge(
        self, source: Any, chosen: set[tuple[str, ...]] | None, merge: Merge, prefix: tuple[str, ...]
    ) -> None:
        """Plan to store what is chosen of a source, nested nodes merged; nothing has changed when it is refused."""
        pairs = _pairs(source)
        if not all([type(key) is str for key, _ in pairs]):
            pairs = self._gathered(pairs)
        meta, store = self._meta, self._storing()
        as_is = store is not None and not (merge.clone or merge.inplace or self._locked) and meta.device is None
        stored: list[tuple[str, Any]] = []
        for key, value in pairs:
            if as_is and chosen is None and type(value) is Tensor and starts_with(value.shape, meta.batch_size):
                stored.append((key, value))  # what _plan_set would say
                continue
            taken, below = descend(chosen, key)
            if not taken:
                continue
            old = self._peek(key)
            nested = isinstance(value, dict | Node) and not getattr(value, "_is_opaque", False)
            if (
                nested
                and isinstance(old, Node)
                and not old._is_opaque
                and not (merge.is_leaf is not None and merge.is_leaf(type(value)))
            ):
                old._plan_merge(value, below, merge, (*prefix, key))  # type: ignore[attr-defined]  # of this family
                continue
            if below is not None or (merge.clone and isinstance(value, dict)):
                part = containers.dense({}, batch_size=meta.batch_size, device=meta.device)
                value = part.update(value, merge.clone, keys_to_update=None if below is None else [*below])
            elif merge.clone and isinstance(value, Tensor | Node):
                value = value.clone() if isinstance(value, Tensor) else value._clone(True)
            elif nested and isinstance(value, Node):
                value = value._clone(False)
            entry = self._plan_set(key, value, merge, prefix)  # type: ignore[attr-defined]  # of another family
            if entry is not None:
                stored.append((key, entry))
        if stored:
            merge.writes.then(partial(self._set_each if store is None else store, stored))

    def _set_each(self, entries: Iterable[tuple[str, Any]]) -> None:
        for key, entry in entries:
            self._set(key, entry, False)

    def _storing_all(self, source: Any) -> Callable[[], None] | None:
        """What stores a source at once, where all of it is plain tensors under plain keys, to be stored as they are."""
        meta = self._meta
        store = None if self._locked or meta.device is not None else self._storing()
        if store is None or (isinstance(source, Node) and type(source._entries) is not dict):
            return None  # (to look at the entries of a lazy stack is to stack them)
        pairs = _pairs(source)
        size = meta.batch_size
        dims = len(size)
        first = size[0] if dims else None
        for key, value in pairs:
            if type(value) is not Tensor or type(key) is not str:
                return None
            shape = value.shape
            # what starts_with says, in place for one dimension: the call would be a third of what an entry costs
            if not (shape and shape[0] == first if dims == 1 else starts_with(shape, size)):
                return None
        return partial(store, pairs)

    def _gathered(self, pairs: Iterable[tuple[Any, Any]]) -> list[tuple[str, Any]]:
        """Items of a source with those of nested keys gathered in dictionaries, one for each node of this tree.

        Raises:
            KeyError: A nested key leads through an entry that is no node.
        """
        out: dict[str, Any] = {}
        for key, value in pairs:
            path = unravel_key_to_tuple(key)
            if not path:
                raise errors.empty_key()
            node: Any = self
            for depth, name in enumerate(path[:-1]):
                node = node._peek(name)
                if node is None:
                    break
                if not isinstance(node, Node) or node._is_opaque:
                    raise errors.not_a_node(path[: depth + 1], node)
            level = out
            for depth, name in enumerate(path[:-1]):
                inner = level.get(name, {})
                if isinstance(inner, Node) and not inner._is_opaque:
                    inner = level[name] = inner._clone(False)
                    inner._store(path[depth + 1 :], value)  # type: ignore[attr-defined]  # of another family
                    break
                if not isinstance(inner, dict):
                    raise errors.not_a_node(path[: depth + 1], inner)
                level[name] = level = dict(inner)  # a copy: it may be the caller's
            else:
                level[path[-1]] = value
        return list(out.items())

    def replace(self, *args: Any, **kwargs: Any) -> Self:
        """A shallow copy with some entries replaced.

        Args:
            *args: A dictionary or tensordict with the new values.
            **kwargs: The new values by name, instead.

        >>> TensorDict({"a": 1}).replace(a=2)["a"]
        tensor(2)
        """
        if args and kwargs:
            raise ValueError("replace takes one dictionary or values by name, not both")
        out = self._clone(False)
        return out.update(args[0] if args else kwargs)

    # parts by key ----------------------------------------------------------------------------------------------------

    def select(self, *keys: NestedKey, inplace: bool = False, strict: bool = True, as_tensordict: bool = False) -> Self:
        """The entries under some keys (nested keys included), in a new tensordict that shares them.

        Args:
            *keys: The keys, or one list of them.
            inplace: Whether the others are removed from this tensordict instead.
            strict: Whether a key that is not there is an error rather than passed over.
            as_tensordict: Whether the result is a plain tensordict whatever this container is.

        Raises:
            KeyError: A key is not there (``strict``).

        >>> TensorDict({"a": 1, "b": {"c": 2, "d": 3}}).select("a", ("b", "c"))["b"].sorted_keys
        ['c']
        """
        if len(keys) == 1 and isinstance(keys[0], list):
            keys = tuple(keys[0])
        entries: dict[str, Any] = {}
        nested: dict[str, list[tuple[str, ...]]] = {}
        for key in keys:
            path = (key,) if type(key) is str else unravel_key_to_tuple(key)
            value = self._get(path[0]) if path else None
            if value is None or (len(path) > 1 and not isinstance(value, Node)):
                if strict:
                    raise errors.missing_key(key, self._keys(), type(self).__name__)
                continue
            if len(path) == 1:
                entries[path[0]] = value
                nested.pop(path[0], None)
            elif path[0] not in entries or path[0] in nested:
                nested.setdefault(path[0], []).append(path[1:])
                entries[path[0]] = value
        for name, paths in nested.items():
            entries[name] = entries[name].select(*paths, strict=strict, inplace=inplace)
        return self._with_entries(entries, inplace, as_tensordict)

    def exclude(self, *keys: NestedKey, inplace: bool = False) -> Self:
        """The entries under all keys but some, in a new tensordict that shares them.

        Keys that are not there are passed over.

        Args:
            *keys: The keys to leave out.
            inplace: Whether they are removed from this tensordict instead.

        >>> TensorDict({"a": 1, "b": {"c": 2, "d": 3}}).exclude("a", ("b", "c"))["b"].sorted_keys
        ['d']
        """
        gone: set[str] = set()
        below: dict[str, list[tuple[str, ...]]] = {}
        for key in keys:
            path = (key,) if type(key) is str else unravel_key_to_tuple(key)
            if len(path) == 1:
                gone.add(path[0])
            else:
                below.setdefault(path[0], []).append(path[1:])
        entries = {name: value for name, value in self._items() if name not in gone}
        for name, paths in below.items():
            value = entries.get(name)
            if isinstance(value, Node):
                entries[name] = value.exclude(*paths, inplace=inplace)  # type: ignore[attr-defined]  # of another family
        return self._with_entries(entries, inplace, False)

    def _with_entries(self, entries: dict[str, Any], inplace: bool, plain: bool) -> Self:
        """A new node of these entries of this one; or this one, without the others."""
        if not inplace:
            return containers.dense._make(entries, self._meta)  # type: ignore[return-value]  # dense for every container
        if self._locked:
            raise errors.locked("entries would be removed")
        for name in list(self._keys()):
            if name not in entries:
                self._del(name)
        return self

    def split_keys(
        self,
        *key_sets: Any,
        inplace: bool = False,
        default: Any = ...,
        strict: bool = True,
        reproduce_struct: bool = False,
    ) -> tuple[Self, ...]:
        """One tensordict per set of keys, and one of the entries that are left.

        Args:
            *key_sets: Sequences of keys, dictionaries from keys to their new names, or functions that are called with
                the path of each tensor that no set before has taken (a tuple of strings) and the tensor, and say
                whether it is taken.
            inplace: Whether this tensordict is the last one, with the others' entries removed.
            default: What stands for a key that is not there; by default that is an error.
            strict: Whether a key that is not there is an error rather than passed over.
            reproduce_struct: Whether nested structure without entries left is kept in the last tensordict.

        Raises:
            KeyError: A key is not there, or stands in two sets.

        >>> a, rest = TensorDict({"a": 1, "b": 2}).split_keys(["a"])
        >>> a.sorted_keys, rest.sorted_keys
        (['a'], ['b'])
        >>> td = TensorDict({"a": torch.zeros(2), "b": {"c": torch.zeros(2, 3)}})
        >>> vectors, rest = td.split_keys(lambda path, value: value.ndim == 1)
        >>> list(vectors.keys(True, True)), list(rest.keys(True, True))
        (['a'], [('b', 'c')])
        """
        left: Any = self._clone(False)
        out, used = [], []
        for key_set in self._as_key_sets(key_sets):
            part = self.empty()
            for key in key_set:
                path = unravel_key_to_tuple(key)
                value = left.get(path, None)
                if value is not None:
                    left.del_(path)
                    used.append(path)
                elif path in self:  # type: ignore[operator]  # of another family
                    raise KeyError(f"key {key!r} stands in several sets; name it once")
                elif default is not ...:
                    value = default
                elif strict:
                    raise errors.missing_key(key, self._keys(), type(self).__name__)
                else:
                    continue
                part.set(key_set[key] if isinstance(key_set, dict) else path, value)  # type: ignore[attr-defined]  # of another family
            out.append(part)
        if inplace:
            for path in used:
                self.del_(path)  # type: ignore[attr-defined]  # of another family
        rest = self if inplace else left
        if not reproduce_struct:
            rest.filter_empty_()
        return (*out, rest)

    def _as_key_sets(self, key_sets: Iterable[Any]) -> list[Any]:
        """Sets of keys, with the paths of the leaves that it takes for each that is a function."""
        out: list[Any] = []
        taken: set[tuple[str, ...]] = set()
        for key_set in key_sets:
            if callable(key_set):
                paths = map(unravel_key_to_tuple, self.keys(True, True))  # type: ignore[attr-defined]  # of another family
                free = [path for path in paths if taken.isdisjoint(path[: n + 1] for n in range(len(path)))]
                leaves = [(path, self.get(path)) for path in free]  # type: ignore[attr-defined]  # of another family
                key_set = [path for path, leaf in leaves if isinstance(leaf, Tensor) and key_set(path, leaf)]
            elif not isinstance(key_set, dict):
                key_set = list(key_set)
            taken.update(map(unravel_key_to_tuple, key_set))
            out.append(key_set)
        return out

    def separates(self, *keys: NestedKey, default: Any = ..., strict: bool = True, filter_empty: bool = True) -> Self:
        """Remove the entries under some keys and return them in a tensordict of their own.

        >>> td = TensorDict({"a": 1, "b": 2})
        >>> td.separates("a").sorted_keys, td.sorted_keys
        (['a'], ['b'])
        """
        part, _ = self.split_keys(keys, inplace=True, default=default, strict=strict, reproduce_struct=not filter_empty)
        return part

    def filter_empty_(self) -> Self:
        """Remove nested tensordicts without leaves.

        >>> TensorDict({"a": {}, "b": 1}).filter_empty_().sorted_keys
        ['b']
        """
        for name in list(self._keys()):
            value = self._get(name)
            if isinstance(value, Node) and not value._is_opaque:
                value.filter_empty_()  # type: ignore[attr-defined]  # of another family
                if value.is_empty():  # type: ignore[attr-defined]  # of another family
                    self.del_(name)  # type: ignore[attr-defined]  # of another family
        return self

    def filter_non_tensor_data(self) -> Self:
        """A shallow copy without non-tensor entries.

        >>> TensorDict({"a": 1, "s": "text"}).filter_non_tensor_data().sorted_keys
        ['a']
        """
        out = self._clone(False)
        for name in list(out._keys()):
            value = out._peek(name)
            if isinstance(value, Node):
                if value._is_non_tensor:
                    out._del(name)
                elif not value._is_opaque:
                    out._set(name, value.filter_non_tensor_data(), False)  # type: ignore[attr-defined]  # of another family
        return out

    def empty(
        self,
        recurse: bool = False,
        *,
        batch_size: Any = None,
        device: Any = KEEP,
        names: Any = None,
    ) -> Self:
        """A tensordict of the same metadata without entries (``recurse``: with the nested nodes, empty too).

        >>> TensorDict({"a": torch.zeros(3)}, [3]).empty().batch_size
        torch.Size([3])
        """
        meta = self._meta
        if batch_size is not None or device is not KEEP or names is not None:
            size = meta.batch_size if batch_size is None else as_batch_size(batch_size)
            kept = meta.names if size == meta.batch_size else None
            meta = Meta(
                size,
                meta.device if device is KEEP else as_device(device),
                kept if names is None else as_names(names, len(size)),
            )
        entries = {}
        if recurse:
            for name in self._keys():
                value = self._get(name)
                if isinstance(value, Node) and not value._is_opaque:
                    entries[name] = value.empty(True, device=device)  # type: ignore[attr-defined]  # of another family
        return containers.dense._make(entries, meta)  # type: ignore[return-value]  # dense for every container

    def clone(self, recurse: bool = True, **kwargs: Any) -> Self:
        """A copy with its own nodes and its own tensors; with the same tensors if not ``recurse``. Never locked.

        >>> td = TensorDict({"a": torch.zeros(1)})
        >>> td.clone(False)["a"] is td["a"], td.clone()["a"] is td["a"]
        (True, False)
        """
        return self._clone(recurse)

    def copy(self) -> Self:
        """A shallow copy: its own nodes, the same tensors."""
        return self._clone(False)

    def __copy__(self) -> Self:
        return self._clone(False)


def _pairs(source: Any) -> Iterable[tuple[Any, Any]]:
    """The keys and values of what an update takes them from, to be gone through twice."""
    if isinstance(source, Node):
        return source._items()
    try:
        return source.items() if type(source) is dict else list(source.items())
    except AttributeError:
        raise errors.not_a_source(source) from None
