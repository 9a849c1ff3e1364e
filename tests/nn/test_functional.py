"""Parameters of modules as tensordicts: read, set, and restored, also after errors."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tensordict_core import TensorDict
from tensordict_nn import from_module, from_modules, to_module


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 2))


def snapshot(module: nn.Module) -> list[tuple[str, int, int]]:
    """Names, identities and versions of everything a module holds, in order."""
    held = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return [(name, id(value), value._version) for name, value in held]


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


def test_the_function_locks_and_the_method_does_not():
    module = mlp()
    assert from_module(module).is_locked and from_modules(module, module).is_locked
    assert TensorDict.from_modules(module, module).is_locked
    params = TensorDict.from_module(module)
    assert not params.is_locked and not params["0"].is_locked
    params["0", "extra"] = torch.zeros(1)
    assert TensorDict.from_module(module, lock=True)["0"].is_locked


def test_the_swap_is_a_pytree_before_and_after_a_first_read():
    module = nn.Linear(2, 1)
    new = TensorDict.from_module(module).data.clone()
    leaves = torch.utils._pytree.tree_leaves(new.to_module(module))
    assert [tuple(leaf.shape) for leaf in leaves] == [tuple(leaf.shape) for leaf in new.values(True, True)]
    before = new.to_module(module)

    def loss(params, x):
        with params.to_module(module):
            return module(x).sum()

    grads = torch.func.grad(loss)(before, torch.ones(3, 2))
    assert grads["weight"].tolist() == [[3.0, 3.0]] and grads["bias"].tolist() == [3.0]


def test_none_is_left_out_and_non_persistent_buffers_are_kept():
    params = from_module(Scaled())
    assert params.sorted_keys == ["calls", "scratch", "weight"]
    assert from_module(Scaled(), use_state_dict=True).sorted_keys == ["calls", "weight"]


def test_modules_without_parameters_are_kept_on_request():
    assert "1" not in from_module(mlp())
    assert from_module(mlp(), filter_empty=False)["1"].is_empty()
    assert from_module(nn.ReLU()).is_empty()


def test_from_module_takes_modules_only():
    with pytest.raises(TypeError, match=r"dict is not an nn\.Module"):
        from_module({})


def test_a_block_uses_the_tensordict_and_restores_the_parameters():
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


@pytest.mark.parametrize("inplace", [False, True])
def test_the_block_may_remove_and_replace_parameters(inplace):
    module = nn.Linear(3, 4)
    held, values = dict(module.named_parameters()), copy.deepcopy(module.state_dict())
    with from_module(module).data.clone().zero_().to_module(module, inplace=inplace):
        del module.weight
        module.bias = nn.Parameter(torch.ones(4))
    assert all(held.pop(name) is value for name, value in module.named_parameters()) and not held
    torch.testing.assert_close(module.state_dict(), values)


def test_blocks_nest():
    module = nn.Linear(1, 1, bias=False)
    params = from_module(module)
    before = snapshot(module)
    with (params * 0 + 1).to_module(module):
        with (params * 0 + 2).to_module(module):
            assert module.weight.item() == 2
        assert module.weight.item() == 1
    assert snapshot(module) == before


def test_the_swap_holds_the_earlier_parameters_and_restores_them():
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


def test_without_preserving_state_tensors_are_set_unchanged():
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


def test_an_in_place_block_changes_inference_tensors_too():
    module = nn.BatchNorm1d(2)
    with torch.inference_mode():
        params = from_module(module).data * 1
    with params.to_module(module, inplace=True):
        module(torch.full((3, 2), 5.0))
    assert params["running_mean"].any() and not module.running_mean.any()


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
    with pytest.raises(TypeError, match=r"is not an nn\.Module"):
        to_module(TensorDict({}), 3)


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


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_buffers_that_the_block_replaces_are_in_the_tensordict(compiled, inplace):
    module = Scaled()
    own = module.calls

    def call(params, x):
        with params.to_module(module, inplace=inplace):
            return module(x)

    run = torch.compile(call, fullgraph=True, backend="eager") if compiled else call
    params = from_module(module).data.clone().lock_()
    for n in range(3):
        run(params, torch.ones(2))
        assert params["calls"].item() == n + 1 and params.is_locked
    assert module.calls is own and own.item() == 0


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_batch_norm_statistics_are_those_of_the_tensordict(compiled, inplace):
    module = mlp()
    params, x = from_module(module).data.clone(), torch.randn(10, 3)

    def call(params, x):
        with params.to_module(module, inplace=inplace):
            return module(x)

    run = torch.compile(call, fullgraph=True, backend="eager") if compiled else call
    for n in range(3):
        run(params, x)
        assert params["2", "num_batches_tracked"] == n + 1 and module[2].num_batches_tracked == 0
    assert params["2", "running_mean"].any() and not module[2].running_mean.any()


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
    with pytest.raises(RuntimeError, match="exclude each other"):
        state.to_module(target, use_state_dict=True, inplace=True)
    with pytest.raises(KeyError, match="nobody"):
        TensorDict({"nobody": torch.zeros(1)}).to_module(target, use_state_dict=True)


def test_preserve_module_state_is_not_none():
    module = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="preserve_module_state=None"):
        from_module(module).data.to_module(module, preserve_module_state=None)
