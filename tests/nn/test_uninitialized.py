"""Stacked parameters of lazy modules that have not run."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from tensordict_core import TensorDict
from tensordict_nn import TensorDictParams, from_module, from_modules


def lazy_linear() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(3), nn.ReLU())


def lazy_convolution() -> nn.Module:
    return nn.LazyConv2d(3, 2)


def without_parameters(make):
    """A lazy module on the meta device whose parameters are plain attributes."""
    with torch.device("meta"):
        module = make()
    from_module(module).data.to("meta").to_module(module, preserve_module_state=False)
    return module


def run(module, params, x, in_dims=(0, None)):
    def call(params, x):
        with params.to_module(module, preserve_module_state=False):
            return module(x)

    return torch.vmap(call, in_dims, randomness="same")(params, x)


CASES = [
    (lazy_linear, ("0", "weight"), torch.ones(5, 4), [2, 5, 3], [2, 3, 4]),
    (lazy_convolution, "weight", torch.ones(5, 4, 3, 3), [2, 5, 3, 2, 2], [2, 3, 4, 2, 2]),
]


@pytest.mark.parametrize("as_module", [True, False])
@pytest.mark.parametrize(("make", "key", "x", "size", "shape"), CASES)
def test_the_first_call_initializes_the_stack_with_other_values_in_each_row(make, key, x, size, shape, as_module):
    params = from_modules(make(), make(), as_module=as_module)
    assert isinstance(params, TensorDictParams if as_module else TensorDict)
    weight = params[key]
    assert isinstance(weight, UninitializedParameter)
    module = without_parameters(make)
    out = run(module, params, x)
    assert list(out.shape) == size
    assert params[key] is weight and type(weight) is nn.Parameter and list(weight.shape) == shape
    assert not torch.isclose(weight[0], weight[1]).any()
    assert run(module, params, x).equal(out)


def test_gradients_reach_the_stack_in_the_first_call_and_an_optimizer_made_before_trains_it():
    params = from_modules(lazy_linear(), lazy_linear(), as_module=True)
    optimizer = torch.optim.SGD(params.parameters(), lr=0.1)
    run(without_parameters(lazy_linear), params, torch.ones(5, 4)).sum().backward()
    before = params["0", "weight"].detach().clone()
    optimizer.step()
    assert params["0", "weight"].grad.shape == (2, 3, 4)
    assert not params["0", "weight"].equal(before)


def test_each_row_is_that_of_its_module():
    params, x = from_modules(lazy_linear(), lazy_linear()), torch.randn(2, 5, 4)
    out = run(without_parameters(lazy_linear), params, x, (0, 0))
    for i in range(2):
        torch.testing.assert_close(out[i], (x[i] @ params[i]["0", "weight"].T + params[i]["0", "bias"]).relu())


def test_buffers_without_shape_are_stacked():
    params = from_modules(nn.LazyBatchNorm1d(), nn.LazyBatchNorm1d())
    mean = params["running_mean"]
    assert isinstance(mean, UninitializedBuffer)
    mean.materialize((4,))
    assert type(mean) is torch.Tensor and mean.shape == (2, 4)


def test_modules_of_which_some_have_run_are_not_stacked():
    first, second = nn.LazyLinear(3), nn.LazyLinear(3)
    first(torch.ones(1, 2))
    with pytest.raises(RuntimeError, match="without shape"):
        from_modules(first, second)
