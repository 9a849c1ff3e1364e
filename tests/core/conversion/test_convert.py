"""Conversions to and from dictionaries, lists, tuples, dataclasses, pytrees and arrays."""

from __future__ import annotations

import copy
import os
import pickle
import time
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from tensordict_core import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    from_any,
    from_dict,
    from_pytree,
    fromkeys,
    lazy_stack,
    make_tensordict,
    merge_tensordicts,
)

Point = namedtuple("Point", "a b")


@dataclass
class Record:
    x: Any
    y: Any


def sample() -> TensorDict:
    return TensorDict(
        {"a": torch.arange(6).reshape(3, 2), "b": TensorDict({"c": torch.zeros(3, 2)}, [3, 2]), "s": "text"}, [3]
    )


def same(left: Any, right: Any) -> bool:
    """Equal structures of tensors, arrays and other values."""
    if isinstance(left, torch.Tensor | np.ndarray):
        return type(left) is type(right) and left.shape == right.shape and bool((left == right).all())
    if isinstance(left, dict):
        return type(left) is type(right) and list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


# to other structures -------------------------------------------------------------------------------------------------


def test_to_dict_holds_every_entry():
    td = sample()
    expected = {"a": td["a"], "b": {"c": td["b", "c"]}, "s": "text"}
    assert same(td.to_dict(), expected)
    assert td.to_dict()["a"] is td["a"]


def test_to_dict_converts_leaves_to_lists_or_arrays():
    td = sample()
    assert same(td.to_dict(convert_tensors=True)["a"], [[0, 1], [2, 3], [4, 5]])
    assert same(td.to_dict(convert_tensors="numpy")["b"], {"c": np.zeros((3, 2), dtype=np.float32)})
    with pytest.raises(ValueError, match="'numpy'"):
        td.to_dict(convert_tensors="jax")


def test_to_dict_converts_nested_tensordicts_to_lists_with_tolist_first():
    found = sample().to_dict(tolist_first=True, convert_tensors=True)
    assert found["b"] == [[{"c": 0.0}, {"c": 0.0}]] * 3
    assert found["s"] == ["text"] * 3


def test_none_is_kept_unless_retain_none_is_false():
    td = TensorDict({"a": 1, "n": NonTensorData(None), "b": {"n": NonTensorData(None)}})
    assert same(td.to_dict(), {"a": torch.tensor(1), "n": None, "b": {"n": None}})
    assert same(td.to_dict(retain_none=False), {"a": torch.tensor(1), "b": {}})
    assert list(td.to_tensordict(retain_none=False).keys()) == ["a", "b"]
    assert list(td.to_tensordict().keys()) == ["a", "n", "b"]


def test_tolist_has_a_list_for_each_batch_dimension():
    td = TensorDict({"a": torch.arange(4).reshape(2, 2), "s": ["x", "y"]}, [2])
    assert td.tolist(convert_tensors=True) == [{"a": [0, 1], "s": "x"}, {"a": [2, 3], "s": "y"}]
    td = TensorDict({"a": torch.arange(4).reshape(2, 2)}, [2, 2])
    assert td.tolist(convert_tensors=True) == [[{"a": 0}, {"a": 1}], [{"a": 2}, {"a": 3}]]
    assert TensorDict({"a": 1}).tolist(convert_tensors=True) == {"a": 1}
    rows = td.tolist(convert_nodes=False)
    assert isinstance(rows[1][0], TensorDict) and rows[1][0]["a"] == 2
    nested = sample().tolist(tolist_first=True, convert_tensors=True)
    assert nested[0]["b"] == [{"c": 0.0}, {"c": 0.0}]


