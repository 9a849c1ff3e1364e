"""Placements: the boxes of a whole tensor that a rank holds of a DTensor, from its mesh and placements."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard, _StridedShard

from tensordict_memmap.distributed.plan import Box
from tensordict_memmap.schema.node import Path, show

Part = tuple[Box, torch.Tensor]
"""A box of a whole tensor, and the memory of this rank that holds its values."""

_Runs = tuple[tuple[int, int], ...]
"""Ranges of indices of one dimension, as pairs of a start and a length, in the order of the memory of a rank."""


def awaited(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without its gradient, after the collective that fills it.

    >>> awaited(torch.ones(2, requires_grad=True))
    tensor([1., 1.])
    """
    plain = tensor.detach()
    return plain.wait() if isinstance(plain, AsyncCollectiveTensor) else plain


def local_of(tensor: DTensor) -> torch.Tensor:
    """Return the local tensor of a DTensor."""
    return awaited(tensor.to_local())


def parts_of(tensor: DTensor, key: Path) -> list[Part]:
    """Return the boxes that this rank holds of a DTensor, with views of its local tensor.

    Raises:
        TypeError: A placement, such as ``Partial``, does not determine positions; the error names the key.
    """
    held = held_boxes(tensor, key)
    if not held:
        return []
    local = local_of(tensor)
    parts = []
    for box, start in held:
        view = local[Box(start, box.size).slices()]
        if view.shape != box.size:
            raise ValueError(
                f"key {show(key)} has a local tensor of shape {list(local.shape)}, which does not fit its placements "
                f"{tensor.placements}; make it with DTensor.from_local(..., shape=, stride=)"
            )
        parts.append((box, view))
    return parts


def held_boxes(tensor: DTensor, key: Path) -> tuple[tuple[Box, tuple[int, ...]], ...]:
    """Return the boxes that this rank holds of a DTensor, and where each starts in its local tensor.

    Raises:
        TypeError: A placement, such as ``Partial``, does not determine positions; the error names the key.
    """
    for placement in tensor.placements:
        if not isinstance(placement, Replicate | Shard | _StridedShard):
            raise TypeError(
                f"key {show(key)} has the placement {placement!r}, and a saved tensor is replicated or sharded; call "
                "redistribute() first"
            )
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return ()
    return boxes_of(tuple(tensor.shape), tuple(mesh.shape), tuple(coordinate), tuple(tensor.placements))


@functools.lru_cache(maxsize=4096)
def boxes_of(
    shape: tuple[int, ...],
    mesh: tuple[int, ...],
    coordinate: tuple[int, ...],
    placements: tuple[Placement, ...],
) -> tuple[tuple[Box, tuple[int, ...]], ...]:
    """Return the boxes that the rank at a coordinate of a mesh holds, and where each starts in the memory of that rank.

    >>> boxes_of((5, 2), (2,), (1,), (Shard(0),))
    ((Box(offset=(3, 0), size=(2, 2)), (0, 0)),)
    >>> [box.offset for box, _ in boxes_of((8,), (2,), (1,), (_StridedShard(0, split_factor=2),))]
    [(2,), (6,)]
    """
    runs: list[_Runs] = [((0, size),) for size in shape]
    for number, placement in enumerate(placements):
        if isinstance(placement, Replicate):
            continue
        dim = placement.dim % len(shape)  # type: ignore[attr-defined]  # a shard has one
        total = sum(count for _, count in runs[dim])
        wanted = _indices(placement, total, mesh[number], coordinate[number])
        runs[dim] = _joined(one for start, count in wanted for one in _cut(runs[dim], start, count))
    places = []
    for choice in itertools.product(*map(_with_places, runs)):
        box = Box(tuple(start for start, _, _ in choice), tuple(count for _, count, _ in choice))
        if box.volume:
            places.append((box, tuple(place for _, _, place in choice)))
    return tuple(places)


def _indices(placement: Any, total: int, count: int, index: int) -> list[tuple[int, int]]:
    """Return the ranges of a dimension of ``total`` indices of one of ``count`` ranks, cut as by ``torch.chunk``."""
    if not isinstance(placement, _StridedShard):
        return [_chunk(total, count, index)]
    found = []
    for part in range(int(placement.split_factor)):
        start, size = _chunk(total, int(placement.split_factor), part)
        first, length = _chunk(size, count, index)
        found.append((start + first, length))
    return found


def _chunk(total: int, count: int, index: int) -> tuple[int, int]:
    size = -(-total // count)
    start = min(size * index, total)
    return start, min(start + size, total) - start


def _cut(runs: _Runs, start: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield the part of ranges between two positions in the order of the memory."""
    position = 0
    for first, length in runs:
        low, high = max(start, position), min(start + count, position + length)
        if low < high:
            yield first + low - position, high - low
        position += length


def _joined(runs: Iterator[tuple[int, int]]) -> _Runs:
    found: list[tuple[int, int]] = []
    for start, count in runs:
        if found and sum(found[-1]) == start:
            found[-1] = found[-1][0], found[-1][1] + count
        else:
            found.append((start, count))
    return tuple(found)


def _with_places(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return ranges with their positions in memory."""
    places = itertools.accumulate([count for _, count in runs], initial=0)
    return [(start, count, place) for (start, count), place in zip(runs, places, strict=False)]
