"""Removing and renaming entries: ``del_``, ``pop``, ``rename_key_`` and related methods.

They change the keys of a tensordict, so they raise an error if it is locked.
"""

from __future__ import annotations

from typing import Any, Self

from tensordict_core.base import errors
from tensordict_core.base.keys import NestedKey, unravel_key_to_tuple
from tensordict_core.base.node import Node, has_entries
from tensordict_core.base.rebuild import KEEP, NO_DEFAULT
from tensordict_core.ops.entries.access import Access


def is_taken(node: Any, path: tuple[str, ...]) -> bool:
    """Return whether there is an entry at a path, in any element of a lazy stack."""
    stack = node._lazy_stack
    if stack is not None:
        return any(is_taken(element, path) for element in stack.tensordicts)
    value = node._peek(path[0])
    if value is None or len(path) == 1:
        return value is not None
    return has_entries(value) and is_taken(value, path[1:])


class Removal(Access):
    """Methods that remove and rename entries."""

    __slots__ = ()

    def del_(self, key: NestedKey) -> Self:
        """Remove an entry.

        Raises:
            KeyError: There is no such entry.
            RuntimeError: The tensordict is locked.

        >>> list(TensorDict({"a": 1, "b": 2}).del_("a").keys())
        ['b']
        """
        if type(key) is not str and (some := self._holders_of(unravel_key_to_tuple(key))):
            for node, path in some:
                node.del_(path)
            return self
        parent, name = self._find_parent(key)
        if parent._locked:
            raise errors.locked(f"del_({key!r})")
        if not parent._has_anywhere(name):
            raise errors.missing_key(key, parent._keys(), type(self).__name__)
        parent._del(name)
        return self

    def _holders_of(self, path: tuple[str, ...]) -> list[tuple[Any, tuple[str, ...]]]:
        """Return the elements of a lazy stack that hold a path which others lack, and its rest; else nothing."""
        child = self._peek(path[0]) if len(path) > 1 else None
        return child._holders_of(path[1:]) if isinstance(child, Removal) and not child._is_opaque else []

    def _has_anywhere(self, key: str) -> bool:
        """Return whether this node, or an element of a lazy stack, has an entry under a key."""
        return self._peek(key) is not None

    def __delitem__(self, key: NestedKey) -> None:
        """Remove an entry, as ``del_``."""
        self.del_(key)

    def pop(self, key: NestedKey, default: Any = KEEP) -> Any:
        """Remove an entry and return it, as ``get`` does: non-tensor data as `NonTensorData` or `NonTensorStack`.

        Raises:
            KeyError: There is no such entry and no ``default``.

        >>> td = TensorDict({"a": 1})
        >>> td.pop("a"), td.pop("a", None)
        (tensor(1), None)
        """
        if self._locked and key in self:
            raise errors.locked(f"pop({key!r})")
        value = self.get(key, None)
        if value is None and key not in self:  # a tensorclass returns values, of which None is one
            if default is KEEP or default is NO_DEFAULT:
                parent, _ = self._find_parent(key)
                raise errors.missing_key(key, parent._keys(), type(self).__name__)
            return default
        if Node._copies_exist and isinstance(value, Node) and value._copies_below():
            value = value._clone(True)  # a file or a server cannot read what was removed from it
        self.del_(key)
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove the last entry and return its key and value.

        Raises:
            KeyError: There is no entry.

        >>> TensorDict({"a": 1}).popitem()
        ('a', tensor(1))
        """
        keys = list(self._keys())
        if self._locked:
            raise errors.locked("popitem()")
        if not keys:
            raise KeyError("popitem(): the tensordict is empty; test it with is_empty()")
        return keys[-1], self.pop(keys[-1])

    def setdefault(self, key: NestedKey, default: Any, inplace: bool = False) -> Any:
        """Return the entry under a key; if it is missing, store ``default`` first.

        Args:
            key: A string or a nested key.
            default: The value to store.
            inplace: Has no effect, because there is no entry to write into.

        >>> TensorDict({}).setdefault("a", torch.ones(1))
        tensor([1.])
        """
        if key not in self:
            self.set(key, default, inplace)
        return self.get(key)

    def rename_key_(self, old_key: NestedKey, new_key: NestedKey, safe: bool = False) -> Self:
        """Rename an entry (nested keys included).

        Args:
            old_key: A key that exists.
            new_key: Its new name.
            safe: Whether an existing entry under the new name raises an error; otherwise it is replaced.

        Raises:
            KeyError: There is no such entry, or ``safe`` and the name is taken.
            RuntimeError: The tensordict is locked.

        >>> list(TensorDict({"a": 1}).rename_key_("a", "b").keys())
        ['b']
        """
        old, new = unravel_key_to_tuple(old_key), unravel_key_to_tuple(new_key)
        parent, name = self._find_parent(old)
        if parent._locked:
            raise errors.locked(f"rename_key_({old_key!r})")
        if parent._peek(name) is None:
            raise errors.missing_key(old_key, parent._keys(), type(self).__name__)
        if not new:
            raise errors.empty_key()
        if old == new:
            return self
        if safe and is_taken(self, new):
            raise errors.existing_key(new_key)
        if old[:-1] == new[:-1]:
            parent._rename(name, new[-1])
        else:
            self._move(old, new)
        return self

    def _move(self, old: tuple[str, ...], new: tuple[str, ...]) -> None:
        """Move an entry from one node to another below this one."""
        parent, name = self._find_parent(old)
        value = parent._get(name)
        # the new key may pass through the name of the entry, which is free once the entry is removed
        parent._del(name)
        try:
            self.set(new, value)
        except BaseException:
            parent._set(name, value)
            raise

    def rename_keys(self, mapping: dict[NestedKey, NestedKey], *, strict: bool = True) -> Self:
        """Return a shallow copy with some keys renamed; nested tensordicts that become empty are dropped.

        Args:
            mapping: New keys by old keys.
            strict: Whether a missing key raises an error; otherwise it is ignored.

        Raises:
            KeyError: A key is missing (``strict``), or two entries would get the same name.

        >>> list(TensorDict({"a": 1}).rename_keys({"a": "b"}).keys())
        ['b']
        >>> list(TensorDict({"a": {"b": 1}}).rename_keys({("a", "b"): "c"}).keys())
        ['c']
        """
        out = self._clone(False)
        moved, parents = [], []
        for old, new in mapping.items():
            target = unravel_key_to_tuple(new)
            if not target:
                raise errors.empty_key()
            value = out.get(old, None)
            if value is None:
                if strict:
                    raise errors.missing_key(old, out._keys(), type(self).__name__)
                continue
            out.del_(old)
            moved.append((target, value))
            parents.append(unravel_key_to_tuple(old)[:-1])
        # a node that receives an entry is kept, with its batch size
        entered = {new[:depth] for new, _ in moved for depth in range(len(new))}
        for path in parents:
            while path and path not in entered and _has_nothing(out.get(path, None)):
                out.del_(path)
                path = path[:-1]
        for new, value in moved:
            if is_taken(out, new):
                raise errors.existing_key(new, "delete or rename that entry first")
            out.set(new, value)
        return out

    def clear(self) -> Self:
        """Remove all entries.

        Raises:
            RuntimeError: The tensordict is locked.

        >>> TensorDict({"a": 1}).clear().is_empty()
        True
        """
        for key in list(self._keys()):
            self.del_(key)
        return self


def _has_nothing(node: Any) -> bool:
    """Return whether a node exists and has no entries; a lazy stack is empty if all its elements are."""
    if node is None or (stack := node._lazy_stack) is None:
        return node is not None and not list(node._keys())
    return all(map(_has_nothing, stack.tensordicts))
