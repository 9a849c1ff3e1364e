"""Non-tensor data: one value for all positions, or one for each."""

from __future__ import annotations

import copy
import threading

import numpy
import pytest
import torch

from tensordict_core import (
    LazyStackedTensorDict,
    MetaData,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictBase,
    is_non_tensor,
    lazy_stack,
    set_capture_non_tensor_stack,
)


class Odd:
    """A value that cannot be compared."""

    def __eq__(self, other):
        raise ValueError

    __hash__ = None


VALUES = ["text", b"bytes", None, 3.5, (1, "x"), {"k": [1]}, Odd(), lambda: 0, torch.nn.ReLU]


@pytest.mark.parametrize("value", VALUES, ids=[type(v).__name__ for v in VALUES])
def test_every_operation_accepts_any_value(value):
    td = TensorDict({"v": NonTensorData(value, batch_size=[2, 3]), "t": torch.zeros(2, 3)}, [2, 3])
    for result in (td, td[0], td[:, 1:], td.reshape(-1), td + 1, td.copy(), td.apply(torch.neg), td.unbind(0)[0]):
        assert result["v"] is value and is_non_tensor(result.get("v"))
        assert result.get("v").batch_size == result.batch_size
    assert type(td.clone()["v"]) is type(value)


@pytest.mark.parametrize("value", [["a"], {"k": "a"}, {"a"}, ("b", ["a"])], ids=["list", "dict", "set", "tuple"])
def test_a_clone_has_values_of_its_own(value):
    for data in (NonTensorData(value), NonTensorStack(NonTensorData(value), NonTensorData("s"))[0]):
        td = TensorDict({"v": data})
        assert td.clone()["v"] == value and td.clone()["v"] is not value
        assert TensorDict().update(td, clone=True)["v"] is not value
        assert td.copy()["v"] is value and td.to_tensordict()["v"] is value


def test_equal_objects_of_a_stack_are_one_object_in_its_clone():
    value = ["a"]
    clone = NonTensorStack(NonTensorData(value), NonTensorData(value), NonTensorData("s")).clone()
    assert clone[0].data is clone[1].data and clone[0].data is not value


def test_a_clone_shares_values_that_cannot_be_copied():
    lock = threading.Lock()
    assert NonTensorData(lock).clone().data is lock
    assert NonTensorStack(NonTensorData(lock), NonTensorData("s")).clone()[0].data is lock


def test_an_array_is_stacked_before_a_string():
    array = numpy.zeros(2)
    assert NonTensorStack(NonTensorData(array), NonTensorData("s")).tolist()[0] is array


def test_a_list_of_the_batch_is_a_value_for_each_row():
    td = TensorDict({"s": ["a", "b", "c"], "n": [[1, 2], [3, 4], [5, 6]]}, batch_size=[3])
    assert isinstance(td.get("s"), NonTensorStack) and td[1]["s"] == "b"
    assert isinstance(td["n"], torch.Tensor)
    td["s2"] = ["x", "y", "z"]
    assert td[2]["s2"] == "z"


def test_a_stack_of_other_shape_than_its_values_is_refused():
    with pytest.raises(ValueError, match="shape"):
        NonTensorStack.from_list([["a"], ["b", "c"]], batch_size=[2, 2])
    with pytest.raises(RuntimeError, match="batch sizes"):
        torch.stack([NonTensorData(1, batch_size=[2]), NonTensorData(1, batch_size=[3])])


def test_a_stack_is_a_tensordict_for_isinstance():
    assert isinstance(NonTensorStack("a", "b"), TensorDictBase)


def test_stacks_of_two_dimensions():
    stack = NonTensorStack.from_list([["a", "b", "c"], ["d", "e", "f"]])
    assert stack.batch_size == (2, 3) and stack.tolist() == [["a", "b", "c"], ["d", "e", "f"]]
    assert stack[1, 2].data == "f" and stack[:, 0].tolist() == ["a", "d"]
    assert stack.permute(1, 0).tolist() == [["a", "d"], ["b", "e"], ["c", "f"]]
    assert stack.reshape(3, 2).tolist() == [["a", "b"], ["c", "d"], ["e", "f"]]
    assert stack[torch.tensor([[True, False, True], [False, True, False]])].tolist() == ["a", "c", "e"]
    assert NonTensorStack("a", "b", stack_dim=0).tolist() == ["a", "b"]
    assert NonTensorStack().tolist() == [] and NonTensorStack().batch_size == (0,)


