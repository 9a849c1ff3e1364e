"""State dicts: saving, loading, and compatibility with modules and checkpointing tools."""

from __future__ import annotations

import io
from collections import OrderedDict

import pytest
import torch
from torch import nn

from tensordict_core import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    UnbatchedTensor,
    lazy_stack,
)


def full() -> TensorDict:
    return TensorDict(
        {
            "a": torch.arange(12.0).reshape(3, 4),
            "b": TensorDict({"c": torch.ones(3, 2)}, [3, 2], names=["n", "m"]),
            "s": "text",
            "v": ["x", "y", "z"],
            "d": NonTensorData({"k": [1, None]}, batch_size=[3]),
            "u": UnbatchedTensor(torch.zeros(7)),
            "e": {},
            "l": lazy_stack([TensorDict({"q": torch.full((i,), i)}) for i in range(3)]),
        },
        [3],
        names=["n"],
    )


def assert_full(td: TensorDict) -> None:
    assert td.batch_size == torch.Size([3]) and td.names == ["n"]
    assert torch.equal(td["a"], torch.arange(12.0).reshape(3, 4))
    assert td["b"].batch_size == torch.Size([3, 2]) and td["b"].names == ["n", "m"]
    assert (td["s"], td["v"], td["d"]) == ("text", ["x", "y", "z"], {"k": [1, None]})
    assert isinstance(td.get("v"), NonTensorStack) and td[1]["v"] == "y"
    assert isinstance(td.get("u"), UnbatchedTensor) and td["u"].shape == (7,)
    assert td["e"].is_empty() and td["e"].batch_size == torch.Size([3])
    assert type(td["l"]) is LazyStackedTensorDict and td["l"][2]["q"].tolist() == [2, 2]


@pytest.mark.parametrize("flatten", [True, False])
def test_loading_into_an_empty_tensordict_restores_keys_values_and_batch_sizes(flatten):
    state = full().state_dict(flatten=flatten)
    assert type(state) is OrderedDict
    target = TensorDict({})
    assert target.load_state_dict(state) is target
    assert_full(target)


