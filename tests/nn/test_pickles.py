"""Pickles of earlier releases: classes load under the modules that defined them when the pickle was written."""

from __future__ import annotations

import pickle

import pytest

import tensordict_nn
from tensordict_nn.modules.form import Form

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
