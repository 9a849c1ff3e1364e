"""Assignment: which rank writes which part of each tensor, so that every byte is written once.

A part that one rank holds is written by that rank. A large part that several ranks hold (a replica) is divided into
slices of rows, one for each of them; a small one is assigned to the rank with the fewest bytes to write so far. The
result depends only on the plans of all ranks. Tensors with the same kinds on all ranks are decided together, so the
time grows with the number of tensors, and hardly with the number of ranks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import orjson
import torch

from tensordict_memmap.distributed.plan import Box, Kind, ShardPlan, pack, unpack

SPLIT_MIN = 4 << 20
"""Bytes of a replicated part from which each of its holders writes some of its rows."""


class Share:
    """The boxes that one rank writes: for each tensor the number of a tuple of boxes.

    >>> share = Share(2)
    >>> share.set(1, (Box((0,), (4,)),))
    >>> share.boxes(0), share.boxes(1), Share.loads(share.dumps()).boxes(1)
    ((), (Box(offset=(0,), size=(4,)),), (Box(offset=(0,), size=(4,)),))
    """

    def __init__(self, count: int) -> None:
        self.table: list[tuple[Box, ...]] = [()]
        self.column = np.zeros(count, dtype=np.int32)
        self._numbers: dict[tuple[Box, ...], int] = {(): 0}

    def number(self, boxes: tuple[Box, ...]) -> int:
        """Return the number of a tuple of boxes in the table."""
        found = self._numbers.setdefault(boxes, len(self.table))
        if found == len(self.table):
            self.table.append(boxes)
        return found

    def set(self, tensor: int, boxes: tuple[Box, ...]) -> None:
        """Give boxes of a tensor to the rank."""
        self.column[tensor] = self.number(boxes)

    def of(self, tensors: Any) -> Share:
        """Return the share of some tensors, by their numbers."""
        share = Share(0)
        share.table, share.column = self.table, self.column[tensors]
        return share

    def boxes(self, tensor: int) -> tuple[Box, ...]:
        """Return the boxes of a tensor that the rank writes."""
        return self.table[int(self.column[tensor])]

    def dumps(self) -> bytes:
        """Return the share as a message."""
        return pack(orjson.dumps([[tuple(box) for box in boxes] for boxes in self.table]), self.column.tobytes())

    @classmethod
    def loads(cls, message: bytes) -> Share:
        """Return the share of a message."""
        table, column = unpack(message)
        share = cls(0)
        share.table = [tuple(Box(tuple(a), tuple(b)) for a, b in boxes) for boxes in orjson.loads(table)]
        share.column = np.frombuffer(column, dtype=np.int32)
        return share


@dataclass(slots=True)
class Assignment:
    """The tensors of all ranks, and the share of each rank.

    Args:
        names: The names of the tensors: those of the first rank in its order, then those that only others have.
        kinds: The different pairs of a dtype and a shape.
        column: The number of the pair of each tensor.
        shares: The share of each rank.
    """

    names: list[str]
    kinds: list[tuple[torch.dtype, tuple[int, ...]]]
    column: list[int]
    shares: list[Share] = field(default_factory=list)

    def kind(self, tensor: int) -> tuple[torch.dtype, tuple[int, ...]]:
        """Return the dtype and the shape of a tensor."""
        return self.kinds[self.column[tensor]]


def assign(plans: Sequence[ShardPlan], ranks: Sequence[int] | None = None) -> Assignment:
    """Choose the rank that writes each part of each tensor.

    Args:
        plans: The plans of all ranks.
        ranks: The number of each rank, for errors; by default its position.

    Raises:
        ValueError: Ranks disagree about the dtype or the shape of a tensor, parts of it overlap without being the same,
            or no rank holds some of it; the error names the key and the ranks.

    >>> plans = [ShardPlan(), ShardPlan()]
    >>> for rank, plan in enumerate(plans):
    ...     plan.add("sharded", torch.uint8, (4,), [Box((2 * rank,), (2,))])
    ...     plan.add("replicated", torch.uint8, (3,), [Box((0,), (3,))])
    >>> [share.boxes(0) for share in assign(plans).shares]
    [(Box(offset=(0,), size=(2,)),), (Box(offset=(2,), size=(2,)),)]
    >>> [share.boxes(1) for share in assign(plans).shares]
    [(Box(offset=(0,), size=(3,)),), ()]
    """
    called = list(range(len(plans))) if ranks is None else list(ranks)
    names, matrix = _align(plans)
    made = Assignment(names, [], [], [Share(len(names)) for _ in plans])
    seen: dict[bytes, int] = {}
    cases: list[_Case] = []
    of_tensor = np.empty(len(names), dtype=np.int64)
    for number, row in enumerate(matrix):
        text = row.tobytes()
        place = seen.setdefault(text, len(cases))
        if place == len(cases):
            held = {rank: plans[rank].kinds[kind] for rank, kind in enumerate(row.tolist()) if kind >= 0}
            cases.append(_decide(names[number], held, called))
        of_tensor[number] = place
    pairs = {pair: number for number, pair in enumerate(dict.fromkeys(case.pair for case in cases))}
    made.kinds = list(pairs)
    made.column = np.array([pairs[case.pair] for case in cases], dtype=np.int64)[of_tensor].tolist()
    _share_out(made.shares, cases, of_tensor)
    return made


def _align(plans: Sequence[ShardPlan]) -> tuple[list[str], np.ndarray]:
    """Return the names of all tensors, and for each of them and each rank the number of its kind there, or -1."""
    names = list(plans[0].names)
    if all(plan.names is plans[0].names or plan.names == names for plan in plans):
        return names, np.array([plan.column for plan in plans], dtype=np.int32).T.copy()
    place = {name: number for number, name in enumerate(names)}
    for plan in plans:
        for name in plan.names:
            if place.setdefault(name, len(names)) == len(names):
                names.append(name)
    matrix = np.full((len(names), len(plans)), -1, dtype=np.int32)
    for rank, plan in enumerate(plans):
        matrix[[place[name] for name in plan.names], rank] = plan.column
    return names, matrix


@dataclass(slots=True)
class _Case:
    """The decision for all tensors of the same kinds: the boxes of each rank, and small parts with several holders."""

    pair: tuple[torch.dtype, tuple[int, ...]]
    fixed: dict[int, tuple[Box, ...]]
    open: list[tuple[tuple[int, ...], Box, int]]


def _decide(name: str, held: dict[int, Kind], called: Sequence[int]) -> _Case:
    first_rank, first = next(iter(held.items()))
    for rank, kind in held.items():
        if kind[:2] != first[:2]:
            raise ValueError(
                f"{name!r} is {first.dtype} {list(first.shape)} on rank {called[first_rank]} and {kind.dtype} "
                f"{list(kind.shape)} on rank {called[rank]}, and a tensor has one dtype and shape; save it under "
                "different keys"
            )
    holders: dict[Box, list[int]] = {}
    for rank, kind in held.items():
        for box in kind.boxes:
            holders.setdefault(box, []).append(rank)
    _check_cover(name, first.shape, holders, called)
    width = first.dtype.itemsize
    fixed: dict[int, list[Box]] = {}
    left: list[tuple[tuple[int, ...], Box, int]] = []
    for box, ranks in holders.items():
        if len(ranks) == 1:
            fixed.setdefault(ranks[0], []).append(box)
        elif box.volume * width >= SPLIT_MIN and box.size[0] > 1:
            for rank, part in _rows(box, ranks):
                fixed.setdefault(rank, []).append(part)
        else:
            left.append((tuple(ranks), box, box.volume * width))
    return _Case((first.dtype, first.shape), {rank: tuple(boxes) for rank, boxes in fixed.items()}, left)


def _rows(box: Box, ranks: Sequence[int]) -> Iterable[tuple[int, Box]]:
    """Cut a box into slices of rows, one for each rank as long as there are rows."""
    count, start = box.size[0], box.offset[0]
    bounds = [start + count * number // len(ranks) for number in range(len(ranks) + 1)]
    for rank, first, last in zip(ranks, bounds, bounds[1:], strict=False):
        if last > first:
            yield rank, Box((first, *box.offset[1:]), (last - first, *box.size[1:]))


def _check_cover(name: str, shape: tuple[int, ...], holders: dict[Box, list[int]], called: Sequence[int]) -> None:
    """Refuse parts that do not cover a tensor, exceed it, or overlap."""
    total = prod(shape)
    for box, ranks in holders.items():
        if len(box.size) != len(shape) or any(
            first < 0 or first + count > size for first, count, size in zip(*box, shape, strict=True)
        ):
            raise ValueError(
                f"rank {called[ranks[0]]} holds {_shown(box)} of {name!r}, which is outside of its shape "
                f"{list(shape)}; correct the plan of that rank"
            )
    clash = _overlap(list(holders))
    if clash is not None:
        one, two = clash
        raise ValueError(
            f"rank {called[holders[one][0]]} holds {_shown(one)} of {name!r} and rank {called[holders[two][0]]} "
            f"{_shown(two)}, and parts are either equal or disjoint; redistribute it first"
        )
    covered = sum(box.volume for box in holders)
    if covered != total:
        raise ValueError(
            f"the ranks of the save hold only {covered} of the {total} elements of {name!r}; save from all ranks that "
            "hold it (group=)"
        )


def _shown(box: Box) -> str:
    return "[" + ", ".join(f"{first}:{first + count}" for first, count in zip(*box, strict=True)) + "]"


def _overlap(boxes: list[Box]) -> tuple[Box, Box] | None:
    """Return two boxes that overlap, found by a sweep along the dimension in which most of them start apart."""
    if len(boxes) < 2 or not boxes[0].size:
        return None
    dim = max(range(len(boxes[0].size)), key=lambda one: len({box.offset[one] for box in boxes}))
    active: list[Box] = []
    for box in sorted(boxes, key=lambda one: one.offset[dim]):
        active = [one for one in active if one.offset[dim] + one.size[dim] > box.offset[dim]]
        for one in active:
            if one.cut(box) is not None:
                return one, box
        active.append(box)
    return None


def _share_out(shares: Sequence[Share], cases: Sequence[_Case], of_tensor: np.ndarray) -> None:
    """Fill the shares: equal parts of all tensors of a case at once, and small replicated parts one by one."""
    for rank, share in enumerate(shares):
        numbers = [share.number(case.fixed[rank]) if rank in case.fixed else 0 for case in cases]
        if any(numbers):
            share.column = np.array(numbers, dtype=np.int32)[of_tensor]
    loads: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for tensor in np.flatnonzero(np.array([bool(case.open) for case in cases])[of_tensor]).tolist() if cases else ():
        for holders, box, nbytes in cases[of_tensor[tensor]].open:
            heap = loads.setdefault(holders, [(0, rank) for rank in holders])
            load, rank = heap[0]
            heapq.heapreplace(heap, (load + nbytes, rank))
            shares[rank].set(tensor, (*shares[rank].boxes(tensor), box))