def test_stacking_puts_values_along_the_new_dimension():
    one, two = (TensorDict({"s": NonTensorStack(*pair)}, [2]) for pair in ("ab", "cd"))
    assert torch.stack([one, two], 0)["s"] == [["a", "b"], ["c", "d"]]
    assert torch.stack([one, two], 1)["s"] == [["a", "c"], ["b", "d"]]
    assert torch.cat([one, two])["s"] == ["a", "b", "c", "d"]
    mixed = TensorDict({"s": NonTensorData("e", batch_size=[2])}, [2])
    assert torch.cat([one, mixed])["s"] == ["a", "b", "e", "e"]
    assert torch.stack([mixed, one], 1)["s"] == [["e", "a"], ["e", "b"]]


def test_equal_values_stay_one_by_the_option_or_as_metadata():
    tds = [TensorDict({"s": "x", "m": MetaData("m")}) for _ in range(2)]
    with set_capture_non_tensor_stack(True):
        assert torch.stack(tds)["s"] == "x"
    with set_capture_non_tensor_stack(False):
        assert torch.stack(tds)["s"] == ["x", "x"] and torch.stack(tds)["m"] == "m"
    other = TensorDict({"s": "x", "m": MetaData("n")})
    assert torch.stack([tds[0], other])["m"] == ["m", "n"]
    assert isinstance(torch.stack(tds)[0].get("m"), MetaData)


def test_a_write_to_one_row_makes_a_stack():
    td = TensorDict({"s": "x"}, batch_size=[3])
    td[1] = TensorDict({"s": "y"})
    assert td["s"] == ["x", "y", "x"]
    td[:] = TensorDict({"s": "z"}, batch_size=[3])
    assert td["s"] == ["z", "z", "z"]
    td.set_at_("s", "w", 0)
    assert td["s"] == ["w", "z", "z"]
    with pytest.raises(RuntimeError, match="NonTensorStack"):
        NonTensorData("x", batch_size=[3])[0] = NonTensorData("y")
    with pytest.raises(RuntimeError, match=r"one value for each position of the batch size \[2\] .* \[\]; index"):
        td.set_at_("s", ["v", "w"], 0)


@pytest.mark.parametrize("lock", [False, True])
@pytest.mark.parametrize("write", [lambda td, v: td.set_("s", v), lambda td, v: td.update_({"s": v})])
@pytest.mark.parametrize("old", [NonTensorData("x", batch_size=[2]), NonTensorStack("x", "y")])
def test_a_list_that_is_written_in_place_has_a_value_for_each_row(old, write, lock):
    td = TensorDict({"s": old.clone()}, [2], lock=lock)
    write(td, ["a", "b"])
    assert td["s"] == ["a", "b"] and td[0]["s"] == "a" and td[1]["s"] == "b"
    write(td, "z")
    assert [row["s"] for row in td] == ["z", "z"]


def test_a_stack_that_is_written_in_place_keeps_its_own_values():
    td, source = TensorDict({"s": "x"}, [2]), TensorDict({"s": NonTensorStack("a", "b")}, [2])
    td.update_(source)
    td[0] = TensorDict({"s": "c"})
    assert td["s"] == ["c", "b"] and source["s"] == ["a", "b"]


def test_values_of_longer_batches_take_one_for_each_row():
    td = TensorDict({"s": NonTensorStack.from_list([["a", "b"], ["c", "d"]])}, [2])
    td.set_("s", ["x", "y"])
    assert td["s"] == [["x", "x"], ["y", "y"]]
    td.set_("s", [["a", "b"], ["c", "d"]])
    assert td["s"] == [["a", "b"], ["c", "d"]]
    with pytest.raises(RuntimeError, match="shape"):
        TensorDict({"s": NonTensorStack("a", "b")}, [2]).set_("s", td.get("s"))


def test_a_stack_without_a_batch_around_it_takes_a_list():
    td = TensorDict({"s": NonTensorStack("x", "y")})
    td.set_("s", ["a", "b"])
    assert td["s"] == ["a", "b"]


