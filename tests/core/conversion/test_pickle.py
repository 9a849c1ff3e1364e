"""Pickles and deep copies of whole trees, with and without locks."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch

from tensordict_core import (
    LazyStackedTensorDict,
    MetaData,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    UnbatchedTensor,
    lazy_stack,
)
from tensordict_core.extension import annotate, annotation, deferred


class Sub(TensorDict):
    """A subclass without slots, so that instances have attributes."""


def full() -> TensorDict:
    return TensorDict(
        {
            "a": torch.arange(6.0).reshape(3, 2),
            "b": TensorDict({"c": torch.ones(3, 2)}, [3, 2]),
            "s": "text",
            "v": ["x", "y", "z"],
            "u": UnbatchedTensor(torch.zeros(7)),
            "l": lazy_stack([TensorDict({"q": torch.full((i,), i)}) for i in range(3)]),
        },
        [3],
        names=["n"],
        device="cpu",
    )


def through_pickle(td):
    return pickle.loads(pickle.dumps(td))


def through_save(td):
    file = io.BytesIO()
    torch.save(td, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("through", [through_pickle, through_save, copy.deepcopy])
def test_all_contents_are_restored(through):
    td = full()
    again = through(td)
    assert again.batch_size == td.batch_size and again.names == ["n"] and again.device == td.device
    assert torch.equal(again["a"], td["a"]) and again["a"] is not td["a"]
    assert again["b"].batch_size == torch.Size([3, 2]) and (again["s"], again["v"]) == ("text", ["x", "y", "z"])
    assert isinstance(again.get("v"), NonTensorStack) and isinstance(again.get("u"), UnbatchedTensor)
    assert type(again["l"]) is LazyStackedTensorDict and again["l"][2]["q"].tolist() == [2, 2]
    again["new"] = torch.zeros(3)


@pytest.mark.parametrize("through", [through_pickle, through_save])
def test_locks_and_their_holders_are_restored(through):
    td = full().lock_()
    again = through(td)
    assert again.is_locked and again["b"].is_locked and again["l"].is_locked and again["l"][0].is_locked
    with pytest.raises(RuntimeError, match="locked graph"):
        again["b"].unlock_()
    again.unlock_()
    assert not again["b"].is_locked
    assert not copy.deepcopy(td).is_locked and not copy.deepcopy(td)["b"].is_locked
    inner = through(td["b"])
    assert inner.is_locked and not inner.unlock_().is_locked


def test_an_open_with_block_is_not_pickled():
    td = TensorDict({"a": torch.zeros(1)})
    with td.lock_():
        again = through_pickle(td)
    assert again.is_locked and again._last_exit is None
    with pytest.raises(RuntimeError, match="locked"):
        again["b"] = 1


def test_annotations_of_plain_values_are_pickled():
    td = TensorDict({})
    annotate(td, "origin", "sensor 3")
    annotate(td, "callback", lambda: None)
    again = through_pickle(td)
    assert annotation(again, "origin") == "sensor 3" and annotation(again, "callback") is None


def test_subclasses_keep_their_class_and_attributes():
    td = Sub({"a": torch.zeros(1)})
    td.note = ["x"]
    for again in (through_pickle(td), copy.deepcopy(td)):
        assert type(again) is Sub and again.note == ["x"] and again.note is not td.note


def test_deep_copies_keep_sharing_within_the_tree():
    leaf = torch.zeros(2)
    td = TensorDict({"a": leaf, "n": {"b": leaf}})
    again = copy.deepcopy([td, leaf])
    assert again[0]["a"] is again[0]["n", "b"] is again[1]
    value = NonTensorData(["x"])
    again = copy.deepcopy(TensorDict({"v": value}))
    assert again["v"] == ["x"] and again["v"] is not value.data
    weights = TensorDict({"w": torch.zeros(2, requires_grad=True)})
    assert copy.deepcopy(weights)["w"].requires_grad


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_deep_copies_of_tensors_that_share_memory_share_memory(names):
    whole = torch.arange(4.0)
    parts = {"a": whole, "b": whole[1:]}
    td = TensorDict({name: parts[name] for name in names} | {"n": {"c": whole.view(2, 2)}, "d": torch.arange(4.0)})
    new = copy.deepcopy(td)
    new["b"][0] = 7
    assert new["a"].tolist() == [0, 7, 2, 3] and new["n", "c"].tolist() == [[0, 7], [2, 3]]
    assert new["d"].tolist() == whole.tolist() == [0, 1, 2, 3]


def test_copy_shares_the_tensors():
    td = full()
    again = copy.copy(td)
    assert again["a"] is td["a"] and again is not td


def test_a_view_is_pickled_with_its_rows_only():
    td = TensorDict({"a": torch.arange(4)}, [4])
    assert through_pickle(td._get_sub_tensordict(slice(2, None)))["a"].tolist() == [2, 3]


def test_a_deferred_tensordict_is_completed():
    td = deferred(lambda: {"a": torch.ones(1)}, TensorDict({})._meta)
    again = through_pickle(td)
    assert type(again) is TensorDict and again["a"] == 1


def test_a_pickle_is_not_much_larger_than_its_tensors():
    td = TensorDict({str(i): torch.zeros(1) for i in range(10)})
    assert len(pickle.dumps(td)) < len(pickle.dumps(dict(td.items()))) + 400


@pytest.mark.parametrize("locked", [False, True])
def test_weak_references_die_with_the_tensordict(locked):
    td = full()
    if locked:
        td.lock_()
    ref, child = weakref.ref(td), weakref.ref(td["b"])
    assert ref() is td
    del td
    gc.collect()
    assert ref() is None and child() is None


@pytest.mark.parametrize(
    "td",
    [
        TensorDict({"a": torch.rand(2, 3), "n": {"b": torch.rand(2)}, "s": "text", "v": ["p", "q"]}, [2], names=["x"]),
        TensorDict({"a": torch.ones(3)}, device="cpu").lock_(),
        lazy_stack([TensorDict({"a": torch.rand(n)}) for n in (1, 2)]),
        TensorDict({"u": UnbatchedTensor(torch.ones(2)), "m": MetaData({"k": 1})}, [3]),
        TensorDict({"a": torch.ones(3)}, [3]).view_at(slice(0, 2)),
        TensorDict({"a": torch.ones(3)}, [3]).attrs(),
    ],
    ids=["values", "locked", "lazy", "kinds", "view", "attrs"],
)
def test_torch_loads_what_it_saved_without_trusting_the_file(td, tmp_path):
    torch.save(td, tmp_path / "td.pt")
    got = torch.load(tmp_path / "td.pt", weights_only=True)
    assert got.batch_size == td.batch_size and got.names == td.names and got.device == td.device
    assert got.is_locked == td.is_locked and got.sorted_keys == td.sorted_keys
    assert all(a.equal(b) for a, b in zip(got._leaves(), td._leaves(), strict=True))


class Unknown:
    pass


def test_values_of_unknown_classes_need_trust(tmp_path):
    torch.save(TensorDict({"value": Unknown()}), tmp_path / "td.pt")
    with pytest.raises(pickle.UnpicklingError, match="Unknown"):
        torch.load(tmp_path / "td.pt", weights_only=True)


def test_a_deep_copy_clones_tensors_of_a_graph():
    leaf = torch.ones(3, requires_grad=True)
    td = TensorDict({"leaf": leaf, "n": {"double": leaf * 2}})
    td["again"] = td["n", "double"]
    new = copy.deepcopy(td)
    assert new["leaf"].is_leaf and new["leaf"] is not leaf and new["again"] is new["n", "double"]
    new["again"].sum().backward()
    assert leaf.grad.tolist() == [2, 2, 2]
