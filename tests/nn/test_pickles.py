"""Pickles: those of earlier releases load under the modules that they name, and those of lambdas name the remedy."""

from __future__ import annotations

import pickle

import pytest

import tensordict_nn
from tensordict_nn import TensorDictModule
from tensordict_nn.modules.form import Form
from tensordict_nn.modules.pickling import carried

EARLIER = [
    "base.TensorDictModuleBase",
    "ensemble.EnsembleModule",
    "form.Form",
    "module.TensorDictModule",
    "module.TensorDictModuleWrapper",
    "module.WrapModule",
    "params.TensorDictParams",
    "probabilistic.interaction.InteractionType",
    "sequential.TensorDictSequential",
    "tensorclass_module.TensorClassModuleBase",
    "tensorclass_module.TensorClassModuleWrapper",
]


@pytest.mark.parametrize("name", EARLIER)
def test_a_class_loads_by_the_module_that_an_earlier_pickle_names(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    reference = f"ctensordict_nn.{module}\n{attribute}\n.".encode()
    assert pickle.loads(reference) is (Form if attribute == "Form" else getattr(tensordict_nn, attribute))


def test_a_lambda_that_cannot_be_pickled_names_the_remedy(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cloudpickle", None)
    with pytest.raises(pickle.PicklingError, match="install cloudpickle"):
        pickle.dumps(carried({"f": lambda x: x}))
    with pytest.raises(pickle.PicklingError, match="install cloudpickle"):
        pickle.dumps(TensorDictModule(lambda x: x, ["x"], ["y"]))
