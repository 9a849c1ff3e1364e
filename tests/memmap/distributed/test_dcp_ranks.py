"""DCP on ranks: any number of them saves and loads one checkpoint; a failure or a kill leaves the earlier one."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
import torch
import torch.distributed.checkpoint as dcp
from tests.memmap.distributed.dcp_states import TARGETS, load, same_state, save, state_of, trained
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

from tensordict_core import TensorDict
from tensordict_memmap import TensorDictReader, TensorDictWriter, load_memmap

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable)")  # DCP's, of one process


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("count", [2, 4])
def test_fsdp_states_come_back_as_from_dcps_own_files(ranks, tmp_path, target, count):
    name, options = TARGETS[target]

    def work(rank):
        mesh = init_device_mesh("cpu", (count,))
        saved = state_of(*trained(1, mesh), step=rank * 0 + 5)
        dcp.save(saved, storage_writer=TensorDictWriter(tmp_path / name, **options))
        dcp.save(saved, checkpoint_id=tmp_path / "oracle")
        found = []
        for storage in (TensorDictReader(tmp_path / name), dcp.FileSystemReader(tmp_path / "oracle")):
            model, adam = trained(2, mesh)
            state = state_of(model, adam, step=0)
            dcp.load(state, storage_reader=storage)
            set_model_state_dict(model, state["model"])
            set_optimizer_state_dict(model, adam, state["optim"])
            found.append(state_of(model, adam, step=state["step"]))
        same_state(found[0], saved)
        same_state(found[0], found[1])

    ranks.run(count, work)
    model, adam = trained(3)
    state = state_of(model, adam, step=0)  # in one process
    load(state, tmp_path / name)
    oracle = state_of(*trained(3), step=0)
    dcp.load(oracle, checkpoint_id=tmp_path / "oracle", no_dist=True)
    same_state(state, oracle)
    loaded = load_memmap(tmp_path / name)
    assert torch.equal(loaded["model", "0.weight"], state["model"]["0.weight"])
    assert loaded["optim", "param_groups", "0", "betas"] == (0.8, 0.9)
    assert sorted(os.listdir(tmp_path)) == sorted([name, "oracle"])


def test_two_ranks_load_what_one_process_saved(ranks, tmp_path):
    expected = state_of(*trained(1), step=3)
    save(expected, tmp_path / "saved.safetensors")

    def work(rank):
        model, adam = trained(2, init_device_mesh("cpu", (2,)))
        state = state_of(model, adam, step=0)
        dcp.load(state, storage_reader=TensorDictReader(tmp_path / "saved.safetensors"))
        same_state(state, expected)

    ranks.run(2, work)


def sharded(mesh, version):
    whole = torch.arange(7 * 5).reshape(7, 5) + version
    kinds = {"rows": Shard(0), "columns": Shard(1), "same": Replicate()}
    state = {name: distribute_tensor(whole, mesh, [kind], src_data_rank=None) for name, kind in kinds.items()}
    return {**state, "plain": torch.full((3,), version), "one": torch.tensor(version), "n": version}


@pytest.mark.parametrize("target", TARGETS)
def test_four_ranks_on_two_by_two_are_read_by_three_as_from_dcps_own_files(ranks, tmp_path, target):
    name, options = TARGETS[target]
    kinds = [[Shard(0), Shard(1)], [Replicate(), Shard(0)], [Shard(1), Replicate()], [Shard(0), Shard(0)]]

    def state_on(mesh, placements, fill):
        whole = torch.arange(7 * 5.0).reshape(7, 5)
        values = [whole + number if fill else torch.zeros(7, 5) for number in range(len(kinds))]
        return {
            f"x{number}": distribute_tensor(value, mesh, placement, src_data_rank=None)
            for number, (value, placement) in enumerate(zip(values, placements, strict=True))
        }

    def write(rank):
        state = state_on(init_device_mesh("cpu", (2, 2)), kinds, fill=True)
        dcp.save(state, storage_writer=TensorDictWriter(tmp_path / name, **options))
        dcp.save(state, checkpoint_id=tmp_path / "oracle")

    def read(rank):
        found = []
        for storage in (TensorDictReader(tmp_path / name), dcp.FileSystemReader(tmp_path / "oracle")):
            state = state_on(init_device_mesh("cpu", (3,)), [[Shard(n % 2)] for n in range(len(kinds))], fill=False)
            dcp.load(state, storage_reader=storage)
            found.append(state)
        same_state(*found)
        return [one.full_tensor().sum().item() for one in found[0].values()]

    ranks.run(4, write)
    assert ranks.run(3, read) == [[595.0 + 35 * number for number in range(len(kinds))]] * 3


def version_of(path):
    loaded = load_memmap(path)
    version = loaded["n"]
    whole = torch.arange(7 * 5).reshape(7, 5) + version
    assert all(torch.equal(loaded[name], whole) for name in ("rows", "columns", "same"))
    assert loaded["plain"].tolist() == [version] * 3 and loaded["one"] == version
    return version


@pytest.mark.parametrize("target", TARGETS)
def test_uneven_shards_columns_replicas_and_plain_tensors_mix(ranks, tmp_path, target):
    name, options = TARGETS[target]

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        keeper = TensorDictWriter(tmp_path / name, **options)
        for version in (1, 2):  # the second replaces the first
            dcp.save(sharded(mesh, version), storage_writer=keeper)
        state = sharded(mesh, 0)
        dcp.load(state, storage_reader=TensorDictReader(tmp_path / name))
        same_state(state, sharded(mesh, 2))
        like = {key: entry for key, entry in sharded(mesh, 0).items() if key != "n"}
        loaded = load_memmap(tmp_path / name, like=TensorDict(like), strict=False)
        assert torch.equal(loaded["columns"].to_local(), state["columns"].to_local())

    ranks.run(2, work)
    assert version_of(tmp_path / name) == 2 and os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("target", TARGETS)
def test_ranks_with_different_keys_save_one_checkpoint(ranks, tmp_path, target):
    name, options = TARGETS[target]

    def work(rank):
        stage = {"stages": {str(rank): {"weight": torch.full((3, 2), float(rank)), "lr": rank}}, "all": torch.ones(2)}
        dcp.save(stage, storage_writer=TensorDictWriter(tmp_path / name, durable=True, **options))

    ranks.run(2, work)
    loaded = load_memmap(tmp_path / name)
    for rank in range(2):
        assert loaded["stages", str(rank), "weight"].eq(rank).all() and loaded["stages", str(rank), "lr"] == rank
    assert loaded["all"].tolist() == [1, 1]


def test_an_async_save_stores_the_values_at_the_call(ranks, tmp_path):
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        state = sharded(mesh, 4)
        future = dcp.async_save(state, storage_writer=TensorDictWriter(tmp_path / "saved.safetensors"))
        for entry in state.values():
            if isinstance(entry, torch.Tensor):
                entry.zero_()
        future.result()

    ranks.run(2, work)
    assert version_of(tmp_path / "saved.safetensors") == 4


@pytest.mark.parametrize("target", TARGETS)
def test_a_failing_rank_leaves_the_earlier_checkpoint_and_is_named(ranks, tmp_path, target):
    name, options = TARGETS[target]

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        keeper = TensorDictWriter(tmp_path / name, **options)
        dcp.save(sharded(mesh, 1), storage_writer=keeper)
        state = sharded(mesh, 2)
        if rank == 1:
            state["odd"] = object()
        with pytest.raises(CheckpointException, match=r"RANK 1(.|\n)*key 'odd' has no JSON form"):
            dcp.save(state, storage_writer=keeper)
        dist = torch.distributed
        dist.barrier()
        if rank == 0:
            assert version_of(tmp_path / name) == 1
        dist.barrier()
        dcp.save(sharded(mesh, 3), storage_writer=keeper)

    ranks.run(2, work)
    assert version_of(tmp_path / name) == 3 and os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("target", TARGETS)
def test_a_killed_rank_leaves_the_earlier_checkpoint(ranks, tmp_path, target, victim):
    name, options = TARGETS[target]

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        dcp.save(sharded(mesh, 1), storage_writer=TensorDictWriter(tmp_path / name, **options))
        if rank == victim:
            step = "finish" if rank == 0 else "write_data"
            setattr(TensorDictWriter, step, lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL))
        dcp.save(sharded(mesh, 2), storage_writer=TensorDictWriter(tmp_path / name, **options))

    outcomes = ranks.start(2, work).wait()
    assert outcomes[victim].died and outcomes[1 - victim].error
    assert version_of(tmp_path / name) == 1
    save({"n": 5}, tmp_path / name, **options)
    assert os.listdir(tmp_path) == [name]


def save_forever(rank, path, options, first):
    mesh = init_device_mesh("cpu", (2,))
    version = first
    while True:
        dcp.save(sharded(mesh, version), storage_writer=TensorDictWriter(path, **options))
        version += 1


@pytest.mark.parametrize("times", [3, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("target", TARGETS)
def test_a_rank_killed_at_random_moments_leaves_a_whole_checkpoint(ranks, tmp_path, target, victim, times):
    name, options = TARGETS[target]
    path = tmp_path / name
    chance = random.Random(victim)
    last = 0
    whole = torch.arange(7 * 5).reshape(7, 5)
    parts = {"rows": whole, "columns": whole, "same": whole, "plain": torch.zeros(3, dtype=torch.int64)}
    save({**parts, "one": torch.tensor(0), "n": 0}, path, **options)
    for _ in range(times):
        ranks.start(2, save_forever, path, options, last + 1)
        deadline = time.monotonic() + 20
        while version_of(path) <= last and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(chance.random() * 0.03)
        os.kill(ranks.children[victim][0], signal.SIGKILL)
        outcomes = ranks.wait()
        assert outcomes[victim].died and outcomes[1 - victim].error not in (None, "Hung")
        found = version_of(path)
        assert found > last
        last = found
    save({"n": 5}, path, **options)
    assert os.listdir(tmp_path) == [name]