def test_a_linked_list_writes_through_and_other_lists_do_not():
    td = TensorDict({"a": torch.zeros(3), "s": ["x", "y", "z"]}, [3])
    rows = td.tolist(as_linked_list=True)
    rows[-1] = {"a": torch.tensor(5.0), "s": "w"}
    assert td["a"].tolist() == [0, 0, 5] and td["s"] == ["x", "y", "w"]
    rows[:2] = [{"a": 1.0, "s": "p"}, {"a": 2.0, "s": "q"}]
    assert td["a"].tolist() == [1, 2, 5]
    rows.reverse()
    assert td["a"].tolist() == [5, 2, 1]
    with pytest.raises(TypeError, match="number of rows of a tensordict is fixed"):
        rows[:1] = []
    rows.append(1)
    rows *= 2
    rows[4] = {"a": 7.0}
    rows.pop(0)
    rows[0] = {"a": 9.0}
    assert td["a"].tolist() == [5, 2, 1] and len(rows) == 7
    assert type(copy.copy(rows)) is list and type(pickle.loads(pickle.dumps(rows))) is list


def test_numpy_shares_memory_and_names_a_leaf_that_it_cannot_convert():
    td = sample()
    arrays = td.numpy()
    assert same(arrays, {"a": td["a"].numpy(), "b": {"c": np.zeros((3, 2), np.float32)}, "s": "text"})
    arrays["a"][0, 0] = 7
    assert td["a"][0, 0] == 7
    with pytest.raises(RuntimeError, match="requires grad") as error:
        TensorDict({"w": torch.zeros(1, requires_grad=True)}).numpy()
    assert "'w'" in error.value.__notes__[0]


def test_to_tensordict_copies_to_plain_tensordicts_at_every_level():
    td = TensorDict({"l": lazy_stack([TensorDict({"a": i}) for i in range(2)])}, [2]).lock_()
    plain = td.to_tensordict()
    assert type(plain["l"]) is TensorDict and not plain.is_locked
    assert plain["l", "a"].tolist() == [0, 1]
    source = sample()
    assert source.to_tensordict()["a"] is not source["a"]
    assert source.to_tensordict()["b"].batch_size == torch.Size([3, 2])


def test_named_tuples_have_the_keys_as_fields():
    found = TensorDict({"a": torch.zeros(1), "b": {"c": "x"}}).to_namedtuple()
    assert found._fields == ("a", "b") and found.b.c == "x"
    assert type(TensorDict({"b": 1, "a": 2}).to_namedtuple(Point)) is Point
    with pytest.raises(TypeError, match=r"fields \['a', 'b'\] and the tensordict the keys \['a'\]"):
        TensorDict({"a": 1}).to_namedtuple(Point)
    with pytest.raises(ValueError, match="rename the key"):
        TensorDict({"a b": 1}).to_namedtuple()


# from dictionaries ---------------------------------------------------------------------------------------------------

SOURCE = {"a": torch.zeros(3, 4), "b": {"c": torch.ones(3, 4, 5)}}


@pytest.mark.parametrize(
    ("arguments", "size", "nested"),
    [
        ({}, [], []),
        ({"auto_batch_size": True}, [3, 4], [3, 4, 5]),
        ({"auto_batch_size": True, "batch_dims": 1}, [3], [3]),
        ({"batch_dims": 1}, [3], [3]),
        ({"batch_dims": 1, "auto_batch_size": False}, [], []),
        ({"batch_size": [3]}, [3], [3]),
        ({"batch_size": 3, "auto_batch_size": True}, [3], [3]),
    ],
)
def test_from_dict_sets_the_batch_size_that_the_options_select(arguments, size, nested):
    for td in (TensorDict.from_dict(SOURCE, **arguments), from_dict(SOURCE, **arguments)):
        assert (list(td.batch_size), list(td["b"].batch_size)) == (size, nested)
    if "batch_size" not in arguments:
        td = from_any(SOURCE, **{"auto_batch_size": "batch_dims" in arguments} | arguments)
        if arguments.get("auto_batch_size", True) or not arguments:
            assert list(td.batch_size) == size


def test_names_and_device_are_set():
    td = TensorDict.from_dict(SOURCE, batch_dims=2, names=["time", None], device="cpu")
    assert td.names == ["time", None] and td.device == torch.device("cpu") and td["b"].device == torch.device("cpu")
    assert TensorDict.from_dict(SOURCE, batch_size=[3], names=["time"]).names == ["time"]


