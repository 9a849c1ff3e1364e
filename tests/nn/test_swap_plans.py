"""Swap plans are made once for a module and a structure, and notice later changes."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from tests.nn.test_functional import snapshot
from torch import nn

from tensordict_core import TensorDict
from tensordict_nn import from_module


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
