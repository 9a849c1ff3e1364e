"""Key flattening: `flatten_keys` and `unflatten_keys`, and several entries concatenated or stacked into one.

Flattening and unflattening rename entries without a copy. They raise a ``KeyError`` if two entries would get the same
name.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.keys import KEY_SEPARATOR, NestedKey, unravel_key, unravel_key_to_tuple
from tensordict_core.base.node import Node, has_entries
from tensordict_core.base.rebuild import IsLeaf
from tensordict_core.base.write_back import WriteBack


def _is_entry(value: Any, is_leaf: IsLeaf | None) -> bool:
    """Return whether a value is not flattened: a tensor, non-tensor data, or an instance of a type of ``is_leaf``."""
    return not isinstance(value, Node) or value._is_opaque or (is_leaf is not None and is_leaf(type(value)))


def _flatten(
    node: Any,
    prefix: str,
    path: tuple[str, ...],
    separator: str,
    is_leaf: IsLeaf | None,
    out: dict[str, Any],
    paths: Any,
) -> None:
    for key, value in node._items():
        name = prefix + key
        if type(value) is Tensor or _is_entry(value, is_leaf):
            if name in out:
                raise errors.keys_collide("flatten_keys", name, paths[name], (*path, key))
            out[name] = value
            paths[name] = (*path, key)
        else:
            _flatten(value, name + separator, (*path, key), separator, is_leaf, out, paths)


def _check_separator(separator: Any) -> None:
    if not isinstance(separator, str):
        raise TypeError(f"separator is a string, got {separator!r}; pass one such as '.'")


def _node_at(root: Any, path: list[str], key: str, separator: str) -> Any:
    """Return the node under a path, made where it is missing; ``key`` is the flat key that needs it."""
    node = root
    for depth, name in enumerate(path):
        child = node._get(name)
        if child is None:
            node._set(name, root._new({}, root._meta))
            child = node._get(name)
        elif _is_entry(child, None):
            raise errors.keys_collide("unflatten_keys", path[: depth + 1], separator.join(path[: depth + 1]), key)
        node = child
    return node


def _nest(root: Any, nodes: dict[str, Any], key: str, value: Any, separator: str, clone: bool) -> None:
    """Store an entry under the path that its flat key names; the path must be free.

    ``nodes`` keeps the nodes that earlier keys named, by all of a flat key but its last part.
    """
    name = key.split(separator)[-1]
    head = key[: -len(name) - len(separator)]
    node = root if name == key else nodes.get(head)
    if node is None:
        node = nodes[head] = _node_at(root, head.split(separator), key, separator)
    old = node._get(name)
    if has_entries(value):
        if old is None:
            node._set(name, value._clone(False) if clone else value)
            return
        if not _is_entry(old, None):
            for inner, entry in value._items():
                if old._get(inner) is not None:
                    path = (*key.split(separator), inner)
                    raise errors.keys_collide("unflatten_keys", path, separator.join(path), key)
                old._set(inner, entry)
            return
    if old is not None:
        path = tuple(key.split(separator))
        raise errors.keys_collide("unflatten_keys", path, key, path)
    node._set(name, value)


class _Renamed(WriteBack):
    """Write-back of renamed entries: known entries keep their paths in the source, new keys are converted."""

    __slots__ = ("found", "separator")

    copies = True  # reading an entry of a lazy stack copies
    leaves_only = True

    def __init__(self, source: Any, separator: str) -> None:
        self.remember(source)
        self.separator = separator
        self.found: dict[tuple[str, ...], tuple[str, ...]] | None = None

    def known(self) -> dict[tuple[str, ...], tuple[str, ...]]:
        """Return the paths in the source by their paths in the result."""
        raise NotImplementedError

    def spelled(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """Return the path in the source for an entry that the ``with`` block adds."""
        raise NotImplementedError

    def path(self, path: tuple[str, ...]) -> tuple[str, ...]:
        if self.found is None:
            self.found = self.known()
        place = self.found.get(path)
        if place is None:
            place = self.spelled(path)
            if place in self.found.values():
                other = next(known for known, taken in self.found.items() if taken == place)
                raise errors.keys_collide("the block", unravel_key(place), unravel_key(path), unravel_key(other))
        return place


class _Flattened(_Renamed):
    __slots__ = ("paths",)

    def __init__(self, source: Any, separator: str, paths: dict[str, tuple[str, ...]]) -> None:
        super().__init__(source, separator)
        self.paths = paths

    def known(self) -> dict[tuple[str, ...], tuple[str, ...]]:
        return {(key,): path for key, path in self.paths.items()}

    def spelled(self, path: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(self.separator.join(path).split(self.separator))


class _Unflattened(_Renamed):
    __slots__ = ()

    def known(self) -> dict[tuple[str, ...], tuple[str, ...]]:
        source: Any = self.source()  # the write-back runs only while the source is alive
        return {(*path[0].split(self.separator), *path[1:]): path for path in source._leaf_keys()}

    def spelled(self, path: tuple[str, ...]) -> tuple[str, ...]:
        return (self.separator.join(path),)


class KeyFlattening(Node):
    """``flatten_keys``, ``unflatten_keys``, and methods that combine several entries into one."""

    __slots__ = ()

    # renaming --------------------------------------------------------------------------------------------------------

    def flatten_keys(
        self, separator: str = KEY_SEPARATOR, inplace: bool = False, is_leaf: IsLeaf | None = None
    ) -> Self:
        """Return the entries of all levels in one level, under keys joined with a separator. Nothing is copied.

        Nested tensordicts without entries are dropped. As a context manager, the result writes the entries that the
        block adds or replaces back into this tensordict (with ``inplace``, it nests the keys again).

        Args:
            separator: The string between the levels of a key.
            inplace: Whether this tensordict is changed instead.
            is_leaf: Predicate on types; instances of the types for which it is true are not flattened. Tensors and
                non-tensor data are never flattened.

        Returns:
            An unlocked tensordict of the same batch size; this one if ``inplace``.

        Raises:
            KeyError: Two entries would get the same key.
            RuntimeError: The tensordict is locked and ``inplace``.
            TypeError: ``separator`` is not a string.

        >>> td = TensorDict({"a": {"b": 1, "c": {"d": 2}}})
        >>> list(td.flatten_keys(".").keys())
        ['a.b', 'a.c.d']
        >>> with td.flatten_keys("_") as flat:
        ...     flat["a_e"] = 3
        >>> td["a", "e"]
        tensor(3)
        """
        _check_separator(separator)
        if inplace:
            if self._locked:
                raise errors.locked("flatten_keys(inplace=True)")
            self._flatten_(separator, is_leaf)
            self._set_exit(lambda td: td.unflatten_keys(separator, inplace=True))
            return self
        paths: dict[str, Any] = {}
        flat: Self = self._flattened(separator, is_leaf, paths)
        flat._set_exit(_Flattened(self, separator, paths))
        return flat

    def _flattened(self, separator: str, is_leaf: IsLeaf | None, paths: dict[str, Any]) -> Any:
        entries: dict[str, Any] = {}
        _flatten(self, "", (), separator, is_leaf, entries, paths)
        return self._new(entries, self._meta)

    def _flatten_(self, separator: str, is_leaf: IsLeaf | None) -> Any:
        entries: dict[str, Any] = {}
        _flatten(self, "", (), separator, is_leaf, entries, {})
        for key in [key for key, value in self._items() if entries.get(key) is not value]:
            self._del(key)
        for key, value in entries.items():
            if self._peek(key) is None:
                self._set(key, value)
        return self

    def unflatten_keys(self, separator: str = KEY_SEPARATOR, inplace: bool = False) -> Self:
        """Return a tree of nested tensordicts from keys joined with a separator. Nothing is copied.

        As a context manager, the result writes the entries that the block adds or replaces back into this tensordict
        (with ``inplace``, it flattens the keys again).

        Args:
            separator: The string between the levels of a key.
            inplace: Whether this tensordict is changed instead.

        Returns:
            An unlocked tensordict of the same batch size; this one if ``inplace``.

        Raises:
            KeyError: Two entries would get the same key, or an entry would be nested in a tensor.
            RuntimeError: The tensordict is locked and ``inplace``.
            TypeError: ``separator`` is not a string.

        >>> TensorDict({"a.b": 1, "a.c.d": 2}).unflatten_keys(".")["a", "c", "d"]
        tensor(2)
        """
        _check_separator(separator)
        if inplace:
            if self._locked and any(separator in key for key in self._keys()):
                raise errors.locked("unflatten_keys(inplace=True)")
            self._unflatten_(separator)
            self._set_exit(lambda td: td.flatten_keys(separator, inplace=True))
            return self
        nested: Self = self._unflattened(separator)
        nested._set_exit(_Unflattened(self, separator))
        return nested

    def _unflattened(self, separator: str) -> Any:
        nested = self._new({}, self._meta)
        nodes: dict[str, Any] = {}
        for key, value in self._items():
            _nest(nested, nodes, key, value, separator, True)
        return nested

    def _unflatten_(self, separator: str) -> Any:
        self._unflattened(separator)  # finds every collision before anything is changed
        nodes: dict[str, Any] = {}
        for key, value in [(key, value) for key, value in self._items() if separator in key]:
            self._del(key)
            _nest(self, nodes, key, value, separator, False)
        return self

    # several entries as one ------------------------------------------------------------------------------------------

    def _chosen_leaves(self, what: str, order: bool | Sequence[NestedKey] | None) -> list[Tensor]:
        """Return the tensors of all levels in the given order: ``True`` for alphabetical, or a list of all keys."""
        found: dict[Any, Tensor] = dict(self.items(True, True))
        if not found:
            raise errors.SizeError(
                f"{what} needs at least one tensor, and this tensordict has none; set an entry first"
            )
        if order is True:
            return [found[key] for key in builtins.sorted(found, key=unravel_key_to_tuple)]
        if order is None or order is False:
            return list(found.values())
        if isinstance(order, str):
            raise TypeError(f"{what} takes a list of keys as sorted, got {order!r}; pass {[order]}")
        keys = [unravel_key(key) for key in order]
        if set(keys) != set(found) or len(keys) != len(found):
            raise RuntimeError(
                f"{what} needs every key once in sorted, got {keys} for the keys {list(found)}; select the keys first"
            )
        return [found[key] for key in keys]

    def cat_from_tensordict(
        self, dim: int = 0, *, sorted: bool | Sequence[NestedKey] | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Return all tensors, nested ones included, concatenated into one; non-tensor data are left out.

        Args:
            dim: The dimension of the tensors, counting the batch dimensions.
            sorted: ``True`` for alphabetical order of the keys, or a list of all keys in the desired order; by default
                the order of the tensordict.
            out: A tensor into which the result is written.

        Raises:
            RuntimeError: There is no tensor, ``sorted`` lacks a key, or shapes do not fit.

        >>> TensorDict({"b": torch.zeros(1), "a": torch.ones(2)}).cat_from_tensordict(sorted=True)
        tensor([1., 1., 0.])
        """
        return torch.cat(self._chosen_leaves("cat_from_tensordict", sorted), dim, out=out)

    def stack_from_tensordict(
        self, dim: int = 0, *, sorted: bool | Sequence[NestedKey] | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Return all tensors, nested ones included, stacked into one; non-tensor data are left out.

        Args:
            dim: The position of the new dimension, counting the batch dimensions.
            sorted: ``True`` for alphabetical order of the keys, or a list of all keys in the desired order; by default
                the order of the tensordict.
            out: A tensor into which the result is written.

        Raises:
            RuntimeError: There is no tensor, ``sorted`` lacks a key, or shapes differ.

        >>> TensorDict({"b": torch.zeros(2), "a": torch.ones(2)}).stack_from_tensordict(-1)
        tensor([[0., 1.],
                [0., 1.]])
        """
        return torch.stack(self._chosen_leaves("stack_from_tensordict", sorted), dim, out=out)

    def cat_tensors(self, *keys: NestedKey, out_key: NestedKey, dim: int = 0, keep_entries: bool = False) -> Self:
        """Replace several entries by one, their concatenation.

        Args:
            *keys: The keys of the entries.
            out_key: The key of the new entry.
            dim: The dimension along which they are concatenated.
            keep_entries: Whether the original entries are kept.

        Returns:
            The tensordict itself.

        Raises:
            KeyError: There is no such entry, or it is named twice and would be removed.
            RuntimeError: The tensordict is locked, or the result does not start with the batch size.

        >>> TensorDict({"a": torch.zeros(1), "b": torch.ones(2)}).cat_tensors("a", "b", out_key="c")["c"]
        tensor([0., 1., 1.])
        """
        return self._combine(torch.cat, "cat_tensors", keys, out_key, dim, keep_entries)

    def stack_tensors(self, *keys: NestedKey, out_key: NestedKey, dim: int = 0, keep_entries: bool = False) -> Self:
        """Replace several entries by one, their stack.

        Args:
            *keys: The keys of the entries.
            out_key: The key of the new entry.
            dim: The position of the new dimension.
            keep_entries: Whether the original entries are kept.

        Returns:
            The tensordict itself.

        Raises:
            KeyError: There is no such entry, or it is named twice and would be removed.
            RuntimeError: The tensordict is locked, or the result does not start with the batch size.

        >>> TensorDict({"a": torch.zeros(2), "b": torch.ones(2)}).stack_tensors("a", "b", out_key="c")["c"].shape
        torch.Size([2, 2])
        """
        return self._combine(torch.stack, "stack_tensors", keys, out_key, dim, keep_entries)

    def _combine(
        self, function: Any, what: str, keys: tuple[NestedKey, ...], out_key: NestedKey, dim: int, keep_entries: bool
    ) -> Self:
        if self._locked:
            raise errors.locked(what)
        if not keys:
            raise errors.SizeError(f"{what} needs at least one key; name the entries to combine")
        entries = []
        for key in keys:
            value = self.get(key, None)
            if value is None:
                raise errors.missing_key(key, self._keys(), type(self).__name__)
            if not isinstance(value, Tensor | Node):  # tensorclasses give values out
                parent, name = self._find_parent(key)
                value = parent._get(name)
            entries.append(value)
        combined = function(entries, dim)
        if keep_entries:
            return self.set(out_key, combined)
        paths = [unravel_key(key) for key in keys]
        if len(set(paths)) < len(paths):
            raise KeyError(
                f"{what} removes the entries that it combines, and {paths} has one twice; pass keep_entries=True"
            )
        target = unravel_key_to_tuple(out_key)
        lengths = [(path, min(len(path), len(target))) for path in map(unravel_key_to_tuple, keys)]
        if any(path[:n] == target[:n] for path, n in lengths):  # the result takes the place of an entry
            for key in keys:
                self.del_(key)
            try:
                return self.set(out_key, combined)
            except Exception:
                for key, value in zip(keys, entries, strict=True):
                    self.set(key, value)
                raise
        self.set(out_key, combined)
        for key in keys:
            self.del_(key)
        return self
