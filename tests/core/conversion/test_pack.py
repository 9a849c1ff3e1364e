"""Leaves packed as the features of one tensor, and the layout that takes them apart."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError

import pytest
import torch

from tensordict_core import NonTensorData, PackLayout, TensorDict, lazy_stack


@pytest.fixture
def td():
    nested = TensorDict({"s": torch.arange(90.0).view(5, 2, 3, 3)}, [5, 2])
    return TensorDict({"v": torch.rand(5, 3), "p": torch.rand(5), "n": nested}, [5])


@pytest.mark.parametrize("dim", [-1, 1, 0, -2])
def test_unpacking_gives_the_entries_back(td, dim):
    flat, layout = td.pack(dim)
    assert flat.is_contiguous() and flat.shape == ((5, 22) if dim in (-1, 1) else (22, 5))
    again = layout.unpack(flat)
    assert again.batch_size == (5,) and again["n"].batch_size == (5, 2)
    assert set(again.keys(True)) == set(td.keys(True)) and (again == td).all()


def test_columns_are_in_alphabetical_order(td):
    flat, layout = td.pack()
    assert layout.keys == (("n", "s"), "p", "v") and layout.offsets == (0, 18, 19)
    assert torch.equal(flat[:, 18], td["p"]) and torch.equal(flat[:, 19:], td["v"])
    assert td.select("p", "v", "n").pack()[1] == layout and hash(td.pack()[1]) == hash(layout)


def test_unpacked_leaves_are_views_and_rows_may_be_chosen(td):
    flat, layout = td.pack()
    layout.unpack(flat)["p"].zero_()
    assert not flat[:, 18].any()
    assert (layout.unpack(flat[[3, 1]]) == td.set("p", torch.zeros(5))[[3, 1]]).all()
    assert layout.unpack(flat[0]).batch_size == ()


def test_a_layout_decides_the_order_and_checks_the_leaves(td):
    layout = PackLayout(keys=("v", "p", ("n", "s")), shapes=((3,), (), (2, 3, 3)))
    flat, same = td.pack(layout=layout)
    assert same is layout and torch.equal(flat[:, :3], td["v"])
    assert torch.equal(layout.unpack(flat)["n", "s"], td["n", "s"])
    with pytest.raises(KeyError, match="not those of the layout"):
        td.exclude("p").pack(layout=layout)
    with pytest.raises(ValueError, match=r"key 'p' has the shape \[2\]"):
        td.clone().set("p", torch.zeros(5, 2)).pack(layout=layout)
    with pytest.raises(ValueError, match="counted from the end"):
        td.pack(0, layout=layout)
    with pytest.raises(ValueError, match="21 entries along dim -1"):
        layout.unpack(flat[:, 1:])


def test_entries_without_columns_are_refused(td):
    with pytest.raises(TypeError, match="key 'x' is a NonTensorData"):
        td.clone().set("x", NonTensorData("text", [5])).pack()
    with pytest.raises(TypeError, match=r"key 'p' is torch.int64"):
        td.clone().set("p", torch.arange(5)).pack()
    with pytest.raises(IndexError, match="dim 2 is out of range"):
        td.pack(2)
    with pytest.raises(ValueError, match="1 keys and 2 shapes"):
        PackLayout(keys=("a",), shapes=((1,), (2,)))
    with pytest.raises(FrozenInstanceError):
        td.pack()[1].dim = 0


def test_a_lazy_stack_with_keys_that_only_some_elements_have_is_refused(td):
    stack = TensorDict.lazy_stack([TensorDict({"a": torch.ones(2), "s": "text"}), TensorDict({"a": torch.ones(2)})])
    with pytest.raises(RuntimeError, match=r"the elements of the lazy stack have .* only some have \['s'\]"):
        stack.pack()
    with pytest.raises(RuntimeError, match="the elements of the lazy stack 'n' have"):
        TensorDict({"n": stack}, [2]).pack()


def test_lazy_stacks_empty_tensordicts_and_devices_pack(td):
    stack = lazy_stack([td[0], td[1]])
    assert torch.equal(stack.pack()[0], td[:2].pack()[0])
    flat, layout = TensorDict({}, [2]).pack()
    assert flat.shape == (2, 0) and layout.unpack(flat).batch_size == (2,)
    assert td.to("cpu").pack()[1].unpack(td.pack()[0]).device == torch.device("cpu")


def test_layouts_pickle_and_gradients_pass(td):
    flat, layout = td.requires_grad_().pack()
    assert pickle.loads(pickle.dumps(layout)) == layout
    layout.unpack(flat * 2)["p"].sum().backward()
    assert torch.equal(td["p"].grad, torch.full((5,), 2.0))


@pytest.mark.parametrize("layout", [torch.ones(2), {"a": 1}, "a"], ids=["tensor", "dictionary", "string"])
def test_a_layout_of_another_type_is_a_type_error(layout):
    with pytest.raises(TypeError, match="layout is a PackLayout"):
        TensorDict({"a": torch.ones(2, 3)}, [2]).pack(layout=layout)
