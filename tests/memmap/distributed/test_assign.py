"""Assignment: every element of every tensor is written by exactly one of the ranks that hold it, evenly."""

from __future__ import annotations

import itertools
import random
import time

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from tensordict_memmap.distributed.assign import SPLIT_MIN, Share, assign
from tensordict_memmap.distributed.placements import boxes_of
from tensordict_memmap.distributed.plan import NO_NAMES, Box, ShardPlan, whole


@pytest.mark.parametrize("seed", range(30))
def test_every_element_is_written_once_by_a_rank_that_holds_it(seed):
    chance = random.Random(seed)
    mesh = [chance.choice([1, 2, 3]) for _ in range(2)]
    coordinates = list(itertools.product(*map(range, mesh)))
    plans, shapes = [ShardPlan() for _ in coordinates], []
    for number in range(12):
        shape = tuple(chance.choice([0, 1, 2, 5, 9]) for _ in range(chance.randint(0, 3)))
        dims = range(len(shape))
        kinds = [Replicate()] + [Shard(dim) for dim in dims] + [_StridedShard(dim, split_factor=2) for dim in dims]
        placements = tuple(chance.choice(kinds) for _ in mesh)
        shapes.append(shape)
        for plan, coordinate in zip(plans, coordinates, strict=True):
            held = boxes_of(shape, tuple(mesh), coordinate, placements)
            plan.add(str(number), torch.int64, shape, [box for box, _ in held])
    made = assign(plans)
    for number, shape in enumerate(shapes):
        written = torch.zeros(shape, dtype=torch.int64)
        for plan, share in zip(plans, made.shares, strict=True):
            held = plan.kinds[plan.column[number]].boxes
            for box in Share.loads(share.dumps()).boxes(number):
                assert any(one.contains(box) for one in held)
                written[box.slices()] += 1
        assert bool((written == 1).all()), (shape, written)


def test_replicated_tensors_are_spread_over_the_ranks():
    plans = [ShardPlan() for _ in range(4)]
    for plan in plans:
        plan.add("large", torch.uint8, (4 * SPLIT_MIN,), [whole((4 * SPLIT_MIN,))])
        for number in range(100):
            plan.add(str(number), torch.uint8, (10 + number,), [whole((10 + number,))])
    shares = assign(plans).shares
    assert [share.boxes(0)[0].volume for share in shares] == [SPLIT_MIN] * 4
    small = [sum(box.volume for n in range(1, 101) for box in share.boxes(n)) for share in shares]
    assert max(small) < 1.1 * min(small)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ([Box((2, 0), (1, 3))], "hold only 9 of the 12 elements of 'x'"),
        ([Box((1, 0), (3, 3))], r"rank 7 holds \[0:2, 0:3\] of 'x' and rank 9 \[1:4, 0:3\]"),
        ([Box((2, 0), (3, 3))], r"rank 9 holds \[2:5, 0:3\] of 'x', which is outside of its shape \[4, 3\]"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused_with_their_ranks(second, message):
    plans = [ShardPlan(), ShardPlan()]
    plans[0].add("x", torch.int8, (4, 3), [Box((0, 0), (2, 3))])
    plans[1].add("x", torch.int8, (4, 3), second)
    with pytest.raises(ValueError, match=message):
        assign(plans, [7, 9])


def test_ranks_may_hold_different_tensors():
    plans = [ShardPlan(), ShardPlan()]
    plans[0].add("a", torch.int8, (2,), [whole((2,))])
    plans[1].add("b", torch.int8, (3,), [whole((3,))])
    made = assign(plans)
    assert made.names == ["a", "b"] and [made.kind(n)[1] for n in range(2)] == [(2,), (3,)]
    assert [[len(share.boxes(n)) for n in range(2)] for share in made.shares] == [[1, 0], [0, 1]]


@pytest.mark.long
def test_a_hundred_thousand_leaves_on_64_ranks_take_seconds_and_the_time_is_linear():
    def spent(leaves, ranks=64):
        messages = []
        for rank in range(ranks):
            plan = ShardPlan()
            for n in range(leaves):
                rows = n % 10 + 1
                box = Box((rank * rows, 0), (rows, 64)) if n % 10 != 9 else whole((4096, 1))
                plan.add(f"layers.{n}.weight", torch.bfloat16, (ranks * rows, 64) if n % 10 != 9 else (4096, 1), [box])
            messages.append(plan.dumps(names=not rank))
        start = time.perf_counter()
        first = ShardPlan.loads(messages[0])
        names = {NO_NAMES: first.names}
        assign([first, *(ShardPlan.loads(message, names) for message in messages[1:])])
        return time.perf_counter() - start

    short, long = min(spent(25_000) for _ in range(3)), min(spent(100_000) for _ in range(3))
    assert long < 10 and long < 12 * short