def test_plain_values_stay_values_and_tensordicts_are_refused():
    td = TensorDict({"s": "x"}, [2])
    td.update_({"s": 4})
    assert td["s"] == 4 and td.is_non_tensor("s")
    with pytest.raises(KeyError, match="'s'"):
        td.update_({"s": TensorDict({}, [2])})


def test_values_are_replaced_in_place():
    td = TensorDict({"s": "x", "l": ["a", "b"]}, batch_size=[2], lock=True)
    td.update_({"s": "y"})
    td.set_("l", ["c", "d"])
    assert td["s"] == "y" and td["l"] == ["c", "d"]


def test_a_clone_has_a_list_of_its_own():
    td = TensorDict({"s": ["a", "b"]}, batch_size=[2])
    other = td.clone()
    other[0] = TensorDict({"s": "z"})
    assert td["s"] == ["a", "b"] and other["s"] == ["z", "b"]


def test_comparison_is_by_value_and_position():
    td = TensorDict({"s": ["a", "b"], "v": Odd()}, batch_size=[2])
    other = TensorDict({"s": ["a", "c"], "v": Odd()}, batch_size=[2])
    assert (td == other)["s"].tolist() == [True, False] and not (td == other)["v"].any()
    assert (td == td)["v"].all() and (td != other)["s"].tolist() == [False, True]


def test_lazy_stacks_have_the_values_of_their_elements():
    td = LazyStackedTensorDict(*(TensorDict({"s": s}) for s in "ab"))
    assert td["s"] == ["a", "b"] and td.get("s").batch_size == (2,)
    td["t"] = ["x", "y"]
    assert td[1]["t"] == "y"


def test_entries_are_recognized_and_filtered():
    td = TensorDict({"s": "x", "t": torch.zeros(2), "n": {"s": "y"}}, batch_size=[2])
    assert td.is_non_tensor("s") and not td.is_non_tensor("t")
    assert td.get_non_tensor("s") == "x" and td.get_non_tensor("absent", 1) == 1
    assert set(td.filter_non_tensor_data().keys(True)) == {"t", "n"}
    assert [key for key, _ in td.non_tensor_items(True)] == ["s", ("n", "s")]
    with pytest.raises(KeyError, match="holds one value"):
        td.get("s")["x"] = torch.zeros(2)


def test_wrapped_values_are_unwrapped_once():
    assert NonTensorData(NonTensorData("x")).data == "x"
    assert NonTensorData("x", batch_size=[2]).tolist() == ["x", "x"]
    assert repr(NonTensorData("x")).startswith("NonTensorData(data=x")


def test_stacks_of_equal_values_are_concatenated_as_stacks():
    td = TensorDict({"v": NonTensorStack("q", "q")}, [2])
    both = torch.cat([td, td])
    assert isinstance(both.get("v"), NonTensorStack) and both["v"] == ["q"] * 4 and both.get("v").batch_size == (4,)
    wide = TensorDict({"v": NonTensorStack.from_list([["p", "q"], ["p", "q"]])}, [2, 2])
    assert torch.cat([wide, wide[:, :1]], 1)["v"] == [["p", "q", "p"]] * 2


@pytest.mark.parametrize(
    ("size", "values"),
    [([0], []), ([0, 0], []), ([2, 0], [[], []]), ([0, 2], []), ([2, 0, 3], [[], []]), ([1, 2, 0], [[[], []]])],
)
def test_a_stack_without_positions_has_the_lists_of_its_size(size, values):
    stack = NonTensorStack.from_list(values, batch_size=size)
    assert stack.tolist() == values and stack.batch_size == tuple(size)
    assert TensorDict({"v": stack}, size)["v"] == values


def test_stacks_without_positions_are_concatenated():
    for size in ([0], [0, 2], [2, 0]):
        td = TensorDict({"v": NonTensorStack.from_list([[]] * size[0], batch_size=size)}, size)
        for dim in range(len(size)):
            assert torch.cat([td, td], dim).get("v").tolist() == [[]] * torch.cat([td, td], dim).batch_size[0]


def test_a_value_for_each_position_keeps_its_position_when_the_batch_size_grows():
    td = TensorDict({"w": NonTensorStack("a", "b"), "x": torch.zeros(2, 3)}, [2])
    td.batch_size = [2, 3]
    assert td["w"] == [["a"] * 3, ["b"] * 3] and td[1, 2]["w"] == "b"
    td = TensorDict({}, [2, 2])
    td["w"] = NonTensorStack("a", "b")
    assert td[:, 0]["w"] == ["a", "b"]
    for size in ([5], []):
        with pytest.raises(RuntimeError, match="have a value each"):
            NonTensorStack("a", "b").batch_size = size


