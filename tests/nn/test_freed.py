"""Modules and parameters are freed with their last name, also after their parameters were replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tensordict_nn import EnsembleModule, TensorDictModule, TensorDictParams, from_module, from_modules


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Sequential(nn.Linear(3, 2)))


def in_a_block(module: nn.Module) -> None:
    with (from_module(module) * 2).to_module(module):
        module(torch.ones(4, 2))


def permanently(module: nn.Module) -> None:
    from_module(module).clone().to_module(module)


def and_back(module: nn.Module) -> None:
    earlier = from_module(module).clone().to_module(module)
    earlier.to_module(module)


def in_place(module: nn.Module) -> None:
    (from_module(module) * 2).data.to_module(module, inplace=True)


def by_state(module: nn.Module) -> None:
    from_module(module, use_state_dict=True).clone().to_module(module, use_state_dict=True)


def as_plain_attributes(module: nn.Module) -> None:
    (from_module(module) * 2).to_module(module, preserve_module_state=False)
    in_a_block(module)


@pytest.mark.parametrize(
    "replace",
    [in_a_block, permanently, and_back, in_place, by_state, as_plain_attributes],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize(
    "make", [model, lambda: nn.Linear(2, 2), lambda: nn.GRUCell(2, 2)], ids=["nested", "one", "rnn"]
)
def test_a_module_whose_parameters_were_replaced(
    make: Callable[[], nn.Module], replace: Callable[[nn.Module], None], left_to_the_collector: Any
) -> None:
    assert left_to_the_collector(lambda: replace(make())) == []


CALLS: dict[str, Callable[[], Any]] = {
    "from_module": lambda: from_module(model(), as_module=True),
    "from_modules": lambda: from_modules(model(), model()),
    "ensemble": lambda: EnsembleModule(TensorDictModule(nn.Linear(2, 2), ["a"], ["b"]), 2),
    "cpu": lambda: TensorDictParams(from_module(model())).cpu(),
    "double": lambda: TensorDictParams(from_module(model())).to(torch.float64),
    "clone": lambda: TensorDictParams(from_module(model())).clone(),
    "data": lambda: TensorDictParams(from_module(model())).data.zero_(),
    "reshaped": lambda: TensorDictParams(from_modules(model(), model())).unsqueeze(0)[0],
}


@pytest.mark.parametrize("name", CALLS)
def test_parameters(name: str, left_to_the_collector: Any) -> None:
    assert left_to_the_collector(CALLS[name]) == []


def test_a_cycle_is_found(left_to_the_collector: Any) -> None:
    def cycle() -> None:
        module = nn.Linear(1, 1)
        module.own = [module]

    assert left_to_the_collector(cycle) == ["Linear", "Parameter"]