def test_numbers_of_dictionaries_in_tuples_are_non_tensor_data_of_the_batch_size():
    td = TensorDict.from_dict({"a": ({"b": 1}, torch.ones(2))}, batch_size=[2])
    assert td["a", "0", "b"] == 1 and td["a", "0"].batch_size == (2,)
    assert td["a", "1"].tolist() == [1.0, 1.0]
    with pytest.raises(RuntimeError, match="batch"):
        TensorDict.from_dict({"a": (1, 2)}, batch_size=[2])


def test_from_dict_refuses_bad_arguments():
    with pytest.raises(ValueError, match="batch_size and batch_dims"):
        TensorDict.from_dict(SOURCE, batch_size=[3], batch_dims=1)
    with pytest.raises(RuntimeError, match=r"'a'.*does not start with the batch size"):
        TensorDict.from_dict(SOURCE, batch_size=[4])
    with pytest.raises(TypeError, match="from_dict takes a dictionary or a tensordict, got list"):
        TensorDict.from_dict([1])
    with pytest.raises(TypeError, match="a key is a string"):
        TensorDict.from_dict({1: torch.zeros(1)})


def test_from_dict_inverts_to_dict():
    td = sample()
    again = TensorDict.from_dict(td.to_dict(), batch_size=[3])
    assert (again == td).all() and again["s"] == "text"
    assert TensorDict.from_dict({("a", "b"): torch.zeros(2)})["a"].sorted_keys == ["b"]
    assert TensorDict.from_dict(td, batch_size=[3])["a"] is td["a"]


def test_from_dict_instance_keeps_the_types_of_nested_containers():
    class Marked(TensorDict):
        def from_dict_instance(self, input_dict, **kwargs):
            return Marked(super().from_dict_instance(input_dict, **kwargs))

    td = TensorDict({"m": Marked({"x": 1}), "a": 1})
    found = td.from_dict_instance({"m": {"x": torch.zeros(2)}, "a": torch.zeros(2)}, batch_dims=1)
    assert type(found["m"]) is Marked and found.batch_size == torch.Size([2])
    with pytest.raises(TypeError, match="from_dict_instance takes a dictionary"):
        td.from_dict_instance(3)


def test_from_dict_instance_of_a_tensordict_keeps_its_batch_size_names_and_device():
    source = TensorDict({"a": torch.ones(2, 3)}, [2], names=["time"], device="cpu")
    td = TensorDict({"a": torch.zeros(4)}, [4])
    found = td.from_dict_instance(source)
    assert found.batch_size == (2,) and found.names == ["time"] and found.device == torch.device("cpu")
    assert found["a"] is source["a"] and td.from_dict_instance(source, auto_batch_size=False).names == ["time"]
    assert td.from_dict_instance(source, batch_size=[2, 3]).batch_size == (2, 3)
    assert all(td.from_dict_instance(source, **{k: 2}).ndim == 2 for k in ("batch_dims", "auto_batch_size"))


def test_make_tensordict_and_fromkeys():
    td = make_tensordict({"a": torch.zeros(2)}, b=torch.ones(2, 3), auto_batch_size=True)
    assert td.batch_size == torch.Size([2]) and td.sorted_keys == ["a", "b"]
    assert make_tensordict(a=torch.zeros(2), batch_size=[2], device="cpu").device == torch.device("cpu")
    assert TensorDict.fromkeys(["a", ("b", "c")])["b", "c"] == 0
    assert fromkeys(["a"], "text")["a"] == "text"


# from other structures -----------------------------------------------------------------------------------------------