def through_save(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_a_state_dict_survives_files():
    assert_full(TensorDict({}).load_state_dict(through_save(full().state_dict())))


def test_checkpointing_tools_that_keep_only_entries_keep_every_value():
    state = OrderedDict(full().state_dict().items())
    assert_full(full().load_state_dict(state))


def test_keys_are_those_of_the_entries_and_sizes_and_names_are_in_the_attribute():
    td = TensorDict({"a": torch.ones(3), "n": TensorDict({"x": torch.zeros(3, 4)}, [3, 4])}, [3], names=["time"])
    for source, size in ((td, [3]), (LazyStackedTensorDict(td, td.clone()), [2, 3])):
        state = source.state_dict()
        assert list(state) == ["a", "n.x"]
        back = TensorDict({}).load_state_dict(state)
        assert list(back.batch_size) == size and back.names == source.names
        assert back["n"].batch_size == source["n"].batch_size


def test_keys_have_the_form_of_module_state_dicts():
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    td = TensorDict(module.state_dict()).unflatten_keys(".")
    assert list(td.state_dict()) == list(module.state_dict())
    other = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    other.load_state_dict(td.state_dict())
    assert torch.equal(other[1].weight, module[1].weight)
    flat = TensorDict(other.state_dict()).zero_()
    flat.load_state_dict(module.state_dict())
    assert torch.equal(flat["1.weight"], module[1].weight)
    nested = flat.unflatten_keys(".").zero_().load_state_dict(module.state_dict())
    assert torch.equal(nested["1", "weight"], module[1].weight)


def test_entries_share_memory_and_prefix_and_destination_are_used():
    td = TensorDict({"w": torch.zeros(2, requires_grad=True), "n": {"x": torch.ones(2)}})
    state = td.state_dict()
    assert not state["w"].requires_grad and state["w"].data_ptr() == td["w"].data_ptr()
    assert td.state_dict(keep_vars=True)["w"] is td["w"]
    kept = OrderedDict(z=1)
    assert td.state_dict(kept, prefix="p.") is kept and list(kept) == ["z", "p.w", "p.n.x"]


def test_values_are_written_in_place_unless_assigned():
    state = TensorDict({"w": torch.ones(2), "n": {"x": torch.ones(2)}}).state_dict()
    td = TensorDict({"w": torch.zeros(2, requires_grad=True), "n": {"x": torch.zeros(2)}}).lock_()
    leaf = td["w"]
    td.load_state_dict(state)
    assert td["w"] is leaf and leaf.tolist() == [1, 1] and td["n", "x"].tolist() == [1, 1]
    td.unlock_().load_state_dict(state, assign=True)
    assert td["w"].data_ptr() == state["w"].data_ptr()


def test_assigning_replaces_shapes_and_batch_sizes():
    td = TensorDict({"a": torch.zeros(2), "n": {"x": torch.zeros(2)}}, [2])
    source = TensorDict({"a": torch.zeros(3), "n": TensorDict({"x": torch.zeros(3, 4)}, [3, 4])}, [3])
    td.load_state_dict(source.state_dict(), assign=True)
    assert td.batch_size == torch.Size([3]) and td["n"].batch_size == torch.Size([3, 4])
    with pytest.raises(
        RuntimeError, match=r"batch_size=torch.Size\(\[3\]\) and value.shape=torch.Size\(\[5\]\) for key 'a'"
    ):
        td.load_state_dict(TensorDict({"a": torch.zeros(5), "n": {"x": torch.zeros(5)}}).state_dict())


def test_mismatched_keys_are_refused_before_anything_is_written():
    td = TensorDict({"a": torch.zeros(1), "n": {"x": torch.zeros(1)}})
    state = TensorDict({"a": torch.ones(1), "n": {"y": torch.ones(1)}}).state_dict()
    with pytest.raises(RuntimeError, match=r"missing \[\('n', 'x'\)\], unexpected \[\('n', 'y'\)\]"):
        td.load_state_dict(state)
    assert td["a"] == 0
    td.load_state_dict(state, strict=False)
    assert td["a"] == 1 and td["n"].sorted_keys == ["x", "y"]
    with pytest.raises(RuntimeError, match="locked"):
        TensorDict({}).lock_().load_state_dict(state)


def test_non_tensor_values_are_replaced():
    td = TensorDict({"s": "old", "v": ["a", "b"]}, [2])
    td.load_state_dict(TensorDict({"s": "new", "v": ["c", "d"]}, [2]).state_dict())
    assert td["s"] == "new" and td["v"] == ["c", "d"]
    td.load_state_dict(TensorDict({"s": ["p", "q"], "v": "one"}, [2]).state_dict())
    assert td["s"] == ["p", "q"] and td["v"] == "one"


def test_lazy_stacks_load_element_by_element_or_combined():
    def ragged(value: float) -> LazyStackedTensorDict:
        return lazy_stack([TensorDict({"q": torch.full((n,), value), "n": {"x": value}}) for n in (1, 2)])

    target = ragged(0.0)
    leaf = target[1]["q"]
    target.load_state_dict(ragged(1.0).state_dict())
    assert target[1]["q"] is leaf and leaf.tolist() == [1, 1] and target["n", "x"].tolist() == [1, 1]
    dense = TensorDict({"a": torch.zeros(2)}, [2])
    dense.load_state_dict(lazy_stack([TensorDict({"a": i}) for i in (1.0, 2.0)]).state_dict())
    assert dense["a"].tolist() == [1, 2]
    lazy = lazy_stack([TensorDict({"a": 0.0}) for _ in range(2)])
    lazy.load_state_dict(dense.state_dict())
    assert lazy[1]["a"] == 2
    with pytest.raises(RuntimeError, match="lazy stack of 3 elements"):
        target.load_state_dict(
            lazy_stack([TensorDict({"q": torch.zeros(n), "n": {"x": 1.0}}) for n in range(3)]).state_dict()
        )


def test_a_key_with_a_dot_names_the_entry_that_the_tensordict_has():
    source = TensorDict({"a.b": 1, "c": {"d.e": 2}})
    assert list(source.state_dict()) == ["a.b", "c.d.e"]
    target = TensorDict({"a.b": 0, "c": {"d.e": 0}}).load_state_dict(source.state_dict())
    assert target["a.b"] == 1 and target["c", "d.e"] == 2
    assert TensorDict({}).load_state_dict(source.state_dict())["c", "d", "e"] == 2
    whole = TensorDict({}).load_state_dict(source.state_dict(), from_flatten=False)
    assert list(whole.keys()) == ["a.b", "c.d.e"]
    with pytest.raises(KeyError, match="flatten=False"):
        TensorDict({"a.b": 1, "a": {"b": 2}}).state_dict()
    with pytest.raises(KeyError, match="'__value'"):
        TensorDict({"__value": 1}).state_dict()


def test_state_dicts_whose_metadata_is_an_attribute_load():
    state = OrderedDict({"a": torch.ones(3), "b.c": torch.ones(3, 2)})
    state._metadata = OrderedDict(
        {
            "": {"batch_size": torch.Size([3]), "device": None},
            "b": {"batch_size": torch.Size([3, 2]), "device": None},
            "s": {"batch_size": torch.Size([3]), "_type": "NonTensorData", "_non_tensor": {"data": "text"}},
        }
    )
    td = TensorDict({}).load_state_dict(state)
    assert td["b"].batch_size == torch.Size([3, 2]) and td["s"] == "text"


def test_state_dicts_of_the_oldest_format_load():
    inner = OrderedDict({"c": torch.ones(3, 2), "__batch_size": torch.Size([3, 2]), "__device": None})
    state = OrderedDict({"a": torch.ones(3), "b": inner, "__batch_size": torch.Size([3]), "__device": None})
    td = TensorDict({}).load_state_dict(state)
    assert td.batch_size == torch.Size([3]) and td["b"].batch_size == torch.Size([3, 2])


def test_a_state_dict_describes_its_nodes_in_an_attribute():
    td = TensorDict({"1": 1, "n": TensorDict({"x": torch.zeros(3, 4)}, [3, 4]), "e": {}})
    state = td.state_dict()
    size = torch.Size([])
    assert state._metadata == {
        "": {"batch_size": size, "device": None},
        "n": {"batch_size": torch.Size([3, 4]), "device": None},
        "e": {"batch_size": size, "device": None},
    }
    assert set(td.state_dict(prefix="p.")._metadata) == {"p", "p.n", "p.e"}
    nested = td.state_dict(flatten=False)
    assert set(nested._metadata) == {""} and nested["n"]._metadata[""]["batch_size"] == (3, 4)
    into = nn.Linear(2, 2).state_dict()
    td.state_dict(destination=into, prefix="td.")
    assert into._metadata[""] == {"version": 1} and into._metadata["td.n"]["batch_size"] == (3, 4)
    plain = td.state_dict(destination={})  # a dictionary without the attribute has entries for what it holds
    assert list(plain) == ["1", "n.__batch_size", "n.x", "e.__batch_size"]


@pytest.mark.parametrize("flatten", [True, False])
def test_a_state_dict_loads_with_its_attribute_and_without(flatten):
    td = TensorDict({"a": torch.ones(3), "n": TensorDict({"x": torch.zeros(3, 4), "s": "t"}, [3, 4]), "e": {}}, [3])
    stack = LazyStackedTensorDict(td, td.clone())
    for source in (td, stack):
        saved = io.BytesIO()
        torch.save(source.state_dict(flatten=flatten), saved)
        saved.seek(0)
        state = torch.load(saved, weights_only=True)
        assert "batch_size" in state._metadata[""]
        for target, given in ((TensorDict({}), state), (source.to_tensordict(), dict(state))):
            back = target.load_state_dict(given)
            assert back.batch_size == source.batch_size and back["n"].batch_size == source["n"].batch_size
            assert "e" in back and back["n", "s"] == source["n", "s"] and (back["a"] == 1).all()
    whole = TensorDict({}).load_state_dict(TensorDict({"n": {"x": 1}}).state_dict(), from_flatten=False)
    assert list(whole.keys(True)) == ["n.x"]
    target = TensorDict({"x": torch.zeros(3)}, [3])
    assert target.load_state_dict(TensorDict({"x": torch.ones(3)}).state_dict()).batch_size == (3,)


def test_tensorclass_fields_in_the_metadata_attribute_load():
    state = OrderedDict({"a.x": torch.ones(3)})
    fields = {"label": "text", "unset": None}
    state._metadata = OrderedDict(
        {
            "": {"batch_size": torch.Size([3]), "device": None},
            "a": {"batch_size": torch.Size([3]), "device": None, "_type": "Point", "_non_tensor": fields},
        }
    )
    td = TensorDict({}).load_state_dict(state)
    assert td["a"].sorted_keys == ["label", "x"] and td["a", "label"] == "text"


def test_a_state_dict_whose_shapes_do_not_fit_changes_no_entry():
    td = TensorDict({"a": torch.zeros(2), "n": {"b": torch.zeros(2)}}, [2])
    with pytest.raises(RuntimeError, match=r"\('n', 'b'\)"):
        td.load_state_dict({"a": torch.ones(2), "n.b": torch.ones(5)})
    assert (td["a"] == 0).all()


def test_an_unbatched_tensor_is_an_entry_under_its_own_key_and_older_state_dicts_load():
    td = TensorDict({"a": torch.ones(3), "n": {"u": UnbatchedTensor(torch.ones(4))}}, [3])
    assert list(td.state_dict()) == ["a", "n.u"] and td.state_dict()["n.u"].shape == (4,)
    plain = OrderedDict({"a": torch.zeros(3), "n.u": torch.zeros(4)})
    older = OrderedDict({"a": torch.zeros(3), "n.u.__unbatched": torch.zeros(4)})
    for state in (plain, older, td.clone().zero_().state_dict()):
        back = td.clone().load_state_dict(state)
        assert isinstance(back.get(("n", "u")), UnbatchedTensor) and back["n", "u"].tolist() == [0.0] * 4
    assert isinstance(TensorDict({}, [3]).load_state_dict(older).get(("n", "u")), UnbatchedTensor)
