"""Write-back: a ``with`` block over the result of an operation stores changed entries in the source of the result.

``with td.view(-1) as flat:`` starts a `Block`. It compares the entries at the start and at the end of the block, and
stores those that were added or replaced. The `WriteBack` of the operation has the inverse for one entry and the key of
an entry in the source. Results hold weak references to their sources.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import Parameter

from tensordict_core.base.node import Node, is_leaf_tensor
from tensordict_core.base.tracing import is_compiling

__all__ = ["Block", "WriteBack"]


class WriteBack:
    """Converts entries of a result to entries of its source."""

    __slots__ = ("source",)

    copies = False
    """Whether the result may hold copies, so that writes into them do not reach the source."""

    leaves_only = False
    """Whether a new nested tensordict is stored entry by entry, because the source has other keys."""

    def remember(self, source: Any) -> None:
        """Hold a weak reference to the source of the result."""
        self.source = weakref.ref(source)

    def back(self, value: Any, old: Any) -> Any:
        """Return the entry of the source for an entry of the result; ``old`` is the present one, or ``None``."""
        return value

    def path(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """Return the path in the source of an entry of the result."""
        return path

    def inside(self, source: Any, result: Any) -> WriteBack | None:
        """Return the `WriteBack` of the elements of lazy stacks; ``None`` if the elements hold other rows."""
        return self


class Block:
    """One ``with`` block over a result, with a snapshot of the entries at its start."""

    __slots__ = ("before", "write_back")

    def __init__(self, write_back: WriteBack, result: Any) -> None:
        self.write_back = write_back
        self.before = _snapshot(result)

    def __call__(self, result: Any) -> None:
        """Store entries that the block added or replaced in the source.

        Raises:
            RuntimeError: The source is locked, or a new entry does not have its batch size.
            KeyError: Two entries of the result would be one in the source.
        """
        source = self.write_back.source()
        if source is not None:
            _write_back(self.write_back, source, result, self.before)


def _is_node(value: Any) -> bool:
    return isinstance(value, Node) and not value._is_opaque


def _slices(node: Any) -> list[Any]:
    return list(node.tensordicts) if node._is_lazy_stack else []


def _version(value: Any) -> float:
    """Return the number of writes into a tensor; NaN, equal to nothing, where torch does not count all of them."""
    if not is_leaf_tensor(value):
        return 0
    return math.nan if is_compiling() or value.is_inference() or isinstance(value, Parameter) else value._version


def _snapshot(node: Any) -> Any:
    """Return a snapshot of the entries of a node; of a lazy stack, the snapshots of its elements."""
    slices = _slices(node)
    if slices:
        return [_snapshot(one) for one in slices]
    return {key: (value, _snapshot(value) if _is_node(value) else _version(value)) for key, value in node._items()}


def _write_back(write_back: WriteBack, source: Any, result: Any, before: Any) -> None:
    pairs = list(zip(_slices(source), _slices(result), strict=False))
    inner = write_back.inside(source, result) if isinstance(before, list) and pairs else None
    if inner is not None and len(pairs) == len(before):
        for (own, other), held in zip(pairs, before, strict=True):
            _write_back(inner, own, other, held)
        return
    targets: dict[tuple[str, ...], Any] = {}
    for path, value in _changed(write_back, source, result, before, ()):
        target = write_back.path(path)
        targets[target] = write_back.back(value, source.get(target, None))
    # all or nothing; new nodes are stored as a whole, except the dictionaries that update makes of nested keys
    source.update(targets, inplace=source.is_locked, is_leaf=lambda kind: kind is not dict)


def _changed(write_back: WriteBack, source: Any, node: Any, before: Any, path: tuple[str, ...]) -> Iterator[Any]:
    """Yield the path and value of each entry that changed; a new node as a whole."""
    if isinstance(before, list):  # a lazy stack creates its entries at each read, so its elements are compared
        if _is_untouched(node, before, write_back.copies):
            return
        before = {}
    for key, value in node._items():
        held, state = before.get(key, (None, None))
        here = (*path, key)
        if _is_node(value) and (write_back.leaves_only or value is held):
            yield from _changed(write_back, source, value, state if value is held else {}, here)
        elif value is not held or (
            write_back.copies
            and _version(value) != state
            and _is_written(write_back, value, state, source.get(write_back.path(here), None))
        ):
            yield here, value


def _is_untouched(node: Any, before: Any, copies: bool) -> bool:
    if isinstance(before, list):
        slices = _slices(node)
        return len(slices) == len(before) and all(
            _is_untouched(*pair, copies) for pair in zip(slices, before, strict=True)
        )
    entries = dict(node._items())
    return entries.keys() == before.keys() and all(
        value is held
        and (_is_untouched(value, state, copies) if _is_node(value) else not copies or _version(value) == state)
        for value, (held, state) in ((value, before[key]) for key, value in entries.items())
    )


def _is_written(write_back: WriteBack, value: Any, version: float, old: Any) -> bool:
    """Return whether a leaf was written in place and the write did not reach the source."""
    if value is old:
        return False
    if is_compiling() or not is_leaf_tensor(old):
        return True
    if value.untyped_storage().data_ptr() == old.untyped_storage().data_ptr():
        return False
    if not math.isnan(version):
        return True
    # values that were not written must not come back rounded
    return not torch.equal(write_back.back(value, old).to(value.dtype), old.to(value.dtype))
