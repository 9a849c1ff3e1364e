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

from tensordict_core.base.errors.types import StackError
from tensordict_core.base.node import has_entries, is_leaf_tensor
from tensordict_core.base.tracing import is_compiling


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
    return {key: (value, _snapshot(value) if has_entries(value) else _version(value)) for key, value in node._items()}


def _write_back(write_back: WriteBack, source: Any, result: Any, before: Any) -> None:
    pairs = list(zip(_slices(source), _slices(result), strict=False))
    inner = write_back.inside(source, result) if isinstance(before, list) and pairs else None
    if inner is not None and len(pairs) == len(before):
        for (own, other), held in zip(pairs, before, strict=True):
            _write_back(inner, own, other, held)
        return
    targets: Any = {}
    for path, value in _changed(write_back, source, result, before, ()):
        if not path:
            targets = write_back.back(value, source)
            break
        target = write_back.path(path)
        targets[target] = write_back.back(value, _entry(source, target))
    # all or nothing; new nodes are stored as a whole, except the dictionaries that update makes of nested keys
    source.update(targets, inplace=source.is_locked, is_leaf=lambda kind: kind is not dict)


def _entry(source: Any, path: tuple[str, ...]) -> Any:
    """Return an entry of the source; ``None`` where there is none, or where those of a lazy stack do not stack."""
    try:
        return source.get(path, None)
    except StackError:
        return None


def _changed(write_back: WriteBack, source: Any, node: Any, before: Any, path: tuple[str, ...]) -> Iterator[Any]:
    """Yield the path and value of each entry that changed; a new node, and ragged entries, as a whole."""
    if isinstance(before, list):  # a lazy stack creates its entries at each read, so its elements are compared
        changed, before = _changed_keys(node, before, write_back.copies), {}
        keys = [key for key in node._keys() if key in changed]
        try:
            items = [(key, node._get(key)) for key in keys]
        except StackError:
            items = []
        if len(items) < len(changed):  # entries that do not stack, or that only some elements have
            yield path, node if path else node.exclude(*(_keys(node) - changed))
            return
    else:
        items = node._items()
    for key, value in items:
        held, state = before.get(key, (None, None))
        here = (*path, key)
        if has_entries(value) and (write_back.leaves_only or value is held):
            yield from _changed(write_back, source, value, state if value is held else {}, here)
        elif value is not held or (
            write_back.copies
            and _version(value) != state
            and _is_written(write_back, value, state, source.get(write_back.path(here), None))
        ):
            yield here, value


def _keys(node: Any) -> set[str]:
    """Return the keys of a node; those of a lazy stack are in any of its elements."""
    return set(node._keys()).union(*map(_keys, _slices(node)))


def _changed_keys(node: Any, before: Any, copies: bool) -> set[str]:
    """Return the keys whose entries changed; those of a lazy stack changed in any of its elements."""
    if isinstance(before, list):
        slices = _slices(node)
        if len(slices) != len(before):
            return _keys(node)
        return set().union(*(_changed_keys(*pair, copies) for pair in zip(slices, before, strict=True)))
    return {key for key, value in node._items() if not _is_untouched(value, before.get(key), copies)}


def _is_untouched(value: Any, snapshot: tuple[Any, Any] | None, copies: bool) -> bool:
    held, state = snapshot or (None, None)
    if value is not held:
        return False
    return not _changed_keys(value, state, copies) if has_entries(value) else not copies or _version(value) == state


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
