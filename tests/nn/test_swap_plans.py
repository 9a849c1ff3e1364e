"""Swap plans are made once for a module and a structure, notice later changes, and keep no module in memory."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.nn.test_functional import snapshot
from torch import nn

from tensordict_core import TensorDict
from tensordict_nn import EnsembleModule, TensorDictModule, TensorDictParams, from_module, from_modules


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 2))


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


def test_each_structure_of_tensordict_has_its_plan():
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


# modules and parameters are freed with their last name ---------------------------------------------------------------


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
