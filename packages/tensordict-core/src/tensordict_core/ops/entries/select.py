"""Selection by key (``select``, ``exclude``, ``split_keys``, ...), and copies of a tensordict."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.keys import NestedKey, unravel_key_to_tuple
from tensordict_core.base.meta import Meta, as_batch_size, as_device, as_names, names_or_none, starts_with
from tensordict_core.base.node import Node, has_entries
from tensordict_core.base.predicates import is_leaf_nontensor
from tensordict_core.base.rebuild import KEEP
from tensordict_core.ops.entries.removal import is_taken


def _nodes_above(root: Any, keys: Iterable[NestedKey]) -> dict[tuple[str, ...], Any]:
    """Return the nested nodes that keys pass through, by their paths, the deepest first; lazy stacks are left out."""
    paths = {path[:depth] for path in map(unravel_key_to_tuple, keys) for depth in range(1, len(path))}
    found = {path: root._peek_path(path) for path in sorted(paths, key=len, reverse=True)}
    return {path: node for path, node in found.items() if has_entries(node) and node._lazy_stack is None}


def _nested_size(key: str, node: Any, size: torch.Size) -> torch.Size:
    """Return the batch size of an empty nested node in a node of another batch size, with which it starts."""
    own: torch.Size = node._meta.batch_size
    if starts_with(own, size):
        return own
    if not starts_with(size, own):
        raise RuntimeError(
            f"empty(recurse=True) cannot give the batch size {list(size)} to the entry {key!r}, whose batch size "
            f"{list(own)} does not start with it; leave recurse out"
        )
    return size


def _depth_of_stack(root: Any, path: tuple[str, ...]) -> int:
    """Return the depth at which a path reaches a lazy stack whose elements have the rest, not all of them; else 0."""
    node = root
    for depth, name in enumerate(path):
        if depth and node._lazy_stack is not None and is_taken(node, path[depth:]):
            return depth
        node = node._peek(name)
        if not has_entries(node):
            break
    return 0


def _take_from_some(
    root: Any, path: tuple[str, ...], depth: int, part: Any, new: tuple[str, ...], options: dict[str, Any]
) -> None:
    """Move an entry that some elements of a nested lazy stack have to ``part``, under a new path."""
    if len(new) <= depth:
        raise KeyError(
            f"key {path!r} is in some elements of a lazy stack only, so its new name {new!r} needs at least "
            f"{depth + 1} levels; rename it after the split"
        )
    taken, _ = root.get(path[:depth]).split_keys([path[depth:]], inplace=True, **options)
    for element in taken.tensordicts if path[depth:] != new[depth:] else ():
        if path[depth:] in element:
            element.rename_key_(path[depth:], new[depth:])
    earlier = part.get(new[:depth], None)
    if earlier is not None and earlier._lazy_stack is not None:
        for element, other in zip(earlier.tensordicts, taken.tensordicts, strict=True):
            element.update(other)
        return
    for key, value in () if earlier is None else earlier.items(True, True, is_leaf=is_leaf_nontensor):
        taken.set(key, value)
    part.set(new[:depth], taken)


class KeySelection(Node):
    """``select``, ``exclude``, ``split_keys``, ``empty``, ``clone`` and related methods."""

    __slots__ = ()

    def select(self, *keys: NestedKey, inplace: bool = False, strict: bool = True, as_tensordict: bool = False) -> Self:
        """Return a new tensordict with the entries under some keys (nested keys included), not copied.

        Args:
            *keys: The keys, or one list of them.
            inplace: Whether all other entries are removed from this tensordict instead.
            strict: Whether a missing key raises an error; otherwise it is ignored.
            as_tensordict: Whether the result is a `TensorDict` even if this container is of another type.

        Raises:
            KeyError: A key is missing (``strict``).

        >>> TensorDict({"a": 1, "b": {"c": 2, "d": 3}}).select("a", ("b", "c"))["b"].sorted_keys
        ['c']
        """
        if len(keys) == 1 and isinstance(keys[0], list):
            keys = tuple(keys[0])
        entries: dict[str, Any] = {}
        nested: dict[str, list[tuple[str, ...]]] = {}
        within: list[tuple[str, ...]] = []  # keys below a node that another key selects whole
        for key in keys:
            path = (key,) if type(key) is str else unravel_key_to_tuple(key)
            if not path:
                raise errors.empty_key()
            value = self._get(path[0])
            if value is None or (len(path) > 1 and isinstance(value, Tensor)):
                if strict:
                    self._peek_entry(key)  # raises the error: there is no such key, or it passes through a leaf
                continue
            if len(path) == 1:
                entries[path[0]] = value
                if nested and (below := nested.pop(path[0], None)):
                    within += [(path[0], *rest) for rest in below]
            elif path[0] not in entries or path[0] in nested:
                nested.setdefault(path[0], []).append(path[1:])
                entries[path[0]] = value
            else:
                within.append(path)
        for path in within if strict else ():
            self._peek_entry(path)  # raises the error of a missing key
        for name, paths in nested.items():
            try:
                entries[name] = entries[name].select(*paths, strict=strict, inplace=inplace)
            except KeyError:
                for path in paths:
                    self._peek_entry((name, *path))  # raises the error that names the whole key
                raise
        return self._with_entries(entries, inplace)

    def exclude(self, *keys: NestedKey, inplace: bool = False) -> Self:
        """Return a new tensordict without the entries under some keys (nested keys included), not copied.

        Missing keys are ignored. Without keys, the result is a shallow copy, as of ``clone(False)``.

        Args:
            *keys: The keys to leave out.
            inplace: Whether they are removed from this tensordict instead.

        >>> TensorDict({"a": 1, "b": {"c": 2, "d": 3}}).exclude("a", ("b", "c"))["b"].sorted_keys
        ['d']
        """
        if not keys:
            return self if inplace else self._clone(False)
        gone: set[str] = set()
        below: dict[str, list[tuple[str, ...]]] = {}
        for key in keys:
            path = (key,) if type(key) is str else unravel_key_to_tuple(key)
            if not path:
                raise errors.empty_key()
            if len(path) == 1:
                gone.add(path[0])
            else:
                below.setdefault(path[0], []).append(path[1:])
        entries = {name: value for name, value in self._items() if name not in gone}
        for name, paths in below.items():
            value = entries.get(name)
            if has_entries(value):
                entries[name] = value.exclude(*paths, inplace=inplace)
        if inplace and len(entries) == len(list(self._keys())):  # nothing to remove, which a locked node allows
            return self
        return self._with_entries(entries, inplace)

    def _with_entries(self, entries: dict[str, Any], inplace: bool) -> Self:
        """Return a new node with some entries of this one; or with ``inplace`` this one, without its other entries."""
        if not inplace:
            return self._new(entries, self._meta)
        if self._locked:
            raise errors.locked("entries would be removed")
        for name in list(self._keys()):
            if name not in entries:
                self._del(name)
        stored: Any = self._entries
        if type(stored) is dict:  # in the order of the keys, as the result of inplace=False
            for name in entries:
                stored[name] = stored.pop(name)
        return self

    def split_keys(
        self,
        *key_sets: Any,
        inplace: bool = False,
        default: Any = ...,
        strict: bool = True,
        reproduce_struct: bool = False,
    ) -> tuple[Self, ...]:
        """Return one tensordict per set of keys, and one of the remaining entries.

        Args:
            *key_sets: Sequences of keys, dictionaries from keys to their new names, or predicates. A predicate is
                called with the path (a tuple of strings) and the value of each tensor that no earlier set contains, and
                is true for the tensors that the set contains.
            inplace: Whether the selected entries are removed from this tensordict, which is then returned as the last
                result.
            default: The value for a missing key; by default a missing key raises an error. Elements of a nested lazy
                stack that have the key keep their entries.
            strict: Whether a missing key raises an error; otherwise it is ignored.
            reproduce_struct: Whether each result has all nested tensordicts, also those that are empty there.

        Raises:
            KeyError: A key is missing, or is in two sets.

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
            part = self.empty(recurse=reproduce_struct)
            for key in key_set:
                path = unravel_key_to_tuple(key)
                value = left.get(path, None)
                if value is not None:
                    left.del_(path)
                    used.append(path)
                elif (depth := _depth_of_stack(left, path)) and (default is not ... or not strict):
                    new = unravel_key_to_tuple(key_set[key]) if isinstance(key_set, dict) else path
                    _take_from_some(left, path, depth, part, new, {"default": default, "strict": strict})
                    used.append(path)
                    continue
                elif not depth and is_taken(self, path):
                    raise KeyError(f"key {key!r} is in several sets; name it once")
                elif default is not ...:
                    value = default
                elif strict:
                    self._peek_entry(path)  # raises the error: there is no such key, or it passes through a leaf
                else:
                    continue
                part.set(key_set[key] if isinstance(key_set, dict) else path, value)
            out.append(part)
        if inplace:
            for path in used:
                self.del_(path)
        rest = self if inplace else left
        if not reproduce_struct:
            rest.filter_empty_()
        return (*out, rest)

    def _as_key_sets(self, key_sets: Iterable[Any]) -> list[Any]:
        """Return the sets of keys; a predicate is replaced by the paths of the leaves that it selects."""
        out: list[Any] = []
        taken: set[tuple[str, ...]] = set()
        for key_set in key_sets:
            if callable(key_set):
                paths = map(unravel_key_to_tuple, self.keys(True, True))
                free = [path for path in paths if taken.isdisjoint(path[: n + 1] for n in range(len(path)))]
                leaves = [(path, self.get(path)) for path in free]
                key_set = [path for path, leaf in leaves if isinstance(leaf, Tensor) and key_set(path, leaf)]
            elif not isinstance(key_set, dict):
                key_set = list(key_set)
            taken.update(map(unravel_key_to_tuple, key_set))
            out.append(key_set)
        return out

    def separates(self, *keys: NestedKey, default: Any = ..., strict: bool = True, filter_empty: bool = True) -> Self:
        """Remove the entries under some keys and return them in a new tensordict with the same nested structure.

        Args:
            *keys: The keys, which may be nested.
            default: The value of a missing key in the result; without it, a missing key raises an error.
            strict: Whether a missing key raises an error; otherwise it is left out.
            filter_empty: Whether nested tensordicts that become empty are removed.

        Raises:
            KeyError: A key is missing and ``strict`` is true.
            RuntimeError: The tensordict is locked.

        >>> td = TensorDict({"a": 1, "b": 2})
        >>> td.separates("a").sorted_keys, td.sorted_keys
        (['a'], ['b'])
        """
        nodes = _nodes_above(self, keys)
        part, _ = self.split_keys(keys, inplace=True, default=default, strict=strict, reproduce_struct=not filter_empty)
        if not filter_empty:  # the nested tensordicts above other keys are kept here, not in the result
            part = part.select(*keys, strict=False)
        for path, node in nodes.items():
            made = part._peek_path(path)
            if isinstance(made, Node) and (type(made) is not type(node) or made._meta != node._meta):
                typed = node.empty()
                for key, value in made._items():  # a default has the batch size of the root so far
                    (typed.set if isinstance(value, Node) and value._is_opaque else typed._set)(key, value)
                part.set(path, typed)
        return part

    def filter_empty_(self) -> Self:
        """Remove nested tensordicts without leaves.

        >>> TensorDict({"a": {}, "b": 1}).filter_empty_().sorted_keys
        ['b']
        """
        for name, value in list(self._peek_items()):
            if type(value) is not Tensor and has_entries(value):
                value.filter_empty_()
                stack = value._lazy_stack
                if not any(True for node in ([value] if stack is None else stack.tensordicts) for _ in node._keys()):
                    self.del_(name)
        return self

    def filter_non_tensor_data(self) -> Self:
        """Return a shallow copy without non-tensor entries.

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
                    out._set(name, value.filter_non_tensor_data())
        return out

    def empty(
        self,
        recurse: bool = False,
        *,
        batch_size: Any = None,
        device: Any = KEEP,
        names: Any = None,
    ) -> Self:
        """Return a tensordict with the same metadata and no entries.

        Args:
            recurse: Whether nested tensordicts stay, without entries.
            batch_size: Another batch size.
            device: Another device; ``None`` for no device.
            names: Other dim names.

        Raises:
            RuntimeError: With ``recurse``, a nested tensordict does not start with the batch size.

        >>> TensorDict({"a": torch.zeros(3)}, [3]).empty().batch_size
        torch.Size([3])
        """
        meta = self._meta
        if batch_size is not None or device is not KEEP or names is not None:
            size = meta.batch_size if batch_size is None else as_batch_size(batch_size)
            kept = meta.names and names_or_none((*meta.names, *(None,) * len(size))[: len(size)])
            meta = Meta(
                size,
                meta.device if device is KEEP else as_device(device),
                kept if names is None else as_names(names, len(size)),
            )
        entries = {}
        if recurse:
            for name, value in self._peek_items():
                if has_entries(value):
                    nested = None if batch_size is None else _nested_size(name, value, meta.batch_size)
                    entries[name] = value.empty(True, batch_size=nested, device=device)
                    if names is not None and meta.names is not None:
                        rest = value._meta.names or (None,) * len(value._meta.batch_size)
                        entries[name]._put_names((*meta.names, *rest[len(meta.names) :]))
        return self._new(entries, meta)

    def clone(self, recurse: bool = True, **kwargs: Any) -> Self:
        """Return an unlocked copy; nested tensordicts are copied, too.

        Args:
            recurse: Whether tensors are copied; otherwise the copy has the same tensors.
            **kwargs: Accepted for compatibility and ignored.

        >>> td = TensorDict({"a": torch.zeros(1)})
        >>> td.clone(False)["a"] is td["a"], td.clone()["a"] is td["a"]
        (True, False)
        """
        return self._clone(recurse)

    def copy(self) -> Self:
        """Return a shallow copy: new nodes with the same tensors.

        >>> td = TensorDict({"a": torch.zeros(3)})
        >>> td.copy()["a"] is td["a"]
        True
        """
        return self._clone(False)

    def __copy__(self) -> Self:
        return self._clone(False)