def test_from_list_stacks_densely_if_possible():
    td = TensorDict.from_list([{"a": torch.zeros(2)}, {"a": torch.ones(2)}])
    assert type(td) is TensorDict and td.batch_size == torch.Size([2])
    ragged = [{"a": torch.zeros(2)}, {"a": torch.ones(3)}]
    assert type(TensorDict.from_list(ragged)) is LazyStackedTensorDict
    assert type(TensorDict.from_list([{"a": 1}, {"a": 2}], lazy=True)) is LazyStackedTensorDict
    with pytest.raises(RuntimeError, match="densely"):
        TensorDict.from_list(ragged, lazy=False)
    nested = TensorDict.from_list([[{"a": 1}, TensorDict({"a": 2})], [{"a": 3}, {"a": 4}]])
    assert nested["a"].tolist() == [[1, 2], [3, 4]]
    assert list(TensorDict.from_list([{"a": torch.zeros(2)}] * 3, auto_batch_size=True).batch_size) == [3, 2]
    assert list(TensorDict.from_list([{"a": torch.zeros(2)}] * 3, batch_size=[3, 2], names=["x", "y"]).batch_size) == [
        3,
        2,
    ]
    with pytest.raises(RuntimeError, match="at least one element"):
        TensorDict.from_list([])
    with pytest.raises(TypeError, match="position 1"):
        TensorDict.from_list([{"a": 1}, 2])
    with pytest.raises(TypeError, match="takes a list"):
        TensorDict.from_list({"a": 1})


def test_tuples_named_tuples_and_dataclasses_become_tensordicts():
    td = TensorDict.from_tuple((torch.zeros(2), (1, {"a": torch.ones(2)}), "text"))
    assert td["1", "1", "a"].tolist() == [1, 1] and td["2"] == "text" and td["1", "0"] == 1
    td = TensorDict.from_namedtuple(
        Point(torch.zeros(3), Point(torch.ones(3), torch.zeros(3, 2))), auto_batch_size=True
    )
    assert td.batch_size == torch.Size([3]) and td["b", "a"].sum() == 3
    td = TensorDict.from_dataclass(Record(torch.zeros(3), Record(torch.zeros(3), "text")), batch_size=[3])
    assert td["y", "y"] == "text" and td["y"].batch_size == torch.Size([3])
    for build, wrong in [
        (TensorDict.from_tuple, 3),
        (TensorDict.from_namedtuple, (1, 2)),
        (TensorDict.from_dataclass, 3),
        (TensorDict.from_dataclass, Record),
    ]:
        with pytest.raises(TypeError, match="use from_any for other structures"):
            build(wrong)


def test_from_any_converts_any_structure():
    td = from_any({"p": Point(1, [1, 2]), "r": Record(torch.zeros(2), {"q": 3}), "l": [1, "x"], "n": None, "s": "text"})
    assert td["p", "b"].tolist() == [1, 2] and td["r", "y", "q"] == 3
    assert td["l"] == [1, "x"] and td["n"] is None and td["s"] == "text"
    array = np.zeros(3, dtype=[("x", "f4"), ("y", "i4", (2,))])
    found = from_any(array)
    assert found.batch_size == torch.Size([3]) and found["y"].shape == (3, 2)
    assert from_any([1, 2]).tolist() == [1, 2] and from_any("text") == "text" and from_any(None) is None
    assert isinstance(from_any([{"a": 1}, {"b": 2}]), NonTensorStack)
    td = TensorDict({"a": torch.zeros(2)})
    assert from_any(td) is td
    assert from_any(td, auto_batch_size=True).batch_size == torch.Size([2]) and td.batch_size == torch.Size([])
    assert from_any(torch.zeros(2), device="cpu").device.type == "cpu"


@pytest.mark.parametrize(
    "tree",
    [
        [torch.zeros(2), {"a": (torch.ones(2), "text", None)}],
        {"b": 1.5, "a": [], "c": ({},)},
        {1: torch.zeros(2), "a": 3},
        OrderedDict(z=torch.zeros(1), a=Point(torch.ones(1), 2)),
        {"_pytree_type": torch.zeros(1)},
    ],
)
def test_to_pytree_inverts_from_pytree(tree):
    leaves, spec = torch.utils._pytree.tree_flatten(tree)
    again, again_spec = torch.utils._pytree.tree_flatten(TensorDict.from_pytree(tree).to_pytree())
    assert spec == again_spec and [type(a) is str for a in again] == [type(a) is str for a in leaves]
    for a, b in zip(leaves, again, strict=True):
        assert a == b if isinstance(a, str | None.__class__) else torch.equal(torch.as_tensor(a), b)


