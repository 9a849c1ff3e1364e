"""Warnings of `to_module` before training: an optimizer of replaced parameters, and parameters over saved files."""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest
import torch
from torch import nn

from tensordict_core import TensorDict
from tensordict_nn import TensorDictParams


def make():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    return model, TensorDict.from_module(model).data.clone()


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()


def messages(call, *args):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(*args)
        gc.collect()
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("return_swap", [True, False])
def test_an_optimizer_of_replaced_parameters_warns_once_and_names_the_remedy(keep, return_swap):
    model, values = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = values.to_module(model, return_swap=return_swap)
    if not keep:
        del before
    (text,) = messages(step, model, optimizer)
    assert "SGD does not train the parameter '0." in text and "after to_module" in text and "inplace=True" in text
    assert not messages(step, model, optimizer)


def test_the_warning_names_the_line_of_the_step():
    model, values = make()
    optimizer = torch.optim.Adam(model.parameters())
    values.to_module(model)
    with pytest.warns(UserWarning, match="Adam") as caught:
        step(model, optimizer)
    assert caught[0].filename == __file__


def test_replacing_again_after_a_block_warns_again():
    model, values = make()
    values.to_module(model)
    with values.to_module(model):
        pass
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert not messages(step, model, optimizer)
    values.clone().to_module(model)
    assert len(messages(step, model, optimizer)) == 1


def test_replacing_twice_before_the_step_warns():
    model, values = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values.to_module(model)
    values.clone().to_module(model)
    assert len(messages(step, model, optimizer)) == 1


def test_an_optimizer_built_afterwards_does_not_warn():
    model, values = make()
    values.to_module(model)
    assert not messages(step, model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_values_that_are_copied_and_parameters_that_were_put_back_do_not_warn():
    model, values = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values.to_module(model, inplace=True)
    assert not messages(step, model, optimizer)
    values.to_module(model).to_module(model)
    assert not messages(step, model, optimizer)


def test_an_optimizer_that_holds_the_new_parameters_too_does_not_warn():
    model, values = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values.to_module(model)
    optimizer.add_param_group({"params": list(model.parameters())})
    assert not messages(step, model, optimizer)


@pytest.mark.parametrize("dest", [True, False])
def test_a_block_does_not_warn_inside_or_afterwards(dest):
    model, values = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def block():
        with values.to_module(model, swap_dest=TensorDict({}) if dest else None):
            model(torch.ones(3, 2)).sum().backward()
            optimizer.step()

    assert not messages(block)
    assert not messages(step, model, optimizer)


def test_parameters_that_blocks_train_do_not_warn():
    model, _ = make()
    params = TensorDict.from_module(model)
    optimizer = torch.optim.SGD(params.values(True, True), lr=0.1)
    params.data.clone().to_module(model)  # the module only gives the structure

    def train():
        optimizer.zero_grad()
        with params.to_module(model):
            model(torch.ones(3, 2)).sum().backward()
        optimizer.step()

    assert not messages(train)


def test_replaced_parameters_are_not_kept_alive():
    model, values = make()
    old = [weakref.ref(one) for one in model.parameters()]
    for _ in range(3):
        values.clone().to_module(model)
    gc.collect()
    assert all(one() is None for one in old)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of torch itself, on the first compilation
def test_a_compiled_step_passes_the_hook():
    model, values = make()
    values.to_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(torch.ones(1, 2)).sum().backward()
    before = model[1].bias.detach().clone()
    torch.compile(optimizer.step, backend="eager")()
    assert torch.equal(model[1].bias, before - 0.5)


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


def test_an_optimizer_with_a_closure_warns_at_the_step_after_the_first():
    model, values = make()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)
    values.to_module(model)

    def loss():
        optimizer.zero_grad()
        result = model(torch.ones(3, 2)).sum()
        result.backward()
        return result

    assert not messages(optimizer.step, loss)  # no gradient was there before
    assert "LBFGS does not train" in messages(optimizer.step, loss)[0]
