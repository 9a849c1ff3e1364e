"""Sharded saves and loads of ranks whose parts lie on GPUs: over NCCL, and two ranks on one GPU over gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

from tensordict_core import TensorDict
from tensordict_memmap import load_checkpoint, load_memmap, save_checkpoint

pytestmark = pytest.mark.cuda

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0


def content(mesh, factor):
    def spread(*shape, placement):
        whole = torch.arange(float(torch.Size(shape).numel()), device="cuda").reshape(shape) * factor
        return distribute_tensor(whole, mesh, [placement], src_data_rank=None)

    return TensorDict(
        {
            "rows": spread(1000, 64, placement=Shard(0)),
            "in": {"columns": spread(50, 61, placement=Shard(1)), "all": spread(7, placement=Replicate())},
        }
    )


def same(first, second):
    pairs = zip(first.values(True, True), second.values(True, True), strict=True)
    return all(a.to_local().is_cuda and torch.equal(a.to_local(), b.to_local()) for a, b in pairs)


def work(rank, world, folder):
    mesh = init_device_mesh("cuda", (world,))
    td = content(mesh, 1)
    for name in ("x.safetensors", "x"):
        td.save(folder / name)
        assert same(load_memmap(folder / name, like=content(mesh, 0)), td)
        assert same(content(mesh, 0).load_(folder / name), td)
        future = td.save(folder / name, return_early=True)
        changed = content(mesh, 1)
        with torch.no_grad():
            for leaf in td.values(True, True):
                leaf.to_local().zero_()
        future.result()
        assert same(load_memmap(folder / name, like=content(mesh, 0)), changed)
        td = changed
    model = torch.nn.Linear(8, 8).cuda()
    torch.distributed.fsdp.fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(3, 8, device="cuda")).sum().backward()
        optimizer.step()
    save_checkpoint(folder / "training", model=model, optimizer=optimizer, step=2)
    before = [p.to_local().clone() for p in model.parameters()]
    drawn = torch.rand(3, device="cuda")
    model(torch.ones(3, 8, device="cuda")).sum().backward()
    optimizer.step()
    load_checkpoint(folder / "training", model=model, optimizer=optimizer)
    assert all(torch.equal(a, b.to_local()) for a, b in zip(before, model.parameters(), strict=True))
    assert torch.equal(torch.rand(3, device="cuda"), drawn)  # the state of the GPU's generator is part of it


def main(backend, rank, world, folder):
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group(backend, init_method=f"file://{folder / 'store'}", rank=rank, world_size=world)
    try:
        work(rank, world, folder)
        torch.cuda.synchronize()
    finally:
        dist.destroy_process_group()


@pytest.mark.skipif(not GPUS, reason="there is no GPU")
@pytest.mark.parametrize("backend, world", [("nccl", min(GPUS, 2)), ("gloo", 2)])
def test_parts_on_gpus_are_saved_and_loaded(tmp_path, backend, world):
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, backend, str(rank), str(world), str(tmp_path)],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    whole = load_memmap(tmp_path / "x")
    assert whole["rows"].flatten().tolist() == list(range(64000))
    assert whole["in", "columns"].shape == (50, 61) and whole["in", "all"].tolist() == list(range(7))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
