"""Access by key: ``get``, ``set``, ``keys`` and related methods, for nested keys too.

A string key costs one dictionary operation; a nested key costs one for each level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.entry import to_entry
from tensordict_core.base.keys import NestedKey, unravel_key, unravel_key_to_tuple
from tensordict_core.base.meta import starts_with
from tensordict_core.base.node import Node, has_entries, is_leaf_tensor
from tensordict_core.base.options import current as options
from tensordict_core.base.ragged import shape_of
from tensordict_core.base.rebuild import KEEP, NO_DEFAULT, IsLeaf
from tensordict_core.base.registry.types import containers
from tensordict_core.base.views import ItemsView, KeysView, ValuesView
from tensordict_core.base.write_plan import UpdatePlan


def _as_plain(key: Any) -> str | tuple[str, ...]:
    """Return a key that is not a tuple as a plain string, from enumeration members and other subclasses of ``str``."""
    return str.__str__(key) if isinstance(key, str) else unravel_key(key)


def _non_tensor_items(node: Any, prefix: tuple[str, ...], nested: bool) -> Iterator[tuple[Any, Any]]:
    """Yield the keys and entries of non-tensor data; tensors, which may be ragged, are not read."""
    for key, entry in node._peek_items():
        if type(entry) is Tensor or not isinstance(entry, Node):
            continue
        if entry._is_non_tensor:
            yield (*prefix, key) if prefix else key, entry
        elif nested and not entry._is_opaque:
            yield from _non_tensor_items(entry, (*prefix, key), nested)


class Access(Node):
    """Methods that read and write one entry by key."""

    __slots__ = ()

    # reading ---------------------------------------------------------------------------------------------------------

    def get(self, key: NestedKey, default: Any = KEEP, **kwargs: Any) -> Any:
        """Return the entry stored under a key: a tensor or a node.

        Non-tensor data are returned as `NonTensorData`; ``td[key]`` returns their value.

        Args:
            key: A string or a nested key.
            default: The result if the key is missing; by default ``None`` (see `set_get_defaults_to_none`);
                ``NO_DEFAULT`` raises a ``KeyError``.
            **kwargs: Further arguments of the container (for a lazy stack, how to combine ragged entries).

        >>> td = TensorDict({"a": {"b": torch.zeros(2)}}, batch_size=[2])
        >>> td.get(("a", "b")), td.get("c") is None
        (tensor([0., 0.]), True)
        """
        if kwargs:
            path = unravel_key_to_tuple(key)
            parent = self.get(path[:-1]) if len(path) > 1 else self
            value = parent._get_ragged(path[-1], KEEP, **kwargs) if isinstance(parent, Node) else KEEP
            return self._absent(key, default) if value is KEEP else value
        if type(key) is str:
            value = self._get(key)
            return self._absent(key, default) if value is None else value
        if not isinstance(key, tuple):
            return self.get(_as_plain(key), default)
        if not key:
            raise errors.empty_key()
        node: Any = self
        for depth, name in enumerate(key):
            if type(name) is not str:
                return self.get(unravel_key_to_tuple(key), default)
            if not isinstance(node, Node):
                if default is KEEP and node is not None:
                    raise errors.not_a_node(key[:depth], node)
                return self._absent(unravel_key_to_tuple(key), default)
            try:
                node = node._get(name)
            except RuntimeError:  # of entries that do not stack
                unravel_key_to_tuple(key)  # raises the error of an object that is no key
                raise
        return self._absent(key, default) if node is None else node

    def _absent(self, key: Any, default: Any) -> Any:
        """Return the result of ``get`` for a missing key, or raise its error."""
        if default is KEEP:
            if options.get_defaults_to_none:
                return None
        elif default is not NO_DEFAULT:
            return default
        raise errors.missing_key(key, self._keys(), type(self).__name__)

    def _get_path_value(self, path: tuple[str, ...]) -> Any:
        """Return the value under a nested key, non-tensor data unwrapped."""
        holder: Any = self
        node: Any = self._get(path[0])
        for name in path[1:]:
            if not isinstance(node, Node):
                raise self._not_found(path)
            holder, node = node, node._get(name)
        if type(node) is Tensor:
            return node
        if node is None:
            raise self._not_found(path)
        return node._entry_value(holder, path[-1]) if isinstance(node, Node) else node

    def _not_found(self, path: tuple[str, ...]) -> Exception:
        """Return the error for a nested key without an entry, which names the level that is missing or no node."""
        node: Any = self
        for depth, name in enumerate(path):
            if depth and not has_entries(node):
                return errors.not_a_node(path[:depth], node)
            value = node._get(name)
            if value is None:
                break
            node = value
        return errors.missing_key(path[: depth + 1] if depth else name, node._keys(), type(node).__name__)

    def get_non_tensor(self, key: NestedKey, default: Any = NO_DEFAULT) -> Any:
        """Return the value of a non-tensor entry, or any other entry as ``get`` does.

        Raises:
            KeyError: There is no such key, and no ``default``.

        >>> TensorDict({"s": "text"}).get_non_tensor("s")
        'text'
        """
        value = self.get(key, NO_DEFAULT if default is NO_DEFAULT else None)
        if value is None:
            return default
        return self._get_path_value(unravel_key_to_tuple(key)) if isinstance(value, Node) else value

    def get_item_shape(self, key: NestedKey) -> Any:
        """Return the shape of an entry without reading it; -1 for sizes that differ between lazy stack elements.

        Raises:
            KeyError: There is no such key.

        >>> TensorDict({"a": torch.zeros(2, 3)}).get_item_shape("a")
        torch.Size([2, 3])
        >>> ragged = TensorDict.lazy_stack([TensorDict({"a": torch.zeros(1)}), TensorDict({"a": torch.ones(2)})])
        >>> ragged.get_item_shape("a")
        torch.Size([2, -1])
        """
        parent, name, _ = self._peek_entry(key)
        return parent._shape_of(name)

    def entry_class(self, key: NestedKey) -> type[Any]:
        """Return the class of an entry without reading it.

        Raises:
            KeyError: There is no such key.

        >>> TensorDict({"a": torch.zeros(2)}).entry_class("a").__name__
        'Tensor'
        """
        return type(self._peek_entry(key)[2])

    def _peek_entry(self, key: NestedKey) -> tuple[Any, str, Any]:
        """Return the node that holds an entry, the name of the entry in it, and the result of ``_peek``.

        Raises:
            KeyError: There is no such key.
        """
        parent, name = self._find_parent(key)
        entry = parent._peek(name)
        if entry is None:
            raise errors.missing_key(key, parent._keys(), type(self).__name__)
        return parent, name, entry

    def is_non_tensor(self, key: NestedKey) -> bool:
        """Return whether an entry is non-tensor data.

        >>> TensorDict({"s": "text"}).is_non_tensor("s")
        True
        """
        return getattr(self.entry_class(key), "_is_non_tensor", False)

    def __contains__(self, key: Any) -> bool:
        """Return whether a key, nested or not, has an entry.

        >>> ("a", "b") in TensorDict({"a": {"b": 1}})
        True
        """
        if type(key) is str:
            return self._peek(key) is not None
        if not isinstance(key, str | tuple) or key == ():
            raise errors.bad_key(key)
        return self._peek_path(unravel_key_to_tuple(key)) is not None

    # views -----------------------------------------------------------------------------------------------------------

    def keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: IsLeaf | None = None,
        sort: bool = False,
    ) -> KeysView:
        """Return a live view of the keys.

        Args:
            include_nested: Whether keys of nested tensordicts are included, as tuples.
            leaves_only: Whether only the keys of leaves are included.
            is_leaf: Predicate on types; instances of the types for which it is true are leaves. By default tensors.
            sort: Whether keys come in alphabetical order.

        >>> td = TensorDict({"a": 1, "b": {"c": 2}})
        >>> list(td.keys()), list(td.keys(True, True))
        (['a', 'b'], ['a', ('b', 'c')])
        """
        view = KeysView()
        view.td, view.include_nested, view.leaves_only = self, include_nested, leaves_only
        view.is_leaf, view.sort, view.is_flat = is_leaf, sort, not (include_nested or leaves_only or sort)
        return view

    def values(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: IsLeaf | None = None,
        sort: bool = False,
    ) -> ValuesView:
        """Return a live view of the entries, in the order of ``keys`` with the same arguments.

        >>> [v.item() for v in TensorDict({"a": 1, "b": {"c": 2}}).values(True, True)]
        [1, 2]
        """
        if not (include_nested or leaves_only or sort):
            return self._entries.values()  # type: ignore[return-value]  # a dictionary's own view is the fastest
        view = ValuesView()
        view.td, view.include_nested, view.leaves_only = self, include_nested, leaves_only
        view.is_leaf, view.sort, view.is_flat, view.rest = is_leaf, sort, False, None
        return view

    def items(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: IsLeaf | None = None,
        sort: bool = False,
    ) -> ItemsView:
        """Return a live view of the pairs of keys and entries, in the order of ``keys`` with the same arguments.

        >>> [(k, v.item()) for k, v in TensorDict({"a": 1, "b": {"c": 2}}).items(True, True)]
        [('a', 1), (('b', 'c'), 2)]
        """
        if not (include_nested or leaves_only or sort):
            return self._entries.items()  # type: ignore[return-value]  # a dictionary's own view is the fastest
        view = ItemsView()
        view.td, view.include_nested, view.leaves_only = self, include_nested, leaves_only
        view.is_leaf, view.sort, view.is_flat, view.rest = is_leaf, sort, False, None
        return view

    def non_tensor_items(self, include_nested: bool = False) -> tuple[tuple[Any, Any], ...]:
        """Return the pairs of keys and entries of non-tensor data.

        >>> [k for k, _ in TensorDict({"a": 1, "s": "text"}).non_tensor_items()]
        ['s']
        """
        return tuple(_non_tensor_items(self, (), include_nested))

    @property
    def sorted_keys(self) -> list[str]:
        """The keys of this node in alphabetical order.

        >>> TensorDict({"b": torch.zeros(3), "a": torch.zeros(3)}).sorted_keys
        ['a', 'b']
        """
        return sorted(self._keys())

    # writing ---------------------------------------------------------------------------------------------------------

    def set(
        self, key: NestedKey, item: Any, inplace: bool | None = False, *, non_blocking: bool = False, **kwargs: Any
    ) -> Self:
        """Store an entry, or replace the existing one; missing nodes of a nested key are created.

        Args:
            key: A string or a nested key.
            item: A tensor of shape ``[*batch_size, ...]``, a number, an array, a dictionary or tensordict, or anything
                else as non-tensor data.
            inplace: Whether the value is written into the existing entry; ``None`` means if shape, dtype and device are
                equal.
            non_blocking: Whether a move to the tensordict's device may be asynchronous.
            **kwargs: Further arguments of the container.

        Raises:
            RuntimeError: The value does not start with the batch size, or the tensordict is locked.

        >>> td = TensorDict({}, batch_size=[3]).set(("a", "b"), torch.ones(3))
        >>> td["a", "b"]
        tensor([1., 1., 1.])
        """
        if type(key) is str:
            meta = self._meta
            if self._locked:
                if not inplace or self._peek(key) is None:
                    raise errors.locked(f"set({key!r})")
            # with type() in place of the first isinstance, Dynamo guards on the class Tensor at each call; the second
            # isinstance is slow for plain tensors
            elif (
                inplace is False
                and meta.device is None
                and isinstance(item, Tensor)
                and (type(item) is Tensor or not isinstance(item, Node))
            ):
                if size := meta.batch_size:
                    try:
                        fits = starts_with(item.shape, size)
                    except RuntimeError:  # a strided nested tensor has no shape
                        fits = starts_with(shape_of(item), size)
                    if not fits:
                        raise errors.batch_mismatch(key, shape_of(item), size)
                self._set(key, item)
                return self
            if item is self:
                raise errors.holds_itself(key)
            value = to_entry(meta, key, item, non_blocking=non_blocking)
            if inplace is None:
                inplace = self._fits_in_place(key, value)
            if inplace and (old := self._peek(key)) is not None:
                if has_entries(old) and has_entries(value):
                    self._get(key).update(value, inplace=True, non_blocking=non_blocking)
                else:
                    self._write_entry(key, old, value)
            else:
                self._set(key, value)
                if meta.names is None and isinstance(value, Node) and value._meta.names is not None:
                    self._adopt_names(value)
            return self
        self._set_nested(unravel_key_to_tuple(key), item, inplace, non_blocking)
        return self

    _store = set
    """`set` under a name that no field of a tensorclass hides and no subclass of a program overrides: for item
    assignment, and for nodes above this one. A container that defines `set` repeats this line."""

    def _set_nested(self, key: tuple[str, ...], item: Any, inplace: bool | None, non_blocking: bool) -> None:
        """Store an entry under a nested key, and create the nodes that are missing."""
        if not key:
            raise errors.empty_key()
        node: Any = self
        made: list[tuple[Any, str]] = []
        try:
            for depth, name in enumerate(key[:-1]):
                if item is node:
                    raise errors.holds_itself(key)
                node = node._nested_for(name, key, depth + 1, made)
            node._store(key[-1], item, inplace, non_blocking=non_blocking)
        except BaseException:
            for parent, name in reversed(made):  # the entry is refused, so the nodes created for it are removed
                parent._del(name)
            raise

    def _nested_for(self, name: str, key: tuple[str, ...], depth: int, made: list[tuple[Any, str]]) -> Any:
        """Return the nested node under a name, made if it is missing; ``made`` collects the nodes to remove again.

        Elements of a lazy stack that have it keep theirs, and those of several batch sizes get one of their own size.
        """
        if (stack := self._lazy_stack) is not None:
            elements = stack.tensordicts
            if -1 in self._meta.batch_size or any(td._peek(name) is not None for td in elements):
                for td in elements:
                    td._nested_for(name, key, depth, made)
                return self._get(name)
        child = self._get(name)
        if child is None:
            if self._locked:
                raise errors.locked(f"set({key!r})")
            self._set(name, self._new({}, self._meta))
            made.append((self, name))
            child = self._get(name)
        elif not has_entries(child):
            raise errors.in_the_way(key[:depth], child)
        return child

    def _plan_set(self, key: str, item: Any, plan: UpdatePlan, prefix: tuple[str, ...]) -> Any:
        """Return the entry that an update stores under a key; ``None`` if the value is written in place instead.

        Raises the errors of ``set``. A container that defines ``set`` overrides it.
        """
        inplace = plan.inplace and self._peek(key) is not None
        if self._locked and not inplace:
            raise errors.locked(f"set({key!r})")
        if item is self:
            raise errors.holds_itself(key)
        value = to_entry(self._meta, (*prefix, key) if prefix else key, item, non_blocking=plan.non_blocking)
        if not inplace:
            return value
        self._plan_entry(key, None, value, plan, prefix)
        return None

    def _fits_in_place(self, key: str, value: Any) -> bool:
        old = self._get(key)
        return (
            is_leaf_tensor(old)
            and is_leaf_tensor(value)
            and shape_of(old) == shape_of(value)
            and old.dtype == value.dtype
            and old.device == value.device
        )

    def set_(self, key: NestedKey, item: Any, *, non_blocking: bool = False) -> Self:
        """Write a value into an existing entry; locked tensordicts allow it.

        Args:
            key: The key of the entry.
            item: The value, which starts with the batch size; sizes of 1 are repeated. It is cast to the dtype and
                the device of the entry.
            non_blocking: Whether a copy between devices may be asynchronous.

        Raises:
            KeyError: There is no such entry.
            RuntimeError: The value does not broadcast to the shape of the entry.

        >>> td = TensorDict({"a": torch.zeros(2)}, batch_size=[2], lock=True)
        >>> td.set_("a", torch.ones(2))["a"]
        tensor([1., 1.])
        """
        parent, name, old = self._peek_entry(key)
        parent._write_entry(name, old, item, non_blocking)
        return self

    def set_non_tensor(self, key: NestedKey, value: Any) -> Self:
        """Store a value as non-tensor data, even if ``set`` would convert it to a tensor.

        >>> TensorDict({}).set_non_tensor("n", 1)["n"]
        1
        """
        return self.set(key, containers.non_tensor(value))

    def create_nested(self, key: NestedKey | Sequence[NestedKey]) -> Self:
        """Create an empty nested tensordict of this batch size under each key.

        >>> td = TensorDict({}, batch_size=[3]).create_nested(("a", "b"))
        >>> td["a", "b"].batch_size
        torch.Size([3])
        """
        keys: Any = key if isinstance(key, list) else [key]
        for one in keys:
            self.set(one, self._new({}, self._meta))
        return self

    def _write_entry(self, key: str, old: Any, value: Any, non_blocking: bool = False) -> None:
        """Write a value into the entry ``old`` of a key."""
        try:
            fits = type(old) is Tensor and type(value) is Tensor and old.shape == value.shape
        except RuntimeError:  # nested tensors of the strided layout have no shape
            fits = False
        if fits and type(self._entries) is dict:
            try:
                old.copy_(value, non_blocking)
            except RuntimeError as error:
                leaf = old.requires_grad and old.is_leaf and torch.is_grad_enabled()
                raise errors.in_place_leaf(key) if leaf else errors.in_place_refused(key, error) from error
            return
        self._put_entry(key, None, value, non_blocking)

    def _find_parent(self, key: NestedKey) -> tuple[Any, str]:
        """Return the node that holds (or would hold) the last level of a key, and the name of that level."""
        if type(key) is str:
            return self, key
        path = unravel_key_to_tuple(key)
        if not path:
            raise errors.empty_key()
        node: Any = self
        for depth, name in enumerate(path[:-1]):
            try:
                child = node._get(name)
            except errors.StackError:  # entries of a lazy stack that do not stack have no entries of their own
                child = node._peek(name)
                if has_entries(child):
                    raise
            if child is None:
                raise errors.missing_key(path[: depth + 1], node._keys(), type(self).__name__)
            if not has_entries(child):
                raise errors.not_a_node(path[: depth + 1], child)
            node = child
        return node, path[-1]
