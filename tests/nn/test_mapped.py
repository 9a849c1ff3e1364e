"""Parameters over files: a warning before training changes a saved checkpoint."""

from __future__ import annotations

import gc
import pickle
import warnings

import pytest
import torch
from torch import nn

from tensordict_core import TensorDict
from tensordict_nn import TensorDictModule, TensorDictParams
from tensordict_nn.modules.pickling import carried


class Mapped(torch.Tensor):
    """A tensor whose in-place changes reach a file."""

    @staticmethod
    def __new__(cls, data, file):
        made = torch.Tensor._make_subclass(cls, data)
        made.file = file
        return made

    @property
    def writes_to(self):
        return getattr(self, "file", None)


def loaded(file):
    return TensorDict({"weight": Mapped(torch.ones(1, 1), file), "bias": torch.ones(1)})


def messages(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
        gc.collect()
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("return_swap", [True, False])
def test_parameters_that_are_set_for_good_warn_once_and_name_the_remedy(return_swap):
    file = f"/saves/{return_swap}"
    (text,) = messages(lambda: loaded(file).to_module(nn.Linear(1, 1), return_swap=return_swap))
    assert file in text and "mode='c'" in text
    assert not messages(lambda: loaded(file).to_module(nn.Linear(1, 1), return_swap=return_swap))


def test_parameters_of_a_tensordict_over_files_warn():
    assert "mode='c'" in messages(lambda: TensorDictParams(loaded("/saves/params")))[0]


def test_a_block_does_not_warn():
    def block():
        with loaded("/saves/block").to_module(nn.Linear(1, 1)) as before:
            before["weight"]

    def failing():
        with pytest.raises(ZeroDivisionError), loaded("/saves/failing").to_module(nn.Linear(1, 1)):
            raise ZeroDivisionError

    assert not messages(block) and not messages(failing)


def test_values_that_are_copied_or_private_do_not_warn():
    model = nn.Linear(1, 1)
    assert not messages(lambda: loaded("/saves/inplace").to_module(model, inplace=True))
    assert not messages(lambda: loaded(None).to_module(model))


def test_a_lambda_that_cannot_be_pickled_names_the_remedy(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cloudpickle", None)
    with pytest.raises(pickle.PicklingError, match="install cloudpickle"):
        pickle.dumps(carried({"f": lambda x: x}))
    with pytest.raises(pickle.PicklingError, match="install cloudpickle"):
        pickle.dumps(TensorDictModule(lambda x: x, ["x"], ["y"]))
