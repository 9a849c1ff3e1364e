"""Lazy stacks of elements that differ in keys, shapes or batch sizes."""

from __future__ import annotations

import pickle

import pytest
import torch
from tests.core.containers.test_lazy import even, ragged

from tensordict_core import (
    LazyStackedTensorDict,
    TensorDict,
    lazy_stack,
    set_capture_non_tensor_stack,
    set_printoptions,
)


def test_a_ragged_entry_is_an_error_that_names_the_ways_to_read_it():
    with pytest.raises(RuntimeError, match=r"'a'.*as_list=True.*as_nested_tensor=True.*as_padded_tensor=True"):
        ragged()["a"]


def test_a_ragged_entry_is_read_as_a_list_padded_or_nested():
    td = ragged()
    assert [len(part) for part in td.get("a", as_list=True)] == [3, 4]
    padded = td.get("a", as_padded_tensor=True, padding_value=-1)
    assert padded.tolist() == [[0, 0, 0, -1], [1, 1, 1, 1]]
    left = td.get("a", as_padded_tensor=True, padding_side="left", padding_value=-1)
    assert left.tolist() == [[-1, 0, 0, 0], [1, 1, 1, 1]]
    nested = td.get("a", as_nested_tensor=True)
    assert nested.is_nested and [len(part) for part in nested.unbind()] == [3, 4]
    assert [len(part) for part in td.get_nestedtensor("a").unbind()] == [3, 4]
    assert td.get("absent", 7, as_list=True) == 7


def test_ragged_reads_reach_through_nested_keys_and_nested_stacks():
    outer = TensorDict({"l": lazy_stack([ragged(), ragged()])}, [2])
    assert outer.get(("l", "a"), as_padded_tensor=True).shape == (2, 2, 4)
    assert [[len(x) for x in row] for row in outer.get(("l", "a"), as_list=True)] == [[3, 4], [3, 4]]


def test_padding_and_nesting_refuse_unsupported_entries():
    td = LazyStackedTensorDict(*(TensorDict({"a": torch.zeros(3, n)}, [3]) for n in (1, 2)), stack_dim=1)
    assert td.get("a", as_padded_tensor=True).shape == (3, 2, 2)
    assert [part.shape for part in td.get("a", as_nested_tensor=True).unbind()] == [(3, 1), (3, 2)]
    with pytest.raises((ValueError, RuntimeError), match="stack dim is 1"):
        td.get_nestedtensor("a")
    with pytest.raises(ValueError, match="stack dim is 1"):
        td.densify()
    with pytest.raises(ValueError, match="padding_side"):
        ragged().get("a", as_padded_tensor=True, padding_side="top")
    ranks = lazy_stack([TensorDict({"a": torch.zeros(1)}), TensorDict({"a": torch.zeros(1, 1)})])
    with pytest.raises(ValueError, match="one rank"):
        ranks.get("a", as_padded_tensor=True)


def test_an_entry_of_several_shapes_moves_to_another_level():
    td = LazyStackedTensorDict(*(TensorDict({"a": torch.ones(n), "n": {"b": torch.ones(1)}}) for n in (1, 2)))
    td.rename_key_("a", ("n", "c"))
    assert td[1]["n", "c"].shape == (2,) and list(td.keys()) == ["n"]
    with pytest.raises(KeyError, match="already present"):
        td.rename_key_(("n", "c"), ("n", "b"), safe=True)


def test_lazy_stacks_of_other_keys_and_shapes_are_concatenated_along_their_stack_dim():
    td = LazyStackedTensorDict(*(TensorDict({"a": torch.ones(n), f"own {n}": torch.ones(1)}) for n in (1, 2)))
    whole = torch.cat([td[:0], td, td[:1], td.exclude("own 1")], 0)
    assert [list(element.keys()) for element in whole.tensordicts] == [
        ["a", "own 1"], ["a", "own 2"], ["a", "own 1"], ["a"], ["a", "own 2"],
    ]  # fmt: skip  # shorter than one a line


def test_the_shape_and_class_of_a_ragged_entry_are_known_without_reading_it():
    td = LazyStackedTensorDict(*(TensorDict({"n": {"a": torch.ones(3, n)}}) for n in (1, 2)), stack_dim=0)
    assert td.get_item_shape(("n", "a")) == torch.Size([2, 3, -1]) and td.entry_class(("n", "a")) is torch.Tensor
    twice = LazyStackedTensorDict(td, td)
    assert twice.get_item_shape(("n", "a")) == torch.Size([2, 2, 3, -1])
    with pytest.raises(KeyError, match="absent"):
        td.get_item_shape("absent")
    td[0]["n", "a"] = torch.ones(3)
    with pytest.raises(RuntimeError, match="do not stack"):
        td.get_item_shape(("n", "a"))


