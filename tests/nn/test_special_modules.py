"""Special modules: tied, with own setattr, parametrized, recurrent, lazy, quantized, with hooks."""

from __future__ import annotations

import warnings
import weakref

import pytest
import torch
from tests.nn.test_functional import snapshot
from torch import nn
from torch.nn.utils import parametrize

from tensordict_core import TensorDict, is_leaf_nontensor
from tensordict_nn import from_module, from_modules


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.again = self.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(x))


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


def test_modules_that_override_setattr_are_notified():
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


def quantized(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LSTM(4, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces another home for it
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear, nn.LSTM}, dtype=torch.qint8)


needs_quantization = pytest.mark.skipif(
    torch.backends.quantized.engine == "none", reason="torch has no kernels for quantized layers on this processor"
)


@needs_quantization
def test_packed_parameters_are_not_lost_without_a_word():
    with pytest.warns(UserWarning, match=r"Packed\w+ keeps .* pass use_state_dict=True"):
        from_module(quantized(0))


@needs_quantization
def test_quantized_modules_go_through_their_state_dict():
    model, other, x = quantized(0), quantized(1), torch.randn(2, 1, 4)
    assert not other(x)[0].equal(model(x)[0])
    state = from_module(model, use_state_dict=True)
    keys = state.keys(True, True, is_leaf=is_leaf_nontensor)
    assert {".".join(key) for key in keys} == set(model.state_dict())
    before = other(x)[0]
    with state.to_module(other, use_state_dict=True):
        assert other(x)[0].equal(model(x)[0])
    assert other(x)[0].equal(before)


class Slotted(nn.Module):
    """Has a place for an attribute outside of its dictionary."""

    __slots__ = ("scale",)

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        object.__setattr__(self, "scale", 3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.scale


def test_modules_with_slots_are_like_others():
    module, x = Slotted(), torch.ones(2)
    expected, before = module(x), snapshot(module)
    with (from_module(module) * 0).to_module(module):
        assert (module(x) == 0).all() and module.scale == 3.0
    torch.testing.assert_close(module(x), expected)
    assert snapshot(module) == before


class Frozen(nn.Module):
    """Refuses every attribute once it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.done = True

    def __setattr__(self, name: str, value: object) -> None:
        if self.__dict__.get("done"):
            raise AttributeError(f"{name} is fixed")
        super().__setattr__(name, value)


def test_a_module_that_refuses_a_parameter_is_left_as_it_was():
    module = Frozen()
    before = snapshot(module)
    with pytest.raises(AttributeError, match="weight is fixed"):
        TensorDict({"weight": torch.zeros(2)}).to_module(module)
    assert snapshot(module) == before
    TensorDict({"weight": torch.zeros(2)}).to_module(module, inplace=True)  # nothing is set, values are written
    assert module.weight.tolist() == [0, 0]


@pytest.mark.parametrize("norm", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm])
def test_normalized_weights_are_computed_from_the_new_originals(norm):
    torch.manual_seed(0)
    one, other, x = norm(nn.Linear(3, 4)).eval(), norm(nn.Linear(3, 4)).eval(), torch.randn(3)
    params = from_module(one)
    with params.to_module(other):
        torch.testing.assert_close(other(x), one(x))
    assert not torch.allclose(other(x), one(x))
    params.data.clone().to_module(other)
    torch.testing.assert_close(other(x), one(x))


def test_hooks_of_a_module_see_the_parameters_of_the_block():
    module, seen = nn.Linear(2, 2), []
    module.register_forward_pre_hook(lambda module, args: seen.append(module.weight.sum().item()))
    module.register_forward_hook(lambda module, args, out: out + 1)
    with (from_module(module) * 0).to_module(module):
        assert module(torch.ones(2)).tolist() == [1, 1]
    assert seen == [0]


def test_hooks_of_state_dicts_run_on_request():
    module = nn.Linear(2, 2)
    module.register_state_dict_post_hook(lambda module, state, prefix, meta: state.update(extra=torch.ones(1)))
    assert "extra" in from_module(module, use_state_dict=True) and "extra" not in from_module(module)


def test_gradient_hooks_of_parameters_stay_with_the_parameters():
    module, calls = nn.Linear(2, 2), []
    module.weight.register_hook(lambda grad: calls.append(1))
    with from_module(module).data.clone().to_module(module):
        module(torch.ones(2)).sum().backward()
    assert not calls
    module(torch.ones(2)).sum().backward()
    assert calls == [1]


def test_a_lazy_module_is_filled_by_a_checkpoint_of_one_that_ran():
    source, lazy, x = nn.Linear(3, 4), nn.LazyLinear(4), torch.randn(3)
    from_module(source).data.clone().to_module(lazy, use_state_dict=True)
    assert lazy.weight.shape == (4, 3)
    torch.testing.assert_close(lazy(x), source(x))
    with pytest.raises(RuntimeError, match="without shape yet"):
        from_modules(nn.LazyLinear(4), nn.LazyLinear(4), lazy_stack=True)


def parametrized() -> nn.Module:
    module = nn.Linear(2, 2)
    parametrize.register_parametrization(module, "weight", Symmetric())
    return module


class Counting(nn.Module):
    """Counts its calls in a buffer that it replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return self.linear(x)


KINDS = {
    "tied": lambda: nn.Sequential(first := nn.Linear(2, 2), nn.Tanh(), first),
    "reacting": Doubled,
    "recurrent": lambda: nn.LSTM(2, 3),
    "parametrized": parametrized,
    "normalized": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
    "slotted": Slotted,
    "batch norm": lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)),
    "replacing a buffer": Counting,
}


def everything(module: nn.Module) -> list[object]:
    """What each part of a module holds under which names, in order: by identity, and by value what is computed."""
    held: list[object] = []
    for name, part in module.named_modules():
        for key, value in part.__dict__.items():
            if isinstance(value, torch.Tensor):
                held.append((name, key, value.tolist()))
            elif not key.startswith("_tensordict"):
                items = (
                    value.items() if isinstance(value, dict) else enumerate(value if type(value) is list else [value])
                )
                # (recurrent layers note by weak references which weights they ran with, and look at each call)
                held += [(name, key, inner, id(item)) for inner, item in items if not isinstance(item, weakref.ref)]
    return held


@pytest.mark.parametrize("how", [{}, {"preserve_module_state": False}, {"inplace": True}, {"use_state_dict": True}])
@pytest.mark.parametrize("kind", KINDS)
def test_a_block_that_raises_leaves_the_module_exactly_as_it_was(kind, how):
    torch.manual_seed(0)
    module, x = KINDS[kind](), torch.randn(4, 2)
    values = {name: value.detach().clone() for name, value in module.state_dict().items()}
    before = everything(module)
    params = from_module(module, use_state_dict="use_state_dict" in how).data * 2
    with pytest.raises(ZeroDivisionError), params.to_module(module, **how):
        module(x)
        raise ZeroDivisionError
    if "use_state_dict" not in how:  # which puts back values
        assert everything(module) == before
    torch.testing.assert_close(module.state_dict(), values, rtol=0, atol=0)
