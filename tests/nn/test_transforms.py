"""Stacked parameters of several modules, of lazy ones too, and parameters under torch.func."""

from __future__ import annotations

import pytest
import torch
from tests.nn.test_functional import snapshot
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from tensordict_core import LazyStackedTensorDict, TensorDict
from tensordict_nn import TensorDictParams, from_module, from_modules


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_stacked_parameters_are_new_parameters():
    modules = [nn.BatchNorm1d(2) for _ in range(3)]
    params = from_modules(*modules)
    assert params.batch_size == (3,) and params.is_locked
    assert type(params["weight"]) is nn.Parameter and params["weight"].is_leaf
    assert type(params["running_mean"]) is torch.Tensor


def test_an_ensemble_equals_its_members():
    modules, x = [mlp().eval() for _ in range(3)], torch.randn(5, 3)
    params, empty = from_modules(*modules), mlp().eval().to("meta")

    def call(params, x):
        with params.to_module(empty):
            return empty(x)

    out = torch.vmap(call, (0, None))(params, x)
    torch.testing.assert_close(out, torch.stack([module(x) for module in modules]))
    out.sum().backward()
    sum(module(x).sum() for module in modules).backward()
    for i, module in enumerate(modules):
        torch.testing.assert_close(params["0", "weight"].grad[i], module[0].weight.grad)
    assert all(parameter.is_meta for parameter in empty.parameters())


def test_lazy_stacks_send_gradients_to_the_modules():
    modules = [nn.Linear(2, 3) for _ in range(2)]
    params = from_modules(*modules, lazy_stack=True)
    assert isinstance(params, LazyStackedTensorDict)

    def call(params, x):
        with params.to_module(modules[0]):
            return modules[0](x)

    torch.vmap(call, (0, None))(params, torch.ones(2)).sum().backward()
    assert all((module.weight.grad == 1).all() for module in modules)


def test_parameters_that_all_share_are_expanded():
    first, second = nn.Linear(2, 3), nn.Linear(2, 3)
    second.weight = first.weight
    params = from_modules(first, second, expand_identical=True)
    assert params["weight"].data_ptr() == first.weight.data_ptr() and params["weight"].shape == (2, 3, 2)
    assert type(params["bias"]) is nn.Parameter


class WithExtra(nn.Linear):
    """Has a state that is not a tensor."""

    extra = 0

    def get_extra_state(self) -> int:
        return self.extra

    def set_extra_state(self, state: int) -> None:
        self.extra = state


@pytest.mark.parametrize("lazy_stack", [False, True])
def test_state_dicts_are_stacked_with_their_non_tensor_values(lazy_stack):
    modules = [nn.Sequential(WithExtra(2, 2)) for _ in range(2)]
    modules[1][0].extra = 7
    params = from_modules(*modules, use_state_dict=True, lazy_stack=lazy_stack, lock=False)
    assert params.batch_size == (2,) and not params.is_locked and not params["0", "weight"].requires_grad
    for i, module in enumerate(modules):
        fresh = nn.Sequential(WithExtra(2, 2))
        params[i].to_module(fresh, use_state_dict=True)
        assert fresh[0].extra == module[0].extra
        torch.testing.assert_close(fresh[0].weight, module[0].weight)


def test_modules_that_do_not_stack_are_refused():
    with pytest.raises(RuntimeError, match="at least one"):
        from_modules()
    with pytest.raises(RuntimeError, match="equal size"):
        from_modules(nn.Linear(2, 3), nn.Linear(3, 3))
    for pair in ([True, False], [False, True]):
        with pytest.raises(KeyError, match="bias"):
            from_modules(*(nn.Linear(2, 3, bias=bias) for bias in pair))
    with pytest.raises(RuntimeError, match="without shape"):
        from_modules(nn.LazyLinear(2), nn.LazyLinear(2), lazy_stack=True)
    with pytest.raises(RuntimeError, match="exclude each other"):
        from_modules(nn.Linear(2, 3), lazy_stack=True, as_module=True)


def test_vmap_over_slices_with_and_without_gradients():
    module, x = nn.Linear(3, 4), torch.randn(10, 3)
    params = from_module(module)

    def call(x, params):
        with params.to_module(module):
            return module(x)

    for source in (params, params.data):
        stacked = torch.stack([source, source * 2], 0)
        out = torch.vmap(call, (None, 0))(x, stacked)
        torch.testing.assert_close(out, torch.stack([module(x), module(x) * 2]))


def test_grad_and_jacrev_follow_the_parameters():
    module, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), torch.randn(5, 3)
    params = from_module(module).data.clone()

    def loss(params):
        with params.to_module(module):
            return module(x).pow(2).mean()

    grads = torch.func.grad(loss)(params)
    module(x).pow(2).mean().backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(grads[tuple(name.split("."))], parameter.grad)

    def outputs(params):
        with params.to_module(module):
            return module(x)

    jacobian = torch.func.jacrev(outputs)(params)
    assert jacobian["0", "weight"].shape == (5, 1, 4, 3)


def test_gradients_of_single_samples():
    module = nn.Linear(3, 1)
    params, x = from_module(module).data.clone(), torch.randn(6, 3)

    def loss(params, sample):
        with params.to_module(module):
            return module(sample).sum()

    grads = torch.vmap(torch.func.grad(loss), (None, 0))(params, x)
    assert grads.batch_size == (6,)
    torch.testing.assert_close(grads["weight"].squeeze(1), x)


def test_an_inner_loop_of_meta_learning():
    module, x = nn.Linear(1, 1, bias=False), torch.ones(1)
    params = from_module(module)
    with params.to_module(module):
        inner = module(x).pow(2).sum()
    (grad,) = torch.autograd.grad(inner, [params["weight"]], create_graph=True)
    updated = params - TensorDict({"weight": grad}) * 0.1
    with updated.to_module(module):
        module(x).pow(2).sum().backward()
    # w' = w - 0.2 w, so d(w'^2)/dw = 2 * 0.8 * 0.8 * w
    torch.testing.assert_close(module.weight.grad, 1.28 * module.weight.detach())


def test_compiled_in_one_graph():
    module, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(5, 3)
    params = from_module(module)
    doubled = (params * 2).detach()

    def call(params, x):
        with params.to_module(module):
            return module(x)

    eager = call(doubled, x)
    before = snapshot(module)
    compiled = torch.compile(call, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(doubled, x), eager)
    torch.testing.assert_close(compiled(doubled, x), eager)
    assert snapshot(module) == before


# lazy modules that have not run


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