def test_operations_keep_the_pytree_containers():
    td = from_pytree([torch.zeros(2), (torch.ones(2),)], auto_batch_size=True)
    assert same((td + 1).clone().to_pytree(), [torch.ones(2), (torch.full((2,), 2.0),)])
    assert same(td[0].to_pytree(), [torch.tensor(0.0), (torch.tensor(1.0),)])
    assert same(torch.stack([td, td])[:, 0].to_pytree()[0], torch.zeros(2))
    leaf = torch.zeros(2)
    assert from_pytree(leaf) is leaf and from_pytree("text") == "text"
    plain = TensorDict({"a": 1})
    assert plain.to_pytree() is plain
    inner = from_pytree([plain]).to_pytree()[0]
    assert inner["a"] == 1


# merging -------------------------------------------------------------------------------------------------------------


def test_merging_keeps_the_first_value_or_calls_the_callback():
    left = TensorDict({"a": {"b": 1, "d": 5}, "s": "x"})
    right = TensorDict({"a": {"b": 2, "c": 3}, "s": "y", "z": {"q": 1}})
    merged = merge_tensordicts(left, right)
    assert same(merged.to_dict(convert_tensors=True), {"a": {"b": 1, "d": 5, "c": 3}, "s": "x", "z": {"q": 1}})
    assert left["a"].sorted_keys == ["b", "d"]
    merged = merge_tensordicts(left, right, callback_exist={(("a",), "b"): torch.add, "s": lambda x, y: x + y})
    assert merged["a", "b"] == 3 and merged["s"] == "xy"
    merged["z", "new"] = 1
    assert right["z"].sorted_keys == ["q"]
    with pytest.raises(RuntimeError, match="at least 2"):
        merge_tensordicts(left)
    with pytest.raises(RuntimeError, match="batch size"):
        merge_tensordicts(TensorDict({}, [3]), TensorDict({"b": torch.zeros(4)}, [4]))


def test_named_tuples_of_torch_and_python_keep_their_field_names():
    found = torch.tensor([[2, 0, 1]]).max(1)
    td = TensorDict.from_namedtuple(found, auto_batch_size=True)
    assert td.sorted_keys == ["indices", "values"] and td.batch_size == (1,) and td["values"].item() == 2
    assert TensorDict.from_any({"a": found})["a", "indices"].item() == 0
    assert TensorDict.from_any(time.gmtime(0))["tm_year"] == 1970 and "0" in TensorDict.from_any(os.stat("."))
    for wrong in ((1, 2), [1, 2], torch.zeros(2), os.stat(".")):
        with pytest.raises(TypeError, match="named tuple"):
            TensorDict.from_namedtuple(wrong)


def test_merging_calls_the_callback_with_all_values_of_a_key():
    tds = [TensorDict({"a": {f"b{i}": i}, "common": i, "s": "xyz"[i]}) for i in range(3)]
    merged = TensorDict({"f": 1}).update(merge_tensordicts(*tds))
    assert sorted(merged["a"].keys()) == ["b0", "b1", "b2"] and merged["common"] == 0 and merged["s"] == "x"
    calls = []

    def join(*values):
        calls.append(values)
        return torch.stack(values) if isinstance(values[0], torch.Tensor) else "".join(values)

    merged = merge_tensordicts(*tds, callback_exist=join)
    assert merged["common"].tolist() == [0, 1, 2] and merged["s"] == "xyz" and len(calls) == 2
    by_key = merge_tensordicts(*tds, callback_exist={"common": lambda *values: sum(values)})
    assert by_key["common"] == 3 and by_key["s"] == "x"
    nested = [TensorDict({"n": {"x": i}}) for i in range(3)]
    assert merge_tensordicts(*nested, callback_exist={("n", "x"): lambda *values: max(values)})["n", "x"] == 2
    assert [td["n", "x"].item() for td in nested] == [0, 1, 2]