def test_where_writes_into_a_ragged_lazy_stack():
    td = LazyStackedTensorDict(*(TensorDict({"a": torch.ones(n)}) for n in (1, 2)))
    out = td.clone()
    assert td.where(torch.tensor([True, False]), td * 2, out=out) is out
    assert out[0]["a"].tolist() == [1.0] and out[1]["a"].tolist() == [2.0, 2.0]


def test_softmax_along_a_dimension_of_the_elements_takes_entries_of_several_shapes():
    td = LazyStackedTensorDict(*(TensorDict({"a": torch.zeros(2, n)}, [2]) for n in (1, 2)))
    assert td.softmax(-1)[1]["a"].tolist() == [[0.5, 0.5], [0.5, 0.5]]
    with pytest.raises(RuntimeError, match="do not stack"):
        td.softmax(0)


def test_elements_of_one_length_of_batch_size_read_as_minus_one_where_they_differ():
    tds = [TensorDict({"a": torch.zeros(n, 2)}, [n]) for n in (2, 3)]
    td = LazyStackedTensorDict(*tds)
    assert td.batch_size == (2, -1)
    assert td[1].batch_size == (3,) and td[:, :2].batch_size == (2, 2)
    assert td.permute(1, 0).stack_dim == 1 and td.unsqueeze(0).batch_size == (1, 2, -1)
    assert (td + 1)[0]["a"].all()
    with pytest.raises(RuntimeError, match="strict_shape"):
        LazyStackedTensorDict(*tds, strict_shape=True)
    with pytest.raises(RuntimeError, match="batch size"):
        td.reshape(-1)


def of_batch_sizes(*values, dim=0):
    """A lazy stack of elements of batch sizes [1], [2] ... with a value or values each."""
    tds = [TensorDict({"a": torch.full((n, 2), float(n)), "s": s}, [n]) for n, s in enumerate(values, 1)]
    return LazyStackedTensorDict(*tds, stack_dim=dim)


def test_equal_values_of_elements_of_several_batch_sizes_are_lists_as_others_are():
    td = of_batch_sizes("v", "v", "v")
    expected = [["v"], ["v", "v"], ["v", "v", "v"]]
    assert td["s"] == td.get("s").tolist() == td.clone()["s"] == pickle.loads(pickle.dumps(td))["s"] == expected
    assert td[:, :1]["s"] == [["v"]] * 3 and td.get("s").batch_size == (3,)
    with set_capture_non_tensor_stack(True):
        assert td["s"] == td.get("s").data == "v" and "data=v" in repr(td)


def test_values_of_elements_of_several_batch_sizes_are_nested_lists_where_they_differ():
    td = of_batch_sizes("v", ["w", "x"])
    assert td["s"] == td.get("s").tolist() == td.get("s", as_list=True).tolist() == (td + 1)["s"] == [["v"], ["w", "x"]]
    assert td.get("s")[1].tolist() == ["w", "x"] and td[1]["s"] == ["w", "x"] and td[:, 1:].batch_size == (2, -1)
    assert td.densify()["s"] == [["v"], ["w", "x"]] and "['w', 'x']" in repr(td.get("s"))
    assert td.unsqueeze(0)["s"] == [[["v"], ["w", "x"]]]
    assert torch.cat([td, td])["s"] == [["v"], ["w", "x"], ["v"], ["w", "x"]]
    below = TensorDict({"n": td}, [2]).lock_()
    assert below["n", "s"] == [["v"], ["w", "x"]] and below.get(("n", "s")).is_locked


def test_values_stand_at_their_positions_in_stacks_of_stacks_of_several_batch_sizes():
    parts = of_batch_sizes("v", "v"), of_batch_sizes("w", "x")
    assert lazy_stack(parts)["s"] == [[["v"], ["v", "v"]], [["w"], ["x", "x"]]]
    assert lazy_stack(parts, 1)["s"] == [[["v"], ["w"]], [["v", "v"], ["x", "x"]]]
    longer = [TensorDict({"s": s}, [2, n]) for n, s in ((1, "v"), (2, "w"))]
    assert lazy_stack(longer, 1)["s"] == [[["v"], ["w", "w"]]] * 2
    behind = of_batch_sizes("v", ["w", "x"], dim=1)
    assert behind["s"] == behind.permute(1, 0).permute(1, 0)["s"] == [["v", "w"], [None, "x"]]


