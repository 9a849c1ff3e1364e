"""Nested keys of lazy stacks whose elements differ in keys, in batch size or in the shapes of entries."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, TensorDict, lazy_stack


def partial() -> LazyStackedTensorDict:
    return lazy_stack([TensorDict({}), TensorDict({"n": {"a": torch.ones(2)}})])


def of_two_sizes() -> LazyStackedTensorDict:
    return lazy_stack([TensorDict({}, [2]), TensorDict({}, [3])])


@pytest.mark.parametrize("key", [("n", "v"), ("n", "m", "v")])
def test_set_non_tensor_keeps_the_entries_beside_the_new_one(key):
    for td, prefix in ((partial(), ()), (TensorDict({"s": partial()}, [2]), ("s",))):
        td.set_non_tensor((*prefix, *key), 1)
        assert td[1][(*prefix, "n", "a")].tolist() == [1.0, 1.0]
        assert td[(*prefix, *key)] == [1, 1]


def test_set_non_tensor_makes_nothing_that_a_refused_key_leaves_behind():
    td = TensorDict({"a": torch.zeros(2)}, [2])
    for key in (("a", "b"), ()):
        with pytest.raises(KeyError):
            td.set_non_tensor(key, 1)
    with pytest.raises(RuntimeError, match="locked"):
        td.lock_().set_non_tensor(("n", "v"), 1)
    assert list(td.keys(True)) == ["a"]


WRITES = [
    lambda td: td.set(("n", "v"), "x"),
    lambda td: td.set("n", {"v": "x"}),
    lambda td: td.set_non_tensor(("n", "v"), "x"),
    lambda td: td.update({"n": {"v": "x"}}),
    lambda td: td.create_nested("n").set(("n", "v"), "x"),
    lambda td: td.setdefault(("n", "v"), "x"),
]


@pytest.mark.parametrize("write", WRITES)
def test_a_nested_value_of_elements_of_several_batch_sizes_is_read_back(write):
    td = of_two_sizes()
    write(td)
    assert td["n", "v"] == [["x", "x"], ["x", "x", "x"]]
    assert [part["n"].batch_size for part in td.tensordicts] == [(2,), (3,)]


def test_nested_lists_are_spread_over_elements_of_several_batch_sizes():
    values = [["a", "b"], ["c", "d", "e"]]
    td = of_two_sizes().set("n", {"w": {"v": values}})
    assert td["n", "w", "v"] == values


@pytest.mark.parametrize("operand", [(), (2,), (1, 2), (3, 1, 2), (1, 1, 1), (3, 1, 1)])
@pytest.mark.parametrize("dim", [0, 1])
def test_an_operand_without_batch_dimensions_is_broadcast_with_a_lazy_stack_as_with_a_dense_one(operand, dim):
    elements = [TensorDict({"n": {"a": torch.full((3, 2), float(i))}}, [3]) for i in range(3)]
    stack, other = lazy_stack(elements, dim), TensorDict({"n": {"a": torch.rand(operand)}})
    expected = stack.to_tensordict()["n", "a"] - other["n", "a"]
    assert (stack - other)["n", "a"].equal(expected)
    assert stack.clone().sub_(other)["n", "a"].equal(expected)


def test_an_operand_without_batch_dimensions_is_added_to_ragged_entries():
    ragged = lazy_stack([TensorDict({"n": {"a": torch.zeros(2, i + 1)}}, [2]) for i in range(3)])
    for stack in (ragged, TensorDict({"s": ragged}, [3])["s"]):
        total = stack + TensorDict({"n": {"a": torch.ones(2, 1)}})
        assert [part["n", "a"].shape for part in total.tensordicts] == [(2, 1), (2, 2), (2, 3)]
        assert all(bool((part["n", "a"] == 1).all()) for part in total.tensordicts)


def test_an_operand_that_does_not_fit_the_stack_dim_is_refused():
    stack = lazy_stack([TensorDict({"a": torch.zeros(2)}) for _ in range(3)])
    with pytest.raises(RuntimeError, match="expanded size"):
        stack + TensorDict({"a": torch.zeros(2, 2)})


@pytest.mark.parametrize("shape", ["a", ("a",), (3.5,), [None]])
def test_broadcast_to_takes_integers_only(shape):
    td = TensorDict({"a": torch.zeros(3)}, [3])
    with pytest.raises(TypeError, match="broadcast_to takes a sequence of integers"):
        td.broadcast_to(shape)
    assert td.broadcast_to((torch.tensor(2), 3)).batch_size == (2, 3)


def test_unflattening_keys_of_a_locked_tensordict():
    td = TensorDict({"a.b": torch.zeros(2), "c": torch.ones(2)}, [2], lock=True)
    result = td.unflatten_keys(".")
    assert set(result.keys(True, True)) == {("a", "b"), "c"} and not result.is_locked
    with pytest.raises(RuntimeError, match="locked"):
        td.unflatten_keys(".", inplace=True)
    assert list(td.keys()) == ["a.b", "c"]
    plain = td.exclude("a.b").lock_()
    assert plain.unflatten_keys(".", inplace=True) is plain and plain.is_locked  # no key has the separator


def test_rows_of_lists_are_made_of_nested_tensordicts_of_more_batch_dimensions():
    td = TensorDict({"a": torch.tensor([1, 2]), "n": TensorDict({"s": torch.tensor([[3, 4], [5, 6]])}, [2, 2])}, [2])
    rows = td.tolist(tolist_first=True)
    assert [row["a"].item() for row in rows] == [1, 2]
    assert [[inner["s"].item() for inner in row["n"]] for row in rows] == [[3, 4], [5, 6]]


def test_rows_keep_values_that_are_none():
    td = TensorDict({"n": {"v": None}, "a": torch.zeros(2)}, [2])
    assert [row["n"] for row in td.tolist()] == [{"v": None}] * 2


@pytest.mark.parametrize("value", [torch.tensor(True), torch.tensor(False), torch.ones(2), 0, ""])
def test_an_is_leaf_that_is_not_callable_is_a_type_error(value):
    td = TensorDict({"a": torch.zeros(2), "n": {"b": torch.zeros(2)}}, [2])
    calls = (
        lambda: list(td.keys(True, is_leaf=value)),
        lambda: list(td.items(True, True, is_leaf=value)),
        lambda: list(td.values(True, is_leaf=value)),
        lambda: td.apply(torch.neg, is_leaf=value),
        lambda: td.named_apply(lambda name, leaf: leaf, is_leaf=value),
        lambda: td.flatten_keys(".", is_leaf=value),
    )
    for call in calls:
        with pytest.raises(TypeError, match="is not callable"):
            call()


@pytest.mark.parametrize("alpha", [None, 2])
def test_rsub_with_a_default_subtracts_the_leaf_that_this_side_lacks(alpha):
    td, other = TensorDict({"a": 1.0}), TensorDict({"k": 2.0})
    for stack in (lambda part: part, lambda part: lazy_stack([part, part])):
        result = stack(td).rsub(stack(other), alpha=alpha, default=10.0)
        factor = alpha or 1
        assert result["a"].unique().tolist() == [10.0 - factor * 1.0]
        assert result["k"].unique().tolist() == [2.0 - factor * 10.0]


@pytest.mark.parametrize("repeats", [torch.tensor([5, 5]), torch.tensor([[1, 1], [2, 2]]), torch.tensor([-1])])
def test_repetitions_are_checked_without_leaves_too(repeats):
    for td in (TensorDict({}, [3]), lazy_stack([TensorDict({}) for _ in range(3)])):
        with pytest.raises(RuntimeError, match="repeat"):
            td.repeat_interleave(repeats, 0)
        assert td.repeat_interleave(torch.tensor([1, 0, 2]), 0).batch_size == (3,)
        assert td.repeat_interleave(torch.tensor([2]), 0).batch_size == (6,)


def test_an_index_beyond_a_lazy_stack_is_named_where_values_are_written():
    stack = lazy_stack([TensorDict({"c": torch.zeros(4)}, [4])])
    with pytest.raises(IndexError, match="index 1 is out of bounds for dimension 0 with size 1"):
        stack[None, range(2)] = torch.ones(1, 2, 4)


def ragged() -> LazyStackedTensorDict:
    return lazy_stack([TensorDict({"c": torch.full((4, 1, *own), 1.0)}, [4, 1]) for own in ((), (2,), (3,))])


def test_empty_parts_of_ragged_stacks_keep_the_shapes_of_their_elements():
    assert ragged()[torch.tensor([2]), range(4), 1:].get("c").shape == (4, 0, 3)
    assert ragged()[torch.tensor([], dtype=torch.long), :, :0].batch_size == (0, 4, 0)
    parts = ragged().repeat_interleave(0, -2).unbind(0)
    assert [part["c"].shape for part in parts] == [(0, 1), (0, 1, 2), (0, 1, 3)]
    parts = ragged().lock_().repeat_interleave(torch.tensor([1, 0, 2, 0]), 1)
    assert [part["c"].shape for part in parts.unbind(0)] == [(3, 1), (3, 1, 2), (3, 1, 3)] and parts.is_locked
    assert ragged().repeat_interleave(2, 1, inplace=True).batch_size == (3, 8, 1)
    named = lazy_stack(list(ragged().unbind(0)))
    named.names = ["x", "y", "z"]
    assert named.repeat_interleave(0, 1).names == ["x", "y", "z"]


def test_a_default_of_separates_has_the_batch_size_of_its_node():
    td = TensorDict({"a": TensorDict({}, [3, 4, 1])}, [3, 4])
    assert td.separates(("a", "b"), default="x").get(("a", "b")).batch_size == (3, 4, 1)


@pytest.mark.parametrize("keys", [("n", ("n", "k")), (("n", "k"), "n")])
@pytest.mark.parametrize("value", [{"x": torch.zeros(2)}, torch.zeros(2), ["a", "b"]])
def test_selecting_a_node_and_a_key_that_it_lacks_is_a_key_error(keys, value):
    td = TensorDict({"n": value}, [2])
    with pytest.raises(KeyError):
        td.select(*keys)
    assert list(td.select(*keys, strict=False).keys()) == ["n"]


@pytest.mark.parametrize("index", [torch.tensor([True, False]), slice(0, 1), 0, True, torch.tensor([0]), [0]])
@pytest.mark.parametrize("source", [torch.ones(()), torch.ones(1), torch.ones(2)])
def test_written_rows_are_cast_where_those_of_tensors_are(index, source):
    for value in (source, TensorDict({"a": source}, source.shape)):
        td, tensor = TensorDict({"a": torch.zeros(2, dtype=torch.int32)}, [2]), torch.zeros(2, dtype=torch.int32)
        try:
            tensor[index] = source
        except (RuntimeError, IndexError):
            with pytest.raises(RuntimeError):
                td[index] = value
        else:
            td[index] = value
            assert td["a"].dtype is torch.int32
        assert torch.equal(td["a"], tensor)


def test_apply_on_nested_tensordicts_with_a_batch_size_keeps_ragged_ones():
    td = TensorDict({"c": {"m": ragged()}}, [3])
    assert td.apply(lambda node: node.clone(), batch_size=[], call_on_nested=True)["c", "m"].batch_size == (3, 4, 1)
    stack = lazy_stack([TensorDict({"b": {"a": torch.zeros(2)}}) for _ in range(3)])
    result = stack.apply(lambda node: node.clone(), batch_size=[3], call_on_nested=True)
    assert type(result["b"]) is LazyStackedTensorDict and result["b", "a"].shape == (3, 2)


@pytest.mark.parametrize("size", [[], [1], [3], [1, 3], [3, 3], [1, 3, 3], [1, 1]])
@pytest.mark.parametrize("index", [(), ..., slice(None), None, torch.tensor([0, 1, 2]), [2, 0, 1]])
def test_new_entries_of_an_indexed_write_are_broadcast_as_those_that_are_there(size, index):
    source = TensorDict({"q": torch.rand([*size, 3]), "n": {"q": torch.rand(size)}}, size)
    there = TensorDict({"q": torch.zeros(3, 3, 3), "n": {"q": torch.zeros(3, 3)}}, [3, 3])
    for td in (TensorDict({}, [3, 3]), TensorDict({"n": {}}, [3, 3]), there):
        td[index] = source
        expected = torch.zeros(3, 3, 3), torch.zeros(3, 3)
        expected[0][index], expected[1][index] = source["q"], source["n", "q"]
        assert td["q"].equal(expected[0]) and td["n", "q"].equal(expected[1])


def test_a_source_that_does_not_broadcast_adds_nothing():
    td = TensorDict({}, [4, 2])
    with pytest.raises(RuntimeError, match="differs from the source batch size"):
        td[:] = TensorDict({"q": torch.zeros(4, 2)}, [4])
    assert not list(td.keys())


@pytest.mark.parametrize("size", [[1, -1], [-1], [-5]])
def test_expanding_to_a_negative_size_is_refused(size):
    for td in (TensorDict({"a": "text"}), TensorDict({"a": 1.0})):
        with pytest.raises(RuntimeError):
            td.expand(size)
    assert TensorDict({"a": "text"}, [1]).expand(3, -1).batch_size == (3, 1)


def test_apply_in_place_checks_its_device():
    td = TensorDict({"a": torch.zeros(2)}, [2])
    with pytest.raises(TypeError):
        td.apply_(torch.neg, device=[])
    assert td.apply_(lambda leaf: leaf + 1, device="cpu")["a"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("keeps", [True, False])
def test_apply_with_a_batch_size_propagates_the_lock_of_a_lazy_stack(keeps):
    stack = lazy_stack([TensorDict({"a": float(i)}) for i in range(3)]).lock_()
    assert stack.apply(torch.neg, batch_size=[3], propagate_lock=keeps).is_locked is keeps


def test_entries_of_some_elements_move_with_their_rows_in_place():
    stack = lazy_stack([TensorDict({"m": torch.zeros(2)}), TensorDict({"m": torch.ones(3)}), TensorDict({})])
    stack.roll(1, 0, inplace=True)
    assert [sorted(part.keys()) for part in stack.tensordicts] == [[], ["m"], ["m"]]
    assert stack.tensordicts[2]["m"].shape == (3,)


@pytest.mark.parametrize(
    "write",
    [
        lambda td, key, value: td.set(key, value, inplace=True),
        lambda td, key, value: td.setdefault(key, value, inplace=True),
        lambda td, key, value: td.update({key: value}, inplace=True),
        lambda td, key, value: td.update({key[0]: {key[1]: value}}, inplace=True),
    ],
    ids=["set", "setdefault", "update", "update of a nested dictionary"],
)
@pytest.mark.parametrize("nested", [False, True])
def test_writes_in_place_reach_the_elements_that_have_the_entry(write, nested):
    stack = lazy_stack([TensorDict({"k": torch.tensor(1)}), TensorDict({})])
    if nested:
        stack = lazy_stack([stack, lazy_stack([TensorDict({"k": torch.tensor(2)}), TensorDict({})])], 1)
    size = stack.batch_size
    first = stack[(0,) * len(size)]["k"]
    td = TensorDict({"s": stack}, size)
    write(td, ("s", "k"), torch.full(size, 5))
    assert first == 5
    assert td["s", "k"].tolist() == torch.full(size, 5).tolist()


def test_a_refused_write_in_place_adds_nothing_to_elements_that_lack_the_entry():
    stack = lazy_stack([TensorDict({}), TensorDict({"k": torch.tensor(1)})])
    with pytest.raises(RuntimeError, match="in place"):
        stack.set("k", torch.ones(2, 3), inplace=True)
    assert [list(td.keys()) for td in stack.tensordicts] == [[], ["k"]]
    with pytest.raises(RuntimeError, match="locked"):
        stack.lock_().set("k", torch.ones(2), inplace=True)


def test_a_list_of_tensors_of_several_shapes_is_set_in_a_nested_lazy_stack():
    td = TensorDict({"s": lazy_stack([TensorDict({}), TensorDict({})])}, [2])
    td.set(("s", "a"), [torch.ones(1), torch.ones(2)])
    assert [element["a"].shape for element in td["s"].tensordicts] == [(1,), (2,)]


@pytest.mark.parametrize(
    "call",
    [
        lambda td: td.set_(("n", "k"), torch.ones(2)),
        lambda td: td.set_at_(("n", "k"), 1.0, 0),
        lambda td: td.del_(("n", "k")),
        lambda td: td.rename_key_(("n", "k"), "z"),
        lambda td: td.get_item_shape(("n", "k")),
        lambda td: td.entry_class(("n", "k")),
    ],
    ids=["set_", "set_at_", "del_", "rename_key_", "get_item_shape", "entry_class"],
)
def test_a_key_through_tensors_of_several_shapes_is_a_key_error(call):
    stack = lazy_stack([TensorDict({"n": torch.ones(1)}), TensorDict({"n": torch.ones(2)})])
    with pytest.raises(KeyError, match="'n' is a Tensor"):
        call(stack)


@pytest.mark.parametrize("entry", ["text", {"b": torch.ones(())}], ids=["value", "nested tensordict"])
def test_a_tensor_replaces_the_values_and_nested_tensordicts_of_some_elements(entry):
    stack = lazy_stack([TensorDict({"k": entry}), TensorDict({})])
    assert stack.set("k", torch.ones(2), inplace=True)["k"].tolist() == [1, 1]


@pytest.mark.parametrize("index", [(None, ...), (slice(None), ...), (0, ...)], ids=str)
def test_an_ellipsis_at_the_end_of_an_index_needs_no_common_number_of_dimensions(index):
    stack = lazy_stack([TensorDict({"a": torch.zeros(1)}, [1]), TensorDict({"a": torch.zeros(1, 2)}, [1])])
    stack.set_at_("a", 1.0, index)
    assert stack[0]["a"].tolist() == [1]
    assert stack[1]["a"].tolist() == ([[0, 0]] if index[0] == 0 else [[1, 1]])


# keys of some elements of a nested lazy stack ------------------------------------------------------------------------


def of_some(dim: int = 0) -> TensorDict:
    first = TensorDict({"b": torch.ones(2), "c": torch.full((2,), 5.0)}, [2])
    stack = lazy_stack([first, TensorDict({"b": torch.zeros(2)}, [2])], dim)
    return TensorDict({"a": torch.arange(2.0), "m": {"n": stack}}, [2])


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("keys", [["c"], ["b", "c"], ["c", "b"]])
def test_split_keys_takes_entries_of_some_elements_and_gives_the_others_the_default(dim, inplace, keys):
    td = of_some(dim)
    default = torch.full((2, 2), 7.0)
    part, rest = td.split_keys([("m", "n", key) for key in keys], default=default, inplace=inplace)
    assert part["m", "n"].stack_dim == dim
    assert [element["c"].tolist() for element in part["m", "n"].tensordicts] == [[5, 5], [7, 7]]
    if "b" in keys:
        assert [element["b"].tolist() for element in part["m", "n"].tensordicts] == [[1, 1], [0, 0]]
        assert list(rest.keys()) == ["a"]
    else:
        assert all(list(element.keys()) == ["b"] for element in rest["m", "n"].tensordicts)
    assert (rest is td) == inplace


def test_split_keys_without_strict_takes_entries_of_some_elements():
    part, rest = of_some().split_keys([("m", "n", "c"), "typo"], strict=False)
    assert [list(element.keys()) for element in part["m", "n"].tensordicts] == [["c"], []]
    assert [list(element.keys()) for element in rest["m", "n"].tensordicts] == [["b"], ["b"]]


def test_split_keys_renames_entries_of_some_elements():
    part, _ = of_some().split_keys({("m", "n", "c"): ("m", "x", "y")}, default=None)
    assert [element["y"] for element in part["m", "x"].tensordicts][1] is None
    assert part["m", "x"].tensordicts[0]["y"].tolist() == [5, 5]
    with pytest.raises(KeyError, match="some elements of a lazy stack only"):
        of_some().split_keys({("m", "n", "c"): "y"}, default=None)


def test_entries_of_some_elements_go_to_one_result_of_split_keys():
    with pytest.raises(KeyError, match="several sets"):
        of_some().split_keys([("m", "n", "c")], [("m", "n", "c")], default=None)
    with pytest.raises(KeyError, match="not found"):
        of_some().split_keys([("m", "n", "c")])


def test_separates_takes_entries_of_some_elements():
    td = of_some()
    part = td.separates(("m", "n", "c"), default=None)
    assert part["m", "n"].tensordicts[0]["c"].tolist() == [5, 5] and part["m", "n"].tensordicts[1]["c"] is None
    assert all("c" not in element for element in td["m", "n"].tensordicts)
