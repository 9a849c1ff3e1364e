"""Blocks over what an operation returned: what is written to it in one goes back to the tensordict it was made from.

``with td.view(-1) as flat:`` and its kind start a `Block`, which looks at the entries when it starts and when it ends,
and stores those that were added or replaced in between, by the operation's `WriteBack`: its inverse for one entry, and
what an entry is called in the source. Results know their source weakly, so a chain of them keeps none of them alive.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from tensordict_core.base.node import Node
from tensordict_core.base.tracing import is_compiling

__all__ = ["Block", "WriteBack"]


class WriteBack:
    """How entries of a result become entries of its source again."""

    __slots__ = ("source",)

    copies = False
    """Whether the result may hold copies, so that what is written into them is not in the source."""

    leaves_only = False
    """Whether a nested tensordict that a block adds is taken apart, since the source arranges keys otherwise."""

    def remember(self, source: Any) -> None:
        """Keep in mind, without keeping it alive, what the result was made from."""
        self.source = weakref.ref(source)

    def back(self, value: Any, old: Any) -> Any:
        """The entry of the source that stands for an entry of the result; ``old`` is the one it has, or ``None``."""
        return value

    def path(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """Where an entry of the result belongs in the source."""
        return path

    def inside(self, source: Any, result: Any) -> WriteBack | None:
        """The same for the slices of lazy stacks; ``None`` where those of the result are made of other rows."""
        return self


class Block:
    """One ``with`` block over a result: what it held at the start, compared with what it holds at the end."""

    __slots__ = ("before", "way")

    def __init__(self, way: WriteBack, result: Any) -> None:
        self.way = way
        self.before = _look(result)

    def __call__(self, result: Any) -> None:
        """Store in the source what the block added or replaced.

        Raises:
            RuntimeError: The source is locked, or what was written does not fit its batch size.
            KeyError: Two entries of the result would be one in the source.
        """
        source = self.way.source()
        if source is not None:
            _write_back(self.way, source, result, self.before)


def _is_node(value: Any) -> bool:
    return isinstance(value, Node) and not value._is_opaque


def _slices(node: Any) -> list[Any]:
    return list(node.tensordicts) if node._is_lazy_stack else []


def _version(value: Any) -> float:
    """Counts the writes into a tensor; equal to nothing where torch does not, or where they pass by the counter."""
    if not isinstance(value, Tensor):
        return 0
    return math.nan if is_compiling() or value.is_inference() or isinstance(value, Parameter) else value._version


def _look(node: Any) -> Any:
    """The entries of a node with the state of each: of a lazy stack those of its slices, which are what it keeps."""
    slices = _slices(node)
    if slices:
        return [_look(one) for one in slices]
    return {key: (value, _look(value) if _is_node(value) else _version(value)) for key, value in node._items()}


def _write_back(way: WriteBack, source: Any, result: Any, before: Any) -> None:
    pairs = list(zip(_slices(source), _slices(result), strict=False))
    inner = way.inside(source, result) if isinstance(before, list) and pairs else None
    if inner is not None and len(pairs) == len(before):
        for (own, other), held in zip(pairs, before, strict=True):
            _write_back(inner, own, other, held)
        return
    targets: dict[tuple[str, ...], Any] = {}
    for path, value in _changed(way, source, result, before, ()):
        target = way.path(path)
        targets[target] = way.back(value, source.get(target, None))
    # all of them or none; what is new is stored as a whole, but for the dictionaries that update makes of nested keys
    source.update(targets, is_leaf=lambda kind: kind is not dict)


def _changed(way: WriteBack, source: Any, node: Any, before: Any, path: tuple[str, ...]) -> Iterator[Any]:
    """The entries that are not what they were, each with its path: nodes as a whole where they are new."""
    if isinstance(before, list):  # the entries of a lazy stack are made anew for each look, so its slices tell
        if _is_untouched(node, before, way.copies):
            return
        before = {}
    for key, value in node._items():
        held, state = before.get(key, (None, None))
        here = (*path, key)
        if _is_node(value) and (way.leaves_only or value is held):
            yield from _changed(way, source, value, state if value is held else {}, here)
        elif value is not held or (
            way.copies and _version(value) != state and _is_written(way, value, state, source.get(way.path(here), None))
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


def _is_written(way: WriteBack, value: Any, version: float, old: Any) -> bool:
    """Whether a leaf was written in place and the source does not see it."""
    if value is old:
        return False
    if is_compiling() or not isinstance(old, Tensor):
        return True
    if value.untyped_storage().data_ptr() == old.untyped_storage().data_ptr():
        return False
    if not math.isnan(version):
        return True
    # what was not written must not come back rounded
    return not torch.equal(way.back(value, old).to(value.dtype), old.to(value.dtype))
