"""State dicts of trainers, and calls of DCP, for the tests of its storage."""

from __future__ import annotations

import os

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from tensordict_memmap import TensorDictReader, TensorDictWriter

TARGETS = {
    "one file": ("saved.safetensors", {}),
    "shards": ("saved", {"format": "safetensors", "shard_size": 4000}),
    "tree": ("saved", {}),
}


def net(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(16, 33), torch.nn.ReLU(), torch.nn.Linear(33, 5), torch.nn.LayerNorm(5))


def trained(seed, mesh=None):
    """A model and its Adam after two steps; sharded over a mesh if there is one."""
    model = net(seed)
    if mesh is not None:
        fully_shard(model, mesh=mesh)
    adam = torch.optim.Adam(model.parameters(), lr=0.01 * (seed + 1), betas=(0.8, 0.9))
    torch.manual_seed(seed + 100)
    for _ in range(2):
        model(torch.randn(7, 16)).square().mean().backward()
        adam.step()
        adam.zero_grad()
    return model, adam


def state_of(model, adam, **more):
    return {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, adam), **more}


def flat(state, path=()):
    """The entries of a state dict by path, DTensors as their whole values."""
    if isinstance(state, dict):
        pairs = state.items()
    elif isinstance(state, list) and any(isinstance(one, dict | list | torch.Tensor) for one in state):
        pairs = enumerate(state)
    else:
        yield path, state.full_tensor() if isinstance(state, DTensor) else state
        return
    for key, value in pairs:
        yield from flat(value, (*path, key))


def same_state(found, expected):
    one, two = dict(flat(found)), dict(flat(expected))
    assert one.keys() == two.keys()
    for path, value in two.items():
        if isinstance(value, torch.Tensor):
            assert one[path].dtype == value.dtype and torch.equal(one[path], value), path
        else:
            assert type(one[path]) is type(value) and one[path] == value, path


def alone():
    """A state dict of one process, with what trainers put into one."""
    return {
        "model": {"layers.0.weight": torch.rand(4, 3), "layers.0.bias": torch.rand(3), "empty": torch.empty(0, 4)},
        "optim": {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.rand(4, 3)}}, "param_groups": []},
        "groups": [{"lr": 0.1, "betas": (0.9, 0.99), "name": None}, {"lr": float("inf"), "betas": (), "name": "x"}],
        "list": [torch.arange(3), torch.ones(2, dtype=torch.complex128)],
        "half": torch.rand(3).to(torch.bfloat16),
        "step": 7,
        "text": 'with "quotes" and ü',
    }


def blank(state):
    """The same structure without the values."""
    if isinstance(state, dict):
        return {key: blank(value) for key, value in state.items()}
    if isinstance(state, list) and state:
        return [blank(value) for value in state]
    return torch.zeros_like(state) if isinstance(state, torch.Tensor) else None if state is not None else 0


def save(state, path, planner=None, **options):
    dcp.save(state, storage_writer=TensorDictWriter(path, **options), planner=planner, no_dist=True)


def load(state, path, **options):
    dcp.load(state, storage_reader=TensorDictReader(path, **options), no_dist=True)
    return state


def files_of(path):
    if os.path.isfile(path):
        return [path]
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
