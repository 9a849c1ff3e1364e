"""What an index means: it is read once, for the root's batch dimensions, and then applied to every leaf as it is.

Reading it means: ellipses become full slices, sequences become tensors, masks become the positions that they select
(once, not once per leaf), and the new batch size and names follow by rule, so no leaf is needed to know them.
Reading and writing (`_indexing`) go through the same record.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.meta import NO_META, Meta, Names
from tensordict_core.base.tracing import may_fuse

__all__ = ["Index"]


_WHOLE = (torch.int64, torch.int32)
_NUMPY_SCALARS = (np.integer, np.bool_)
_FEW = 32


def _advanced(part: Any) -> Any:
    """A sequence, array or mask as an index tensor; other parts unchanged."""
    if isinstance(part, Tensor):
        # one bool is no mask over dimensions: it adds one, as a Python bool does
        return bool(part) if not part.ndim and part.dtype in (torch.bool, torch.uint8) else part
    if isinstance(part, np.ndarray):
        return _advanced(torch.as_tensor(part))
    if isinstance(part, range):
        return torch.arange(part.start, part.stop, part.step)
    if isinstance(part, list):
        if part and isinstance(part[0], str):
            raise errors.keys_as_index(part)
        return torch.tensor(part, dtype=torch.long) if not part else torch.as_tensor(part)
    if isinstance(part, _NUMPY_SCALARS):
        return part.item()
    return part


def _length(part: slice, n: int) -> int:
    """How many positions a slice selects of ``n``; -1 where a lazy stack's elements differ in size."""
    return -1 if n == -1 else len(range(*part.indices(n)))


def _resized(size: torch.Size, n: int) -> torch.Size:
    """A batch size with ``n`` for its first dimension; to slice a ``torch.Size`` takes longer than all else here."""
    return torch.Size((n,) if len(size) == 1 else (n, *size[1:]))


def _spans(part: Any) -> int:
    """How many batch dimensions a part of an index consumes."""
    if part is None or isinstance(part, bool):
        return 0
    if isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8):
        return part.ndim
    return 1


def _composed(first: Index, second: Index) -> tuple[Any, ...] | None:
    """The parts of two indices of integers and slices as those of one; ``None`` where a new dimension is sliced."""
    out: list[Any] = []
    rest, source = list(second.parts), 0
    for part in (*first.parts, *[slice(None)] * (first.dims - sum(part is not None for part in first.parts))):
        n = 1 if part is None else first.batch_size[source]
        source += part is not None
        if type(part) is int:
            out.append(part)
            continue
        while rest and rest[0] is None:
            out.append(rest.pop(0))
        chosen = rest.pop(0) if rest else slice(None)
        if part is None or part == slice(None):
            if part is not None or chosen == slice(None):
                out.append(chosen if part is not None else None)
            elif type(chosen) is slice:
                return None
        else:
            positions = range(n)[part][chosen]
            whole = isinstance(positions, range)
            out.append(slice(positions.start, positions.stop, positions.step) if whole else positions)
    return (*out, *rest)