def test_values_by_position_keep_their_positions_when_the_batch_size_is_set_anew():
    td = TensorDict(
        {"a": torch.zeros(2, 2), "s": NonTensorStack.from_list([["p", "q"], ["r", "s"]], batch_size=[2, 2])}, [2, 2]
    )
    td.auto_batch_size_(1)
    assert td.batch_size == torch.Size([2]) and td[1]["s"] == ["r", "s"]


@pytest.mark.parametrize(
    "operation",
    [lambda td: td + 1, lambda td: td.to(torch.float64), lambda td: td.apply(torch.sin), lambda td: td.clone()],
    ids=["add", "to", "apply", "clone"],
)
def test_values_of_a_result_with_new_leaves_are_independent(operation):
    td = TensorDict({"x": torch.zeros(2)}, [2])
    td["s"] = ["a", "b"]
    result = operation(td)
    result.set_at_("s", "z", 0)
    result["s"][1] = "y"
    assert td["s"] == ["a", "b"] and result["s"] == ["z", "y"]
    with td.view(2, 1) as view:
        view["s"][0][0] = "seen"
    assert td["s"] == ["seen", "b"]


def test_non_tensor_data_has_the_fields_of_a_tensorclass_and_is_made_from_a_tensordict():
    assert NonTensorData("a").fields()[0].name == "data" and NonTensorData.fields()[1].default is None
    for td, more in ((TensorDict({"data": "a"}, [2]), None), (TensorDict({}, [2]), {"data": "a"})):
        made = NonTensorData.from_tensordict(td, more)
        assert type(made) is NonTensorData and made.data == "a" and made.batch_size == (2,)
    assert NonTensorData.from_tensordict(TensorDict({})).data is None
    for td in (TensorDict({"x": 1}), TensorDict({"data": "a", "x": 1})):
        with pytest.raises(ValueError, match="must be fields"):
            NonTensorData.from_tensordict(td)


def test_non_tensor_data_is_made_from_a_dictionary():
    made = NonTensorData.from_dict({"data": "a"}, batch_size=[2], device="cpu", names=["time"])
    assert type(made) is NonTensorData and made.data == "a"
    assert (made.batch_size, made.device, made.names) == ((2,), torch.device("cpu"), ["time"])
    value = torch.ones(2)
    assert NonTensorData.from_dict({"data": value}, auto_batch_size=True).data is value
    with pytest.raises(ValueError, match="must be fields"):
        NonTensorData.from_dict({"x": 1})
    with pytest.raises(TypeError, match="batch_sizes"):
        NonTensorData.from_dict({"data": "a"}, batch_sizes=[2])


@pytest.mark.parametrize("cls", [NonTensorData, MetaData])
@pytest.mark.parametrize("value", [*VALUES, [1, 2], torch.ones(2), {"a": 1.0}], ids=lambda value: type(value).__name__)
def test_from_dict_holds_the_value_as_it_is(cls, value):
    data = cls.from_dict({"data": value}, batch_size=[3], names=["t"])
    assert type(data) is cls and data.data is value and data.batch_size == (3,) and data.names == ["t"]
    assert type(made := data.from_dict_instance({"data": value})) is cls and made.data is value
    assert cls.from_dict({}).data is None
    with pytest.raises(ValueError, match="must be fields"):
        cls.from_dict({"data": value, "other": 1})


def test_data_are_set_by_the_name_of_their_field():
    data = NonTensorData("a", batch_size=[2])
    assert data.set("data", "b") is data and data.tolist() == ["b", "b"]
    with pytest.raises(RuntimeError, match="locked"):
        data.lock_().set("data", "c")
    data.unlock_()
    for error in (KeyError, AttributeError, ValueError):
        with pytest.raises(error, match=r"^key 'q' cannot be set"):
            data.set("q", "c")
        with pytest.raises(error, match=r"^key 'q' cannot be set"):
            data["q"] = "c"
    made = NonTensorData.from_any({"data": "x"}, batch_size=[2])
    assert type(made) is NonTensorData and made.tolist() == ["x", "x"]


