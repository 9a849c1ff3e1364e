"""A sharded model on several ranks: trained for a step, checkpointed in one pass, and loaded on another mesh.

Start it with ``torchrun --nproc-per-node 2 examples/distributed_checkpoint.py``. It runs on gloo without a GPU. The
folder of the checkpoint has to be on a file system that all ranks share, or a URL such as ``s3://bucket/run``.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh

from tensordict_core import TensorDict


def build(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model


def parameters(model: nn.Module) -> TensorDict:
    """The parameters by nested keys; they share their memory with the model."""
    return TensorDict(model.state_dict()).unflatten_keys(".")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("path", nargs="?", default="model.safetensors")
    path = options.parse_args().path
    dist.init_process_group("gloo")

    model = build(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(8, 64)).square().mean().backward()
    optimizer.step()

    # every rank writes its own bytes of one file, which replaces an earlier one when all are done
    parameters(model).save(path, timeout=60)

    # in the background: the call copies what this rank holds, and training goes on
    saving = parameters(model).save(path, return_early=True)
    optimizer.zero_grad()
    saving.result()

    # another model: every rank reads the ranges that it holds
    restored = build(seed=1)
    parameters(restored).load_(path)
    x = torch.rand(4, 64)
    assert torch.equal(model(x), restored(x))
    if dist.get_rank() == 0:
        whole = TensorDict.load(path)  # the whole model, mapped from the file
        print(f"saved {whole.bytes()} bytes by {dist.get_world_size()} ranks; loaded and compared")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