class Index:
    """An index of the batch dimensions of a root, ready to be applied to leaves of any rank.

    Attributes:
        idx: What a leaf is indexed with.
        size: The batch size of the result.
        gives_views: Whether a selection of a tensor shares its memory: integers and slices only.
        rows: The numbers of the rows that are taken whole along dimension ``at``, or ``None`` for any other index.
        dims: How many batch dimensions the root has.

    >>> index = Index((Ellipsis, slice(0, 2)), torch.Size([3, 4]))
    >>> index.size
    torch.Size([3, 2])
    """

    __slots__ = (
        "_leaf",
        "_made",
        "_part",
        "_read",
        "at",
        "batch_size",
        "dims",
        "gives_views",
        "idx",
        "parts",
        "rows",
        "size",
        "sources",
    )

    parts: tuple[Any, ...]
    sources: Sequence[int | None]
    _part: torch.Size

    def __init__(self, idx: Any, batch_size: torch.Size) -> None:
        self.batch_size = batch_size
        self.dims = dims = len(batch_size)
        self._read: Meta | None = None
        self._made: Meta | None = None
        self._leaf: torch.Size | None = None
        self.gives_views = True
        self.rows: Tensor | None = None
        kind = type(idx)
        if kind is int and dims:
            n = batch_size[0]
            if not -n <= idx < n and n != -1:
                raise errors.out_of_bounds(idx, 0, n)
            self.idx, self.parts, self.sources = idx, (idx,), range(1, dims)
            self.size = batch_size[1:] if dims > 1 else NO_META.batch_size
            return
        if kind is slice and dims:
            self.idx, self.parts, self.sources = idx, (idx,), range(dims)
            self.size = _resized(batch_size, _length(idx, batch_size[0]))
            return
        if kind is Tensor and dims and idx.ndim == 1 and idx.dtype in _WHOLE:
            self.idx, self.parts, self.sources = idx, (idx,), range(dims)
            self.size = _resized(batch_size, idx.shape[0])
            self.gives_views = False
            if idx.is_cpu and may_fuse():
                self._take_rows(idx, 0, masked=False)
            return
        parts = self._expand(idx if kind is tuple else (idx,))
        self.parts = parts
        self.idx = parts[0] if len(parts) == 1 else parts
        self.size, self.sources = self._result(parts)
        self.gives_views = all([part is None or type(part) is int or type(part) is slice for part in parts])
        if sum(part is not None and type(part) is not slice for part in parts) == 1:
            self._find_rows(parts, masked=isinstance(idx, Tensor) and idx.dtype is torch.bool)

    def _find_rows(self, parts: tuple[Any, ...], masked: bool) -> None:
        """Read an index of whole rows by their numbers, which ``index_select`` gathers several times as fast."""
        for at, part in enumerate(parts):
            if isinstance(part, Tensor):
                if part.ndim != 1 or part.dtype not in _WHOLE or not part.is_cpu or not may_fuse():
                    return
                if all(type(rest) is slice and rest == slice(None) for rest in parts[at + 1 :]):
                    self._take_rows(part, at, masked)
                return
            if part is None or part != slice(None):
                return

    def _take_rows(self, numbers: Tensor, at: int, masked: bool) -> None:
        """Take rows by their numbers along dimension ``at``, counted from its front; those of a mask are."""
        count = 0 if masked else numbers.numel()
        # the smallest of a few is found in a quarter of the time that torch takes
        if count and (min(numbers.tolist()) if count <= _FEW else int(numbers.min())) < 0:
            numbers = torch.where(numbers < 0, numbers + self.batch_size[at], numbers)
        self.rows, self.at = numbers, at

    def _expand(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        parts = [_advanced(part) for part in given]
        used = sum(_spans(part) for part in parts if part is not Ellipsis)
        if used > self.dims:
            raise errors.bad_index_count(used, self.batch_size)
        out: list[Any] = []
        seen = False
        for part in parts:
            if part is Ellipsis:
                if seen:
                    raise IndexError(
                        "an index can only have a single ellipsis ('...'); name the other dimensions with ':'"
                    )
                seen = True
                out.extend([slice(None)] * (self.dims - used))
            elif isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8) and part.ndim:
                self._check_mask(part, out)
                out.extend(part.nonzero(as_tuple=True))
            else:
                self._check_part(part)
                out.append(part)
        return tuple(out)

    def _check_mask(self, mask: Tensor, before: list[Any]) -> None:
        start = sum(_spans(part) for part in before)
        expected = self.batch_size[start : start + mask.ndim]
        if mask.shape != expected:
            raise IndexError(
                f"the shape of the mask {list(mask.shape)} does not match the batch dimensions {list(expected)} that "
                "it indexes; "
                "give a mask of that shape"
            )

    def _check_part(self, part: Any) -> None:
        if part is None or isinstance(part, slice | numbers.Integral | Tensor | torch.SymInt):
            return
        raise TypeError(
            "an index holds integers, slices, None, '...', tensors, arrays or lists, "
            f"got {part!r} of type {type(part).__name__}; "
            "entries are found by td[key] with a key alone"
        )

    def _result(self, parts: tuple[Any, ...]) -> tuple[torch.Size, tuple[int | None, ...]]:
        """The batch size of the result, and for each of its dimensions the source dimension whose name it keeps."""
        size: list[int] = []
        sources: list[int | None] = []
        # a bool selects all or nothing of a new dimension: it is an index of one position or of none
        advanced = [
            torch.Size((part,)) if isinstance(part, bool) else part.shape
            for part in parts
            if isinstance(part, bool) or (isinstance(part, Tensor) and part.ndim)
        ]
        if len(advanced) > 1:
            try:
                advanced_size = torch.broadcast_shapes(*advanced)
            except RuntimeError:
                raise errors.indices_differ(advanced) from None
        else:
            advanced_size = advanced[0] if advanced else torch.Size(())
        place: int | None = None
        named: int | None = None
        gap, apart = False, False
        source = 0
        for part in parts:
            if part is None:
                size.append(1)
                sources.append(None)
            elif isinstance(part, slice):
                size.append(_length(part, self.batch_size[source]))
                sources.append(source)
                source += 1
            elif isinstance(part, bool) or (isinstance(part, Tensor) and part.ndim):
                if place is None:
                    place, named = len(size), None if isinstance(part, bool) else source
                elif gap:
                    apart = True
                source += _spans(part)
                gap = False
                continue
            else:
                n = self.batch_size[source]
                if not isinstance(part, Tensor) and not -n <= part < n and n != -1:
                    raise errors.out_of_bounds(part, source, n)
                source += 1
                continue
            gap = place is not None
        if place is not None:
            place = 0 if apart else place
            size[place:place] = advanced_size
            sources[place:place] = (
                [named] if len(advanced) == 1 and len(advanced_size) == 1 else [None] * len(advanced_size)
            )
        size.extend(self.batch_size[source:])
        sources.extend(range(source, self.dims))
        return torch.Size(size), tuple(sources)

    def part_of(self, leaf: torch.Size) -> torch.Size:
        """The shape of the part of a leaf; the last one is kept, since neighbours often have one shape."""
        if leaf != self._leaf:
            self._leaf, self._part = leaf, self.size + leaf[self.dims :]
        return self._part

    @property
    def has_bools(self) -> bool:
        """Whether a bool is among the parts, which adds a dimension and selects all or nothing of it."""
        return any(isinstance(part, bool) for part in self.parts)

    def apart(self) -> tuple[Index, Index]:
        """This index in two steps: the dimensions that ``None`` and bools add, then what is selected of the whole."""
        added = tuple(None if part is None or isinstance(part, bool) else slice(None) for part in self.parts)
        first = Index(added, self.batch_size)
        chosen = tuple(
            slice(None) if part is None else torch.arange(int(part)) if isinstance(part, bool) else part
            for part in self.parts
        )
        return first, Index(chosen, first.size)

    def positions(self) -> Index:
        """This index as numbers of positions, a tensor for each batch dimension, each of the result's shape."""
        numbers = torch.arange(self.batch_size.numel()).reshape(self.batch_size)[self.idx]
        return Index(tuple(torch.unravel_index(numbers, self.batch_size)), self.batch_size)

    def then(self, index: Index) -> Index:
        """This index and an index of its result as one index: ``x[self][index]`` is ``x[self.then(index)]``."""
        parts = _composed(self, index) if self.gives_views and index.gives_views else None
        if parts is None:
            numbers = torch.arange(self.batch_size.numel()).reshape(self.batch_size)[self.idx][index.idx]
            parts = torch.unravel_index(numbers, self.batch_size)
        return Index(parts, self.batch_size)

    def names(self, names: Names) -> Names:
        """The names of the result, from those of a node (the root's come first in every nested node's)."""
        if names is None:
            return None
        out = tuple(None if source is None else names[source] for source in self.sources) + names[self.dims :]
        return out if any(name is not None for name in out) else None

    def meta(self, meta: Meta) -> Meta:
        """The metadata of the result, from that of a node; nodes that share a record share the new one."""
        if meta is self._read:
            return self._made  # type: ignore[return-value]  # set together with what is asked before
        own = meta.batch_size
        size = self.size if len(own) == self.dims else self.size + own[self.dims :]
        self._read = meta
        self._made = made = Meta(size, meta.device, self.names(meta.names))
        return made
