"""Calls that the differential fuzzer found: what they give is what programs written for the reference rely on."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from tensordict_core import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    UnbatchedTensor,
    lazy_stack,
    maybe_dense_stack,
    pad,
)


def rows(n: int = 2) -> LazyStackedTensorDict:
    return lazy_stack([TensorDict({"a": torch.full((3,), float(i)), "n": {"b": torch.ones(3)}}, [3]) for i in range(n)])


# shapes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda td: td.transpose(0, -2),
        lambda td: td.swapaxes(1, 1),
        lambda td: td.swapdims(-1, 1),
        lambda td: td.movedim(1, 1),
        lambda td: td.moveaxis((0, 1), (0, 1)),
        lambda td: td.flatten(0, 0),
    ],
)
def test_a_dimension_that_stays_where_it_is_leaves_a_lazy_stack_itself(call):
    td = rows()
    assert call(td) is td


def test_one_value_stays_one_when_a_dimension_of_size_1_expands():
    value = NonTensorData("a", batch_size=[1]).expand(3)
    assert type(value) is NonTensorData and value.batch_size == (3,)
    td = TensorDict({"s": "text", "n": {"s": "other"}}, [1])
    assert td.expand(3)["s"] == "text" and td.expand(3)["n", "s"] == "other"
    assert td.expand(2, 3)["s"] == [["text"] * 3] * 2


def test_one_value_stays_one_in_broadcast_to_and_expand_as():
    td = TensorDict({"s": "text", "a": torch.zeros(3)}, [3])
    assert td.broadcast_to((2, 3))["s"] == "text"
    assert td.expand_as(TensorDict({"s": "", "a": torch.zeros(2, 3)}, [2, 3]))["s"] == "text"
    assert td.expand_as(torch.zeros(2, 3))["s"] == [["text"] * 3] * 2


def test_padding_by_nothing_keeps_one_value():
    assert pad(TensorDict({"s": "text"}, [3]), [0, 0])["s"] == "text"
    assert pad(TensorDict({"s": "text"}, [1]), [0, 1])["s"] == ["text", None]


def test_rot90_requires_two_batch_dimensions():
    with pytest.raises(RuntimeError, match="requires at least 2 batch dimensions"):
        TensorDict({}, [3]).rot90(1, 0)


def test_lists_of_values_and_lazy_stacks_are_not_contiguous():
    assert TensorDict({"a": torch.zeros(2), "s": "text"}, [2]).is_contiguous()
    assert not TensorDict({"s": NonTensorStack("a", "b")}, [2]).is_contiguous()
    assert not TensorDict({"n": rows()}, [2]).is_contiguous()
    assert not TensorDict({"a": torch.zeros(3, 2).T}, [2]).is_contiguous()


# locks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda td: td + torch.ones(3),
        lambda td: torch.ones(3) * td,
        lambda td: td.maximum(torch.ones(3)),
        lambda td: td.lerp(torch.ones(3), 0.5),
        lambda td: td.where(torch.ones(3, dtype=torch.bool), td),
        lambda td: td.type(torch.float64),
        lambda td: td.softmax(0),
    ],
)
def test_results_of_tensors_with_dimensions_are_not_locked(call):
    assert not call(TensorDict({"a": torch.zeros(3)}, [3], lock=True)).is_locked


@pytest.mark.parametrize("call", [lambda td: td + 1, lambda td: td + torch.ones(()), lambda td: td * td, torch.exp])
def test_results_of_numbers_and_tensordicts_are_locked_as_their_source(call):
    assert call(TensorDict({"a": torch.zeros(3)}, [3], lock=True)).is_locked


# constructors --------------------------------------------------------------------------------------------------------


class Batch(TensorDict):
    pass


def test_constructors_of_a_subclass_make_instances_of_it():
    items = [{"a": 1, "b": {"c": 2}}] * 2
    assert type(Batch.from_list(items)) is Batch and type(Batch.from_any(items[0])) is Batch
    stack = Batch.from_list(items, lazy=True)
    assert type(stack) is LazyStackedTensorDict and type(stack[0]) is Batch
    array = np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")])
    assert type(Batch.from_struct_array(array)) is Batch and type(Batch.from_any(array)) is Batch
    td = TensorDict({"a": 1})
    assert Batch.from_any(td) is td


def test_vmap_maps_a_subclass_and_gives_one():
    td = Batch({"a": torch.arange(3.0), "n": {"b": torch.zeros(3, 2)}}, [3])
    seen = []
    out = torch.vmap(lambda row: seen.append(type(row)) or row + 1)(td)
    assert seen == [Batch] and type(out) is Batch and out.batch_size == (3,)
    assert out["a"].tolist() == [1.0, 2.0, 3.0] and out["n", "b"].shape == (3, 2)

    class Rows(LazyStackedTensorDict):
        pass

    stack = Rows(TensorDict({"a": torch.zeros(3)}), TensorDict({"a": torch.ones(3)}))
    assert torch.vmap(lambda row: row["a"].sum())(stack).tolist() == [0.0, 3.0]


def test_a_lazy_stack_made_of_a_list_is_lazy():
    td = LazyStackedTensorDict.from_list([{"a": 1}, {"a": 2}], lazy=False)
    assert type(td) is LazyStackedTensorDict and td["a"].tolist() == [1, 2]


def test_the_length_of_a_list_is_its_first_batch_size():
    for items in ([{"a": 1}, {"a": 2}], [{"a": torch.zeros(2)}, {"a": torch.zeros(3)}]):
        with pytest.raises(ValueError, match=r"does not match the length of the list \(2\)"):
            TensorDict.from_list(items, batch_size=[3])


def test_new_tensordicts_name_the_last_dimensions():
    td = TensorDict({"a": torch.zeros(3, 4), "n": TensorDict({}, [3, 4, 5])}, [3, 4], names=["x", "y"])
    assert td.new_zeros(2, 3, 4).names == [None, "x", "y"] and td.new_ones(4).names == ["y"]
    assert td.new_full([2, 2], 1.0).names == ["x", "y"] and td.new_empty([]).names == []


def test_lazy_stacks_without_entries_keep_their_nested_nodes():
    td = rows().new_zeros([2, 3], empty_lazy=True)
    assert list(td.keys()) == ["n"] and td["n"].batch_size == (2, 3) and td["n"].is_empty()


def test_unbatched_entries_stay_where_lazy_stacks_are_emptied():
    td = TensorDict({"u": UnbatchedTensor(torch.arange(5)), "n": rows()}, [2]).new_zeros([2], empty_lazy=True)
    assert td.get("u").data.shape == (5,) and list(td["n"].keys()) == ["n"]


# writes --------------------------------------------------------------------------------------------------------------


def test_one_number_fills_an_entry_in_place():
    td = TensorDict({"a": torch.zeros(3)})
    a = td["a"]
    td.set_("a", 1.0)
    assert td["a"] is a and a.tolist() == [1.0] * 3
    td = TensorDict({"a": torch.zeros(3), "n": {"b": torch.zeros(3, 2)}, "s": "text"}, [3])
    td.update_({"a": 2, "n": {"b": torch.tensor(3.0)}, "s": 3})
    assert td["s"] == 3 and td["a"].tolist() == [2.0] * 3 and td["n", "b"].tolist() == [[3.0, 3.0]] * 3
    with pytest.raises(RuntimeError, match="does not start with the batch size"):
        td.set_("a", 1.0)


def test_keys_to_update_choose_before_values_are_looked_at():
    td = TensorDict({"a": torch.zeros(2), "n": {"b": torch.zeros(2), "c": torch.zeros(2)}}, [2])
    td.update_at_({"a": 1.0, "z": torch.zeros(7)}, [0, 1], keys_to_update=["y"])
    assert td["a"].tolist() == [0.0, 0.0]
    td.update_at_({"a": 1.0, "n": {"b": 2.0, "c": 3.0}}, 0, keys_to_update=[("n", "b")])
    assert td["n", "b"].tolist() == [2.0, 0.0] and td["n", "c"].tolist() == [0.0, 0.0]


def test_an_inplace_selection_has_the_order_of_its_keys():
    td = TensorDict({"a": 1, "n": {"x": 1, "y": 2}, "b": 2})
    td.select("b", ("n", "y"), ("n", "x"), inplace=True)
    assert list(td.keys()) == ["b", "n"] and list(td["n"].keys()) == ["y", "x"]


def test_a_key_through_a_leaf_is_named_by_split_keys():
    with pytest.raises(ValueError, match="is a Tensor, not a tensordict"):
        TensorDict({"a": torch.zeros(2)}).split_keys([("a", "b")])
    with pytest.raises(KeyError, match='"z"'):
        TensorDict({"a": torch.zeros(2)}).split_keys(["z"])


def test_a_tensordict_is_renamed_to_something():
    with pytest.raises(ValueError, match="got none"):
        TensorDict({}).rename()


# reads ---------------------------------------------------------------------------------------------------------------


def test_a_missing_value_without_a_default_is_an_error():
    td = TensorDict({"a": torch.zeros(2), "n": {"s": "text"}})
    assert td.get_non_tensor(("n", "s")) == "text" and td.get_non_tensor("z", None) is None
    assert td.get_non_tensor("z", "default") == "default"
    for key in ("z", ("n", "z")):
        with pytest.raises(KeyError, match="z"):
            td.get_non_tensor(key)


def test_the_empty_tuple_is_not_a_key():
    for read in (lambda td: td.get(()), lambda td: td.get((), None)):
        with pytest.raises(KeyError, match="empty tuple is not a key"):
            read(TensorDict({"a": 1}))


def test_one_limit_keeps_the_lock_and_two_limits_do_not():
    td = TensorDict({"a": torch.zeros(2)}, lock=True)
    assert td.clamp(1).is_locked and td.clamp(max=1).is_locked and not td.clamp(0, 1).is_locked


def test_plain_tensors_of_a_tensordict_include_its_parameters():
    weight = torch.nn.Parameter(torch.zeros(2))
    assert TensorDict({"w": weight}).as_tensor()["w"] is weight


# non-tensor data -----------------------------------------------------------------------------------------------------


def test_non_tensor_data_stay_non_tensor_data_in_copies():
    for data in (NonTensorData("a", batch_size=[2]), NonTensorStack("a", "b")):
        for copied in (data.to_tensordict(), data.empty(), data.empty(recurse=True), data.pin_memory()):
            assert type(copied) is type(data) and copied.tolist() == data.tolist() and copied.batch_size == (2,)


def test_a_stack_of_values_has_elements():
    stack = NonTensorStack.from_list([["a", "b"], ["c", "d"]])
    assert stack.stack_dim == 0 and [part.tolist() for part in stack.tensordicts] == [["a", "b"], ["c", "d"]]
    assert NonTensorStack.from_nontensordata(NonTensorData("a", batch_size=[2, 1])).tolist() == [["a"], ["a"]]
    assert type(NonTensorStack.from_nontensordata(NonTensorData("a"))) is NonTensorData


def test_one_value_for_all_positions_is_not_written_at_one():
    for error in (ValueError, RuntimeError):
        with pytest.raises(error, match="one value for all elements"):
            NonTensorData("a", batch_size=[2])[0] = NonTensorData("b")


# ragged lazy stacks in a tensordict ----------------------------------------------------------------------------------


def with_ragged_node() -> TensorDict:
    """Return a tensordict whose nested lazy stack has elements of different keys and shapes."""
    elements = [TensorDict({"q": torch.tensor(1.0)}), TensorDict({"q": torch.ones(2), "e": torch.tensor(3.0)})]
    return TensorDict({"n": lazy_stack(elements), "a": torch.arange(2.0)}, [2])


def test_where_keeps_the_entries_of_ragged_nodes():
    td = with_ragged_node()
    mask = torch.tensor([True, False])
    filled = td.where(mask, 0.0)
    assert list(filled.keys()) == ["n", "a"] and filled["a"].tolist() == [0.0, 0.0]
    assert filled["n"][0]["q"] == 1 and filled["n"][1]["q"].tolist() == [0.0, 0.0] and filled["n"][1]["e"] == 0
    chosen = td.where(mask, td * 2)
    assert chosen["n"][0]["q"] == 1 and chosen["n"][1]["q"].tolist() == [2.0, 2.0] and chosen["n"][1]["e"] == 6
    with pytest.raises(KeyError, match="n not found"):
        td.where(mask, td.exclude("n"))


def test_an_operand_of_more_dimensions_keeps_the_entries_of_ragged_nodes():
    result = with_ragged_node() + torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert result.batch_size == (3, 2)
    assert result["n"][2, 0]["q"] == 6 and result["n"][1, 1]["q"].tolist() == [5.0, 5.0] and result["n"][0, 1]["e"] == 5


@pytest.mark.parametrize("default", [0, "intersection"])
def test_a_default_completes_ragged_nodes_element_by_element(default):
    td = with_ragged_node()
    result = td.sub(td, default=default)
    assert list(result.keys()) == ["n", "a"]
    assert result["n"][1]["q"].tolist() == [0.0, 0.0] and result["n"][1]["e"] == 0 and result["n"][0]["q"] == 0


def test_a_default_replaces_a_missing_ragged_node():
    td = with_ragged_node()
    assert td.rsub(td.exclude("n"), default=0)["n"][1]["q"].tolist() == [-1.0, -1.0]
    assert td.exclude("n").sub(td, default=0)["n"][1]["e"] == -3
    assert list(td.sub(td.exclude("n"), default="intersection").keys()) == ["a"]


@pytest.mark.parametrize("name", ["addcmul", "addcdiv", "lerp"])
def test_ternary_operations_of_ragged_stacks_take_operands_of_more_dimensions(name):
    stack = lazy_stack([TensorDict({"q": torch.tensor(1.0)}), TensorDict({"q": torch.ones(2)})])
    other = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    result = getattr(stack, name)(stack, other)
    assert result.batch_size == (3, 2)
    for i in range(3):
        for j in range(2):
            leaf = stack[j]["q"]
            assert torch.equal(result[i, j]["q"], getattr(torch, name)(leaf, leaf, other[i, j]))


def test_softmax_over_elements_of_other_keys_is_an_error():
    with pytest.raises(RuntimeError, match="exclusive keys"):
        with_ragged_node().softmax(0)
    stack = lazy_stack([TensorDict({"q": torch.zeros(3)}, [3]), TensorDict({"e": torch.zeros(3)}, [3])], 1)
    with pytest.raises(RuntimeError, match="exclusive keys"):
        stack.softmax(1)
    assert stack.softmax(0)[:, 1]["e"].tolist() == [pytest.approx(1 / 3)] * 3


# keys, sizes and options ---------------------------------------------------------------------------------------------


def test_an_unbatched_tensor_is_not_written_at_an_index():
    td = TensorDict({"u": UnbatchedTensor(torch.zeros(5)), "n": {"u": UnbatchedTensor(torch.zeros(5))}}, [4])
    for key in ("u", ("n", "u")):
        with pytest.raises(RuntimeError, match="is an unbatched tensor"):
            td.set_at_(key, 1.0, 0)


def test_new_tensordicts_without_lazy_stacks_keep_names_and_devices_of_values():
    td = TensorDict({"a": torch.ones(2, 3), "s": "text"}, [2, 3], names=[None, "y"])
    for new in (td.new_zeros(4, 2, 3, empty_lazy=True), td.new_full([4, 2, 3], 1, empty_lazy=True)):
        assert new.names == [None, None, "y"]
    assert td.new_ones(3, device="cpu", empty_lazy=True).get("s").device == torch.device("cpu")


def test_nested_batch_sizes_of_an_empty_tree_start_with_the_new_one():
    td = TensorDict({"n": TensorDict({}, [3, 4])}, [3])
    assert td.empty(True, batch_size=[3, 4, 2])["n"].batch_size == (3, 4, 2)
    assert td.empty(True, batch_size=[])["n"].batch_size == (3, 4)
    with pytest.raises(RuntimeError, match="'n'"):
        td.empty(True, batch_size=[5])


def test_a_key_of_fromkeys_does_not_replace_a_nested_one():
    with pytest.raises(KeyError, match="'a' is already present"):
        TensorDict.fromkeys([("a", "b"), "a"])


@pytest.mark.parametrize(
    "call",
    [
        lambda td: td.update({"a": 1.0}, keys_to_update=[()]),
        lambda td: td.update_({"a": torch.zeros(3)}, keys_to_update=[()]),
        lambda td: td.update_at_({"a": 1.0}, 0, keys_to_update=[()]),
        lambda td: td.select("a", (), strict=False),
        lambda td: () in td,
    ],
)
@pytest.mark.parametrize("error", [KeyError, TypeError, RuntimeError])
def test_the_empty_tuple_among_keys_is_an_error(call, error):
    with pytest.raises(error, match="Only NestedKeys are supported"):
        call(TensorDict({"a": torch.zeros(3)}, [3]))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda td: td.get_at("a", index=0, idx=0), "give the index once"),
        (lambda td: td.broadcast_to(torch.zeros(5, 5)), "broadcast_to takes a shape"),
        (lambda td: td.min((), reduce=True), "takes one dim, got"),
        (lambda td: td.apply(lambda x: x + 1, inplace=True, out=7), "a tensordict as out, got int"),
        (lambda td: td.norm(out=[]), "a tensordict as out, got list"),
        (lambda td: td.from_any([1.0, 2.0], device=1.5), r"got \(float\)"),
    ],
)
def test_a_wrong_argument_is_named(call, words):
    with pytest.raises(TypeError, match=words):
        call(TensorDict({"a": torch.zeros(3)}, [3]))


def test_a_default_of_split_keys_has_the_batch_size_of_a_lazy_stack():
    stack = lazy_stack([TensorDict({}), TensorDict({})])
    for call in (stack.clone().separates, lambda *keys, default: stack.split_keys(keys, default=default)[0]):
        with pytest.raises(RuntimeError, match="batch dimension mismatch"):
            call("a", default=3)
        assert call("a", default=torch.tensor([1.0, 2.0]))["a"].tolist() == [1.0, 2.0]
        assert call("a", default="text")["a"] == ["text", "text"]


def test_an_empty_tuple_as_an_entry_is_an_empty_tensor():
    assert TensorDict({"a": (), "b": []})["a"].shape == (0,)


def test_a_stack_of_unbatched_tensors_alone_is_mapped_by_vmap():
    stack = lazy_stack([TensorDict({"u": UnbatchedTensor(torch.zeros(2))}, [1])] * 3)
    result = torch.vmap(lambda td: td + 1)(stack)
    assert result["u"].tensor.tolist() == [1.0, 1.0]


def test_deep_copies_of_results_of_autograd_are_clones():
    source = torch.ones(2, requires_grad=True)
    td = TensorDict({"a": source, "n": {"b": source}, "l": lazy_stack([TensorDict({"c": source})] * 2)[0]}) * 2
    copied = copy.deepcopy(td)
    assert copied["a"].data_ptr() != td["a"].data_ptr() and copied["a"].equal(td["a"])
    (copied["a"].sum() + copied["n", "b"].sum() + copied["l", "c"].sum()).backward()
    assert source.grad.tolist() == [6.0, 6.0]
    assert copy.deepcopy(TensorDict({"a": source}))["a"].is_leaf


def test_rsub_of_integers_takes_no_fraction_as_alpha():
    td = TensorDict({"a": torch.arange(3)}, [3])
    with pytest.raises(RuntimeError, match="alpha must not be a floating point number"):
        td.rsub(td, alpha=0.5)
    assert td.rsub(torch.ones(3), alpha=0.5)["a"].tolist() == [1.0, 0.5, 0.0]


def test_flatten_without_batch_dimensions_checks_its_arguments():
    for call in (lambda td: td.flatten(2), lambda td: td.flatten(0, 1)):
        with pytest.raises(IndexError, match="out of range"):
            call(TensorDict({"a": 1}))
    assert TensorDict({"a": 1}).flatten().batch_size == (1,)


def test_stacks_that_are_dense_in_part_keep_the_order_of_keys():
    first = TensorDict({"a": {"c": torch.zeros(3)}, "b": torch.zeros(3)})
    stack = maybe_dense_stack([first, TensorDict({"a": {}, "b": torch.ones(3)})])
    assert list(stack.keys()) == ["a", "b"] and type(stack["a"]) is LazyStackedTensorDict


def test_a_safe_renaming_does_not_replace_the_entry_of_one_element():
    stack = lazy_stack([TensorDict({"b": torch.zeros(2), "a": torch.ones(2)}), TensorDict({"b": torch.zeros(2)})])
    for td, old, new in ((stack, "b", "a"), (TensorDict({"n": stack}, [2]), ("n", "b"), ("n", "a"))):
        with pytest.raises(KeyError, match="already present"):
            td.rename_key_(old, new, safe=True)
    assert stack[0]["a"].tolist() == [1.0, 1.0]
    assert list(stack.rename_key_("b", "c", safe=True)[0].keys()) == ["a", "c"]


def test_clamp_of_bools_takes_a_bool_and_a_number():
    td = TensorDict({"a": torch.tensor([True, False])}, [2])
    assert td.clamp(True, -1)["a"].equal(torch.clamp(td["a"], True, -1))
