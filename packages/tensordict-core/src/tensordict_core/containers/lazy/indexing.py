"""Indexing of a lazy stack: the index at the stack dimension selects elements, the rest of it indexes each of them.

Integers, slices and tensors at the stack dimension select elements without a copy. If tensors index the stack dimension
and others together, each position is selected by itself. Writes are planned in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.entry import non_tensor_entry, to_entry, to_entry_over
from tensordict_core.base.index import Index
from tensordict_core.base.meta import Meta
from tensordict_core.base.node import Node, has_entries, is_leaf_tensor
from tensordict_core.base.write_plan import WritePlan
from tensordict_core.ops.entries.update_inplace import over_rows

Parts = tuple[Any, ...]


def _is_tensor(part: Any) -> bool:
    return isinstance(part, Tensor) and part.ndim > 0


def _place_of_tensors(parts: Parts) -> int:
    """Return the first dimension that index tensors create; 0 if they are not adjacent, as in NumPy."""
    place: int | None = None
    gap, size = False, 0
    for part in parts:
        if _is_tensor(part):
            if place is None:
                place = size
            elif gap:
                return 0
            gap = False
        elif part is None or isinstance(part, slice):
            size += 1
            gap = place is not None
    return place or 0


def nest(numbers: Sequence[int], size: Sequence[int], dim: int, element: Callable[[int], Any]) -> Any:
    """Return at least one element by number, lazily stacked in the shape ``size`` from dimension ``dim`` on."""
    if not size:
        return element(numbers[0])
    if len(size) == 1:
        parts = [element(number) for number in numbers]
    else:
        n = len(numbers) // size[0]
        parts = [nest(numbers[i * n : (i + 1) * n], size[1:], dim, element) for i in range(size[0])]
    return type(parts[0])._lazy(parts, dim)


def _chosen(td: Any, parts: Parts) -> Any:
    """Return an element, or the part of it that ``parts`` select."""
    return td._index(Index(parts, td._meta.batch_size)) if parts else td


class _SplitIndex:
    """An index, split at the stack dimension.

    Attributes:
        part: The index of the elements along the stack dimension.
        rest: The index of each element; empty if it selects all of it.
        dim: The stack dimension of the result, where the elements are chosen by a slice.
        keeps_dim: Whether the elements' results have a dimension of size 1 in its place, which keeps index tensors
            apart that were apart in the whole index.
    """

    __slots__ = ("at", "dim", "keeps_dim", "part", "parts", "rest")

    def __init__(self, index: Index, stack_dim: int) -> None:
        self.parts = parts = index.parts
        self.at: int | None = None
        source = 0
        for i, part in enumerate(parts):
            if part is None:
                continue
            if source == stack_dim:
                self.at = i
                break
            source += 1
        at = self.at
        self.part: Any = slice(None) if at is None else parts[at]
        self.rest: Parts = parts if at is None else parts[:at] + parts[at + 1 :]
        self.keeps_dim = False
        self.dim = 0
        if isinstance(self.part, slice):
            beyond = stack_dim - index.dims
            self.dim = len(index.size) + beyond if beyond >= 0 else index.sources.index(stack_dim)
            if at is not None and any(map(_is_tensor, parts[:at])) and any(map(_is_tensor, parts[at + 1 :])):
                self.rest, self.keeps_dim = (*parts[:at], None, *parts[at + 1 :]), True
        if all(type(part) is slice and part == slice(None) for part in self.rest):
            self.rest = ()

    @property
    def others(self) -> bool:
        """Whether other dimensions are indexed by tensors too."""
        return any(map(_is_tensor, self.rest))

    def positions(self) -> tuple[torch.Size, list[Parts]]:
        """Return the broadcast shape of several index tensors, and the integer index of each position."""
        at = [i for i, part in enumerate(self.parts) if _is_tensor(part)]
        tensors: Any = torch.broadcast_tensors(*(self.parts[i] for i in at))
        columns = [tensor.reshape(-1).tolist() for tensor in tensors]
        indices = []
        for row in zip(*columns, strict=True):
            parts = list(self.parts)
            for i, value in zip(at, row, strict=True):
                parts[i] = value
            indices.append(tuple(parts))
        return tensors[0].shape, indices


def _pieces(value: Any, size: torch.Size, first: int, dims: int, count: int) -> Sequence[Any]:
    """Return a value, broadcast to ``size`` and unbound along ``dims`` dimensions from ``first`` on.

    One number for all is repeated ``count`` times.
    """
    node = isinstance(value, Node)
    if node:
        value = value if value._meta.batch_size == size else value.expand(size)
    elif not is_leaf_tensor(value) or not value.ndim:
        return [value] * count
    else:
        value = value.expand(size if value.ndim <= len(size) else size + value.shape[len(size) :])
    if dims > 1:
        value = value.flatten(first, first + dims - 1)
    parts: Sequence[Any] = value._unbind(first) if node else value.unbind(first)
    return parts


class LazyIndexing:
    """Reading and writing the part of a lazy stack that an index selects."""

    __slots__ = ()

    def _index(self: Any, index: Index) -> Any:
        tds = self.tensordicts
        if not tds:
            return self._expanded_first()._index(index)
        if index.has_bools:
            first, second = index.apart()
            return self._index(first)._index(second)
        if index.has_dims:  # tensors with first-class dimensions cannot be stacked
            return self._solid()._index(index)
        split = _SplitIndex(index, self.stack_dim)
        part, rest = split.part, split.rest
        if isinstance(part, slice):
            elements = tds[part]
            if not elements:
                return self._expanded_first()._index(index)
            results = [_chosen(td, rest) for td in elements]
            if split.keeps_dim:
                results = [result.squeeze(split.dim) for result in results]
            stack = self._restacked(results, split.dim)
            return stack.lock_() if self._locked else stack
        if not _is_tensor(part):
            return _chosen(tds[int(part)], rest)
        if not index.size.numel() and not self._is_ragged():
            return self._expanded_first()._index(index)
        place = _place_of_tensors(split.parts)
        if not split.others:
            numbers = part.reshape(-1).tolist()
            if not numbers:
                return self._expanded_first()._index(index)
            chosen = {number: _chosen(tds[number], rest) for number in set(numbers)}
            return self._named(nest(numbers, part.shape, place, chosen.__getitem__), index)
        if not self._is_ragged() and not self._exclusive_keys():
            rows = self._solid()._index(index)._unbind(place)
            return self._named(type(rows[0])._lazy(rows, place), index)
        size, indices = split.positions()
        if not indices:
            return self._expanded_first()._index(index)
        return self._named(nest(range(len(indices)), size, place, lambda i: self[indices[i]]), index)

    def _named(self: Any, result: Any, index: Index) -> Any:
        names = index.names(self._meta.names)
        if names is not None:
            result._put_names(names)
        return result

    def _plan_write(self: Any, index: Index | None, source: Any, plan: WritePlan, prefix: tuple[str, ...]) -> None:
        if index is None:
            parts = self._parts(source)
            if parts is None or len(parts) != len(self.tensordicts):
                super()._plan_write(None, source, plan, prefix)  # type: ignore[misc]  # of the class that it is mixed into
                return
            for td, part in zip(self.tensordicts, parts, strict=True):
                td._plan_write(None, part, plan, prefix)
            return
        for td, at, piece in self._element_writes(index, source):
            td._plan_write(at, piece, plan, prefix)

    def _plan_entry(
        self: Any, key: str, index: Index | None, value: Any, plan: WritePlan, prefix: tuple[str, ...]
    ) -> None:
        old = self._peek(key)
        if index is None and (old is None or has_entries(old)):
            super()._plan_entry(key, None, value, plan, prefix)  # type: ignore[misc]  # of the class that it is mixed into
            return
        if index is None:
            fills = plan.fills and isinstance(value, (int, float, complex)) and is_leaf_tensor(old)
            path = (*prefix, key) if prefix else key
            if fills:
                parts = [value] * len(self.tensordicts)
            elif isinstance(value, list) and is_leaf_tensor(old) and self._is_one_for_each(value):
                parts = value
            else:
                parts = self._parts_of_entry(to_entry_over(old, self._meta, path, value))
            for td, part in zip(self.tensordicts, parts, strict=True):
                td._plan_entry(key, None, part, plan, prefix)
            return
        if isinstance(value, Tensor | np.ndarray) and value.ndim and is_leaf_tensor(old):
            value = self._shaped_as_part(key, index, value)
        elif isinstance(value, dict) and isinstance(old, Node) and old._is_non_tensor:
            value = non_tensor_entry(Meta(index.size), value)
        elif not isinstance(value, Node | Tensor | dict | int | float | complex):
            value = to_entry(Meta(index.size), key, value)
        for td, at, piece in self._element_writes(index, value):
            entry = td._peek(key)
            if is_leaf_tensor(entry) and td._lazy_stack is None:
                piece = over_rows(piece, at, entry.ndim)
            td._plan_entry(key, at, piece, plan, prefix)

    def _shaped_as_part(self: Any, key: str, index: Index, value: Any) -> Any:
        """Return a tensor in the shape of the part of an entry that it is written to, as torch broadcasts it."""
        try:
            shape = self._shape_of(key)
        except errors.StackError:  # not even the numbers of dimensions agree
            return value
        if -1 in shape:
            return value
        size = (index.positions() if index.has_bools else index).meta(self._meta).batch_size
        size += shape[len(self._meta.batch_size) :]
        tensor = value if isinstance(value, Tensor) else torch.from_numpy(value)
        while tensor.ndim > len(size) and tensor.shape[0] == 1:
            tensor = tensor[0]
        return tensor.expand(size)

    def _element_writes(self: Any, index: Index, value: Any) -> list[tuple[Any, Index, Any]]:
        """Return the writes into elements that a write consists of: each element, an index of it, and a value.

        Raises:
            RuntimeError: The batch size of the value does not fit.
        """
        if isinstance(value, dict):
            value = self._as_source(value, index.size)
        if isinstance(value, Node):
            self._check_fits(index, value)
            further = len(value._meta.batch_size) - len(index.size + self._meta.batch_size[index.dims :])
            for _ in range(further):  # of size 1, in front, as tensors may have
                value = cast(Any, value).squeeze(0)
        elif isinstance(value, np.ndarray):
            value = torch.as_tensor(value, device=self._meta.device or "cpu")
        if index.has_bools:
            index = index.positions()
        size = index.meta(self._meta).batch_size
        split = _SplitIndex(index, self.stack_dim)
        part = split.part
        if not isinstance(part, slice) and not _is_tensor(part):
            td = self.tensordicts[int(part)]
            return [(td, Index(split.rest, td._meta.batch_size), value)]
        place = _place_of_tensors(split.parts)
        if isinstance(part, slice):
            elements = self.tensordicts[part]
            indices = [split.rest] * len(elements)
            pieces = _pieces(value, size, split.dim, 1, len(elements))
            if split.keeps_dim:
                pieces = [piece.unsqueeze(split.dim) if getattr(piece, "ndim", 0) else piece for piece in pieces]
        elif split.others:
            shape, indices = split.positions()
            elements = [self] * len(indices)
            pieces = _pieces(value, size, place, len(shape), len(indices))
        else:
            numbers, count = part.reshape(-1).tolist(), len(self.tensordicts)
            for number in numbers:
                if not -count <= number < count:
                    raise errors.out_of_bounds(number, self.stack_dim, count)
            elements = [self.tensordicts[number] for number in numbers]
            indices = [split.rest] * len(elements)
            pieces = _pieces(value, size, place, part.ndim, len(elements))
        return [
            (td, Index(parts, td._meta.batch_size), piece)
            for td, parts, piece in zip(elements, indices, pieces, strict=True)
        ]
