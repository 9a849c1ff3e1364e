"""`RowSampler`: each row once an epoch over all ranks and workers, and an exact rest after an interruption."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tensordict_core import TensorDict
from tensordict_memmap import MemmapDataset, RowSampler, RowStream
from tensordict_memmap.dataset.sampler import permuted

sizes = st.integers(0, 300)
counts = st.integers(1, 7)
seeds = st.integers(0, 1 << 64)


def samplers(rows, batch_size, ranks, **options):
    return [RowSampler(rows, batch_size, rank=rank, world_size=ranks, **options) for rank in range(ranks)]


def flat(batches):
    return [row for batch in batches for row in batch]


@given(st.integers(1, 2000), seeds, st.integers(0, 50))
def test_permutations_have_each_number_once(size, seed, epoch):
    found = permuted(np.arange(size), size, seed, epoch)
    assert sorted(found.tolist()) == list(range(size))


def test_permutations_differ_by_seed_and_epoch_and_are_even():
    orders = [tuple(permuted(np.arange(50), 50, seed, epoch)) for seed in range(5) for epoch in range(5)]
    assert len(set(orders)) == 25
    first = [int(permuted(np.arange(1), 8, seed, 0)[0]) for seed in range(4000)]
    assert (np.bincount(first, minlength=8) > 380).all()  # 500 expected each, with a deviation of 21


@given(sizes, counts, counts, st.integers(1, 9), st.booleans(), seeds)
def test_an_epoch_has_each_row_once_over_all_ranks(rows, batch_size, ranks, chunk, shuffle, seed):
    found = [list(one) for one in samplers(rows, batch_size, ranks, chunk=chunk, shuffle=shuffle, seed=seed)]
    assert sorted(row for batches in found for row in flat(batches)) == list(range(rows))
    assert all(0 < len(batch) <= batch_size for batches in found for batch in batches)
    lengths = [len(batches) for batches in found]
    assert max(lengths) - min(lengths) <= 1


@given(sizes, counts, counts, seeds)
def test_full_batches_come_in_the_same_number_on_all_ranks(rows, batch_size, ranks, seed):
    found = [list(one) for one in samplers(rows, batch_size, ranks, seed=seed, drop_last=True)]
    assert {len(batches) for batches in found} == {rows // (batch_size * ranks)}
    assert all(len(batch) == batch_size for batches in found for batch in batches)


@given(sizes, counts, counts, counts, st.integers(0, 40), st.integers(1, 5), seeds)
def test_an_interrupted_epoch_continues_with_the_exact_rest_on_any_number_of_ranks(
    rows, batch_size, before, after, steps, chunk, seed
):
    first = samplers(rows, batch_size, before, seed=seed, chunk=chunk)
    steps = min(steps, *map(len, first))  # a step is one on all ranks
    seen, states = [], []
    for one in first:
        batches = iter(one)
        seen += flat(next(batches) for _ in range(steps))
        states.append(one.state_dict())
    assert all(state == states[0] for state in states)
    second = samplers(rows, batch_size, after, seed=seed, chunk=chunk)
    for one in second:
        one.load_state_dict(states[0])
    rest = flat(flat(one for one in second))
    assert sorted(seen + rest) == list(range(rows))
    assert {(one.epoch, one.position) for one in second} == {(1, 0)}


@given(sizes, counts, counts, st.integers(1, 4), seeds)
def test_the_rest_on_the_same_ranks_is_batch_for_batch_the_same(rows, batch_size, ranks, taken, seed):
    for one, other in zip(
        samplers(rows, batch_size, ranks, seed=seed), samplers(rows, batch_size, ranks, seed=seed), strict=True
    ):
        whole, batches = list(other.batches()), iter(one)
        for _ in range(min(taken, len(whole))):
            next(batches)
        other.load_state_dict(one.state_dict())
        assert list(other) == whole[min(taken, len(whole)) :]


@given(sizes, counts, counts, st.integers(1, 5))
def test_workers_share_the_batches_of_their_rank(rows, batch_size, ranks, workers):
    for one in samplers(rows, batch_size, ranks):
        shares = [list(one.batches(worker, workers)) for worker in range(workers)]
        assert [shares[n % workers][n // workers] for n in range(len(one))] == list(one.batches())


def test_rows_of_a_chunk_come_together():
    order = flat(RowSampler(100, 10, chunk=10, seed=4))
    for start in range(0, 100, 10):
        chunk = order[start : start + 10]
        offsets = sorted((row - min(chunk)) % 100 for row in chunk)
        assert offsets == list(range(10)) or {0, 99} <= set(chunk)  # the one chunk around the end
        assert chunk != sorted(chunk)


def test_a_state_of_another_order_is_refused():
    state = RowSampler(10, 2, seed=1).state_dict()
    with pytest.raises(ValueError, match="sampler with seed=1, and this one has seed=2"):
        RowSampler(10, 2, seed=2).load_state_dict(state)
    with pytest.raises(ValueError, match="rows=10, and this one has rows=11"):
        RowSampler(11, 2, seed=1).load_state_dict(state)
    with pytest.raises(ValueError, match="lacks the field 'position'"):
        RowSampler(10, 2, seed=1).load_state_dict({k: v for k, v in state.items() if k != "position"})
    with pytest.raises(ValueError, match="position 12"):
        RowSampler(10, 2, seed=1).load_state_dict(state | {"position": 12})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size=0 is less than 1"),
        ({"batch_size": 2, "rank": 2, "world_size": 2}, "rank=2 is not one of 2 ranks"),
        ({"batch_size": 2, "chunk": 0}, "chunk=0"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        RowSampler(10, **arguments)


def test_a_state_is_saved_in_a_checkpoint(tmp_path):
    sampler = RowSampler(100, 8, seed=5)
    next(iter(sampler))
    TensorDict({"sampler": TensorDict(sampler.state_dict())}).save(tmp_path / "checkpoint")
    other = RowSampler(100, 8, seed=5)
    other.load_state_dict(TensorDict.load(tmp_path / "checkpoint")["sampler"])
    assert other.state_dict() == sampler.state_dict()


def whole(batch):
    return batch


@pytest.fixture
def numbers(tmp_path):
    with MemmapDataset.create(tmp_path / "numbers", TensorDict({"x": torch.tensor(0)})) as dataset:
        dataset.extend(TensorDict({"x": torch.arange(50)}, [50]))
    return MemmapDataset.open(tmp_path / "numbers")


def loaders(dataset, sampler, kind, workers):
    options = {"num_workers": workers}
    if workers:
        options |= {"persistent_workers": True, "multiprocessing_context": "fork", "prefetch_factor": 3}
    if kind == "map":
        return DataLoader(dataset, batch_sampler=sampler, collate_fn=whole, **options)
    return DataLoader(RowStream(dataset, sampler), batch_size=None, collate_fn=whole, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_with_workers_resumes_in_the_middle_of_an_epoch(numbers, workers):
    expected = [batch for epoch in range(3) for batch in _epoch(epoch)]
    sampler = RowSampler(numbers, 6, seed=9)
    loader = loaders(numbers, sampler, "map", workers)
    seen = [batch["x"].tolist() for batch in sampler.track(loader)]
    for batch in sampler.track(loader):  # persistent workers: the second epoch of one loader
        seen.append(batch["x"].tolist())
        if len(seen) == 13:
            state = sampler.state_dict()
            break
    assert (state["epoch"], state["position"]) == (1, 24)
    resumed = RowSampler(numbers, 6, seed=9)
    resumed.load_state_dict(state)
    loader = loaders(numbers, resumed, "map", workers)
    for _ in range(2):
        seen += [batch["x"].tolist() for batch in resumed.track(loader)]
    assert seen == expected


def _epoch(number):
    sampler = RowSampler(50, 6, seed=9)
    sampler.set_epoch(number)
    return list(sampler)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_stream_resumes_in_the_middle_of_an_epoch(numbers, workers):
    sampler, seen = RowSampler(numbers, 6, seed=9), []
    for batch in sampler.track(loaders(numbers, sampler, "stream", workers)):
        seen.append(batch["x"].tolist())
        if len(seen) == 4:
            break
    resumed = RowSampler(numbers, 6, seed=9)
    resumed.load_state_dict(sampler.state_dict())
    seen += [batch["x"].tolist() for batch in resumed.track(loaders(numbers, resumed, "stream", workers))]
    assert seen == _epoch(0)


@settings(deadline=None)
@given(st.integers(0, 8))
def test_batches_that_are_prefetched_are_not_counted(taken):
    sampler = RowSampler(50, 6)
    ahead = iter(sampler.track(list(sampler.batches())))  # all batches were asked for at once
    for _ in range(taken):
        next(ahead)
    assert sampler.state_dict()["position"] == min(6 * taken, 50)