def test_merging_a_node_with_a_tensor_keeps_the_first_or_calls_the_callback():
    node, leaf, more = TensorDict({"x": {"a": 1}}), TensorDict({"x": 5}), TensorDict({"x": {"b": 2}})
    assert merge_tensordicts(node, leaf, more)["x"].sorted_keys == ["a", "b"] and node["x"].sorted_keys == ["a"]
    assert merge_tensordicts(leaf, node)["x"] == 5
    assert merge_tensordicts(node, leaf, callback_exist=lambda *values: values[-1])["x"] == 5
    with pytest.raises(RuntimeError):
        merge_tensordicts(
            TensorDict({"a": torch.zeros(2)}, [2]), TensorDict({"a": torch.zeros(2), "b": torch.zeros(3)})
        )


def test_structures_are_converted_in_compiled_programs():
    Pair = namedtuple("Pair", "x y")

    def program(x):
        return TensorDict.from_namedtuple(Pair(x, x + 1))["y"] + TensorDict.from_any((x, {"a": x}))["1", "a"]

    assert torch.compile(program, fullgraph=True, backend="eager")(torch.ones(2)).tolist() == [3, 3]


@pytest.mark.parametrize(
    "build",
    [
        lambda **options: TensorDict.from_dict({"a": torch.ones(3)}, **options),
        lambda **options: TensorDict.from_list([{"a": 1}], **options),
        lambda **options: TensorDict.from_any({"a": 1}, **options),
        lambda **options: TensorDict.from_any(torch.ones(3), **options),
        lambda **options: TensorDict.from_tuple((1,), **options),
        lambda **options: TensorDict({}).from_dict_instance({"a": 1}, **options),
        lambda **options: TensorDict({"a": torch.ones(3)}, [3]).new_zeros(2, **options),
    ],
)
def test_an_unknown_option_is_refused_by_name(build):
    with pytest.raises(TypeError, match="unexpected keyword argument 'batchsize'"):
        build(batchsize=[3])


def test_tuples_in_dictionaries_become_nested_tensordicts() -> None:
    parts = (torch.zeros(2, 3), torch.ones(2))
    for options in ({}, {"batch_size": [2]}, {"auto_batch_size": True}):
        td = from_dict({"h": parts, "n": {"t": (1.0, "text")}} if not options else {"h": parts}, **options)
        assert td["h", "0"] is parts[0] and td["h", "1"] is parts[1]
        assert td["h"].batch_size == td.batch_size
        assert options or (td["n", "t", "0"] == 1.0 and td["n", "t", "1"] == "text")


# nested lists and tuples as entries ---------------------------------------------------------

ONE = torch.ones(2)


@pytest.mark.parametrize("value", [[[ONE, ONE]] * 2, ([ONE, ONE],) * 2, ((ONE, ONE),) * 2])
@pytest.mark.parametrize("size", [[], [2]])
def test_nested_lists_and_tuples_of_tensors_are_one_tensor(value, size):
    td = TensorDict({"new": value}, size).set("later", value).update({"n": {"x": value}})
    for key in ("new", "later", ("n", "x")):
        assert torch.equal(td.get(key), torch.ones(2, 2, 2))


def test_a_list_of_tuples_has_a_value_for_each_tuple():
    for value in ([(1, 2), (3, 4)], [Point(1, 2), Point(3, 4)]):
        td = TensorDict({"pair": value}, [2])
        assert isinstance(td.get("pair"), NonTensorStack) and td["pair"] == value and td[1]["pair"] == value[1]
    assert TensorDict({"t": ((1, 2), (3, 4))})["t"].tolist() == [[1, 2], [3, 4]]