def test_values_are_written_to_elements_of_several_batch_sizes():
    td = of_batch_sizes("v", "w")
    td["one"], td["each"], td["same"] = "x", [["p"], ["q", "r"]], td.get("s")
    assert td["one"] == [["x"], ["x", "x"]] and td[1].get("one").batch_size == (2,)
    assert td["each"] == [["p"], ["q", "r"]] and td[1, 1]["each"] == "r"
    assert td["same"] == td["s"] and td[1].get("same").batch_size == (2,)
    deep = lazy_stack([td, td.clone()])
    deep["each"] = deep["s"]
    assert deep["each"] == deep["s"] and deep[0, 1].get("each").batch_size == (2,)
    for wrong in ([["p"], ["q"]], ["p", "q"]):
        with pytest.raises(ValueError, match="not of the shape"):
            td["each"] = wrong


@pytest.mark.parametrize("write", ["update_", "copy_", "update"])
@pytest.mark.parametrize("where", ["alone", "in a tensordict", "in a stack"])
def test_writing_in_place_takes_ragged_elements_one_by_one(write, where):
    place = {
        "alone": lambda td: td,
        "in a tensordict": lambda td: TensorDict({"n": td}),
        "in a stack": lambda td: lazy_stack([TensorDict({"n": td}), TensorDict({"n": td.clone()})]),
    }[where]
    for make in (lambda: of_batch_sizes("v", "w"), ragged):
        td, source = place(make()), place(make() + 1)
        leaves = td._leaves()
        getattr(td, write)(source, **({"inplace": True} if write == "update" else {}))
        assert all(one is other for one, other in zip(td._leaves(), leaves, strict=True))
        assert (td == source).all()


def test_chosen_keys_of_ragged_elements_are_written_in_place():
    td = TensorDict({"n": of_batch_sizes("v", "w")})
    td.update_(TensorDict({"n": of_batch_sizes("x", "y") + 1}), keys_to_update=[("n", "a")])
    assert td["n"][1]["a"].eq(3).all() and td["n", "s"] == [["v"], ["w", "w"]]


def test_reshaping_ragged_stacks_moves_rows_and_copies_nothing():
    td = lazy_stack([ragged(), ragged()])
    flat = td.reshape(-1)
    assert flat.batch_size == (4,) and flat[3]["a"].data_ptr() == td[1, 1]["a"].data_ptr()
    td = even()
    td.view(6)[5]["a"].fill_(7)
    assert td[1]["a"][2].tolist() == [7.0] * 4


def test_printing_shows_ragged_and_exclusive_entries():
    with set_printoptions(compact=True):
        text = repr(ragged())
    assert "a: f32[-1]" in text and "exclusive_fields={0: {own: f32[2]}}" in text and "stack_dim=0" in text
    text = repr(ragged())
    assert "torch.Size([2, -1])" in text and "stack_dim=0" in text
    assert "exclusive_fields={\n        0 ->\n            own: Tensor(shape" in text


def test_sizes_that_ragged_elements_find_read_as_minus_one():
    dicts = [{"a": torch.zeros(3, 2), "b": torch.zeros(3)}, {"a": torch.zeros(4, 2), "b": torch.zeros(4)}]
    for td in (
        TensorDict.from_list(dicts, auto_batch_size=True),
        LazyStackedTensorDict.from_dict(dicts, auto_batch_size=True),
        lazy_stack([TensorDict(one) for one in dicts]).auto_batch_size_(),
    ):
        assert td.batch_size == (2, -1) and [one.batch_size for one in td.tensordicts] == [(3,), (4,)]
    assert TensorDict.from_list(dicts, batch_dims=1).batch_size == (2,)
    differing = [{"a": torch.zeros(3, 2)}, {"a": torch.zeros(4)}]
    assert TensorDict.from_list(differing, auto_batch_size=True).batch_size == (2, -1)


def test_a_list_of_ragged_tensors_gives_one_to_each_element():
    td = lazy_stack([TensorDict({}), TensorDict({})])
    td["b"] = [torch.ones(2), torch.ones(1)]
    assert td[1]["b"].shape == (1,) and td.get("b", as_padded_tensor=True).tolist() == [[1, 1], [1, 0]]


def test_a_dense_node_that_takes_ragged_entries_becomes_a_lazy_stack():
    td = TensorDict({"n": {"x": torch.ones(2, 1), "y": torch.ones(2)}}, [2])
    td.update(lazy_stack([TensorDict({"n": {"x": torch.ones(n)}}) for n in (2, 3)]))
    assert td["n"][1]["x"].shape == (3,) and td["n", "y"].tolist() == [1, 1]


