"""Updates in place: values of another tensordict or dictionary, written into the entries that exist, all or none.

Two steps: the walk of both trees plans what goes into which leaf (`_writing`), and then all of it is written at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

from tensordict_core.base import errors
from tensordict_core.base.entry import to_entry
from tensordict_core.base.index import Index
from tensordict_core.base.keys import NestedKey, unravel_key_to_tuple
from tensordict_core.base.node import Node
from tensordict_core.base.registry import containers
from tensordict_core.base.write_plan import Writes

__all__ = ["InPlaceUpdating", "chosen_paths", "descend"]


def chosen_paths(keys: Iterable[NestedKey] | None) -> set[tuple[str, ...]] | None:
    """The paths of the keys to take; ``None``: all."""
    if keys is None:
        return None
    return {unravel_key_to_tuple(key) for key in ([keys] if isinstance(keys, str) else keys)}


def descend(chosen: set[tuple[str, ...]] | None, key: str) -> tuple[bool, set[tuple[str, ...]] | None]:
    """Whether ``key`` is (partly) chosen, and what of it (``None``: all)."""
    if chosen is None or (key,) in chosen:
        return True, None
    below = {path[1:] for path in chosen if path[0] == key and len(path) > 1}
    return bool(below), below


class InPlaceUpdating(Node):
    """``update_``, ``update_at_`` and their other names."""

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
        """Write the values of another tensordict or dictionary into the entries that exist, all of them or none.

        Locked tensordicts allow it. Keys and shapes are checked before anything is written.

        Args:
            input_dict_or_td: Where the values come from. Each has the shape of its entry, or 1 where it is repeated.
            clone: Of no effect, because values are copied.
            non_blocking: Whether copies between devices may be asynchronous.
            keys_to_update: The keys to take; by default all.
            **kwargs: Values by name, after those of ``input_dict_or_td`` or instead of it.

        Raises:
            KeyError: The source has an entry that this tensordict lacks.
            RuntimeError: Shapes differ, or an entry is a leaf of autograd that requires gradients.

        >>> td = TensorDict({"a": torch.zeros(2)}, lock=True)
        >>> td.update_({"a": torch.ones(2)})["a"]
        tensor([1., 1.])
        >>> td.update_(a=torch.zeros(2))["a"]
        tensor([0., 0.])
        """
        source = kwargs if input_dict_or_td is None or input_dict_or_td is self else input_dict_or_td
        chosen = None if keys_to_update is None else chosen_paths(keys_to_update)
        if chosen is None and isinstance(source, Node) and source._meta.batch_size != self._meta.batch_size:
            source = source.expand(self._meta.batch_size)
        writes = Writes()
        self._plan_writes(source, chosen, writes, ())
        if kwargs and source is not kwargs:
            self._plan_writes(kwargs, chosen, writes, ())
        writes.run(non_blocking)
        return self

    def _plan_writes(
        self, source: Any, chosen: set[tuple[str, ...]] | None, writes: Writes, prefix: tuple[str, ...]
    ) -> None:
        """Plan to write every entry of ``source`` that is chosen into the entry of the same key.

        Nothing is written yet. A container that wraps another forwards it.
        """
        try:
            pairs = source._items() if isinstance(source, Node) else source.items()
        except AttributeError:
            raise errors.not_a_source(source) from None
        for key, value in pairs:
            self._plan_item(key, value, chosen, writes, prefix)

    def _plan_item(
        self, key: Any, value: Any, chosen: set[tuple[str, ...]] | None, writes: Writes, prefix: tuple[str, ...]
    ) -> None:
        """Plan to write one item of a source, whose key may be nested."""
        if type(key) is str:
            taken, below = descend(chosen, key)
            if taken:
                self._plan_entry(key, value, below, writes, prefix)
            return
        path = unravel_key_to_tuple(key)
        if chosen is None or any(path[: len(one)] == one for one in chosen):
            parent, name = self._find_parent(path)
            parent._plan_entry(name, value, None, writes, prefix + path[:-1])

    def _plan_entry(
        self, key: str, value: Any, below: set[tuple[str, ...]] | None, writes: Writes, prefix: tuple[str, ...]
    ) -> None:
        """Plan to write a value, or what is chosen of it, into one entry.

        A container that keeps its entries elsewhere, or wraps another, overrides it.

        Raises:
            KeyError: There is no such entry, or one of the two is a tensor and the other a node.
            RuntimeError: The shapes do not fit.
        """
        path = (*prefix, key) if prefix else key
        old = self._peek(key)
        if old is None:
            raise errors.missing_key(path, self._keys(), type(self).__name__)
        if not isinstance(old, Node):
            value = to_entry(self._meta, path, value)
            if isinstance(value, Node):
                raise errors.not_a_node(path, old)
            writes.add(path, old, value)
        elif old._is_opaque:
            old._plan_value(self, key, value, writes, prefix)
        elif isinstance(value, dict) or (isinstance(value, Node) and not value._is_opaque):
            old._plan_writes(value, below, writes, (*prefix, key))
        else:
            raise errors.not_a_node(path, value)

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

        Raises:
            KeyError: The source has an entry that this tensordict lacks.

        >>> TensorDict({"a": torch.zeros(2)}, [2]).update_at_({"a": 1.0}, 0)["a"]
        tensor([1., 0.])
        """
        index = Index(idx, self._meta.batch_size)
        source = input_dict_or_td
        if not isinstance(source, Node):
            source = containers.dense(source, batch_size=index.size, device=self._meta.device)
        if keys_to_update is not None:
            source = source.select(*keys_to_update)
        for key in source.keys(True, True):
            if key not in self:
                raise errors.missing_key(key, self._keys(), type(self).__name__)
        self._index_put(index, source)
        return self

    def copy_(self, tensordict: Any, non_blocking: bool = False) -> Self:
        """Write the values of another tensordict into the entries that exist, as ``update_``."""
        return self.update_(tensordict, non_blocking=non_blocking)

    def copy_at_(self, tensordict: Any, idx: Any, non_blocking: bool = False, *, fast: bool = True) -> Self:
        """Write the values of another tensordict into a part of the entries, as ``update_at_``."""
        return self.update_at_(tensordict, idx, non_blocking=non_blocking)
