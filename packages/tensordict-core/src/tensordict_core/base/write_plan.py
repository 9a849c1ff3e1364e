"""The write plan: every in-place write collects its targets and values, checks all of them, and then writes.

``set_``, ``update_``, ``td[index] = value``, ``apply_`` and the write-back of ``with`` blocks all fill a `WritePlan`.
Each of them changes everything or nothing: a missing key or a shape that does not fit is found before the first write.
Leaves in memory are written by one call of torch. Leaves that another package keeps in files are written by a function
of that package, which sees all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.index import Index
from tensordict_core.base.keys import NestedKey, unravel_key, unravel_key_to_tuple
from tensordict_core.base.predicates import TENSORS
from tensordict_core.base.ragged import aligned
from tensordict_core.base.rebuild import IsLeaf
from tensordict_core.base.tracing import is_compiling, may_fuse

Writer = Callable[[Sequence[NestedKey], Sequence[Tensor], Sequence[Tensor]], None]
"""Writes sources into leaves; the keys of the leaves are given too, for errors."""

SMALL_PART = 1 << 20
"""The number of bytes from which the part of a leaf that an index selects is left to the writer of its class."""

_writers: dict[type[Any], Writer] = {}
_found: dict[type[Any], Writer | None] = {}
"""The results of `_writer_of` by type of leaf."""


def register_writer(cls: type[Tensor], writer: Writer) -> None:
    """Register the function that writes leaves of a type in place, in calls such as ``update_``.

    The function gets all leaves of one call, with their keys for errors, and a tensor of the same shape for each. These
    tensors may differ in dtype, device or layout, and may share memory with a leaf, in which case the order counts.
    Keys and shapes were checked and nothing has been written when it is called. Parts of less than a megabyte that an
    index selects are written by ``leaf[index] = source`` instead.

    Args:
        cls: The type of the leaves; its subclasses are included.
        writer: The function of three lists: keys, leaves and sources.

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


def _is_small_part(leaf: Tensor, index: Index) -> bool:
    """Return whether the class of a leaf has a writer, and writes a part of this size by itself as fast."""
    if _writer_of(type(leaf)) is None or leaf.is_nested:
        return False
    return leaf.nbytes < SMALL_PART or index.part_of(leaf.shape).numel() * leaf.itemsize < SMALL_PART


