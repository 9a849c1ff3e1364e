"""Calls on parameters that the differential fuzzer found, as programs written for the reference rely on them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tensordict_core import LazyStackedTensorDict, TensorDict, merge_tensordicts
from tensordict_nn import TensorDictModule, TensorDictParams, TensorDictSequential


class Batch(TensorDict):
    pass


def test_parameters_are_made_of_dictionaries():
    source = {"a": torch.zeros(2), "b": {"c": torch.ones(2)}}
    made = [
        TensorDictParams.from_dict(source),
        TensorDictParams.from_any(source),
        TensorDictParams(TensorDict(source)).from_dict_instance(source),
    ]
    assert all(type(params) is TensorDictParams and type(params["a"]) is nn.Parameter for params in made)
    assert TensorDictParams.from_dict(source, batch_dims=1).batch_size == (2,)


def test_from_module_of_a_subclass_returns_the_subclass():
    params = Batch.from_module(nn.Sequential(nn.Linear(2, 2)), lock=True)
    assert type(params) is Batch and type(params["0"]) is Batch and params.is_locked
    assert type(Batch.from_modules(nn.Linear(2, 2), nn.Linear(2, 2))) is Batch
    stack = Batch.from_modules(nn.Linear(2, 2), nn.Linear(2, 2), lazy_stack=True)
    assert type(stack) is LazyStackedTensorDict and type(stack[0]) is Batch


def test_results_are_written_under_the_output_keys():
    module = TensorDictModule(nn.Linear(3, 4), in_keys=["a"], out_keys=["b"])
    td = TensorDict({"a": torch.zeros(3)})
    assert module._write_to_tensordict(td, (torch.ones(4),)) is td and td["b"].tolist() == [1.0] * 4
    out = TensorDict({})
    assert module._write_to_tensordict(td, [torch.ones(4)], out, [("n", "c")]) is out and ("n", "c") in out.keys(True)
    made = TensorDictSequential(module)._write_to_tensordict(td, (torch.ones(4),))
    assert made is not td and list(made.keys()) == ["b"]
    with pytest.raises(RuntimeError, match="2 values for the 1 out_keys"):
        module._write_to_tensordict(td, (torch.ones(4), torch.ones(4)))


def test_vmap_maps_a_subclass_of_parameters():
    class Weights(TensorDictParams):
        pass

    weights = Weights(TensorDict({"a": torch.arange(3.0)}, [3]))
    assert torch.vmap(lambda row: row["a"] + 1)(weights).tolist() == [1.0, 2.0, 3.0]


def test_a_key_that_is_not_written_cannot_be_selected():
    module = TensorDictModule(nn.Linear(3, 4), in_keys=["a"], out_keys=["b"])
    for error in (ValueError, RuntimeError):
        with pytest.raises(error, match="must be in out_keys"):
            module.select_out_keys("c")


def test_values_of_parameters_are_on_the_device_of_the_parameters():
    params = TensorDictParams(TensorDict({"w": torch.zeros(2), "n": {"s": "text", "v": torch.ones(2)}}))
    assert params.cpu().get(("n", "s")).device == torch.device("cpu")


def test_parameters_merged_with_a_tensordict_are_entries_of_a_plain_one():
    params = TensorDictParams(TensorDict({"w": torch.zeros(2), "n": {"v": torch.ones(2)}}))
    merged = merge_tensordicts(params, TensorDict({"k": torch.ones(2), "n": {"u": torch.ones(2)}}))
    assert type(merged) is TensorDict and type(merged["n"]) is TensorDict
    assert merged["w"] is params["w"] and not merged["k"].requires_grad and not merged["n", "u"].requires_grad
