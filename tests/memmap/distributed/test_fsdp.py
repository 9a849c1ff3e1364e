"""FSDP2: the parameters of `fully_shard` models, with and without tensor parallelism, are saved and loaded in place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DTensor, init_device_mesh
from torch.distributed.tensor.placement_types import _StridedShard

from tensordict_core import TensorDict
from tensordict_memmap import load_memmap

# what these import, they import once for all ranks
fsdp = pytest.importorskip("torch.distributed.fsdp", reason="this torch is built without it")
parallel = pytest.importorskip("torch.distributed.tensor.parallel", reason="this torch is built without it")


def model(seed, features=10):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(features, 12), torch.nn.ReLU(), torch.nn.Linear(12, 7))


def parameters(module):
    return TensorDict(module.state_dict()).unflatten_keys(".")


@pytest.mark.parametrize("name", ["x.safetensors", "x"])
def test_a_model_of_fully_shard_is_saved_and_loaded_in_place(ranks, tmp_path, name):
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        one = model(0)
        for layer in (one[0], one[2], one):
            fsdp.fully_shard(layer, mesh=mesh)
        one(torch.ones(3, 10)).sum().backward()
        torch.optim.SGD(one.parameters(), lr=0.1).step()
        parameters(one).save(tmp_path / name)
        other = model(1)
        fsdp.fully_shard(other, mesh=mesh)
        parameters(other).load_(tmp_path / name)
        for key, leaf in other.state_dict().items():
            assert torch.equal(leaf.to_local(), one.state_dict()[key].to_local()), key
        x = torch.rand(3, 10)
        assert torch.equal(one(x), other(x))

    ranks.run(2, work)
    plain = model(2)
    plain.load_state_dict(load_memmap(tmp_path / name).flatten_keys(".").to_dict())


def test_fully_shard_over_tensor_parallelism_and_back_on_one_process(ranks, tmp_path):
    plain = model(0)

    def work(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        one = model(0)
        plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
        parallel.parallelize_module(one, mesh["tp"], plan)
        fsdp.fully_shard(one, mesh=mesh["dp"])
        td = parameters(one)
        assert any(isinstance(one, _StridedShard) for leaf in td.values(True, True) for one in leaf.placements)
        td.save(tmp_path / "x.safetensors")
        before = {key: leaf.to_local().clone() for key, leaf in td.items(True, True)}
        with torch.no_grad():
            for leaf in td.values(True, True):
                assert isinstance(leaf, DTensor)
                leaf.to_local().zero_()
        td.load_(tmp_path / "x.safetensors")
        for key, leaf in td.items(True, True):
            assert torch.equal(leaf.to_local(), before[key]), key

    ranks.run(4, work)
    for key, leaf in load_memmap(tmp_path / "x.safetensors").flatten_keys(".").items():
        assert torch.equal(leaf, plain.state_dict()[key]), key


def test_a_model_on_the_meta_device_gets_its_parameters_from_a_load(ranks, tmp_path):
    TensorDict(model(0).state_dict()).unflatten_keys(".").save(tmp_path / "x.safetensors")

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        with torch.device("meta"):
            made = model(0)
        fsdp.fully_shard(made, mesh=mesh)
        loaded = TensorDict.load(tmp_path / "x.safetensors", like=parameters(made))
        made.load_state_dict(loaded.flatten_keys(".").to_dict(), assign=True)
        expected = model(0).state_dict()
        for key, leaf in made.state_dict().items():
            assert torch.equal(leaf.full_tensor(), expected[key]), key

    ranks.run(2, work)


PROGRAM = """
import atexit, os, runpy, sys
runpy.run_path({example!r}, run_name="__main__")
atexit._run_exitfuncs()
threads = [open(f"/proc/self/task/{{thread}}/comm").read() for thread in os.listdir("/proc/self/task")]
assert sum("gloo_tcp_loop" in name for name in threads) <= 1, threads  # that of the mesh; the save has closed its own
sys.stdout.flush()
os._exit(0)
"""
"""A program that ends without the finalization of the interpreter, in which threads of gloo were seen to abort: meshes
of FSDP keep process groups beyond ``destroy_process_group()``."""


def test_the_example_of_the_docs_runs_on_two_ranks(tmp_path):
    example = Path(__file__).parents[3] / "examples" / "distributed_checkpoint.py"
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(example=str(example)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program]
    done = subprocess.run(
        [*command, tmp_path / "model.safetensors"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "by 2 ranks; loaded and compared" in done.stdout