class WritePlan:
    """The changes of one in-place write. All of them are checked before the first is written.

    Args:
        adds: Whether an indexed write makes the entries that are missing.
        fills: Whether a number fills the entry whose value it is; else it is a tensor without batch dimensions.
        root: The node that is written to. Values are broadcast as by torch where the node of their entry has no batch
            dimensions; without a root nowhere.
        depth: The number of keys by which the path of an entry leads to the root.

    Attributes:
        keys: The nested keys of the leaves that are written as a whole, or through views of a part of them.
        targets: These leaves or views, in order.
        sources: The value for each.
        new: Entries that are added, each with its node, by the identity of the node and the key.
    """

    __slots__ = (
        "_first",
        "_fuses",
        "_last",
        "_owned",
        "_parts",
        "_stored",
        "adds",
        "depth",
        "fills",
        "keys",
        "new",
        "root",
        "sources",
        "targets",
    )

    def __init__(self, adds: bool = False, fills: bool = False, root: Any = None, depth: int = 0) -> None:
        self.adds = adds
        self.fills = fills
        self.root = root
        self.depth = depth
        self.keys: list[NestedKey] = []
        self.targets: list[Tensor] = []
        self.sources: list[Tensor] = []
        self._parts: list[tuple[NestedKey, Tensor, Any, Any]] = []
        self._owned: dict[Writer, tuple[list[NestedKey], list[Tensor], list[Tensor]]] | None = None
        self._fuses = True
        self.new: dict[tuple[int, str], tuple[Any, Any]] | None = None
        self._stored: dict[int, list[tuple[Any, str, Any, Tensor]]] | None = None
        self._first: list[Callable[[], object]] | None = None
        self._last: list[Callable[[], object]] | None = None

    def add(self, key: NestedKey, target: Tensor, source: Tensor) -> None:
        """Plan to write a tensor into a leaf; a leaf into itself is nothing to write."""
        if target is source:
            return
        keys, targets, sources = self.keys, self.targets, self.sources
        if type(target) is not Tensor or type(source) is not Tensor:
            if source.is_nested:
                source = aligned(source, target)
            writer = _writer_of(type(target))
            if writer is not None:
                self._owned = {} if self._owned is None else self._owned
                keys, targets, sources = self._owned.setdefault(writer, ([], [], []))
            else:
                self._fuses = self._fuses and type(target) in TENSORS and type(source) in TENSORS
        keys.append(key)
        targets.append(target)
        sources.append(source)

    def add_at(self, key: NestedKey, leaf: Tensor, index: Index, source: Any) -> None:
        """Plan to write a tensor or a number into the part of a leaf that an index selects.

        Raises:
            RuntimeError: The tensor does not broadcast to the part, or differs in dtype where torch converts none.
        """
        if isinstance(source, Tensor):
            if index.gives_views and type(leaf) is not Tensor and not _is_small_part(leaf, index):
                part = leaf[index.idx] if index.parts else leaf  # parts of one type may be written together
                self.add(key, part, source if source.shape == part.shape else broadcast_to(key, source, part.shape))
                return
            got = source.shape
            if got:  # one number fits everywhere
                shape = index.part_of(leaf.shape)
                if got != shape and not broadcasts(got, shape):
                    raise errors.indexed_write_shape(unravel_key(key), got, shape)
            if not index.gives_views:
                if source.dtype != leaf.dtype and type(leaf) is Tensor:
                    if not index.is_masked or (source.numel() != 1 and any(map(torch.is_tensor, index.parts))):
                        raise errors.indexed_write_dtype(key, source.dtype, leaf.dtype)
                    source = source.to(leaf.dtype)
                if source.device != leaf.device:
                    source = source.to(leaf.device)
        if leaf.requires_grad:
            _check_grad(key, leaf)
        self._parts.append((key, leaf, index.idx, source))

    def put(self, node: Any, key: str, index: Index | None, value: Tensor) -> None:
        """Plan to write into a leaf of a node whose reads copy; the parts of one store are written by one call."""
        self._stored = {} if self._stored is None else self._stored
        self._stored.setdefault(id(node._shared_store()), []).append((node, key, index, value))

    def before(self, change: Callable[[], object]) -> None:
        """Plan a change that may fail, such as a write into a file: it runs before leaves are written."""
        self._first = [] if self._first is None else self._first
        self._first.append(change)

    def then(self, change: Callable[[], object]) -> None:
        """Plan a change that cannot fail: it runs after leaves are written."""
        self._last = [] if self._last is None else self._last
        self._last.append(change)

    def run(self, non_blocking: bool = False) -> None:
        """Write everything, or nothing where a value does not fit.

        Raises:
            RuntimeError: A value has another shape than its leaf, or a leaf requires gradients.
        """
        whole = bool(self.targets or self._owned)
        fuses = whole and self._check()
        if self._first:
            for change in self._first:
                change()
        if self._stored:
            for parts in self._stored.values():
                parts[0][0]._write_all(parts)
        if whole:
            self._copy(fuses, non_blocking)
        for key, leaf, idx, source in self._parts:
            try:
                leaf[idx] = source
            except RuntimeError as error:
                error.add_note(f"while writing into part of key {key!r}")
                raise
        if self.new:
            for (_, name), (node, entry) in self.new.items():
                node._set(name, entry)
        if self._last:
            for change in self._last:
                change()

    def _check(self) -> bool:
        """Check the leaves that are written as a whole; return whether one call of torch may write them."""
        fuse = may_fuse()
        fuses = self._check_leaves(self.keys, self.targets, self.sources, fuse)
        for owned in self._owned.values() if self._owned else ():
            self._check_leaves(*owned, fuse)
        return fuses and self._fuses

    def _check_leaves(
        self, keys: Sequence[NestedKey], targets: Sequence[Tensor], sources: list[Tensor], fuse: bool
    ) -> bool:
        # one call for each leaf, because reading two shapes takes half as long again; tracers follow only the latter
        if not (fuse and all(map(_is_same_size, targets, sources))):
            for i, (target, source) in enumerate(zip(targets, sources, strict=True)):
                if target.shape != source.shape:
                    free = source.ndim < target.ndim and self._has_no_batch(keys[i])
                    sources[i] = expand_to(keys[i], source, target.shape, free)
        if not fuse or not torch.is_grad_enabled():
            return fuse
        if not _any_requires_grad(*targets, *sources):
            return True
        for key, target in zip(keys, targets, strict=True):
            if target.requires_grad:
                _check_grad(key, target)
        return False  # torch._foreach_copy_ has no derivative

    def _has_no_batch(self, key: NestedKey) -> bool:
        """Return whether the node of an entry is known, and has no batch dimensions."""
        node = self.root
        for name in unravel_key_to_tuple(key)[self.depth : -1]:
            node = None if node is None else node._peek(name)
        return node is not None and not node._meta.batch_size

    def _copy(self, fuses: bool, non_blocking: bool) -> None:
        targets, sources = self.targets, self.sources
        if fuses and len(targets) > 1 and (targets[0].is_cpu or _are_apart(targets, sources)):
            torch._foreach_copy_(targets, sources, non_blocking)
        else:
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source, non_blocking)
        for writer, owned in self._owned.items() if self._owned else ():
            writer(*owned)


