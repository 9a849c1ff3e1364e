"""Parameters of modules as tensordicts: taken out, put in, and put back whatever happens."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from tensordict_core import LazyStackedTensorDict, TensorDict
from tensordict_nn import from_module, from_modules, to_module


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 2))


def snapshot(module: nn.Module) -> list[tuple[str, int, int]]:
    """Names, identities and versions of everything a module holds, in order."""
    held = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return [(name, id(value), value._version) for name, value in held]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.again = self.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(x))


class Scaled(nn.Module):
    """A buffer that is replaced at every call, one that is not persistent, and one that is absent."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.register_buffer("absent", None)
        self.register_parameter("bias", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return x * self.weight


class Doubled(nn.Module):
    """What the weight is multiplied with depends on who set it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "weight":
            object.__setattr__(self, "doubled", value * 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.doubled


class Symmetric(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)


# from_module --------------------------------------------------------------------------------------------------------


def test_from_module_holds_the_very_parameters_and_buffers():
    module = mlp()
    params = from_module(module)
    assert params.is_locked and params["0"].is_locked
    assert params["0", "weight"] is module[0].weight
    assert params["2", "running_mean"] is module[2].running_mean
    flat = {".".join(k) for k in params.keys(True, True)}
    assert flat == set(dict(module.named_parameters())) | set(dict(module.named_buffers()))


def test_children_of_the_locked_result_cannot_be_unlocked():
    params = from_module(mlp())
    with pytest.raises(RuntimeError, match="locked graph"):
        params["0"].unlock_()
    params.unlock_()
    assert not params["0"].is_locked


def test_what_is_none_is_left_out_and_what_is_not_persistent_is_kept():
    params = from_module(Scaled())
    assert params.sorted_keys == ["calls", "scratch", "weight"]
    assert from_module(Scaled(), use_state_dict=True).sorted_keys == ["calls", "weight"]


def test_modules_without_parameters_are_kept_on_request():
    assert "1" not in from_module(mlp())
    assert from_module(mlp(), filter_empty=False)["1"].is_empty()
    assert from_module(nn.ReLU()).is_empty()


def test_from_module_takes_modules_only():
    with pytest.raises(TypeError, match=r"takes an nn\.Module, got dict"):
        from_module({})


# to_module ----------------------------------------------------------------------------------------------------------


def test_a_block_has_the_parameters_of_the_tensordict_and_the_module_gets_its_own_back():
    module, x = mlp().eval(), torch.randn(5, 3)
    params = from_module(module)
    before, expected = snapshot(module), module(x)
    with (params * 0).to_module(module):
        assert (module(x) == 0).all()
    assert snapshot(module) == before
    torch.testing.assert_close(module(x), expected)


def test_the_block_may_raise():
    module = mlp()
    before = snapshot(module)
    with pytest.raises(ZeroDivisionError), from_module(module).data.clone().to_module(module):
        raise ZeroDivisionError
    assert snapshot(module) == before


def test_the_block_may_remove_and_replace_parameters():
    module = nn.Linear(3, 4)
    before = snapshot(module)
    with from_module(module).data.clone().to_module(module):
        del module.weight
        module.bias = nn.Parameter(torch.zeros(4))
    assert sorted(snapshot(module)) == sorted(before)


def test_blocks_nest():
    module = nn.Linear(1, 1, bias=False)
    params = from_module(module)
    before = snapshot(module)
    with (params * 0 + 1).to_module(module):
        with (params * 0 + 2).to_module(module):
            assert module.weight.item() == 2
        assert module.weight.item() == 1
    assert snapshot(module) == before


def test_the_swap_is_what_was_there_and_puts_it_back():
    module = mlp()
    before, order = snapshot(module), list(module[0]._parameters)
    weight = module[0].weight
    swap = from_module(module).data.clone().zero_().to_module(module)
    assert isinstance(swap, TensorDict) and not swap.is_locked
    assert (module[0].weight == 0).all()
    swap.to_module(module)
    assert swap["0", "weight"] is weight
    assert snapshot(module) == before and list(module[0]._parameters) == order


def test_plain_tensors_become_parameters_that_train():
    module = nn.Linear(3, 4)
    module.bias.requires_grad_(False)
    values = TensorDict({"weight": torch.zeros(4, 3), "bias": torch.zeros(4)})
    values.to_module(module)
    assert type(module.weight) is nn.Parameter and module.weight.requires_grad and not module.bias.requires_grad
    assert module.weight.data_ptr() == values["weight"].data_ptr()
    assert [name for name, _ in module.named_parameters()] == ["weight", "bias"]


def test_without_preserving_state_tensors_stay_what_they_are():
    module = nn.Linear(3, 4)
    with TensorDict({"weight": torch.zeros(4, 3)}).to_module(module, preserve_module_state=False):
        assert type(module.weight) is torch.Tensor and not module.weight.requires_grad


def test_tensors_with_a_gradient_are_put_in_as_they_are():
    module = nn.Linear(3, 1)
    params = from_module(module).data.clone().requires_grad_()
    with params.to_module(module):
        module(torch.ones(3)).sum().backward()
    assert (params["weight"].grad == 1).all() and module.weight.grad is None


def test_writing_in_place_keeps_the_parameters():
    module = mlp()
    ids = [i for _, i, _ in snapshot(module)]
    old = module[0].weight.detach().clone()
    zeros = from_module(module).data.clone().zero_()
    with zeros.to_module(module, inplace=True) as swap:
        assert (module[0].weight == 0).all() and [i for _, i, _ in snapshot(module)] == ids
        torch.testing.assert_close(swap["0", "weight"], old)
    torch.testing.assert_close(module[0].weight.detach(), old)
    with pytest.raises(RuntimeError, match=r"\[3\] and cannot be written into the parameter of shape \[4\]"):
        TensorDict({"0": {"bias": torch.ones(3)}}).to_module(module, inplace=True)


def test_some_entries_only():
    module = mlp()
    weight = module[0].weight
    with TensorDict({"0": {"bias": torch.zeros(4)}}).to_module(module) as swap:
        assert module[0].weight is weight and (module[0].bias == 0).all()
        assert list(swap.keys(True, True)) == [("0", "bias")]


def test_an_absent_parameter_is_there_in_the_block():
    module = nn.Linear(3, 4, bias=False)
    with TensorDict({"bias": torch.ones(4), "weight": torch.zeros(4, 3)}).to_module(module) as swap:
        assert (module(torch.ones(3)) == 1).all() and swap.sorted_keys == ["weight"]
    assert module.bias is None


def test_entries_without_a_place_are_named():
    module = mlp()
    with pytest.raises(KeyError, match=r"'wieght'.*Linear at 0 has \['weight', 'bias'\]; did you mean 'weight'"):
        TensorDict({"0": {"wieght": torch.zeros(4, 3)}}).to_module(module)
    with pytest.raises(KeyError, match="has no sub-module"):
        TensorDict({"7": {"weight": torch.zeros(4, 3)}}).to_module(module)
    with pytest.raises(KeyError, match="no parameter or buffer"):
        TensorDict({"0": torch.zeros(4, 3)}).to_module(module)
    with pytest.raises(TypeError, match="non-tensor data"):
        TensorDict({"0": {"weight": "text"}}).to_module(module)
    with pytest.raises(TypeError, match=r"takes an nn\.Module"):
        to_module(TensorDict({}), 3)  # type: ignore[arg-type]


def test_a_failed_call_leaves_the_module_as_it_was():
    module = mlp()
    before = snapshot(module)
    with pytest.raises(KeyError):
        TensorDict({"0": {"weight": torch.zeros(4, 3)}, "nobody": {"x": 0}}).to_module(module)
    assert snapshot(module) == before


def test_swap_dest_takes_the_old_ones():
    module = nn.Linear(3, 4)
    weight, dest = module.weight, TensorDict({})
    with from_module(module).data.clone().to_module(module, swap_dest=dest) as swap:
        assert swap is dest and dest["weight"] is weight
    assert module.weight is weight
    assert from_module(module).to_module(module, return_swap=False) is None


def test_buffers_that_the_block_replaces_come_back_in_the_tensordict():
    module = Scaled()
    params = from_module(module).data.clone().lock_()
    for n in range(3):
        with params.to_module(module):
            module(torch.ones(2))
        assert params["calls"].item() == n + 1 and params.is_locked
    assert module.calls.item() == 0


def test_batch_norm_statistics_are_those_of_the_tensordict():
    module = mlp()
    params = from_module(module).clone()
    with params.to_module(module):
        module(torch.randn(10, 3))
    assert params["2", "num_batches_tracked"] == 1 and module[2].num_batches_tracked == 0


# shared, reacting, parametrized, recurrent, lazy --------------------------------------------------------------------


def test_tied_weights_stay_tied():
    module = Tied()
    before = snapshot(module)
    values = from_module(module).data.clone()  # two tensors of equal values
    with values.to_module(module):
        assert module.embed.weight is module.head.weight
        assert len(list(module.parameters())) == 1
    assert snapshot(module) == before
    fresh = Tied()
    values.to_module(fresh)
    assert fresh.embed.weight is fresh.head.weight
    torch.testing.assert_close(fresh.head.weight, module.head.weight)


def test_values_that_differ_untie():
    module = Tied()
    values = from_module(module).data.clone()
    values["embed", "weight"].zero_()
    values["again", "weight"].fill_(2)
    with values.to_module(module):
        assert (module.embed.weight == 0).all() and (module.head.weight == 2).all()
    assert module.embed.weight is module.head.weight


def test_one_tensor_under_two_keys_is_one_parameter():
    module = Tied()
    one = torch.zeros(5, 3)
    with TensorDict({"embed": {"weight": one}, "head": {"weight": one}}).to_module(module):
        assert module.embed.weight is module.head.weight


def test_modules_that_react_to_attributes_are_told():
    module = Doubled()
    with TensorDict({"weight": torch.full((2,), 3.0)}).to_module(module):
        assert module(torch.ones(2)).tolist() == [6, 6]
        assert list(module._parameters) == ["weight"] and "weight" not in module.__dict__
    assert module(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize("values", [lambda p: p * 0, lambda p: p.data * 0])
def test_recurrent_layers_use_the_new_weights(values):
    module, x = nn.LSTM(2, 3, num_layers=2), torch.randn(4, 1, 2)
    expected, order = module(x)[0], list(module._parameters)
    with values(from_module(module)).to_module(module):
        assert (module(x)[0] == 0).all()
    torch.testing.assert_close(module(x)[0], expected)
    assert list(module._parameters) == order


def test_parametrized_weights_are_computed_from_the_new_originals():
    module = nn.Linear(3, 3)
    parametrize.register_parametrization(module, "weight", Symmetric())
    params = from_module(module)
    assert ("parametrizations", "weight", "original") in params.keys(True, True)
    x, expected = torch.randn(3), module(torch.ones(3))
    with (params * 0).to_module(module):
        assert (module(x) == 0).all()
    torch.testing.assert_close(module(torch.ones(3)), expected)


def test_lazy_modules_give_and_take_parameters_without_shape():
    module = nn.LazyLinear(4)
    params = from_module(module)
    assert isinstance(params["weight"], nn.UninitializedParameter)
    with params.to_module(module):
        assert module.weight is params["weight"]
    module(torch.ones(3))
    with (from_module(module) * 0).to_module(module):
        assert (module(torch.ones(3)) == 0).all()


def test_a_transformer():
    module = nn.Transformer(8, 2, 2, 2, 8, batch_first=True).eval()
    src, tgt = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    expected, before = module(src, tgt), snapshot(module)
    other = nn.Transformer(8, 2, 2, 2, 8, batch_first=True).eval()
    with from_module(module).to_module(other):
        torch.testing.assert_close(other(src, tgt), expected)
    assert snapshot(module) == before


# plans --------------------------------------------------------------------------------------------------------------


def test_a_replaced_sub_module_is_noticed():
    module = mlp()
    values = from_module(module).data.clone().zero_()
    with values.to_module(module):
        pass
    old, module[0] = module[0], nn.Linear(3, 4)
    with values.to_module(module):
        assert (module[0].weight == 0).all() and not (old.weight == 0).all()


def test_a_replaced_removed_or_moved_parameter_is_noticed():
    module = nn.Linear(2, 2)
    values = TensorDict({"weight": torch.zeros(2, 2)})
    with values.to_module(module):
        pass
    module.weight = nn.Parameter(torch.ones(2, 2))
    with values.to_module(module):
        assert (module.weight == 0).all()
    del module.weight
    with pytest.raises(KeyError, match="'weight'"):
        values.to_module(module)
    module.register_buffer("weight", torch.ones(2, 2))
    with values.to_module(module):
        assert (module.weight == 0).all() and not isinstance(module.weight, nn.Parameter)
    assert list(module._buffers) == ["weight"]


def test_a_renamed_and_a_removed_sub_module_are_noticed():
    module = mlp()
    values = from_module(module).data.clone()
    with values.to_module(module):
        pass
    module._modules["9"] = module._modules.pop("3")
    with pytest.raises(KeyError, match="'3'"):
        values.to_module(module)


def test_a_replaced_dictionary_of_parameters_is_noticed():
    module = nn.Linear(2, 2)
    values = TensorDict({"weight": torch.zeros(2, 2)})
    with values.to_module(module):
        pass
    module._parameters = dict(module._parameters)
    with values.to_module(module):
        assert (module.weight == 0).all()


def test_other_structures_of_tensordict_have_plans_of_their_own():
    module = mlp()
    whole = from_module(module).data.clone().zero_()
    part = whole.select("0", ("2", "weight"))
    permuted = TensorDict({key: whole[key] for key in reversed(list(whole.keys()))})
    for values in (whole, part, permuted, whole, TensorDict({"3": {"bias": torch.zeros(2)}}), whole.select("3"), part):
        before = snapshot(module)
        with values.to_module(module):
            now = from_module(module)
            assert all((now[key] == 0).all() for key in values.keys(True, True))
        assert snapshot(module) == before
    nested_instead = TensorDict({"0": {"weight": {"x": torch.zeros(4, 3)}}})
    with TensorDict({"0": {"weight": torch.zeros(4, 3)}}).to_module(module):
        pass
    with pytest.raises(KeyError, match="has no sub-module"):
        nested_instead.to_module(module)


def test_copies_and_pickles_of_a_module_do_not_share_its_plans():
    module = mlp()
    values = from_module(module).data.clone().zero_()
    with values.to_module(module):
        pass
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), copy.copy(module)):
        with values.to_module(twin):
            assert (twin[0].weight == 0).all()
        assert not (twin[0].weight == 0).all()
    deep = copy.deepcopy(module)
    with values.to_module(deep):
        assert not (module[0].weight == 0).all()


# state dicts --------------------------------------------------------------------------------------------------------


class WithExtra(nn.Linear):
    extra = 0

    def get_extra_state(self) -> dict[str, int]:
        return {"x": self.extra}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.extra = state["x"]


def test_state_dicts_carry_extra_states_and_run_hooks():
    source, target = WithExtra(2, 2), WithExtra(2, 2)
    source.extra = 7
    calls = []
    target.register_load_state_dict_pre_hook(lambda *args: calls.append(1))
    state = from_module(source, use_state_dict=True)
    weight, old = target.weight, target.weight.detach().clone()
    with state.to_module(target, use_state_dict=True):
        assert target.extra == 7 and target.weight is weight and calls == [1]
        torch.testing.assert_close(target.weight, source.weight)
    assert target.extra == 0
    torch.testing.assert_close(target.weight.detach(), old)
    with pytest.raises(RuntimeError, match="not both"):
        state.to_module(target, use_state_dict=True, inplace=True)
    with pytest.raises(KeyError, match="nobody"):
        TensorDict({"nobody": torch.zeros(1)}).to_module(target, use_state_dict=True)


# several modules ----------------------------------------------------------------------------------------------------


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


def test_modules_that_do_not_stack_are_refused():
    with pytest.raises(RuntimeError, match="at least one"):
        from_modules()
    with pytest.raises(RuntimeError, match="equal size"):
        from_modules(nn.Linear(2, 3), nn.Linear(3, 3))
    for pair in ([True, False], [False, True]):
        with pytest.raises(KeyError, match="bias"):
            from_modules(*(nn.Linear(2, 3, bias=bias) for bias in pair))
    with pytest.raises(RuntimeError, match="without shape"):
        from_modules(nn.LazyLinear(2), nn.LazyLinear(2))
    with pytest.raises(RuntimeError, match="not both"):
        from_modules(nn.Linear(2, 3), lazy_stack=True, as_module=True)


# transforms ---------------------------------------------------------------------------------------------------------


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