@pytest.mark.parametrize(
    ("index", "values", "expected"),
    [
        (slice(1, 3), ["x", "y"], ["a", "x", "y"]),
        (slice(None), ["x"], ["x", "x", "x"]),
        ([0, 2], ["x", "y"], ["x", "b", "y"]),
        (torch.tensor([True, False, True]), [1, 2], [1, "b", 2]),
        (..., [["p", "q"], ["r", "s"], ["t"]], [["p", "q"], ["r", "s"], ["t"]]),
        (1, ["x", "y"], ["a", ["x", "y"], "c"]),
        (slice(None), ("x", "y"), [("x", "y")] * 3),
    ],
)
def test_a_list_at_an_index_of_a_stack_has_one_value_for_each_position(index, values, expected):
    stack = NonTensorStack("a", "b", "c")
    stack[index] = values
    assert stack.tolist() == expected


def test_a_list_of_other_length_at_an_index_of_a_stack_is_refused():
    stack = NonTensorStack("a", "b", "c")
    with pytest.raises(RuntimeError, match="does not fit the batch size"):
        stack[1:] = ["x", "y", "z"]
    assert stack.tolist() == ["a", "b", "c"]
    nested = NonTensorStack.from_list([["a", "b"], ["c", "d"]])
    nested[1] = ["x", "y"]
    nested[:, 0] = ["p", "q"]
    assert nested.tolist() == [["p", "b"], ["q", "y"]]


@pytest.mark.parametrize(
    "copied", [lambda td: td.clone(False), TensorDict.copy, copy.copy, copy.deepcopy, TensorDict.clone]
)
@pytest.mark.parametrize(
    "write",
    [
        lambda td: td["s"].__setitem__(0, "new"),
        lambda td: td.set_at_("s", "new", 0),
        lambda td: td.update_({"s": ["new", "b"]}),
        lambda td: td["n", "s"].__setitem__(0, "new"),
        lambda td: td.get("grid").update_(NonTensorData("new", [2, 2])),
        lambda td: td.update_({"one": "new"}),
    ],
)
def test_a_copy_of_a_tensordict_has_values_of_its_own(copied, write):
    def make():
        source = {"s": ["a", "b"], "n": {"s": ["x", "y"]}, "grid": [["a", "b"], ["c", "d"]], "one": "value"}
        return TensorDict({**source, "x": torch.zeros(2)}, [2])

    td = make()
    changed = copied(td)
    write(changed)
    keys = ["s", ("n", "s"), "grid", "one"]
    assert [td[key] for key in keys] == [make()[key] for key in keys]
    assert [changed[key] for key in keys] != [td[key] for key in keys]


def test_a_stack_of_stacks_of_several_lengths_has_lists_as_values():
    parts = [NonTensorStack("a", "b"), NonTensorStack("c")]
    for stack in (NonTensorStack(*parts), lazy_stack(parts), LazyStackedTensorDict.maybe_dense_stack(parts)):
        assert stack.tolist() == [["a", "b"], ["c"]] and stack.batch_size == torch.Size([2])


def test_a_list_of_values_with_batch_dimensions_becomes_a_stack_that_has_them():
    stack = NonTensorStack.from_list([NonTensorData(1, batch_size=[2]), NonTensorData("b", batch_size=[2])])
    assert stack.tolist() == [[1, 1], ["b", "b"]] and stack.batch_size == torch.Size([2, 2])
    nested = NonTensorStack.from_list([[NonTensorStack("a", "b")], [NonTensorStack("c", "d")]])
    assert nested.batch_size == torch.Size([2, 1, 2])


@pytest.mark.parametrize("data", [NonTensorData("a"), NonTensorStack("a", "b")])
def test_data_have_one_entry(data):
    assert data.get("data") == data.get(("data",)) == data.tolist()
    assert data.get("missing") is None and data.get("missing", "default") == "default"
    with pytest.raises(KeyError, match="missing"):
        data.get_non_tensor("missing")
    with pytest.raises(KeyError, match="0 of type int"):
        data.get(0)


def test_a_stack_takes_a_device_and_names():
    stack = NonTensorStack("a", "b", device="cpu", names=["time"])
    assert stack.device == torch.device("cpu") and stack.names == ["time"] and stack.tolist() == ["a", "b"]
