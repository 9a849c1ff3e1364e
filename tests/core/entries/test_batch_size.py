"""Batch sizes and devices: what every write checks, what nested tensordicts may have, what is moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorData, TensorDict, lazy_stack, pad_sequence


def _td() -> TensorDict:
    return TensorDict({"a": torch.zeros(3, 4), "n": TensorDict({"b": torch.ones(3, 2)}, [3, 2])}, [3])


BAD = torch.zeros(2, 9)
WRITES: dict[str, Callable[[Any], Any]] = {
    "construct": lambda td: TensorDict({"bad": BAD}, [3]),
    "construct by name": lambda td: TensorDict(bad=BAD, batch_size=[3]),
    "from_dict": lambda td: TensorDict.from_dict({"bad": BAD}, batch_size=[3]),
    "set": lambda td: td.set("bad", BAD),
    "set nested": lambda td: td.set(("n", "bad"), torch.zeros(3)),
    "set new path": lambda td: td.set(("new", "bad"), BAD),
    "set a tensordict": lambda td: td.set("bad", TensorDict({"x": BAD}, [2])),
    "set a dictionary": lambda td: td.set("bad", {"x": BAD}),
    "brackets": lambda td: td.__setitem__("bad", BAD),
    "set_": lambda td: td.set_("a", BAD),
    "set in place": lambda td: td.set("a", BAD, inplace=True),
    "setdefault": lambda td: td.setdefault("bad", BAD),
    "update": lambda td: td.update({"bad": BAD}),
    "update by a tensordict": lambda td: td.update(TensorDict({"bad": BAD})),
    "update nested": lambda td: td.update({"n": {"bad": torch.zeros(3)}}),
    "update in place": lambda td: td.update({"a": BAD}, inplace=True),
    "update_": lambda td: td.update_({"a": BAD}),
    "replace": lambda td: td.replace({"a": BAD}),
    "set_at_": lambda td: td.set_at_("a", BAD, 0),
    "update_at_": lambda td: td.update_at_({"a": BAD}, 0),
    "index": lambda td: td.__setitem__(0, TensorDict({"a": BAD})),
    "index by a tensor": lambda td: td.__setitem__(0, BAD),
    "copy_": lambda td: td.copy_({"a": BAD}),
    "apply": lambda td: td.apply(lambda x: x[:1]),
    "apply_": lambda td: td.apply_(lambda x: x[:1]),
    "named_apply": lambda td: td.named_apply(lambda key, x: x[:1]),
    "batch_size": lambda td: setattr(td, "batch_size", [3, 9]),
    "to": lambda td: td.to(batch_size=[9]),
    "element of a lazy stack": lambda td: lazy_stack([td, td]).set("bad", BAD),
    "view": lambda td: td.view_at(slice(0, 2)).set("bad", torch.zeros(7)),
}


@pytest.mark.parametrize("name", WRITES)
def test_every_write_checks_the_shape_and_names_the_entry(name: str) -> None:
    td = _td()
    with pytest.raises(RuntimeError, match=r"(batch size|shape).*; .*(expand|reshape|must|set\(\))"):
        WRITES[name](td)
    assert set(td.keys(True, True)) == {"a", ("n", "b")}, "nothing was stored"
    assert not td["a"].any() and td["n", "b"].all(), "nothing was written"


def test_nested_batch_sizes_go_on_where_their_parents_end() -> None:
    td = _td()
    assert td["n"].batch_size == (3, 2)
    for result, size, nested in (
        (td[0], (), (2,)),
        (td[:, None], (3, 1), (3, 1, 2)),
        (td.expand(5, 3), (5, 3), (5, 3, 2)),
        (td.reshape(1, 3), (1, 3), (1, 3, 2)),
        (torch.stack([td, td], 1), (3, 2), (3, 2, 2)),
        (torch.cat([td, td]), (6,), (6, 2)),
        (td.sum(dim=0), (), (2,)),
        (td[torch.tensor([True, False, True])], (2,), (2, 2)),
        (td.gather(0, torch.tensor([0, 0])), (2,), (2, 2)),
        (pad_sequence([td, td[:1]]), (2, 3), (2, 3)),
        (td + td, (3,), (3, 2)),
        (td.apply(lambda x: x * 2), (3,), (3, 2)),
        (lazy_stack([td, td], 1), (3, 2), (3, 2, 2)),
    ):
        assert (tuple(result.batch_size), tuple(result["n"].batch_size)[: len(nested)]) == (size, nested)


def test_a_nested_tensordict_with_fewer_dimensions_takes_those_of_its_parent_on_a_copy() -> None:
    child = TensorDict({"b": torch.zeros(3, 2)})
    td = TensorDict({"child": child}, [3])
    assert td["child"].batch_size == (3,) and child.batch_size == ()
    td["again"] = child
    assert td["again"].batch_size == (3,) and td["again"] is not child
    assert td["again", "b"] is child["b"]


def test_changing_a_batch_size_takes_nested_ones_along_that_do_not_start_with_it() -> None:
    td = TensorDict({"n": TensorDict({"b": torch.ones(3, 2, 5)}, [3]), "s": "text"}, [3])
    td.batch_size = [3, 2]
    assert td["n"].batch_size == (3, 2) and td.get("s").batch_size == (3, 2)
    td.batch_size = []
    assert td["n"].batch_size == (3, 2), "a nested one keeps what it may have"
    assert td.auto_batch_size_().batch_size == (3, 2), "the value has that size"
    del td["s"]
    assert td.auto_batch_size_().batch_size == (3, 2, 5) and td.auto_batch_size_(1).batch_size == (3,)
    assert TensorDict({"a": torch.ones(3, 2), "b": torch.ones(3, 4)}).auto_batch_size_().batch_size == (3,)
    assert TensorDict({"a": torch.ones(3), "b": torch.ones(2)}).auto_batch_size_().batch_size == ()


@pytest.mark.parametrize("size", [3, [3], (3,), torch.Size([3]), np.int64(3), np.array([3])])
def test_a_batch_size_is_a_number_or_a_sequence(size: Any) -> None:
    assert TensorDict({"a": torch.zeros(3)}, size).batch_size == torch.Size([3])


# devices ------------------------------------------------------------------------------------------------------------


def test_a_tensordict_with_a_device_moves_new_entries() -> None:
    td = TensorDict({"a": torch.zeros(3)}, [3], device="meta")
    assert td["a"].is_meta
    td["b"] = torch.zeros(3)
    td["n"] = TensorDict({"c": torch.zeros(3)}, [3], device="cpu")
    td["new", "d"] = torch.zeros(3)
    td.update({"e": torch.zeros(3), "n": {"f": torch.zeros(3)}})
    assert all(leaf.is_meta for leaf in td.values(True, True)) and len(list(td.keys(True, True))) == 6
    assert td["n"].device == td["new"].device == torch.device("meta")


def test_a_tensordict_without_a_device_stores_entries_unmoved() -> None:
    td = TensorDict({"a": torch.zeros(3), "b": torch.zeros(3, device="meta")}, [3])
    assert td.device is None and td["b"].is_meta and td["a"].device.type == "cpu"
    td["n"] = TensorDict({"c": torch.zeros(3)}, [3], device="cpu")
    assert td["n"].device == torch.device("cpu") and td.device is None


def test_nested_tensordicts_get_the_device_of_their_parent() -> None:
    nested = TensorDict({"b": torch.zeros(3)}, [3])
    td = TensorDict({"n": nested}, [3], device="cpu")
    assert td["n"].device == torch.device("cpu") and nested.device is None


def test_a_device_is_unset_set_by_the_leaves_and_survives_operations() -> None:
    td = TensorDict({"a": torch.zeros(3), "n": {"b": torch.zeros(3)}}, [3], device="cpu")
    for result in (td[0], td + 1, td.clone(), td.reshape(1, 3), td.select("a"), torch.stack([td, td]), td.double()):
        assert result.device == torch.device("cpu")
    assert td.clear_device_().device is None and td["n"].device is None
    assert td.auto_device_().device == torch.device("cpu")
    mixed = TensorDict({"a": torch.zeros(3), "b": torch.zeros(3, device="meta")}, [3])
    assert mixed.auto_device_().device is None
    assert torch.stack([td, td.clone().clear_device_()]).device == torch.device("cpu")
    assert torch.stack([td.clone().clear_device_(), td]).device is None


def test_in_place_writes_copy_between_devices_and_keep_the_tensor() -> None:
    td = TensorDict({"a": torch.zeros(3)}, [3], device="cpu")
    before = td["a"]
    td.set_("a", torch.ones(3, dtype=torch.float64))
    assert td["a"] is before and before.dtype == torch.float32 and before.all()


# advanced indexing ---------------------------------------------------------------------------------------------------


def test_positions_that_searchsorted_finds_are_an_index() -> None:
    times = torch.tensor([0.0, 1.0, 2.5, 4.0])
    td = TensorDict({"time": times, "n": {"x": torch.arange(8).reshape(4, 2)}}, [4])
    asked = torch.tensor([[0.5, 2.5], [3.9, 0.0]])
    found = torch.searchsorted(td["time"].contiguous(), asked)
    rows = td[found]
    assert rows.batch_size == (2, 2) and rows["n", "x"].equal(td["n", "x"][found])
    assert rows["time"].ge(asked).all()
    order = td["time"].argsort(descending=True)
    assert td[order]["n", "x"][:, 0].tolist() == [6, 4, 2, 0]
    top = TensorDict({"score": torch.tensor([[1.0, 5.0, 3.0], [9.0, 2.0, 4.0]])}, [2, 3])
    best = top["score"].topk(2, dim=1).indices
    assert top.gather(1, best)["score"].tolist() == [[5.0, 3.0], [9.0, 4.0]]
    assert top[torch.arange(2)[:, None], best]["score"].tolist() == [[5.0, 3.0], [9.0, 4.0]]


def test_non_tensor_values_follow_an_advanced_index() -> None:
    td = TensorDict({"a": torch.arange(3), "s": ["p", "q", "r"], "t": NonTensorData("all")}, [3])
    assert td[torch.tensor([[2, 0], [1, 1]])]["s"] == [["r", "p"], ["q", "q"]]
    assert isinstance(td[torch.tensor([2, 0])].get("t"), NonTensorData)
    assert isinstance(lazy_stack(list(td.unbind(0)))[[2, 0]], LazyStackedTensorDict)


def test_the_shape_is_set_as_the_batch_size():
    td = TensorDict({"a": torch.ones(3, 4)})
    td.shape = [3]
    assert td.batch_size == (3,)
    with pytest.raises(RuntimeError, match="batch"):
        td.shape = [5]


def test_a_batch_with_a_size_that_differs_has_no_number_of_positions():
    ragged = lazy_stack([TensorDict({}, [2]), TensorDict({}, [3])])
    assert ragged.numel() == 1 and TensorDict({}, [2, -1]).numel() == 1 and TensorDict({}, [2, 3]).numel() == 6