class UpdatePlan(WritePlan):
    """The changes of an update: the entries that it stores, and those that it writes in place.

    Attributes:
        clone: Whether tensors are copied.
        inplace: Whether values are written into entries that exist.
        non_blocking: Whether moves may be asynchronous.
        is_leaf: Node types that are stored as a whole.
    """

    __slots__ = ("clone", "inplace", "is_leaf", "non_blocking")

    def __init__(self, clone: bool, inplace: bool, non_blocking: bool, is_leaf: IsLeaf | None, root: Any) -> None:
        super().__init__(adds=True, root=root)
        self.clone = clone
        self.inplace = inplace
        self.non_blocking = non_blocking
        self.is_leaf = is_leaf


def _check_grad(key: NestedKey, target: Tensor) -> None:
    """Refuse a tensor that requires gradients and is a leaf of autograd, or a view of one."""
    base = target._base
    if torch.is_grad_enabled() and (target if base is None else base).is_leaf:
        raise errors.in_place_leaf(key)


_any_requires_grad: Callable[..., bool] = torch._C._any_requires_grad
_is_same_size: Callable[[Tensor, Tensor], bool] = Tensor.is_same_size


def expand_to(key: NestedKey, source: Tensor, shape: torch.Size, free: bool = False) -> Tensor:
    """Expand a value to the shape of the leaf that it replaces: dimensions of size 1 are repeated, one number fills it.

    Other values of fewer dimensions are refused, unless ``free``: torch aligns shapes at the last dimension, so batch
    dimensions would meet others.

    Raises:
        RuntimeError: The shapes do not fit.
    """
    own = (1,) * (len(shape) - source.ndim) + tuple(source.shape) if free else source.shape
    if source.ndim and (len(own) != len(shape) or any(n not in (1, m) for n, m in zip(own, shape, strict=True))):
        raise errors.in_place_shape(key, source.shape, shape)
    return torch.broadcast_to(source, shape)


def broadcasts(got: Sequence[int], expected: torch.Size) -> bool:
    """Return whether an indexed write takes a value of one shape where another is selected, by the rules of torch."""
    beyond = len(got) - len(expected)
    return all(n == 1 or (i >= beyond and n == expected[i - beyond]) for i, n in enumerate(got))


def broadcast_to(key: NestedKey, source: Tensor, shape: torch.Size) -> Tensor:
    """Return a value in the shape of the part of a leaf that an index selects, by the rules of torch.

    Raises:
        RuntimeError: The shapes do not fit.
    """
    if not broadcasts(source.shape, shape):
        raise errors.indexed_write_shape(unravel_key(key), source.shape, shape)
    if len(shape) < source.ndim:
        source = torch.reshape(source, source.shape[-len(shape) :])
    return torch.broadcast_to(source, shape)


def _are_apart(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> bool:
    """Return whether no source is in the memory of a target: devices write all at once, in no order."""
    try:
        places = {target.untyped_storage().data_ptr() for target in targets}
        if any(source.untyped_storage().data_ptr() in places for source in sources):
            return False
        return len({target.data_ptr() for target in targets}) == len(targets)
    except (RuntimeError, NotImplementedError):  # no memory of their own: wrappers, fake tensors
        return False