def test_a_named_tuple_is_one_tensor_in_an_entry_and_a_tensordict_in_from_dict():
    assert TensorDict({"p": Point(1, 2)})["p"].tolist() == [1, 2]
    assert torch.equal(TensorDict({}).set("p", Point(ONE, ONE))["p"], torch.ones(2, 2))
    assert TensorDict({"p": Point("x", 2)})["p"] == Point("x", 2)
    td = TensorDict.from_dict({"n": {"p": Point(ONE, 2)}, "p": Point(ONE, ONE)}, auto_batch_size=False)
    assert td["n", "p", "b"].item() == 2 and td["p", "a"] is ONE


def test_merging_keeps_entries_that_only_some_elements_of_a_lazy_stack_have():
    def stack(*keys):
        return lazy_stack([TensorDict(dict.fromkeys(part, torch.tensor(i))) for i, part in enumerate(keys)])

    def both(first, second):
        return [set(td.keys()) for td in merge_tensordicts(first, second).unbind(0)]

    assert both(stack("a", "a"), stack("ab", "a")) == [{"a", "b"}, {"a"}]
    assert both(stack("ac", "a"), stack("a", "ab")) == [{"a", "c"}, {"a", "b"}]
    assert both(stack("ab", "a"), stack("ab", "ab")) == [{"a", "b"}, {"a", "b"}]
    assert both(stack("a", "a").to_tensordict().to_lazystack(), stack("ab", "a")) == [{"a", "b"}, {"a"}]
    nested = merge_tensordicts(TensorDict({"n": stack("a", "a")}, [2]), TensorDict({"n": stack("ab", "a")}, [2]))
    assert [set(td.keys()) for td in nested["n"].unbind(0)] == [{"a", "b"}, {"a"}]
    first = stack("ab", "a")
    summed = merge_tensordicts(first, stack("b", "b") + 5, callback_exist=torch.add)
    assert [td["b"] for td in summed.unbind(0)] == [5, 6] and "b" not in first.tensordicts[1]
    with pytest.raises(RuntimeError, match="exclusive keys"):
        merge_tensordicts(TensorDict({"a": torch.ones(2)}, [2]), stack("ab", "a"))
    with pytest.raises(RuntimeError, match=r"the batch size \[3\] of the source is not \[2\]"):
        merge_tensordicts(stack("a", "a"), stack("ab", "a", "a"))


@pytest.mark.parametrize("build", [from_dict, from_any, TensorDict.from_dict])
def test_a_number_of_a_dictionary_in_a_tuple_is_non_tensor_data_of_the_batch_size(build):
    td = build({"t": ({"a": 1.0, "x": torch.zeros(3)}, {"a": 2.0})}, batch_size=[3])
    assert td["t", "0", "a"] == 1.0 and td["t", "1", "a"] == 2.0
    assert td["t", "0"].batch_size == td.get(("t", "1", "a")).batch_size == (3,)
    with pytest.raises(RuntimeError):
        build({"t": (1.0, torch.zeros(3))}, batch_size=[3])  # an element of the tuple itself has no batch dimension


@pytest.mark.parametrize("batch_size", [None, [2]])
def test_a_dataclass_in_a_dictionary_is_a_nested_tensordict(batch_size):
    td = from_dict(
        {"r": Record(torch.zeros(2), "s"), "n": {"r": Record({"b": torch.ones(2)}, None)}}, batch_size=batch_size
    )
    assert td["r", "x"].shape == (2,) and td["r", "y"] == "s" and td["n", "r", "x", "b"].shape == (2,)
    assert td["n", "r"].batch_size == td.batch_size == tuple(batch_size or ())


@pytest.mark.parametrize("options", [{"batch_size": [3]}, {"batch_size": [3, 4]}, {"batch_size": [3], "names": ["t"]}])
def test_tensordicts_in_a_structure_keep_their_batch_size_and_names(options):
    given = [TensorDict({"a": torch.zeros(3, 4)}), TensorDict({"a": torch.zeros(3, 4)}, [3])]
    for structure in (tuple(given), dict(zip("xy", given, strict=True)), {"t": tuple(given)}):
        assert from_any(structure, **options).batch_size == tuple(options["batch_size"])
        assert [td.batch_size for td in given] == [(), (3,)] and given[1].names == [None]
