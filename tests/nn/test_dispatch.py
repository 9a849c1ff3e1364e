"""Dispatch: modules on tensordicts called with tensors, and functions as modules."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from tensordict_core import TensorDict
from tensordict_nn import (
    TensorDictModule,
    TensorDictSequential,
    as_tensordict_module,
    dispatch,
)


def data() -> TensorDict:
    return TensorDict({"a": torch.ones(4, 2), "n": {"b": torch.full((4, 2), 2.0)}}, [4])


def plus_one(in_key="a", out_key="b", **kwargs) -> TensorDictModule:
    return TensorDictModule(lambda x: x + 1, [in_key], [out_key], **kwargs)


def test_modules_take_tensors_by_position_and_by_name():
    module = TensorDictModule(lambda a, b: (a + b, a - b), ["a", ("n", "b")], ["sum", "diff"])
    for result in (module(torch.ones(2), torch.ones(2)), module(a=torch.ones(2), n_b=torch.ones(2))):
        assert isinstance(result, tuple) and result[0].tolist() == [2, 2] and result[1].tolist() == [0, 0]
    assert plus_one()(torch.zeros(2)).tolist() == [1, 1]
    assert plus_one()(tensordict=data())["b"].shape == (4, 2)
    with pytest.raises(RuntimeError, match="'a' is given by position and by name"):
        plus_one()(torch.ones(2), a=torch.ones(2))
    with pytest.raises(ValueError, match="one positional argument for each"):
        plus_one()(torch.ones(2), torch.ones(2))
    with pytest.raises(ValueError, match="one positional argument for each"):
        plus_one()(data(), torch.ones(2))


def test_other_arguments_reach_the_module():
    module = TensorDictModule(lambda a, factor=1: a * factor, ["a"], ["b"])
    assert (module(data(), factor=3)["b"] == 3).all() and module(torch.ones(1), factor=2).item() == 2


def test_dispatch_with_explicit_keys():
    class Module(nn.Module):
        @dispatch(separator="__", source=[("n", "b"), "a"], dest=["c"])
        def forward(self, tensordict):
            assert tensordict.batch_size == (2,)
            return tensordict.set("c", tensordict["n", "b"] + tensordict["a"])

    assert Module()(n__b=torch.ones(2), a=torch.ones(2, 1)).shape == (2, 2)

    @dispatch(source=["a"], dest=["b"])
    def function(tensordict):
        return tensordict.set("b", tensordict["a"] + 1)

    assert function(torch.zeros(1)).item() == 1 and function(data())["b"].shape == (4, 2)
    with pytest.raises(RuntimeError, match="first argument"):

        @dispatch
        def wrong(self, td):
            return td


def test_functions_and_methods_become_modules():
    @as_tensordict_module(in_keys=["a"], out_keys=["b"])
    def function(a):
        """Adds one."""
        return a + 1

    class Owner:
        offset = 5

        @as_tensordict_module(in_keys="a", out_keys="b")
        def method(self, a):
            return a + self.offset

    assert (
        function.__doc__ == "Adds one." and (function(data())["b"] == 2).all() and function(torch.zeros(1)).item() == 1
    )
    assert (Owner().method(data())["b"] == 6).all() and Owner().method(a=torch.zeros(1)).item() == 5
    assert TensorDictSequential(function).out_keys == ["b"]


@as_tensordict_module(in_keys=["a"], out_keys=["b"])
def doubled(a):
    return a * 2


class Scaled:
    factor = 3

    @as_tensordict_module(in_keys=["a"], out_keys=["b"])
    def scaled(self, a):
        return a * self.factor

    alias = doubled


class FurtherScaled(Scaled):
    factor = 5

    def scaled(self, td):
        return Scaled.scaled(self, td)


def test_functions_that_became_modules_are_pickled_by_name():
    for function in (doubled, Scaled.scaled):
        assert pickle.loads(pickle.dumps(function)) is function
    assert copy.deepcopy(doubled) is doubled


def test_methods_that_became_modules_are_called_through_their_class():
    assert (Scaled.scaled(Scaled(), data())["b"] == 3).all()
    assert (Scaled.scaled(Scaled(), a=torch.ones(1)) == 3).all()
    assert (FurtherScaled().scaled(data())["b"] == 5).all()
    assert (Scaled.alias(data())["b"] == 2).all()