def exclusive():
    return lazy_stack([TensorDict({"b": torch.ones(3), f"own{i}": torch.full((3,), i)}, [3]) for i in range(2)])


@pytest.mark.parametrize(
    ("operation", "own"),
    [
        (lambda td: td.reshape(-1), [0, 0, 0, 1, 1, 1]),
        (lambda td: td.flatten(), [0, 0, 0, 1, 1, 1]),
        (lambda td: td[torch.tensor([[True, False, False], [True, True, False]])], [0, 1, 1]),
        (lambda td: td[[1, 0], [0, 2]], [1, 0]),
        (lambda td: td.repeat(2, 1), [0, 1, 0, 1]),
        (lambda td: td.repeat_interleave(2, dim=0), [0, 0, 1, 1]),
        (lambda td: td.masked_select(torch.ones(2, 3, dtype=torch.bool)), [0, 0, 0, 1, 1, 1]),
    ],
)
def test_rows_keep_the_keys_that_others_lack(operation, own):
    rows = operation(exclusive()).tensordicts
    assert [list(row.keys()) for row in rows] == [["b", f"own{i}"] for i in own]
    assert all((row[f"own{i}"] == i).all() for row, i in zip(rows, own, strict=True))


def test_an_operand_of_more_dimensions_expands_a_ragged_stack():
    sizes = lazy_stack([TensorDict({"a": torch.ones(3, i + 1)}, [3]) for i in range(2)])
    for td in (sizes, exclusive()):
        total = td + torch.ones(4, 2, 3)
        assert total.batch_size == (4, 2, 3) and total.stack_dim == 1
        for got, element in zip(total.tensordicts, td.tensordicts, strict=True):
            assert (got == element.expand(4, 3) + 1).all()


def test_a_ragged_stack_moves_in_place():
    td = lazy_stack([TensorDict({"a": torch.ones(3, i + 1)}, [3]) for i in range(2)])
    elements = list(td.tensordicts)
    assert td.to("cpu", dtype=torch.float64, inplace=True) is td and td.device == torch.device("cpu")
    assert all(now is before for now, before in zip(td.tensordicts, elements, strict=True))
    assert [(one.device, one["a"].dtype) for one in elements] == [(torch.device("cpu"), torch.float64)] * 2


def test_a_list_is_written_into_the_entries_of_different_shapes():
    stack = lazy_stack([TensorDict({"a": torch.zeros(n, 2), "b": torch.zeros(2)}) for n in (1, 2)])
    held = [td["a"] for td in stack.tensordicts]
    values = [torch.full((n, 2), float(n)) for n in (1, 2)]
    stack.set_("a", values)
    assert all(torch.equal(*pair) for pair in zip(held, values, strict=True))
    stack.lock_().update_({"a": [value + 1 for value in values], "b": torch.ones(2, 2)})
    assert held[1].unique().item() == 3 and stack["b"].all()
    with pytest.raises(RuntimeError, match="'a'"):
        stack.update_({"b": torch.zeros(2, 2), "a": [values[1], values[1]]})
    assert held[1].unique().item() == 3 and stack["b"].all()


@pytest.mark.parametrize(
    ("rows", "dtype"),
    [([[1.0, 2.0], [1.0]], torch.float32), ([[[1, 2]], [[1]]], torch.int64), ([[True], [False] * 2], torch.bool)],
)
def test_lists_of_numbers_of_several_lengths_are_one_tensor_for_each_element(rows, dtype):
    stack = lazy_stack([TensorDict({}), TensorDict({})])
    stack["a"] = rows
    assert [td["a"].tolist() for td in stack.tensordicts] == rows
    assert stack.get("a", as_padded_tensor=True).dtype is dtype


@pytest.mark.parametrize("rows", [[["x", "y"], ["z"]], [[1.0, "x"], [1.0]], [[[1, 2], [3]], [[4], [5]]], [1.0, [2.0]]])
def test_lists_that_make_no_tensor_are_values_of_the_elements(rows):
    stack = lazy_stack([TensorDict({}), TensorDict({})])
    stack["a"] = rows
    assert [td["a"] for td in stack.tensordicts] == stack["a"] == rows


def test_a_nested_tensor_of_an_entry_is_strided_and_a_missing_key_an_error():
    td = ragged()
    assert td.get_nestedtensor("a").layout is torch.strided
    assert td.get_nestedtensor("a", layout=torch.jagged).layout is torch.jagged
    assert td.get("a", as_nested_tensor=True).layout is torch.jagged
    assert td.get_nestedtensor("absent", None) is None
    with pytest.raises(KeyError, match="absent"):
        td.get_nestedtensor("absent")
