"""Modules that keep parameters in their own way: tied, reacting, parametrized, recurrent, lazy."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from tensordict_core import TensorDict
from tensordict_nn import from_module


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
