"""Private names: methods with a leading underscore that published programs call, in terms of the public ones.

Programs of other people call these on tensordicts, although no documentation lists them. Each is an alias of what the
public method does, with the parameters that programs pass. The documentation does not show them, and nothing here
calls them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Self

import torch

from tensordict_core.base.index import Index
from tensordict_core.base.keys import NestedKey
from tensordict_core.base.meta import as_batch_size
from tensordict_core.base.node import Node
from tensordict_core.base.predicates import NESTED_TENSORS_AS_LISTS
from tensordict_core.base.registry.types import containers


class PrivateNames(Node):
    """Methods with a leading underscore that published programs call."""

    __slots__ = ()

    @classmethod
    def _new_unsafe(
        cls,
        source: Mapping[str, Any] | None = None,
        batch_size: Sequence[int] | int | None = None,
        device: Any = None,
        names: Sequence[str | None] | None = None,
        lock: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Alias of the constructor; values are checked here, too.

        >>> TensorDict._new_unsafe({"a": torch.zeros(3)}, [3]).batch_size
        torch.Size([3])
        """
        for option in ("non_blocking", "nested", "is_shared", "is_memmap"):
            kwargs.pop(option, None)
        made: Any = cls if issubclass(cls, containers.dense) else containers.dense
        return made({**(source or {}), **kwargs}, batch_size, device=device, names=names, lock=lock)

    @staticmethod
    def _parse_batch_size(source: Any, batch_size: Sequence[int] | int | None = None) -> torch.Size:
        """Return a batch size argument as a ``torch.Size``; that of a tensordict for an argument of another type.

        >>> TensorDict._parse_batch_size({}, 3), TensorDict._parse_batch_size({"a": torch.zeros(2)})
        (torch.Size([3]), torch.Size([]))
        """
        try:
            return as_batch_size(batch_size)
        except TypeError:
            if not isinstance(source, Node):
                raise
            return source._meta.batch_size

    @property
    def _tensordict(self) -> Any:
        """The dictionary of a dense tensordict's entries; programs write valid entries into it.

        >>> TensorDict({"a": 1})._tensordict
        {'a': tensor(1)}
        """
        return self._entries

    @property
    def _td_dim_names(self) -> list[str | None] | None:
        """Alias of ``names``; ``None`` if no dimension has one.

        >>> TensorDict({}, [3])._td_dim_names is None
        True
        """
        return None if self._meta.names is None else list(self._meta.names)

    @property
    def _is_locked(self) -> bool:
        """Alias of ``is_locked``."""
        return bool(self._locked)

    @property
    def _is_memmap(self) -> bool:
        """Alias of ``is_memmap()``; programs set it on tensordicts that are mapped.

        >>> TensorDict({"a": torch.zeros(2)})._is_memmap
        False
        """
        return bool(self.is_memmap())

    @_is_memmap.setter
    def _is_memmap(self, value: bool) -> None:
        if value != self.is_memmap():
            raise RuntimeError(
                f"_is_memmap={value!r} is not what the leaves of the {type(self).__name__} are; use memmap() or clone()"
            )

    @property
    def _memmap_prefix(self) -> Any:
        """Alias of ``saved_path``; ``None`` if the tensordict is not saved.

        >>> TensorDict({})._memmap_prefix is None
        True
        """
        return getattr(self, "saved_path", None)

    @property
    def _lock_parents_weakrefs(self) -> list[weakref.ref[Any]]:
        """Weak references to the locked tensordicts that this one is in, the outermost first.

        >>> td = TensorDict({"a": {"b": {}}}).lock_()
        >>> [ref() is td for ref in td["a", "b"]._lock_parents_weakrefs]
        [True, False]
        """
        found: dict[int, weakref.ref[Any]] = {}
        waiting = [self._inmost()]
        while waiting:
            for ref in waiting.pop()._holders or ():
                holder = ref()
                if holder is not None and holder._locked:
                    found[id(holder)] = ref
                    waiting.append(holder)
        return list(found.values())[::-1]

    def _fast_apply(self, fn: Callable[..., Any], *others: Any, **options: Any) -> Any:
        """Alias of ``apply`` that keeps empty nested tensordicts by default.

        >>> TensorDict({"a": torch.zeros(2)})._fast_apply(lambda x: x + 1)["a"]
        tensor([1., 1.])
        """
        return self._apply_nest(fn, *others, **{"filter_empty": False, **options})

    def _apply_nest(self, fn: Callable[..., Any], *others: Any, **options: Any) -> Any:
        """Alias of ``apply``.

        >>> TensorDict({"a": torch.zeros(2)})._apply_nest(lambda x: x + 1)["a"]
        tensor([1., 1.])
        """
        for option in ("checked", "num_threads", "prefix", "call_on_unbatched"):
            options.pop(option, None)
        return self.apply(fn, *others, **options)

    def _get_str(self, key: str, default: Any = None, **kwargs: Any) -> Any:
        """Alias of ``get``; a default that is ``NO_DEFAULT`` raises an error for a missing key.

        >>> TensorDict({"a": 1})._get_str("b", None) is None
        True
        """
        return self.get(key, default, **kwargs)

    def _get_tuple(self, key: NestedKey, default: Any = None, **kwargs: Any) -> Any:
        """Alias of ``get``.

        >>> TensorDict({"a": {"b": 1}})._get_tuple(("a", "b"), None)
        tensor(1)
        """
        return self.get(key, default, **kwargs)

    def _set_str(
        self,
        key: NestedKey,
        value: Any,
        *,
        inplace: bool | None = False,
        validated: bool = False,
        ignore_lock: bool = False,
        non_blocking: bool = False,
    ) -> Self:
        """Alias of ``set``, or of ``set_`` where ``inplace`` is true.

        >>> TensorDict({})._set_str("a", torch.zeros(2), inplace=False, validated=True)["a"]
        tensor([0., 0.])
        """
        node: Any = self
        if inplace:
            node.set_(key, value, non_blocking=non_blocking)
        else:
            with node.unlock_() if ignore_lock and node.is_locked else nullcontext():
                node.set(key, value, non_blocking=non_blocking)
        return self

    _set_tuple = _set_str

    def _has_names(self) -> bool:
        """Return whether a batch dimension has a name.

        >>> TensorDict({}, [3], names=["time"])._has_names()
        True
        """
        return self._meta.names is not None

    def _erase_names(self) -> None:
        """Drop the names of the batch dimensions.

        >>> td = TensorDict({}, [3], names=["time"])
        >>> td._erase_names()
        >>> td.names
        [None]
        """
        self._put_names(None)

    def _get_names_idx(self, idx: Any) -> list[str | None] | None:
        """Return the names of the dimensions that remain after an index, ``None`` if there are none.

        >>> TensorDict({}, [3, 4], names=["time", "env"])._get_names_idx(0)
        ['env']
        """
        names = Index(idx, self.batch_size).names(self._meta.names)
        return list(names) if names else None

    @property
    def _has_exclusive_keys(self) -> bool:
        """Return whether elements of a lazy stack, this one or a nested one, have different keys of tensors.

        >>> from tensordict_core import LazyStackedTensorDict
        >>> stack = LazyStackedTensorDict(TensorDict({"a": 1}), TensorDict({"a": 1, "b": 2}))
        >>> stack._has_exclusive_keys, TensorDict({"n": stack})._has_exclusive_keys, TensorDict({})._has_exclusive_keys
        (True, True, False)
        """
        if not self._is_lazy_stack:
            nodes: Any = self._nodes()
            return any(node._has_exclusive_keys for node in nodes)
        elements: Any = getattr(self, "tensordicts", ())
        return len({frozenset(element.keys(True, True)) for element in elements}) > 1

    def _stack_onto_(self, list_item: Sequence[Any], dim: int) -> Self:
        """Write the stack of tensordicts into this one.

        >>> td = TensorDict({"a": torch.zeros(2)}, [2])
        >>> td._stack_onto_([TensorDict({"a": 1.0}), TensorDict({"a": 2.0})], 0)["a"]
        tensor([1., 2.])
        """
        return self.update_(type(list_item[0]).stack(list_item, dim))

    def _items_list(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        is_leaf: Callable[[type[Any]], bool] | None = None,
        **kwargs: Any,
    ) -> tuple[list[Any], list[Any]]:
        """Return the keys and the values of ``items``, as two lists; elements of lazy stacks have keys of their own.

        >>> TensorDict({"a": 1, "b": 2})._items_list()
        (['a', 'b'], [tensor(1), tensor(2)])
        """
        pairs = list(self.items(include_nested, leaves_only, is_leaf=is_leaf or NESTED_TENSORS_AS_LISTS))
        return [key for key, _ in pairs], [value for _, value in pairs]
