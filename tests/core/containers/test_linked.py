"""Lists of values that are not tensors: what is written into them reaches the tensordict that they were read from."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from tensordict_core import LinkedList, NonTensorData, NonTensorStack, TensorDict, lazy_stack


def letters():
    return TensorDict({"n": ["a", "b", "c"], "t": torch.zeros(3)}, [3])


@pytest.mark.parametrize("read", [lambda td: td["n"], lambda td: td.get_non_tensor("n"), lambda td: td[("n",)]])
def test_a_value_that_is_replaced_is_one_of_the_tensordict(read):
    td = letters()
    values = read(td)
    values[0] = "z"
    values[-1] = NonTensorData("y")
    assert values == td["n"] == td.get("n").tolist() == values.tolist() == ["z", "b", "y"]
    values[:2] = ["p", "q"]
    values.reverse()
    assert td["n"] == ["y", "q", "p"] and td[0]["n"] == "y"


def test_lists_in_it_write_through_too():
    td = TensorDict({"m": TensorDict({"n": [[["a"], ["b"]], [["c"], ["d"]]]}, [2, 2, 1])}, [2])
    values = td["m", "n"]
    values[0][1][0] = "z"
    values[1] = [["p"], ["q"]]
    values[1][0][0] = "r"
    assert td["m", "n"] == [[["a"], ["z"]], [["r"], ["q"]]] == values.tolist()
    assert type(values[1]) is LinkedList and type(values.tolist()[1]) is list


@pytest.mark.parametrize("size", [(0,), (2, 0), (0, 2), (2, 0, 3), (2, 2, 0)], ids=str)
def test_lists_without_values_have_their_shape(size):
    td = TensorDict({"n": NonTensorStack.from_list(torch.zeros(size).tolist(), batch_size=size)}, size)
    assert td["n"] == torch.zeros(size).tolist()


def test_values_of_a_lazy_stack_are_those_of_its_elements():
    elements = [TensorDict({"n": NonTensorData(x), "m": {"n": ["a", "b"]}}) for x in "abc"]
    for element in elements:
        element["m"] = TensorDict({"n": ["a", "b"]}, [2])
    stack = lazy_stack(elements)
    stack["n"][1] = "z"
    stack["m", "n"][2][0] = "y"
    assert elements[1]["n"] == "z" and elements[2]["m", "n"] == ["y", "b"]
    assert stack["n"] == ["a", "z", "c"] and stack["m", "n"] == [["a", "b"], ["a", "b"], ["y", "b"]]


@pytest.mark.parametrize("part", [slice(1, 3), torch.tensor([1, 2])], ids=["view", "copy"])
def test_values_of_a_part_are_those_of_the_whole(part):
    td = letters()
    sub = td.get_sub_tensordict(part)
    sub["n"][0] = "z"
    assert td["n"] == ["a", "z", "c"] and sub["n"] == ["z", "c"]


def test_set_at_replaces_a_value_in_lazy_stacks_and_parts():
    stack = lazy_stack([TensorDict({"n": NonTensorData(x)}) for x in "abc"])
    assert stack.set_at_("n", NonTensorData("z"), 1)["n"] == ["a", "z", "c"]
    td = letters()
    td.get_sub_tensordict(slice(1, 3)).set_at_("n", NonTensorData("z"), 1)
    assert td["n"] == ["a", "b", "z"]


def test_a_list_stored_elsewhere_is_not_linked():
    td, other = letters(), TensorDict({}, [3])
    other["n"] = td["n"]
    one = TensorDict({"n": td["n"]})
    other["n"][0] = "z"
    one["n"][1] = "y"
    assert td["n"] == ["a", "b", "c"] and other["n"] == ["z", "b", "c"] and one["n"] == ["a", "y", "c"]
    stack = lazy_stack([TensorDict({"n": NonTensorData(x)}) for x in "abc"])
    other.set("n", stack.get("n"))
    other["n"][0] = "z"
    assert stack["n"] == ["a", "b", "c"] and other["n"] == ["z", "b", "c"]


def test_copies_and_conversions_are_plain_lists():
    td = TensorDict({"n": [["a", "b"], ["c", "d"]]}, [2, 2])
    values = td["n"]
    copies = [pickle.loads(pickle.dumps(values)), copy.deepcopy(values), values.tolist(), td.to_dict()["n"]]
    for one in [*copies, td.get("n").tolist(), td.pop("n").tolist()]:
        assert type(one) is type(one[0]) is list and one == [["a", "b"], ["c", "d"]]
        one[0][0] = "z"
    assert values == [["a", "b"], ["c", "d"]]
    row = letters().get("n")
    row.tolist().append("q")
    assert row.tolist() == ["a", "b", "c"]


def test_added_values_belong_to_the_list_alone():
    td = letters()
    values = td["n"]
    values.append("y")
    values += ["z"]
    values.extend(["x"])
    values[3], values[0] = "q", "p"
    assert values == ["p", "b", "c", "q", "z", "x"] and td["n"] == ["p", "b", "c"]
    rows = TensorDict({"n": [["a", "b"], ["c", "d"]]}, [2, 2])
    first = rows["n"][0]
    first.append("z")
    first[2] = "y"
    assert first == ["a", "b", "y"] and rows["n"] == [["a", "b"], ["c", "d"]]
    with pytest.raises(IndexError):
        values[6] = "z"


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda values: values.pop(0), ["b", "c"]),
        (lambda values: values.remove("a"), ["b", "c"]),
        (lambda values: values.__delitem__(0), ["b", "c"]),
        (lambda values: values.insert(0, "q"), ["q", "a", "b", "c"]),
    ],
    ids=["pop", "remove", "del", "insert"],
)
def test_a_list_whose_values_moved_writes_to_no_position(change, left):
    td = letters()
    values = td["n"]
    change(values)
    assert values == left
    values[0] = "z"
    values.reverse()
    assert td["n"] == ["a", "b", "c"]
    values.clear()
    assert values == [] and len(td["n"]) == 3


def test_rows_of_other_lengths_are_refused_before_one_is_written():
    td = TensorDict({"n": [["a", "b"], ["c", "d"]]}, [2, 2])
    values = td["n"]
    with pytest.raises(TypeError, match="number of rows of a tensordict is fixed"):
        values[:] = [["p", "q"], ["r"]]
    assert values == td["n"] == [["a", "b"], ["c", "d"]]
    values[0] = "p"
    assert values == td["n"] == [["p", "p"], ["c", "d"]], "one value goes to all positions of the row"


@pytest.mark.parametrize("make", [letters, lambda: lazy_stack(list(letters().unbind(0)))], ids=["dense", "lazy"])
def test_locked_values_are_not_replaced(make):
    td = make()
    values = td["n"]
    td.lock_()
    for read in (values, td["n"]):
        with pytest.raises(RuntimeError, match="locked"):
            read[0] = "z"
    assert td["n"] == values == ["a", "b", "c"]


def test_a_list_of_another_batch_size_is_not_written_to():
    td = TensorDict({"n": NonTensorStack("a", "b")}, [2])
    values = td["n"]
    td.get("n").batch_size = [2, 2]
    with pytest.raises(RuntimeError, match="read the list again"):
        values[0] = "z"
    ragged = lazy_stack([TensorDict({"n": ["a"]}, [1]), TensorDict({"n": ["b", "c"]}, [2])])
    with pytest.raises(RuntimeError, match="elements of the stack"):
        ragged["n"][0] = ["z"]


def test_compiled_code_reads_a_list():
    td = letters()
    read = torch.compile(lambda td: (td["t"] + len(td["n"]), td["n"]), fullgraph=True, backend="eager")
    assert read(td)[1] == ["a", "b", "c"]
