"""Flattened parameters: sharding replaces parameters by views, which `TensorDictParams` reads and swaps."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tensordict_core import TensorDict
from tensordict_nn import TensorDictParams, from_module


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.scale = TensorDictParams({"a": torch.ones(3), "deep": {"b": torch.zeros(3)}})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x * self.scale["a"] + self.scale["deep", "b"])


def flatten(model: nn.Module) -> nn.Parameter:
    """One parameter for all, views of it as attributes: what sharding in its older form does."""
    owners = [(module, name) for module in model.modules() for name in list(module._parameters)]
    flat = nn.Parameter(torch.cat([module._parameters[name].detach().flatten() for module, name in owners]))
    start = 0
    for module, name in owners:
        old = module._parameters.pop(name)
        module.__dict__[name] = flat[start : start + old.numel()].view(old.shape)
        start += old.numel()
    model.register_parameter("flat", flat)
    return flat


def test_views_of_a_flat_parameter_are_entries():
    model, x = Model(), torch.randn(5, 3)
    expected = model(x)
    flat = flatten(model)
    params = model.scale
    torch.testing.assert_close(model(x), expected)
    assert sorted(params.keys(True, True), key=str) == [("deep", "b"), "a"]
    assert params["a"].untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
    model(x).sum().backward()
    start = sum(p.numel() for p in (*Model().net.parameters(),))
    assert flat.grad[start : start + 3].count_nonzero() == 3  # gradients go through the views
    assert (params * 2)["a"].tolist() == [2, 2, 2]


def test_copies_have_parameters_again_and_entries_can_be_replaced_and_removed():
    model = Model()
    flatten(model)
    params = model.scale
    assert [name for name, _ in params.clone().named_parameters()] == ["a", "deep.b"]
    assert params.double()["a"].dtype == torch.float64
    params["a"] = torch.zeros(3)
    assert isinstance(params["a"], nn.Parameter) and "a" not in params.__dict__
    del params["deep", "b"]
    assert list(params["deep"].keys()) == []


def test_a_block_puts_other_tensors_where_the_views_are():
    model, x = Model(), torch.randn(5, 3)
    values = from_module(model).data.clone()
    expected = model(x).detach()
    flatten(model)
    with (values * 0).to_module(model):
        assert (model(x) == 0).all()
    torch.testing.assert_close(model(x), expected)


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this torch has no gloo")
@pytest.mark.parametrize("how", ["flat", "original", "sharded"])
def test_parameters_train_under_the_sharding_of_torch(group, how):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    plain, model, x = Model(), Model(), torch.randn(5, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process has nothing to shard, which it says
        if how == "sharded":
            sharded = fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        else:
            sharded = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=how == "original")
    for one in (plain, sharded):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            one(x).pow(2).sum().backward()
            optimizer.step()
    torch.testing.assert_close(sharded(x), plain(x))
    trained = model.scale["a"]
    trained = trained.full_tensor() if hasattr(trained, "full_tensor") else trained
    torch.testing.assert_close(trained.detach(), plain.scale["a"].detach())
    assert not trained.detach().equal(torch.ones(3))


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this torch has no gloo")
def test_sharded_parameters_are_a_tensordict(group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    model = Model()
    whole = from_module(model).data.clone()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    sharded = from_module(model)
    assert isinstance(sharded["net", "0", "weight"], DTensor)
    gathered = sharded.data.apply(lambda leaf: leaf.full_tensor())
    assert (gathered == whole).all()
    average = sharded.data * 0.5 + sharded.data * 0.5
    assert isinstance(average["scale", "a"], DTensor)
    assert isinstance(whole, TensorDict)
