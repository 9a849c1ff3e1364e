"""Indexing: converts an index of the batch dimensions once, and applies it to every leaf.

Ellipses become full slices, sequences become tensors, and masks become the positions that they select. The batch size
and names of the result are computed without reading a leaf. Reads and indexed writes use the same `Index`.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.meta import NO_META, Meta, Names, names_or_none
from tensordict_core.base.tracing import may_fuse

_ROW_DTYPES = (torch.int64, torch.int32)
_MASKS = (torch.bool, torch.uint8)
_NUMPY_SCALARS = (np.integer, np.bool_)
_FEW = 32


def _advanced(part: Any) -> Any:
    """Convert a sequence, array or mask to an index tensor; return other parts unchanged."""
    if isinstance(part, Tensor):
        # a 0-d bool tensor adds a dimension, like a Python bool
        return bool(part) if not part.ndim and part.dtype in (torch.bool, torch.uint8) else part
    if isinstance(part, np.ndarray):
        return _advanced(torch.as_tensor(part, device="cpu"))
    if isinstance(part, range):
        return torch.arange(part.start, part.stop, part.step, device="cpu")
    if isinstance(part, tuple) and part and all(isinstance(n, int) for n in part):
        return torch.tensor(part, device="cpu")  # a tuple in a tuple is a list of positions, as in torch
    if isinstance(part, list):
        if part and isinstance(part[0], str):
            raise errors.keys_as_index(part)
        return torch.tensor(part, dtype=torch.long, device="cpu") if not part else torch.as_tensor(part, device="cpu")
    if isinstance(part, _NUMPY_SCALARS):
        return part.item()
    return part


def _advanced_size(parts: Sequence[Any]) -> torch.Size:
    """Return the size that the tensors of an index select together; a bool adds a dimension, of size 1 or 0."""
    sizes = [torch.Size((part,)) if isinstance(part, bool) else part.shape for part in parts]
    if len(sizes) == 1:
        return torch.Size(sizes[0])
    try:
        size: torch.Size = torch.broadcast_shapes(*sizes)
    except RuntimeError:
        raise errors.indices_differ(sizes) from None
    return size


def _length(part: slice, n: int) -> int:
    """Return how many of ``n`` positions a slice selects; -1 if ``n`` is -1, which means that it varies."""
    return -1 if n == -1 else len(range(n)[part])  # torch 2.12 does not trace slice.indices


def _resized(size: torch.Size, n: int) -> torch.Size:
    """Return a batch size with ``n`` as its first size; most calls avoid slices of a ``torch.Size``, which are slow."""
    return torch.Size((n,) if len(size) == 1 else (n, *size[1:]))


def is_first_class(value: Any) -> bool:
    """Return whether a value is a dimension of ``functorch.dim``, or a tensor that has such dimensions.

    These tensors are no instances of ``torch.Tensor``.

    >>> is_first_class(torch.zeros(2))
    False
    """
    return type(value).__module__ == "functorch.dim"


def _is_dim(part: Any) -> bool:
    """Return whether a part binds a batch dimension to a first-class dimension, or splits it into several."""
    if type(part) is tuple:
        return bool(part) and all(map(_is_dim, part))
    return is_first_class(part) and type(part).__name__ == "Dim"


def _spans(part: Any) -> int:
    """Return the number of batch dimensions that a part of an index consumes."""
    if part is None or isinstance(part, bool):
        return 0
    if isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8):
        return part.ndim
    return 1


def _composed(first: Index, second: Index) -> tuple[Any, ...] | None:
    """Combine two indices of integers and slices into one; return ``None`` if a new dimension is sliced."""
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
    """An index of the batch dimensions of a root, to be applied to leaves of any rank.

    Attributes:
        batch_size: The batch size of the root.
        parts: The parts of the index, with masks as positions and without ellipses.
        idx: The index of a leaf, as ``tensor[idx]`` takes it.
        size: The batch size of the result.
        sources: For each dimension of the result, the dimension of the root that it has the name of, or ``None``.
        gives_views: Whether ``tensor[idx]`` shares memory with the tensor: for integers and slices only.
        has_dims: Whether a part is a first-class dimension of ``functorch.dim``, which takes a batch dimension away.
        is_masked: Whether all its tensors are masks: PyTorch converts a number that is written there.
        rows: The positions along dimension ``at`` if the index selects whole rows there, otherwise ``None``.
        dims: The number of batch dimensions of the root.

    >>> index = Index((Ellipsis, slice(0, 2)), torch.Size([3, 4]))
    >>> index.size
    torch.Size([3, 2])
    """

    __slots__ = (
        "_last",
        "_leaf",
        "at",
        "batch_size",
        "dims",
        "gives_views",
        "has_dims",
        "idx",
        "is_masked",
        "parts",
        "rows",
        "size",
        "sources",
    )

    parts: tuple[Any, ...]
    sources: Sequence[int | None]

    def __init__(self, idx: Any, batch_size: torch.Size) -> None:
        self.batch_size = batch_size
        self.dims = dims = len(batch_size)
        self._last: tuple[Meta, Meta] | None = None
        self._leaf: tuple[torch.Size, torch.Size] | None = None
        self.gives_views = True
        self.is_masked = False
        self.has_dims = False
        self.rows: Tensor | None = None
        kind = type(idx)
        if kind is tuple and len(idx) == 1 and type(idx[0]) in (int, slice):
            idx = idx[0]
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
        if kind is Tensor and dims and idx.ndim == 1 and idx.dtype in _ROW_DTYPES:
            self.idx, self.parts, self.sources = idx, (idx,), range(dims)
            self.size = _resized(batch_size, idx.shape[0])
            self.gives_views = False
            if idx.is_cpu and may_fuse():
                self._take_rows(idx, 0, masked=False)
            return
        if kind is tuple and 0 < len(idx) <= dims and self._take_basic(idx):
            return
        parts = self._expand(idx if kind is tuple else (idx,))
        self.parts = parts
        self.idx = parts[0] if len(parts) == 1 and type(parts[0]) is not tuple else parts
        self.size, self.sources = self._result(parts)
        self.gives_views = all([part is None or type(part) is int or type(part) is slice for part in parts])
        self.has_dims = not self.gives_views and any(map(_is_dim, parts))
        if not self.has_dims and sum(part is not None and type(part) is not slice for part in parts) == 1:
            self._find_rows(parts, masked=isinstance(idx, Tensor) and idx.dtype is torch.bool)

    def _take_basic(self, parts: tuple[Any, ...]) -> bool:
        """Set the index and the size of the result if all parts are integers and slices."""
        size: list[int] = []
        sources: list[int] = []
        for source, (part, n) in enumerate(zip(parts, self.batch_size, strict=False)):
            if type(part) is slice:
                size.append(_length(part, n))
                sources.append(source)
            elif type(part) is not int:
                return False
            elif not -n <= part < n and n != -1:
                raise errors.out_of_bounds(part, source, n)
        rest = range(len(parts), self.dims)
        self.parts = parts
        self.idx = parts[0] if len(parts) == 1 else parts
        self.size = torch.Size((*size, *self.batch_size[len(parts) :]))
        self.sources = (*sources, *rest)
        return True

    def _find_rows(self, parts: tuple[Any, ...], masked: bool) -> None:
        """Set ``rows`` if the index selects whole rows: ``index_select`` is several times as fast for them."""
        for at, part in enumerate(parts):
            if isinstance(part, Tensor):
                if part.ndim != 1 or part.dtype not in _ROW_DTYPES or not part.is_cpu or not may_fuse():
                    return
                if all(type(rest) is slice and rest == slice(None) for rest in parts[at + 1 :]):
                    self._take_rows(part, at, masked)
                return
            if part is None or part != slice(None):
                return

    def _take_rows(self, numbers: Tensor, at: int, masked: bool) -> None:
        """Set ``rows`` and ``at`` with non-negative positions; positions from a mask are never negative."""
        count = 0 if masked else numbers.numel()
        if count and self.batch_size[at] == 0:
            raise errors.out_of_bounds(int(numbers[0]), at, 0)
        # for few positions, Python's min takes a quarter of the time of torch's
        if count and (min(numbers.tolist()) if count <= _FEW else int(numbers.min())) < 0:
            numbers = torch.where(numbers < 0, numbers + self.batch_size[at], numbers)
        self.rows, self.at = numbers, at

    def _expand(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        parts = [_advanced(part) for part in given]
        self.is_masked = all([part.dtype in _MASKS for part in parts if isinstance(part, Tensor)])
        used = sum(_spans(part) for part in parts if part is not Ellipsis)
        if used > self.dims:
            raise errors.bad_index_count(used, self.batch_size)
        out: list[Any] = []
        seen = False
        for part in parts:
            if part is Ellipsis:
                if seen:
                    raise errors.IndexCountError(
                        "the index has several ellipses ('...') and can have a single ellipsis; use ':' for the others"
                    )
                seen = True
                out.extend([slice(None)] * (self.dims - used))
            elif isinstance(part, Tensor) and part.dtype in _MASKS and part.ndim:
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
                f"The shape of the mask {list(mask.shape)} at index {start} does not match the shape of the indexed "
                f"tensor {list(self.batch_size)} at index {start}; give a mask of the shape {list(expected)}"
            )

    def _check_part(self, part: Any) -> None:
        if isinstance(part, Tensor) and (part.is_floating_point() or part.is_complex()):
            raise errors.NotAnIndexError(
                f"tensors used as indices must be long, int, byte or bool tensors, got one of {part.dtype}; convert it "
                "with long()"
            )
        if part is None or isinstance(part, slice | numbers.Integral | Tensor | torch.SymInt) or _is_dim(part):
            return
        raise errors.NotAnIndexError(
            f"Invalid index type {type(part)} of {part!r}: only integers, slices (`:`), ellipsis (`...`), None, "
            "tensors, arrays and lists are valid indices; a key is used alone, as td[key]"
        )

    def _result(self, parts: tuple[Any, ...]) -> tuple[torch.Size, tuple[int | None, ...]]:
        """Return the batch size of the result, and for each of its dimensions the source dimension of its name."""
        size: list[int] = []
        sources: list[int | None] = []
        advanced = [part for part in parts if isinstance(part, bool) or (isinstance(part, Tensor) and part.ndim)]
        advanced_size = _advanced_size(advanced) if advanced else torch.Size(())
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
                if not isinstance(part, Tensor) and not _is_dim(part) and not -n <= part < n and n != -1:
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
        """Return the shape of the selected part of a leaf; cache one, because successive leaves often share shapes."""
        last = self._leaf
        if last is not None and last[0] == leaf:
            return last[1]
        part = self.size + leaf[self.dims :]
        self._leaf = (leaf, part)
        return part

    def of_leading(self, dims: int) -> Index | None:
        """Return the index of the first dimensions of the root alone; ``None`` if it selects in others too.

        >>> Index((0, slice(None)), torch.Size([2, 3])).of_leading(1).parts
        (0,)
        """
        parts = list(self.parts)
        while parts and isinstance(parts[-1], slice) and parts[-1] == slice(None):
            parts.pop()
        used = sum(map(_spans, parts))
        return Index(tuple(parts), self.batch_size[:dims]) if used <= dims else None

    @property
    def has_bools(self) -> bool:
        """Whether a part is a bool, which adds a dimension of size 1 or 0."""
        return any(isinstance(part, bool) for part in self.parts)

    def apart(self) -> tuple[Index, Index]:
        """Split this index in two: one that adds the dimensions of ``None`` and bools, and one that selects."""
        added = tuple(None if part is None or isinstance(part, bool) else slice(None) for part in self.parts)
        first = Index(added, self.batch_size)
        chosen = tuple(
            slice(None) if part is None else torch.arange(int(part), device="cpu") if isinstance(part, bool) else part
            for part in self.parts
        )
        return first, Index(chosen, first.size)

    @property
    def device(self) -> torch.device:
        """The device of the index tensors; the CPU if there are none."""
        found = (part.device for part in self.parts if isinstance(part, Tensor))
        return next((device for device in found if device.type != "cpu"), torch.device("cpu"))

    def positions(self) -> Index:
        """Return an equal index of tensors: one of the result's shape for each batch dimension."""
        numbers = torch.arange(self.batch_size.numel(), device=self.device).reshape(self.batch_size)[self.idx]
        return Index(tuple(torch.unravel_index(numbers, self.batch_size)), self.batch_size)

    def then(self, index: Index) -> Index:
        """Compose this index with one of its result: ``x[self][index]`` is ``x[self.then(index)]``."""
        parts = _composed(self, index) if self.gives_views and index.gives_views else None
        if parts is None:
            device = self.device if index.device.type == "cpu" else index.device
            numbers = torch.arange(self.batch_size.numel(), device=device).reshape(self.batch_size)[self.idx][index.idx]
            parts = torch.unravel_index(numbers, self.batch_size)
        return Index(parts, self.batch_size)

    def names(self, names: Names) -> Names:
        """Return the names of the result from those of a node, which start with the root's."""
        if names is None:
            return None
        out = tuple(None if source is None else names[source] for source in self.sources) + names[self.dims :]
        return names_or_none(out)

    def meta(self, meta: Meta) -> Meta:
        """Return the metadata of the result from that of a node; nodes that share a record share the new one."""
        last = self._last  # one attribute, because threads that share an index may each replace it
        if last is not None and last[0] is meta:
            return last[1]
        own = meta.batch_size
        size = self.size if len(own) == self.dims else self.size + own[self.dims :]
        made = Meta(size, meta.device, self.names(meta.names))
        self._last = (meta, made)
        return made
