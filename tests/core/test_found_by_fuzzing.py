"""Calls whose results were lost, refused or of another kind, as random programs beside the reference found them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    pad_sequence,
)


def rows() -> TensorDict:
    return TensorDict({"a": torch.zeros(3, 2)}, [3])


def mixed() -> LazyStackedTensorDict:
    full = TensorDict({"a": torch.ones(3), "n": {"b": torch.ones(2)}, "s": "text"})
    return lazy_stack([full, TensorDict({"n": {}})])


# entries that an index reaches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [(..., 0), (slice(None), 0), (torch.arange(3), 0)], ids=str)
def test_set_at_reaches_the_dimensions_of_the_entry_that_get_at_reads(index: Any) -> None:
    td = rows().set_at_("a", 1.0, index)
    assert torch.equal(td.get_at("a", index), torch.ones(3))
    assert torch.equal(td["a"], torch.tensor([[1.0, 0.0]] * 3))


def test_set_at_reaches_the_batch_dimensions_of_a_nested_tensordict() -> None:
    td = TensorDict({"n": TensorDict({"a": torch.zeros(3, 2)}, [3, 2])}, [3])
    td.set_at_("n", TensorDict({"a": torch.ones(3)}, [3]), (..., 0))
    assert torch.equal(td["n", "a"], torch.tensor([[1.0, 0.0]] * 3))


@pytest.mark.parametrize(
    "make", [lambda: lazy_stack([rows(), rows()]), lambda: rows()._get_sub_tensordict(slice(0, 2))]
)
def test_set_at_of_a_stack_or_view_refuses_an_index_into_the_entry_rather_than_writing_rows(make: Any) -> None:
    td = make()
    before = td.clone()
    with pytest.raises(IndexError, match="too many indices"):
        td.set_at_("a", 1.0, (..., 0))
    assert (td == before).all()


def test_a_non_tensor_value_without_a_key_is_not_written_at_an_index() -> None:
    with pytest.raises(TypeError, match="cannot be written at an index"):
        rows()[0] = NonTensorData("v")


# lazy stacks whose elements differ ------------------------------------------------------------------------------------


def test_densify_keeps_entries_that_some_elements_lack() -> None:
    dense = mixed().densify(layout=torch.jagged)
    assert [len(part) for part in dense["a"].unbind()] == [3, 0]
    assert [len(part) for part in dense["n", "b"].unbind()] == [2, 0]
    assert dense["s"] == ["text", None]


def test_densify_refuses_a_missing_entry_that_cannot_be_empty() -> None:
    stack = lazy_stack([TensorDict({"a": torch.tensor(1.0)}), TensorDict({})])
    with pytest.raises(RuntimeError, match="'a' is missing in some elements"):
        stack.densify()


@pytest.mark.parametrize("name", ["__and__", "__or__", "__xor__"])
def test_logical_operators_work_on_elements_of_several_shapes(name: str) -> None:
    stack = lazy_stack([TensorDict({"a": torch.arange(n)}) for n in (2, 3)])
    result = getattr(stack, name)(stack)
    for part, element in zip(result.tensordicts, stack.tensordicts, strict=True):
        assert torch.equal(part["a"], getattr(element["a"], name)(element["a"]))


# values that are not tensors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("symbol", ["__eq__", "__ne__", "__lt__"])
def test_a_comparison_refuses_a_value_that_one_side_lacks(symbol: str) -> None:
    plain = TensorDict({"a": torch.ones(2)}, [2])
    valued = TensorDict({"a": torch.ones(2), "s": "text"}, [2])
    for one, other in ((plain, valued), (valued, plain)):
        with pytest.raises(KeyError, match=r"keys in tensordicts mismatch.*'s'"):
            getattr(one, symbol)(other)


def test_a_comparison_refuses_a_nested_value_that_the_other_side_lacks() -> None:
    one = TensorDict({"n": {"a": torch.ones(2)}})
    with pytest.raises(KeyError, match="only the second has"):
        one == TensorDict({"n": {"a": torch.ones(2), "s": "text"}})  # noqa: B015 (for its error)


# batch sizes, locks and types -----------------------------------------------------------------------------------------


def test_auto_batch_size_cuts_the_batch_size_of_a_tensordict_without_entries() -> None:
    assert TensorDict({}, [3, 2]).auto_batch_size_(1).batch_size == torch.Size([3])
    nested = TensorDict({"n": TensorDict({}, [3, 2])}, [3])
    assert nested.auto_batch_size_().batch_size == torch.Size([3, 2])


def test_excluding_no_entry_in_place_changes_no_locked_tensordict() -> None:
    td = rows().lock_()
    assert td.exclude("missing", inplace=True) is td
    with pytest.raises(RuntimeError, match="locked"):
        td.exclude("a", inplace=True)


def test_the_inverse_of_a_locked_tensordict_is_locked_as_its_negative() -> None:
    td = TensorDict({"a": torch.arange(3)}, [3]).lock_()
    assert (~td).is_locked == (-td).is_locked


def test_separates_keeps_the_batch_size_of_nested_tensordicts() -> None:
    td = TensorDict({"n": TensorDict({"a": torch.zeros(3, 2), "b": torch.zeros(3, 2)}, [3, 2])}, [3])
    assert td.separates(("n", "a")).get("n").batch_size == torch.Size([3, 2])


def test_a_tensordict_without_batch_dimensions_is_repeated_as_one_row() -> None:
    td = TensorDict({"a": torch.ones(())})
    assert torch.equal(td.repeat_interleave(2, 0)["a"], torch.ones(2))


def test_separates_keeps_the_batch_size_of_nested_tensordicts_in_elements() -> None:
    element = TensorDict({"n": TensorDict({"a": torch.zeros(1, 2), "b": torch.zeros(1)}, [1])})
    stack = lazy_stack([element, element.clone()])
    part = stack.separates(("n", "a"))
    assert part[0].get("n").batch_size == torch.Size([1]) and set(stack[0].keys(True, True)) == {("n", "b")}


@pytest.mark.parametrize("size", [[3], [3, 2], [3, 2, 4], [5]], ids=str)
def test_an_empty_tensordict_of_another_batch_size_keeps_the_names_that_new_zeros_keeps_first(size: list[int]) -> None:
    td = TensorDict({"a": torch.zeros(3, 2)}, [3, 2], names=["x", "y"])
    names = td.empty(batch_size=size).names
    assert names == ["x", "y", None][: len(size)]


def test_empty_nested_tensordicts_have_the_names_that_are_given() -> None:
    td = TensorDict({"n": TensorDict({"a": torch.zeros(2, 3)}, [2, 3])}, [2])
    assert td.empty(True, names=["x"]).get("n").names == ["x", None]


def test_values_that_are_set_have_the_names_of_the_tensordict() -> None:
    td = TensorDict({}, [2, 3], names=["x", None])
    td["text"], td["values"] = "text", [["a", "b", "c"], ["d", "e", "f"]]
    assert td.get("text").names == td.get("values").names == ["x", None]


# calls that change nothing or a part ---------------------------------------------------------------------------------


def test_in_place_operations_that_change_no_entry_are_allowed_on_a_locked_tensordict() -> None:
    td = TensorDict({"a": torch.zeros(3, 2)}, [3, 2]).lock_()
    assert td.contiguous(inplace=True) is td and td.flatten(1, 1, inplace=True) is td
    with pytest.raises(RuntimeError, match="locked"):
        TensorDict({"a": torch.zeros(2, 3).T}, [3]).lock_().contiguous(inplace=True)


def test_a_block_writes_into_the_entries_of_a_locked_tensordict() -> None:
    td = TensorDict({"a": torch.zeros(2), "n": {"b": torch.zeros(2)}}).lock_()
    held = td["n", "b"]
    with td.flatten_keys() as flat:
        flat["n.b"] = flat["n.b"] + 1
    assert held.tolist() == [1, 1] and td["n", "b"] is held
    with pytest.raises(RuntimeError, match="locked"), td.flatten_keys() as flat:
        flat["new"] = torch.zeros(2)


def test_set_in_place_of_a_nested_tensordict_writes_its_entries_and_adds_others() -> None:
    td = TensorDict({"n": {"a": torch.zeros(2)}})
    held = td["n", "a"]
    td.set("n", TensorDict({"a": torch.ones(2), "b": torch.ones(1)}), inplace=True)
    assert held.tolist() == [1, 1] and td["n", "a"] is held and td["n", "b"].tolist() == [1]
    with pytest.raises(RuntimeError, match="locked"):
        td.lock_().set("n", {"c": torch.ones(2)}, inplace=True)


def test_create_nested_keeps_the_entries_of_elements_that_have_the_outer_key() -> None:
    stack = mixed()
    del stack.tensordicts[1]["n"]
    stack.create_nested(("n", "new"))
    assert stack[0]["n", "b"].tolist() == [1, 1] and ("n", "new") in stack


def test_an_index_of_several_tensors_keeps_keys_that_some_elements_have() -> None:
    stack = lazy_stack([TensorDict({}, [2]), TensorDict({"e": torch.arange(2)}, [2])])
    index = torch.tensor([0, 1]), torch.tensor([1, 1])
    assert stack[index][1]["e"].item() == 1
    stack[index] = stack[index] * 5
    assert stack[1]["e"].tolist() == [0, 5]


@pytest.mark.parametrize("make", [lambda td: td, lambda td: lazy_stack(list(td.unbind(0)))], ids=["dense", "lazy"])
def test_a_condition_with_trailing_dimensions_of_size_1_keeps_the_shapes_of_entries(make: Callable[[Any], Any]) -> None:
    td = make(TensorDict({"a": torch.zeros(3), "b": torch.zeros(3, 2)}, [3]))
    result = torch.where(torch.tensor([[True], [False], [True]]), td, td + 1)
    assert result["a"].tolist() == [0, 1, 0] and result["b"].tolist() == [[0, 0], [1, 1], [0, 0]]


def test_an_array_is_written_into_a_lazy_stack_row_by_row() -> None:
    stack = lazy_stack([TensorDict({"a": torch.zeros(())}), TensorDict({"a": torch.zeros(2)})])
    stack[:] = np.arange(2.0)
    assert stack[0]["a"].item() == 0 and stack[1]["a"].tolist() == [1, 1]


def test_from_dict_instance_reads_no_entry_that_is_not_nested() -> None:
    stack = lazy_stack([TensorDict({"a": torch.ones(n)}) for n in (1, 2)])
    assert stack.from_dict_instance({"a": [1, 2]})["a"].tolist() == [1, 2]


def test_rename_keys_renames_entries_that_do_not_stack() -> None:
    stack = lazy_stack([TensorDict({"a": torch.ones(n)}) for n in (1, 2)]).rename_keys({"a": "b"})
    assert [element["b"].numel() for element in stack] == [1, 2]


def test_pack_refuses_a_lazy_stack_with_keys_that_it_would_drop() -> None:
    with pytest.raises(RuntimeError, match="different keys"):
        lazy_stack([TensorDict({"a": torch.ones(1)}), TensorDict({"a": torch.ones(1), "b": torch.ones(1)})]).pack()
    with pytest.raises(RuntimeError, match="stack 'n' have different keys"):
        TensorDict({"n": mixed()}, [2]).pack()


def test_the_quantile_of_a_number_keeps_its_shape() -> None:
    assert TensorDict({"a": torch.tensor(2.0)}).quantile(0.5, keepdim=True)["a"].shape == torch.Size([])


# errors that name the argument ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda td: () in td, TypeError, "not a key"),
        (lambda td: () in lazy_stack([td]), TypeError, "not a key"),
        (lambda td: td.get_at((), 0), KeyError, "empty tuple"),
        (lambda td: td.update(td.clone(), keys_to_update=7), TypeError, "keys_to_update"),
        (lambda td: td.update_(td.clone(), keys_to_update=7), TypeError, "keys_to_update"),
        (lambda td: td.gather(0, torch.tensor([0]), 1.5), TypeError, "as out, got float"),
        (lambda td: td.where(torch.tensor([True] * 3), 0.0, out=()), TypeError, "as out, got tuple"),
        (lambda td: td.apply(torch.clone, out=7), TypeError, "as out, got int"),
        (lambda td: torch.stack([td, td], out=7), TypeError, "out"),
        (lambda td: td.state_dict(-2), TypeError, "destination is a dictionary"),
        (lambda td: td.state_dict(prefix=1.5), TypeError, "prefix is a string"),
        (lambda td: td.tensor_split(slice(0, 1)), TypeError, "indices_or_sections"),
        (lambda td: td.repeat_interleave(1.5, 0), TypeError, "repeats"),
        (lambda td: td.rsub(td, alpha=True), RuntimeError, "bool as alpha"),
        (lambda td: td[torch.ones(2)], IndexError, "long, int, byte or bool tensors, got one of torch.float32"),
        (lambda td: lazy_stack([td])[torch.ones(2)], IndexError, "tensors used as indices"),
        (lambda td: td.set_at_("a", 1.0, torch.ones(2)), IndexError, "tensors used as indices"),
        (lambda td: td.split(torch.ones(2, 2)), TypeError, "split_size"),
        (lambda td: td.narrow(0, 0, torch.ones(2)), TypeError, "length"),
        (lambda td: td.narrow(0, 1.5, 1), TypeError, "start"),
        (lambda td: td.rename_key_("a", ()), KeyError, "empty tuple"),
        (lambda td: td.new_zeros(2, layout=torch.ones(2)), TypeError, "layout"),
        (lambda td: td.prod(1.5), TypeError, "dim is an integer"),
        (lambda td: td.exclude((), "a"), KeyError, "empty tuple"),
        (lambda td: td.rename_keys({"k": ()}, strict=False), KeyError, "empty tuple"),
        (lambda td: td.quantile(0.5, (0, -1)), RuntimeError, "multiple times in the list of dims"),
        (
            lambda td: td.set("s", "x").set_at_("s", torch.ones(3), 0),
            ValueError,
            "'s', a NonTensorData, .* take a Tensor",
        ),
        (
            lambda td: lazy_stack([td, td]).__setitem__(..., NonTensorData("v")),
            TypeError,
            "^NonTensorStack.*cannot",
        ),
        (lambda td: td.set_non_tensor(("a", "k"), 1), KeyError, "'a' is a Tensor"),
        (lambda td: td.set("a", NonTensorData("v"), inplace=True), ValueError, "cannot take a NonTensorData in place"),
        (lambda td: pad_sequence([TensorDict({}), TensorDict({"k": torch.ones(2)})]), KeyError, "only the second has"),
    ],
)
def test_a_wrong_argument_is_named(call: Callable[[TensorDict], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call(rows())


# comparisons and vmap ------------------------------------------------------------------------------------------------


def test_values_of_elements_with_keys_of_their_own_are_compared():
    stack = lazy_stack(
        [TensorDict({"s": NonTensorData(1)}), TensorDict({"s": NonTensorData(2), "k": NonTensorData(3)})]
    )
    other = lazy_stack(
        [TensorDict({"s": NonTensorData(1)}), TensorDict({"s": NonTensorData(1), "k": NonTensorData(3)})]
    )
    first, second = (stack == other).tensordicts
    assert first["s"].item() and not second["s"].item() and second["k"].item()
    nested = TensorDict({"n": stack}, [2]) != TensorDict({"n": other}, [2])
    assert [element["s"].item() for element in nested["n"].tensordicts] == [False, True]


def test_a_value_that_one_element_has_more_is_named():
    one, more = TensorDict({}), TensorDict({"s": NonTensorData(1)})
    for call in (lambda a, b: a == b, lambda a, b: b >= a):
        with pytest.raises(KeyError, match="'s'"):
            call(lazy_stack([more, one]), lazy_stack([one, one]))
    with pytest.raises(KeyError, match=r"\['a'\]"):
        assert lazy_stack([one, one]) < lazy_stack([TensorDict({"a": torch.ones(())}), one])


def test_vmap_maps_a_tensordict_of_one_value():
    td = TensorDict({"s": NonTensorData("text", batch_size=[3, 2])}, [3, 2], names=["x", "y"])
    mapped = torch.vmap(lambda row: torch.vmap(lambda one: one + 1)(row))(td)
    assert mapped.batch_size == (3, 2) and mapped["s"] == "text"
    assert torch.vmap(lambda row: row.clone())(td).names == [None, "y"]


def test_vmap_keeps_the_order_of_values_of_one_row():
    values = NonTensorStack(NonTensorData(3, batch_size=[1]))
    td = TensorDict({"s": values, "a": torch.ones(1, 1)}, [1, 1])
    assert torch.vmap(lambda row: row + 1)(td)["s"] == [[3]]


# other calls ---------------------------------------------------------------------------------------------------------


def test_an_operation_in_place_that_changes_nothing_keeps_a_locked_tensordict():
    td = TensorDict({"a": torch.zeros(4)}, [4]).lock_()
    assert td.reshape([4], inplace=True) is td
    with pytest.raises(RuntimeError, match="locked"):
        td.reshape([2, 2], inplace=True)


def test_values_that_are_none_everywhere_are_left_out_of_a_dictionary():
    rows = [TensorDict({"s": NonTensorData(None), "a": torch.ones(())}) for _ in range(2)]
    for td in (lazy_stack(rows), TensorDict({"s": NonTensorStack(None, None), "a": torch.ones(2)}, [2])):
        assert list(td.to_dict(retain_none=False)) == ["a"] and list(td.to_dict()) == ["s", "a"]
        assert list(td.to_tensordict(retain_none=False).keys()) == ["a"]
    partly = TensorDict({"s": NonTensorStack("text", None)}, [2])
    assert partly.to_dict(retain_none=False) == {"s": ["text", None]}


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda td: td.to(memory_format=7), TypeError, "memory_format"),
        (lambda td: td.gather(torch.ones(2), torch.zeros(3, dtype=torch.int64)), TypeError, "not a batch dimension"),
        (lambda td: td[0].repeat_interleave(2, torch.ones(2)), TypeError, "not a batch dimension"),
        (lambda td: td.cat_from_tensordict(sorted=[]), RuntimeError, "sorted"),
        (lambda td: td.cat_from_tensordict(sorted="a"), TypeError, "list of keys"),
        (lambda td: td.update_at_({(): torch.ones(1)}, slice(0, 1)), KeyError, "the empty tuple is not a key"),
        (lambda td: TensorDict({}).lock_().popitem(), RuntimeError, "locked"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(call, error, words):
    with pytest.raises(error, match=words):
        call(TensorDict({"a": torch.zeros(3)}, [3]))


def test_a_source_with_more_dimensions_of_size_1_is_written_into_a_lazy_stack():
    stack = lazy_stack([TensorDict({"a": torch.zeros(2)}, [2]) for _ in range(2)])
    stack[0:1] = TensorDict({"a": torch.ones(1, 1, 2)}, [1, 1, 2])
    stack.update_at_(TensorDict({"a": torch.ones(1, 2)}, [1, 2]), 1)
    stack[0] = TensorDict({"new": torch.ones(1, 2)}, [1, 2])
    assert (stack["a"] == 1).all() and stack.tensordicts[0]["new"].shape == (2,)


def test_a_lazy_stack_without_common_keys_is_not_dropped_as_empty():
    def nested() -> TensorDict:
        rows = [TensorDict({"n": torch.ones(())}), TensorDict({"n": torch.ones(()), "only": torch.ones(())})]
        return TensorDict({"b": lazy_stack(rows)}, [2])

    td = nested()
    part = td.separates(("b", "n"))
    assert "only" in td["b"].tensordicts[1] and list(part.keys(True, True)) == [("b", "n")]
    _, rest = nested().split_keys([("b", "n")])
    assert "only" in rest["b"].tensordicts[1]
    assert TensorDict({"b": lazy_stack([TensorDict({"c": {}}), TensorDict({})])}, [2]).filter_empty_().is_empty()


def test_vmap_of_an_unbatched_tensor_without_batch_dimensions_is_an_error_of_torch():
    td = TensorDict({"u": UnbatchedTensor(torch.ones(2)), "a": torch.ones(())})
    with pytest.raises(ValueError, match="vmap"):
        torch.vmap(lambda row: row + 1)(td)


@pytest.mark.parametrize(
    "write",
    [
        lambda td: td.set(("n", "b"), torch.ones(2)),
        lambda td: td.setdefault(("n", "b"), torch.ones(2)),
        lambda td: td.update({"n": {"b": torch.ones(2)}}),
        lambda td: td.update({("n", "b"): torch.ones(2)}),
    ],
)
def test_elements_keep_the_nested_entries_that_others_lack(write):
    stack = lazy_stack([TensorDict({"n": {"only": torch.zeros(())}}), TensorDict({})])
    write(stack)
    assert "only" in stack.tensordicts[0]["n"] and torch.equal(stack["n", "b"], torch.ones(2))


def test_a_nested_key_through_the_tensor_of_one_element_is_an_error():
    for first, second in ((torch.zeros(2), None), (torch.zeros(2), torch.zeros(3))):
        stack = lazy_stack([TensorDict({"n": first}), TensorDict({} if second is None else {"n": second})])
        for write in (stack.set, stack.setdefault):
            with pytest.raises(KeyError, match="n is already present"):
                write(("n", "b"), torch.ones(2))
        assert torch.equal(stack.tensordicts[0]["n"], first)


@pytest.mark.parametrize("operation", [lambda td: td * torch.ones(2, 2, 2), lambda td: td.roll(1, 0)])
def test_nested_entries_that_only_some_elements_have_are_kept(operation):
    def inner():
        return lazy_stack([TensorDict({"x": torch.ones(2)}), TensorDict({"y": torch.ones(3)})])

    stack = lazy_stack([TensorDict({"a": inner()}, [2]) for _ in range(2)])
    result = operation(stack)
    found = {key for row in result.unbind(0) for one in row.unbind(-1) for key in dict(one["a"].items())}
    assert found == {"x", "y"}


def test_rows_of_tensors_on_cuda_are_not_locked():
    class OnCuda(torch.Tensor):
        is_cuda = property(lambda self: True)

    td = TensorDict({"a": torch.zeros(2).as_subclass(OnCuda)}, [2]).lock_()
    assert td.is_shared() and not td[0].is_locked and not td.unbind(0)[0].is_locked


def test_rows_of_shared_tensordicts_are_locked_however_they_are_taken():
    """A key that is added to a row would not reach the other processes."""
    td = TensorDict({"a": torch.zeros(2)}, [2]).share_memory_()
    for row in (td[0], td.unbind(0)[0], next(iter(td))):
        assert row.is_locked
        row["a"].fill_(1)
    assert td["a"].tolist() == [1, 0]
    assert not next(iter(TensorDict({"a": torch.zeros(2)}, [2]).lock_())).is_locked


def test_a_single_value_takes_the_batch_size_that_its_tensordict_gets():
    td = TensorDict({"x": torch.zeros(3, 2), "z": {"c": NonTensorData(1, batch_size=[3, 2])}}, [3, 2])
    td.auto_batch_size_(1)
    assert td["z"].batch_size == td["z"].get("c").batch_size == (3,)


def test_an_unbatched_tensor_that_is_separated_has_the_batch_size_of_its_node():
    td = TensorDict({"n": TensorDict({"u": UnbatchedTensor(torch.ones(5))}, [3, 2])}, [3])
    assert td.separates(("n", "u")).get(("n", "u")).batch_size == (3, 2)


def test_rolling_in_place_keeps_the_entries_of_rows_that_come_beside_others():
    rows = [TensorDict({"a": torch.arange(2.0)}, [2]), TensorDict({"a": torch.ones(2), "only": torch.arange(2.0)}, [2])]
    stack = lazy_stack(rows)
    assert stack.roll(1, inplace=True) is stack
    found = [dict(row.items()) for element in stack.unbind(0) for row in element.unbind(0)]
    assert [entries.get("only") for entries in found] == [1, None, None, 0]


def test_a_name_that_only_some_elements_have_is_taken():
    stack = lazy_stack([TensorDict({"a": torch.ones(2)}), TensorDict({"a": torch.ones(3)}), TensorDict({})])
    with pytest.raises(KeyError, match="delete or rename"):
        TensorDict({"b": torch.ones(3), "stack": stack}, [3]).rename_keys({"b": ("stack", "a")})


def test_unlock_reaches_nested_tensordicts_that_are_locked_alone():
    td = TensorDict({"n": TensorDict({"m": TensorDict({"a": 1})})})
    td["n", "m"].lock_()
    with td.unlock_():
        assert not td["n", "m"].is_locked
    assert not td["n", "m"].is_locked and not td.is_locked
    rows = lazy_stack([TensorDict({"a": 1}).lock_(), TensorDict({"a": 2})])
    assert not rows.unlock_().tensordicts[0].is_locked


def test_a_ragged_stack_checks_the_size_of_repeated_rows():
    stack = lazy_stack([TensorDict({"a": torch.ones(2, n)}, [2]) for n in (1, 3)])
    with pytest.raises(RuntimeError):
        stack.repeat_interleave(2, 1, output_size=5)
    assert stack.repeat_interleave(2, 1, output_size=4).batch_size == (2, 4)


@pytest.mark.parametrize("dims", [None, (), []])
def test_a_roll_without_dims_moves_whole_rows(dims):
    td = TensorDict({"a": torch.arange(8).reshape(2, 2, 2)}, [2, 2])
    rows = td["a"].reshape(4, 2).roll(1, 0).reshape(2, 2, 2)
    for container in (td, lazy_stack(list(td.unbind(0)))):
        assert container.roll(1, dims)["a"].equal(rows)


def test_rows_are_written_to_elements_whose_entries_have_other_numbers_of_dimensions():
    stack = lazy_stack([TensorDict({"a": torch.zeros(())}), TensorDict({"a": torch.zeros(3)})])
    stack.set_at_("a", torch.tensor([1.0, 2.0]), ())
    assert [td["a"].tolist() for td in stack.tensordicts] == [1.0, [2.0, 2.0, 2.0]]
