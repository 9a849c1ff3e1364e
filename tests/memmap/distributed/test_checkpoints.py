"""Checkpoints of sharded training runs: ranks save one together, and any number of ranks continues from it."""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import CancelledError

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tensordict_core import TensorDict
from tensordict_memmap import compare, latest, load_checkpoint, load_memmap, save_checkpoint
from tensordict_memmap.checkpoint import state
from tensordict_memmap.distributed import save as saves
from tensordict_memmap.distributed.errors import RankError

dist = torch.distributed


def made(seed, placement=None):
    """A model, sharded if there is a placement, and its optimizer."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    if placement is not None:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model:
            for name, parameter in list(layer.named_parameters()):
                fitting = placement if getattr(placement, "dim", 0) < parameter.dim() else Replicate()
                layer.register_parameter(name, nn.Parameter(distribute_tensor(parameter.data, mesh, [fitting])))
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def train(model, optimizer, steps, first=0):
    """Steps with gradients that are the same on all meshes, element by element."""
    for step in range(first, first + steps):
        for number, parameter in enumerate(model.parameters()):
            grad = torch.arange(parameter.numel(), dtype=torch.float32).view(parameter.shape).cos() + step + number
            if isinstance(parameter, DTensor):
                grad = distribute_tensor(grad, parameter.device_mesh, parameter.placements)
            parameter.grad = grad
        optimizer.step()


def save(rank, path, placement, options):
    model, optimizer = made(0, placement)
    train(model, optimizer, 5)
    torch.manual_seed(rank)
    random.seed(rank)
    np.random.seed(rank)
    save_checkpoint(path, model=model, optimizer=optimizer, step=5, extra={"epoch": 1}, **options)


def go_on(rank, path, target, placement, rng, steps=5):
    model, optimizer = made(9, placement)
    train(model, optimizer, 1)
    found = load_checkpoint(path, model=model, optimizer=optimizer, rng=rng)
    assert found.step == 5 and found.extra == {"epoch": 1}
    numbers = [float(torch.rand(())), random.random(), np.random.rand()]
    for parameter in model.parameters():
        state = optimizer.state[parameter]["exp_avg"]
        assert placement is None or (isinstance(state, DTensor) and state.placements == parameter.placements)
    train(model, optimizer, steps, 5)
    save_checkpoint(target, model=model, optimizer=optimizer, step=10, rng=False)
    return numbers


def drawn(rank):
    torch.manual_seed(rank)
    random.seed(rank)
    np.random.seed(rank)
    return [float(torch.rand(())), random.random(), np.random.rand()]


def straight(rank, path, placement, steps):
    """A run without a stop; torch rounds by the sizes of the local parts, so only runs on one mesh are the same."""
    model, optimizer = made(0, placement)
    train(model, optimizer, steps)
    save_checkpoint(path, model=model, optimizer=optimizer, step=10, rng=False)


@pytest.fixture
def five(ranks, tmp_path):
    """The state after five steps on two ranks."""
    ranks.run(2, straight, str(tmp_path / "five"), Shard(0), 5)
    return tmp_path / "five"


def same_names(rank, path, elsewhere):
    """Save and restore a model whose parameters have one name at two depths, one of them under another key on request.

    Earlier releases stored the inner one so, with its place in the record.
    """
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    models = [nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)]
    for model in models:
        model.inner = nn.Linear(4, 4, bias=False)
        for layer in (model, model.inner):
            layer.weight = nn.Parameter(distribute_tensor(torch.rand(4, 4), mesh, [Shard(0)]))
    is_put = state._Packer.is_put
    if elsewhere:
        state._Packer.is_put = lambda self, place, value: (
            place[-2:] != ("inner", "weight") and is_put(self, place, value)
        )
    save_checkpoint(path, model=models[0], rng=False)
    state._Packer.is_put = is_put
    load_checkpoint(path, model=models[1])
    for one, two in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert isinstance(two, DTensor) and torch.equal(one.to_local(), two.to_local())


@pytest.mark.parametrize("elsewhere", [False, True])
def test_parameters_of_one_name_at_two_depths_are_restored(ranks, tmp_path, elsewhere):
    ranks.run(2, same_names, str(tmp_path / "run"), elsewhere)
    assert (("model", "~0") in load_memmap(tmp_path / "run").keys(True, True)) == elsewhere


OPTIONS = {
    "run": {},
    "run.safetensors": {},
    "shards": {"format": "safetensors", "shard_size": 200},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_ranks_continue_to_the_last_bit(ranks, tmp_path, name):
    path, target = str(tmp_path / name), str(tmp_path / "ten.safetensors")
    ranks.run(2, straight, str(tmp_path / "straight"), Shard(0), 10)
    ranks.run(2, save, path, Shard(0), OPTIONS[name])
    assert ranks.run(2, go_on, path, target, Shard(0), True) == [drawn(0), drawn(1)]
    report = compare(tmp_path / "straight", target, values=True)
    assert not report, report


@pytest.mark.parametrize("placement", [Shard(1), Replicate()], ids=str)
def test_a_checkpoint_loads_on_another_mesh(ranks, tmp_path, five, placement):
    path, target = str(tmp_path / "run.safetensors"), str(tmp_path / "again.safetensors")
    ranks.run(2, save, path, Shard(0), {})
    ranks.run(3, go_on, path, target, placement, False, 0)
    report = compare(five, target, values=True)
    assert not report, report


def test_one_process_and_ranks_read_the_checkpoints_of_each_other(ranks, tmp_path, five):
    sharded, plain, target = (str(tmp_path / name) for name in ("sharded", "plain", "again"))
    ranks.run(2, save, sharded, Shard(0), {})
    with pytest.warns(UserWarning, match="random states of 2 ranks, and 1 load it"):
        go_on(0, sharded, plain, None, True, 0)
    assert not compare(five, plain, values=True)
    save_checkpoint(plain, **_loaded(plain), step=5, extra={"epoch": 1})
    ranks.run(2, go_on, plain, target, Shard(0), False, 0)
    assert not compare(five, target, values=True)


def _loaded(path):
    model, optimizer = made(3)
    load_checkpoint(path, model=model, optimizer=optimizer)
    return {"model": model, "optimizer": optimizer}


class Average:
    """Averages of parameters, as training loops keep them: an object with a state, and no module."""

    def __init__(self, model):
        self.shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def state_dict(self):
        return {"shadow": self.shadow, "history": [self.shadow["0.weight"] + 1], "decay": 0.9}

    def load_state_dict(self, state):
        for name, tensor in state["shadow"].items():
            self.shadow[name].copy_(tensor)
        assert state["history"][0].placements == self.shadow["0.weight"].placements


@pytest.mark.parametrize("placement", [Shard(0), Shard(1)], ids=str)
def test_the_state_of_any_object_is_loaded_in_parts(ranks, tmp_path, placement):
    def write(rank):
        model, _ = made(0, Shard(0))
        save_checkpoint(tmp_path / "run", model=model, ema=[Average(model)])

    def read(rank):
        model, _ = made(1, placement)
        averages = Average(model)
        load_checkpoint(tmp_path / "run", model=model, ema=[averages], rng=False)
        for name, parameter in model.named_parameters():
            assert torch.equal(averages.shadow[name].to_local(), parameter.to_local())

    ranks.run(2, write)
    ranks.run(2, read)


@pytest.mark.parametrize("rng", [True, False])
def test_an_object_that_one_rank_cannot_save_is_an_error_of_all(ranks, tmp_path, rng):
    def work(rank):
        model, _ = made(0, Shard(0))
        save_checkpoint(tmp_path / "run", model=model, step=1, rng=rng)
        save_checkpoint(tmp_path / "run", model=model, step=2, rng=rng, extra={"f": print if rank else None})

    first, second = ranks.start(2, work).wait()
    assert second.error == "TypeError" and "extra['f']" in second.text
    assert first.error == "RankError" and first.ranks == [1] and "extra['f']" in first.text
    assert load_checkpoint(tmp_path / "run", rng=False).step == 1


def test_a_rank_that_saves_no_checkpoint_is_named_in_time(ranks, tmp_path):
    def work(rank):
        model, _ = made(0, Shard(0))
        if rank:
            dist.recv(torch.zeros(1), 0)
        else:
            with pytest.raises(RankError, match=r"rank 1: it did not arrive within 1 s"):
                save_checkpoint(tmp_path / "run", model=model, timeout=1.0)
            dist.send(torch.zeros(1), 1)

    ranks.run(2, work)


def rotated(rank, path):
    model, optimizer = made(0, Shard(0))
    for step in (1, 2, 3):
        train(model, optimizer, 1)
        save_checkpoint(path, model=model, optimizer=optimizer, step=step, keep=2)
        dist.barrier()  # rank 0 removes old checkpoints behind the others' backs
        assert latest(path).name == f"step-{step:06}"


def test_ranks_rotate_checkpoints(ranks, tmp_path):
    ranks.run(2, rotated, str(tmp_path / "runs"))
    assert sorted(os.listdir(tmp_path / "runs")) == ["step-000002", "step-000003"]
    assert "model" in TensorDict.load(latest(tmp_path / "runs"))


def test_a_delta_of_shards_is_refused_with_a_remedy(ranks, tmp_path):
    path = str(tmp_path / "plain")
    save(0, path, None, {})

    def delta(rank):
        model, _ = made(0, Shard(0))
        with pytest.raises(TypeError, match=r"is a distributed tensor, .* full_tensor\(\)"):
            save_checkpoint(str(tmp_path / "delta"), model=model, base=path)

    ranks.run(2, delta)


def sharded_part(rank, path, expected):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    like = TensorDict({"a": distribute_tensor(torch.zeros(400, 100), mesh, [Shard(0)])})
    assert torch.equal(TensorDict.load(path, like=like)["a"].full_tensor(), expected)
    like.load_(path)
    assert torch.equal(like["a"].full_tensor(), expected)


@pytest.mark.parametrize("base", ["base", "base.safetensors"])
def test_ranks_load_deltas(ranks, tmp_path, base):
    td = TensorDict({"a": torch.randn(400, 100)})
    td.save(tmp_path / base, checksum=True)
    td["a"][::37, 3] += 1
    td.save_delta(tmp_path / "delta.safetensors", base=tmp_path / base, block_size=256)
    ranks.run(2, sharded_part, str(tmp_path / "delta.safetensors"), td["a"])


@pytest.mark.parametrize("options", [{"keep": 2}, {"keep": 2, "format": "safetensors"}], ids=["tree", "one file"])
def test_ranks_go_on_training_while_their_checkpoint_is_saved(ranks, tmp_path, options):
    path = str(tmp_path / "runs")

    def work(rank):
        model, optimizer = made(0, Shard(0))
        train(model, optimizer, 1)
        stalls = []
        for step in range(1, 6):
            future = save_checkpoint(
                path, model=model, optimizer=optimizer, step=step, extra={"step": step}, return_early=True, **options
            )
            train(model, optimizer, 1, step)
            stalls.append(future.stall_seconds)
        assert future.result() == latest(path)
        return stalls

    assert all(0 < stall < 20 for stalls in ranks.run(2, work) for stall in stalls)
    assert [name[:11] for name in sorted(os.listdir(path))] == ["step-000004", "step-000005"]
    expected = str(tmp_path / "expected")
    ranks.run(2, straight, expected, Shard(0), 5)
    found, there = made(1)[0], made(2)[0]
    with pytest.warns(UserWarning, match="random states of 2 ranks"):
        assert load_checkpoint(latest(path), model=found).extra == {"step": 5}
    load_checkpoint(expected, model=there, rng=False)
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), there.parameters(), strict=True))


@pytest.mark.parametrize("who", [[0, 1], [0], [1]], ids=str)
def test_a_checkpoint_that_a_rank_cancels_leaves_the_earlier_one(ranks, tmp_path, who):
    path = str(tmp_path / "runs")

    def work(rank):
        model, _optimizer = made(0, Shard(0))
        save_checkpoint(path, model=model, step=1, keep=1)
        plain = saves.writes_of

        def slowly(*arguments, **options):
            time.sleep(0.3)
            return plain(*arguments, **options)

        saves.writes_of = slowly
        future = save_checkpoint(path, model=model, step=2, keep=1, return_early=True)
        time.sleep(0.1)
        if rank in who:
            assert future.cancel()
        assert isinstance(future.exception(), CancelledError) and future.cancelled()
        return save_checkpoint(path, model=model, step=3, keep=2, timeout=20).name

    assert ranks.run(2, work) == ["step-000003"] * 2
    assert sorted(os.listdir(path)) == ["step-000001", "step-000003"]


def test_a_failed_background_checkpoint_is_an_error_of_all_ranks_and_rotates_nothing(ranks, tmp_path):
    path = str(tmp_path / "runs")

    def work(rank):
        model, _optimizer = made(0, Shard(0))
        save_checkpoint(path, model=model, step=1, keep=1)
        if rank:

            def fail(*arguments, **options):
                raise OSError(28, "No space left on device")

            saves.writes_of = fail
        future = save_checkpoint(path, model=model, step=2, keep=1, return_early=True)
        with pytest.raises((OSError, RuntimeError), match="No space left"):
            future.result(20)

    ranks.run(2, work)
    assert os.listdir(path) == ["step-000001"]
