"""Writes in place: which value goes into which leaf is collected and checked first, and all is written at once after.

So a write is all or nothing: a key that is missing or a shape that does not fit is found before anything has changed.
And what is written at once goes faster: leaves in memory in one call of torch, and those that a satellite keeps
elsewhere, in files for one, by that satellite, which sees them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.keys import NestedKey
from tensordict_core.base.predicates import TENSORS
from tensordict_core.base.rebuild import IsLeaf
from tensordict_core.base.tracing import is_compiling, may_fuse

__all__ = ["Merge", "Writer", "Writes", "register_writer"]

Writer = Callable[[Sequence[NestedKey], Sequence[Tensor], Sequence[Tensor]], None]
"""Writes sources into targets, given the keys of these too, for errors."""

_writers: dict[type[Any], Writer] = {}
_found: dict[type[Any], Writer | None] = {}
"""What `_writer_of` found for each type of leaves."""


def register_writer(cls: type[Tensor], writer: Writer) -> None:
    """Have a function write all leaves of a type that one call changes, such as ``update_``.

    It gets them all at once, with their keys for errors, and as many tensors of their shapes to write, which may have
    another dtype, device or layout, and may lie in the memory of a leaf: then the order counts. Keys and shapes are
    known to be right by then, and nothing has been written.

    Args:
        cls: The type of the leaves; its subclasses are included.
        writer: The function, of three lists: keys, leaves, and what goes into them.

    >>> class Counted(torch.Tensor):
    ...     written = 0
    >>> def count(keys, targets, sources):
    ...     Counted.written += len(keys)
    ...     for target, source in zip(targets, sources):
    ...         target.as_subclass(torch.Tensor).copy_(source)
    >>> register_writer(Counted, count)
    >>> td = TensorDict({"a": torch.zeros(2).as_subclass(Counted), "b": torch.zeros(2).as_subclass(Counted)})
    >>> td.update_({"a": torch.ones(2), "b": torch.ones(2)})["a"].sum(), Counted.written
    (Counted(2.), 2)
    """
    _writers[cls] = writer
    _found.clear()


def _writer_of(kind: type[Any]) -> Writer | None:
    if not _writers or is_compiling():
        return None
    if kind not in _found:
        _found[kind] = next((_writers[base] for base in kind.__mro__ if base in _writers), None)
    return _found[kind]


class Writes:
    """What is to be written where.

    Attributes:
        keys: The nested keys of the leaves.
        targets: The leaves, in order.
        sources: What goes into each.
        owned: The same three for each function that writes leaves of its own.
        sooner: What else is done, in order, before leaves are written: changes of values that are no tensors.
        later: What else is done, in order, once leaves are written.
    """

    __slots__ = ("fuses", "keys", "later", "owned", "sooner", "sources", "targets")

    def __init__(self) -> None:
        self.keys: list[NestedKey] = []
        self.targets: list[Tensor] = []
        self.sources: list[Tensor] = []
        self.owned: dict[Writer, tuple[list[NestedKey], list[Tensor], list[Tensor]]] | None = None
        self.sooner: list[Callable[[], object]] | None = None
        self.later: list[Callable[[], object]] | None = None
        self.fuses = True

    def add(self, key: NestedKey, target: Tensor, source: Tensor) -> None:
        """Plan to write a tensor into a leaf."""
        keys, targets, sources = self.keys, self.targets, self.sources
        if type(target) is not Tensor or type(source) is not Tensor:
            writer = _writer_of(type(target))
            if writer is not None:
                self.owned = {} if self.owned is None else self.owned
                keys, targets, sources = self.owned.setdefault(writer, ([], [], []))
            else:
                self.fuses = self.fuses and type(target) in TENSORS and type(source) in TENSORS
        keys.append(key)
        targets.append(target)
        sources.append(source)

    def extend(self, keys: Iterable[NestedKey], targets: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
        """Plan to write plain tensors, of no subclass, into leaves that are plain tensors."""
        self.keys.extend(keys)
        self.targets.extend(targets)
        self.sources.extend(sources)

    def before(self, change: Callable[[], object]) -> None:
        """Plan what is done before leaves are written, because it may fail."""
        self.sooner = [] if self.sooner is None else self.sooner
        self.sooner.append(change)

    def then(self, change: Callable[[], object]) -> None:
        """Plan what is done once leaves are written, and cannot fail."""
        self.later = [] if self.later is None else self.later
        self.later.append(change)

    def check(self) -> bool:
        """Refuse what does not fit, before anything is written; says whether one call may write all leaves in memory.

        Raises:
            RuntimeError: A value has another shape than its leaf, or a leaf requires gradients.
        """
        fuse = may_fuse()
        fuses = _check(self.keys, self.targets, self.sources, fuse)
        if self.owned is not None:
            for owned in self.owned.values():
                _check(*owned, fuse)
        return fuses and self.fuses

    def run(self, non_blocking: bool = False) -> None:
        """Write all, or nothing where something does not fit.

        Raises:
            RuntimeError: A value has another shape than its leaf, or a leaf requires gradients.
        """
        fuses = self.check() if self.keys or self.owned is not None else False
        if self.sooner is not None:
            for change in self.sooner:
                change()
        targets, sources = self.targets, self.sources
        if fuses and len(targets) > 1 and (targets[0].is_cpu or _are_apart(targets, sources)):
            torch._foreach_copy_(targets, sources, non_blocking)
        else:
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source, non_blocking)
        if self.owned is not None:
            for writer, owned in self.owned.items():
                writer(*owned)
        if self.later is not None:
            for change in self.later:
                change()


class Merge:
    """How an update merges a source into a tree, and what it is to change.

    Attributes:
        clone: Whether tensors are copied.
        inplace: Whether values are written into entries that exist.
        non_blocking: Whether moves may be asynchronous.
        is_leaf: Node types that are stored as a whole.
        writes: What is written and stored once all was looked at.
    """

    __slots__ = ("clone", "inplace", "is_leaf", "non_blocking", "writes")

    def __init__(self, clone: bool, inplace: bool, non_blocking: bool, is_leaf: IsLeaf | None) -> None:
        self.clone = clone
        self.inplace = inplace
        self.non_blocking = non_blocking
        self.is_leaf = is_leaf
        self.writes = Writes()


def _check(keys: Sequence[NestedKey], targets: Sequence[Tensor], sources: list[Tensor], fuse: bool) -> bool:
    # (one call a leaf; reading two shapes costs half as much again, and a tracer follows only that)
    if not (fuse and all(map(_is_same_size, targets, sources))):
        for i, (target, source) in enumerate(zip(targets, sources, strict=True)):
            if target.shape != source.shape:
                sources[i] = _broadcast(keys[i], source, target.shape)
    if not fuse or not torch.is_grad_enabled():
        return fuse
    if not _any_requires_grad(*targets, *sources):
        return True
    for key, target in zip(keys, targets, strict=True):
        base = target._base if target.requires_grad else None  # what it is a view of
        if target.requires_grad and (target if base is None else base).is_leaf:
            raise errors.in_place_leaf(key)
    return False  # torch._foreach_copy_ has no derivative


_any_requires_grad: Callable[..., bool] = torch._C._any_requires_grad
_is_same_size: Callable[[Tensor, Tensor], bool] = Tensor.is_same_size


def _broadcast(key: NestedKey, source: Tensor, shape: torch.Size) -> Tensor:
    """A value in the shape of a leaf: a size of 1 stands for any.

    Fewer dimensions do not: torch counts dimensions from the last, so those of the batch would meet others.
    """
    if source.ndim != len(shape) or any(n not in (1, m) for n, m in zip(source.shape, shape, strict=True)):
        raise errors.in_place_shape(key, source.shape, shape)
    return source.expand(shape)


def _are_apart(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> bool:
    """Whether no source lies in the memory of a target: devices write all at once, in no order."""
    try:
        places = {target.untyped_storage().data_ptr() for target in targets}
        if any(source.untyped_storage().data_ptr() in places for source in sources):
            return False
        return len({target.data_ptr() for target in targets}) == len(targets)
    except (RuntimeError, NotImplementedError):  # no memory of their own: wrappers, fake tensors
        return False
