"""Updates check every value before the first is stored, and never lose an entry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorData, TensorDict, lazy_stack


def tree() -> TensorDict:
    return TensorDict({"a": torch.zeros(2), "n": {"b": torch.zeros(2), "deep": {"c": torch.zeros(2)}}}, [2])


def is_untouched(td: Any) -> bool:
    keys = {"a", ("n", "b"), ("n", "deep", "c")}
    return set(td.keys(True, True)) == keys and not any(leaf.any() for leaf in td.values(True, True))


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize(
    "wrong",
    [
        {"z": torch.ones(3)},
        {"n": {"b": torch.ones(2), "z": torch.ones(3)}},
        {"n": {"deep": {"z": torch.ones(3)}}},
        {("n", "deep", "z"): torch.ones(3)},
        {("a", "z"): torch.ones(2)},
    ],
    ids=["root", "nested", "deep", "path", "through a tensor"],
)
def test_a_value_that_does_not_fit_leaves_all_entries_unchanged(
    wrong: dict[Any, Any], stacked: bool, inplace: bool
) -> None:
    td: Any = LazyStackedTensorDict(*tree().unbind(0)) if stacked else tree()
    with pytest.raises((RuntimeError, KeyError)):
        td.update({"a": torch.ones(2), "new": torch.ones(2), **wrong}, inplace=inplace)
    assert is_untouched(td)


def test_a_locked_nested_node_leaves_all_entries_unchanged() -> None:
    td = tree()
    td["n", "deep"].lock_()
    with pytest.raises(RuntimeError, match="locked"):
        td.update({"a": torch.ones(2), "n": {"b": torch.ones(2), "deep": {"new": torch.ones(2)}}})
    assert is_untouched(td)


@pytest.mark.parametrize("value", [{"a": torch.ones(2), "n": {"b": torch.ones(5)}}, {"a": torch.ones(2), "z": 1.0}])
@pytest.mark.parametrize("method", ["update_", "update_at_"])
def test_in_place_updates_write_all_values_or_none(method: str, value: dict[str, Any]) -> None:
    td = tree()
    more = [slice(None)] if method == "update_at_" else []
    with pytest.raises((RuntimeError, KeyError)):
        getattr(td, method)(value, *more)
    assert is_untouched(td)


def test_an_assignment_to_rows_writes_all_values_or_none() -> None:
    td = tree()
    row = TensorDict({"a": torch.ones(()), "n": {"b": torch.ones(()), "deep": {"c": torch.ones(4)}}})
    with pytest.raises(RuntimeError, match="deep"):
        td[0] = row
    assert is_untouched(td)


def test_nested_keys_of_one_node_are_stored_together() -> None:
    td = tree().update({("m", "x"): torch.ones(2), ("m", "y", "z"): torch.ones(2), ("n", "b"): torch.ones(2)})
    assert set(td["m"].keys(True, True)) == {"x", ("y", "z")}
    assert td["n", "b"].all() and ("n", "deep", "c") in td


def test_nested_keys_add_to_a_node_of_the_same_update() -> None:
    node = TensorDict({"x": torch.ones(2, 3)}, [2, 3])
    td = tree().update({"m": node, ("m", "y"): torch.ones(2, 3)})
    assert td["m"].batch_size == (2, 3) and set(td["m"].keys()) == {"x", "y"}
    assert set(node.keys()) == {"x"}


def test_nested_keys_do_not_change_a_dictionary_of_the_same_update() -> None:
    inner = {"deep": {"x": torch.ones(2)}}
    td = tree().update({"m": inner, **{("m", "deep", key): torch.ones(2) for key in "yz"}})
    assert set(td["m", "deep"].keys()) == {"x", "y", "z"}
    assert set(inner) == {"deep"} and set(inner["deep"]) == {"x"}


def test_the_batch_size_of_the_source_removes_no_entry() -> None:
    td = TensorDict({"a": torch.zeros(2), "kept": torch.ones(2)}, [2])
    td.update(TensorDict({"a": torch.ones(2)}, [2]), update_batch_size=True)
    assert set(td.keys()) == {"a", "kept"}
    longer = TensorDict({"a": torch.ones(3), "kept": torch.ones(3)}, [3])
    with pytest.raises(RuntimeError, match="kept"):
        td.update(longer, update_batch_size=True, keys_to_update=["a"])
    assert td.update(longer, update_batch_size=True).batch_size == (3,)


def test_a_locked_tensordict_keeps_its_batch_size() -> None:
    td = tree().lock_()
    with pytest.raises(RuntimeError, match="locked"):
        td.update(tree().unsqueeze(0), update_batch_size=True)
    assert td.batch_size == (2,) and is_untouched(td)


def test_a_source_whose_items_are_an_iterator_is_stored_completely() -> None:
    class Once(dict[str, Any]):
        def items(self) -> Iterator[tuple[str, Any]]:
            yield from super().items()

    assert set(tree().update(Once(x=torch.ones(2), y=torch.ones(2))).keys()) == {"a", "n", "x", "y"}


def test_a_cloned_dictionary_shares_nothing() -> None:
    value = torch.ones(2)
    td = TensorDict({}, [2]).update({"n": {"b": value}}, clone=True)
    assert td["n", "b"].data_ptr() != value.data_ptr()


# keyword form --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stacked", [False, True])
def test_values_by_name_are_written_in_place(stacked: bool) -> None:
    td = LazyStackedTensorDict(*tree().unbind(0)) if stacked else tree()
    held = list(td._leaves())
    td.update_(a=torch.ones(2))
    assert td["a"].all() and not td["n", "b"].any()
    td.update_({"a": torch.zeros(2)}, a=torch.full((2,), 3.0), n={"b": torch.ones(2)})
    assert (td["a"] == 3).all() and td["n", "b"].all()
    assert all(leaf is old for leaf, old in zip(td._leaves(), held, strict=True))
    assert td.update_() is td and td.update_(td) is td


def test_nothing_is_written_if_a_value_by_name_does_not_fit() -> None:
    td = tree()
    with pytest.raises(KeyError, match="absent"):
        td.update_({"a": torch.ones(2)}, absent=torch.ones(2))
    with pytest.raises(RuntimeError):
        td.update_({"a": torch.ones(2)}, n={"b": torch.ones(5)})
    assert is_untouched(td)


def test_a_source_and_values_by_name_are_both_stored() -> None:
    td = TensorDict({"a": 1}).update({"a": 2, "b": 2}, b=3, c={"d": 4})
    assert (td["a"], td["b"], td["c", "d"]) == (2, 3, 4)
    locked = TensorDict({"a": 1}, lock=True).update({"a": 2}, ignore_lock=True, b=3)
    assert locked["b"] == 3 and locked.is_locked
    assert TensorDict({"a": 1}).update(None, a=2)["a"] == 2
    one = TensorDict({"a": 1})
    assert one.update(one, b=2)["b"] == 2
    with pytest.raises(RuntimeError):
        tree().update({"a": torch.ones(2)}, b=torch.ones(3))


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("method", ["update", "update_"])
def test_the_keys_to_update_may_be_nested_and_given_by_an_iterator(method: str, as_dict: bool, stacked: bool) -> None:
    td: Any = LazyStackedTensorDict(*tree().unbind(0)) if stacked else tree()
    source: Any = tree().apply(torch.ones_like)
    source = source.to_dict() if as_dict else source
    keys: Any = iter(["a", ("n", "deep"), "absent"])
    assert getattr(td, method)(source, keys_to_update=keys) is td
    assert td["a"].all() and td["n", "deep", "c"].all() and not td["n", "b"].any()
    getattr(td, method)(source, keys_to_update="n")
    assert td["n", "b"].all()


# sets of keys --------------------------------------------------------------------------------------------------------


def leaf_keys(*tds: Any) -> list[list[Any]]:
    return [sorted((key for key in td.keys(True) if key != "n" and key != ("n", "deep")), key=str) for td in tds]


@pytest.mark.parametrize("stacked", [False, True])
def test_a_predicate_selects_the_leaves_for_which_it_is_true(stacked: bool) -> None:
    td: Any = TensorDict({"s": torch.zeros(2), "v": torch.zeros(2, 3), "n": {"v": torch.zeros(2, 4)}, "t": "text"}, [2])
    td = td.to_lazystack() if stacked else td
    seen: list[Any] = []

    def is_vector(path: Any, value: Any) -> bool:
        seen.append((path, value.ndim))
        return value.ndim == 2

    vectors, rest = td.split_keys(is_vector)
    assert leaf_keys(vectors, rest) == [[("n", "v"), "v"], ["s", "t"]]
    assert sorted(seen) == [(("n", "v"), 2), (("s",), 1), (("v",), 2)]
    assert leaf_keys(*td.split_keys(["n"], is_vector, lambda path, _: path == ("s",))) == [
        [("n", "v")],
        ["v"],
        ["s"],
        ["t"],
    ]
    assert leaf_keys(*td.split_keys(is_vector, is_vector)) == [[("n", "v"), "v"], [], ["s", "t"]]
    none, rest = td.split_keys(lambda path, value: torch.tensor(False), inplace=True)
    assert none.is_empty() and rest is td
    all_of_it, rest = td.split_keys(lambda path, value: True, inplace=True)
    assert leaf_keys(all_of_it, td) == [[("n", "v"), "s", "v"], ["t"]]


def test_a_key_in_two_sets_is_refused() -> None:
    td = tree()
    for again in (["a"], ("a",), {"a": "b"}):
        with pytest.raises(KeyError, match="several sets"):
            td.split_keys(lambda path, value: path == ("a",), again, inplace=True)
    assert is_untouched(td)
    part, rest_of_n, rest = td.split_keys([("n", "b")], ["n"])
    assert leaf_keys(part, rest_of_n, rest) == [[("n", "b")], [("n", "deep", "c")], ["a"]]
    with pytest.raises(ZeroDivisionError):
        td.split_keys(["a"], lambda path, value: 1 / 0, inplace=True)
    assert is_untouched(td)


# renaming ------------------------------------------------------------------------------------------------------------


def test_renaming_removes_only_nodes_that_it_empties() -> None:
    td = TensorDict({"a": {"b": {"c": 1}}, "empty": {}, "kept": {"empty": {}, "x": 1}})
    out = td.rename_keys({("a", "b", "c"): "c", ("kept", "x"): "x"})
    assert sorted(out.keys(True), key=str) == [("kept", "empty"), "c", "empty", "kept", "x"]
    assert td["a", "b", "c"] == 1
    assert sorted(td.rename_keys({("empty", "x"): "y"}, strict=False).keys()) == ["a", "empty", "kept"]
    assert list(TensorDict({"a": {"b": 1}}).rename_keys({("a", "b"): "a"}).keys(True)) == ["a"]


def test_a_node_keeps_its_batch_size_if_an_entry_is_renamed_within_it() -> None:
    td = TensorDict({"a": TensorDict({"b": torch.zeros(2, 3)}, [2, 3])}, [2])
    out = td.rename_keys({("a", "b"): ("a", "c")})
    assert out["a"].batch_size == (2, 3) and list(out["a"].keys()) == ["c"]


def test_renaming_keeps_the_other_entries_of_lazy_stack_elements() -> None:
    stack = LazyStackedTensorDict(TensorDict({"a": 1, "own": 2}), TensorDict({"a": 1}))
    td = TensorDict({"n": stack}, [2]).rename_keys({("n", "a"): "a"})
    assert td["n"].tensordicts[0]["own"] == 2 and (td["a"] == 1).all()


def test_nested_batch_sizes_are_taken_over_where_the_root_keeps_its_own():
    td = TensorDict({"n": TensorDict({"b": torch.ones(3, 4)}, [3, 4])}, [3])
    node = td["n"]
    source = TensorDict({"n": TensorDict({"b": torch.zeros(3, 7)}, [3, 7])}, [3])
    td.update(source, update_batch_size=True)
    assert td["n"] is node and node.batch_size == (3, 7) and node["b"].shape == (3, 7)


@pytest.mark.parametrize("kind", ["dense", "lazy", "sub-tensordict", "empty"])
def test_replace_takes_a_tensordict(kind: str) -> None:
    td = TensorDict({"a": torch.zeros(2, 3), "b": torch.ones(2)}, [2])
    new = TensorDict({"a": torch.ones(2, 3), "n": {"c": torch.ones(2)}}, [2])
    sources = {
        "dense": new,
        "lazy": lazy_stack(list(new.unbind(0))),
        "sub-tensordict": TensorDict.cat([new, new])._get_sub_tensordict(slice(0, 2)),
        "empty": TensorDict({}, [2]),
    }
    out = td.replace(sources[kind])
    expected = {**td.to_dict(), **sources[kind].to_dict()}
    assert out is not td and (out == TensorDict(expected, [2])).all()
    assert set(out.keys(True, True)) == {"a", "b"} | ({("n", "c")} if kind != "empty" else set())
    assert (td["a"] == 0).all()


def test_replace_takes_a_dictionary_and_values_by_name() -> None:
    td = TensorDict({"a": 1, "b": 2})
    assert td.replace({"a": 5, "c": 6}, a=7).to_dict() == {"a": 7, "b": 2, "c": 6}
    assert td.to_dict() == {"a": 1, "b": 2}
    with pytest.raises(RuntimeError, match="Only a single argument"):
        td.replace({"a": 5}, {"b": 6})


def test_a_locked_lazy_stack_is_updated_in_place() -> None:
    stack = lazy_stack([TensorDict({"a": torch.zeros(3)}, [3]) for _ in range(2)]).lock_()
    stack.update(stack + 1, inplace=True)
    assert (stack["a"] == 1).all()
    with pytest.raises(RuntimeError, match="Cannot modify locked"):
        stack.update(stack + 1)


def test_update_fills_entries_of_lazy_stacks_and_views_with_numbers():
    stack = lazy_stack([TensorDict({"a": torch.ones(3)}, [3]), TensorDict({"a": torch.ones(3)}, [3])])
    assert stack.update_({"a": 2.0})["a"].tolist() == [[2.0] * 3] * 2
    td = TensorDict({"a": torch.zeros(2, 3)}, [2])
    td._get_sub_tensordict(0).update_({"a": 7})
    assert td["a"].tolist() == [[7.0] * 3, [0.0] * 3]


@pytest.mark.parametrize("stacked", [torch.stack, lazy_stack])
def test_a_list_of_tensordicts_is_written_into_a_nested_tensordict(stacked):
    parts = [TensorDict({"b": torch.tensor(float(i))}) for i in range(2)]
    td = TensorDict({"n": stacked([part * 0 for part in parts])}, [2])
    held = td["n"]
    td.set_("n", parts)
    assert td["n"] is held and td["n", "b"].tolist() == [0, 1]
    td.set_at_("n", [parts[1]], slice(0, 1))
    td.update_({"n": parts[::-1]}).update_at_({"n": [parts[1]]}, slice(1, 2))
    assert td["n", "b"].tolist() == [1, 1]
    with pytest.raises(RuntimeError, match=r"\('n', 'b'\)"):
        td.set_("n", [*parts, parts[0]])


def test_a_chosen_node_is_updated_whole_and_other_entries_by_their_keys() -> None:
    one = torch.ones(2)
    source: dict[Any, Any] = {"n": {"b": one, "deep": {"c": one}}, ("m", "x"): one, ("m", "y"): one, "a": one}
    chosen = [("n", "deep", "c"), ("n", "deep"), ("m", "x"), ("none", "x")]
    td = TensorDict({}, [2]).update(source, keys_to_update=chosen)
    assert set(td.keys(True, True)) == {("n", "deep", "c"), ("m", "x")}
    source["n"] = TensorDict(source["n"], [2])
    td = TensorDict({}, [2]).update(source, keys_to_update=[("n", "b"), ("n", "deep", "c"), "a"])
    assert set(td.keys(True, True)) == {("n", "b"), ("n", "deep", "c"), "a"}


def test_a_nested_key_is_no_node_that_is_leaf_is_asked_about() -> None:
    for source in ({("n", "x"): torch.ones(2)}, {("n", "x"): "text"}, {("n", "more"): {"x": torch.ones(2)}}):
        td = tree().update(source, is_leaf=lambda kind: True)
        assert {"a", ("n", "b"), ("n", "deep", "c"), *source} <= set(td.keys(True))
    assert set(tree().update({"n": {"x": torch.ones(2)}}, is_leaf=lambda kind: True)["n"].keys()) == {"x"}


ONE, TWO = torch.ones(2), torch.full((2,), 2.0)


@pytest.mark.parametrize("make", [dict, lambda values: TensorDict(values, [2])])
def test_a_dictionary_may_have_a_key_and_keys_that_start_with_it(make) -> None:
    source = {("n", "b"): ONE, "n": make({"deep": make({"c": TWO})}), ("n", "deep", "d"): ONE}
    nested = set(source["n"].keys())
    expected = {("n", "b"), ("n", "deep", "c"), ("n", "deep", "d")}
    stack = lazy_stack([TensorDict(), TensorDict()])
    for td in (TensorDict(source, [2]), TensorDict({}, [2]).update(source), stack.update(source)):
        assert set(td.keys(True, True)) == expected
        assert td["n", "b"].tolist() == [1, 1] and td["n", "deep", "c"].tolist() == [2, 2]
    assert set(TensorDict.from_dict(source, batch_size=[2]).keys(True, True)) == expected
    for td in (tree(), lazy_stack([tree()[0], tree()[1]])):
        del source["n", "deep", "d"]
        written = (td.clone().update_(source), td.clone().update(source, inplace=True), td.clone())
        written[2].update_at_({key: value[:1] for key, value in TensorDict(source, [2]).items()}, slice(0, 1))
        assert [part["n", "b"].sum() for part in written] == [2, 2, 1]
        assert [part["n", "deep", "c"].sum() for part in written] == [4, 4, 2]
        source["n", "deep", "d"] = ONE
    assert set(source["n"].keys()) == nested


@pytest.mark.parametrize("keys", [[("n", "b"), "n"], [("n", "b", "c"), ("n", "b")], [("n", "b"), ("n",)]])
def test_a_tensor_under_the_start_of_another_key_is_an_error_in_either_order(keys) -> None:
    for order in (keys, keys[::-1]):
        for call in (lambda source: TensorDict(source, [2]), TensorDict({}, [2]).update):
            with pytest.raises(KeyError, match=r"already present|has no entries"):
                call(dict.fromkeys(order, ONE))


def test_setting_a_row_by_a_dictionary_writes_a_key_and_keys_that_start_with_it() -> None:
    td = tree()
    td[0] = {("n", "b"): torch.tensor(1.0), "n": {"deep": {"c": torch.tensor(1.0)}}}
    assert td["n", "b"].tolist() == td["n", "deep", "c"].tolist() == [1, 0]


@pytest.mark.parametrize("write", ["set_", "set", "update_", "update"])
@pytest.mark.parametrize(
    "value", [[1.0, 2.0, 3.0], (1.0, 2.0, 3.0), torch.arange(1.0, 4), torch.arange(1.0, 4).numpy()]
)
def test_a_value_broadcasts_to_the_entry_of_a_node_without_batch_dimensions(write: str, value: Any) -> None:
    td = TensorDict({"a": torch.zeros(2, 3), "n": {"b": torch.zeros(2, 3)}}, lock=True)
    a = td["a"]
    for key in ("a", ("n", "b")):
        arguments = (key, value) if write.startswith("set") else ({key: value},)
        getattr(td, write)(*arguments, **{} if write.endswith("_") else {"inplace": True})
        assert td[key].tolist() == [[1.0, 2.0, 3.0]] * 2
    assert td["a"] is a


@pytest.mark.parametrize("size", [[2], [2, 3]])
def test_a_value_does_not_broadcast_over_batch_dimensions(size: list[int]) -> None:
    td = TensorDict({"n": TensorDict({"a": torch.zeros(2, 3)}, size)})
    for value in (torch.ones(3), [1.0, 1.0, 1.0]):
        with pytest.raises(RuntimeError):
            td.update_({"n": {"a": value}})
    assert not td["n", "a"].any()


@pytest.mark.parametrize("value", [[[1.0, 2.0, 3.0]], torch.tensor([[1.0, 2.0, 3.0]]), ((1.0, 2.0, 3.0),)])
def test_a_size_of_one_is_repeated_whatever_holds_the_numbers(value: Any) -> None:
    td = TensorDict({"a": torch.zeros(2, 3)}, [2])
    assert td.update_({"a": value})["a"].tolist() == [[1.0, 2.0, 3.0]] * 2


@pytest.mark.parametrize("number", [np.float32(5), np.float64(5), np.int64(5), np.bool_(True)])
def test_a_number_of_numpy_is_written_at_an_index(number: Any) -> None:
    td = TensorDict({"a": torch.zeros(3, 2), "s": "text", "n": {"b": torch.zeros(3)}}, [3])
    td[np.int64(1)] = number
    assert td["a"].tolist() == [[0, 0], [number, number], [0, 0]] and td["n", "b"][1] == number and td["s"] == "text"
    lazy = lazy_stack([td.exclude("s") * 0, td.exclude("s") * 0])
    lazy[0] = number
    assert (lazy[0]["a"] == float(number)).all() and lazy[1]["a"][0, 0] == 0


IN_PLACE = {
    "set_": lambda td, value: td.set_("s", value),
    "update_": lambda td, value: td.update_({"s": value}),
    "copy_": lambda td, value: td.copy_({"s": value}),
    "set_at_": lambda td, value: td.set_at_("s", value, slice(0, 2)),
    "update_at_": lambda td, value: td.update_at_({"s": value}, slice(0, 2)),
    "setitem": lambda td, value: td.__setitem__(slice(0, 2), {"s": value}),
}


@pytest.mark.parametrize("write", IN_PLACE.values(), ids=IN_PLACE)
@pytest.mark.parametrize("kind", ["dense", "lazy", "view", "nested"])
@pytest.mark.parametrize("value", [{"q": 1.0}, 1.0, "text"], ids=str)
def test_a_dictionary_or_a_number_over_a_value_is_the_value_in_every_container(
    value: Any, kind: str, write: Any
) -> None:
    td = TensorDict({"s": NonTensorData(None)}, [2])
    part: Any = {
        "dense": lambda: td,
        "lazy": lambda: lazy_stack([TensorDict({"s": NonTensorData(None)}) for _ in range(2)]),
        "view": lambda: td.view_at(slice(0, 2)),
        "nested": lambda: TensorDict({"n": td}, [2])["n"],
    }[kind]()
    write(part, value)
    assert part.get("s").tolist() in (value, [value, value])
    if kind == "nested":
        root = TensorDict({"n": {"s": NonTensorData(None)}}, [2])
        root[0:2] = {"n": {"s": value}}
        assert root.get(("n", "s")).tolist() in (value, [value, value])


def test_a_tensordict_over_a_value_is_an_error_that_names_the_value() -> None:
    td = TensorDict({"s": NonTensorData("text")}, [2])
    with pytest.raises(KeyError, match="'s' is a NonTensorData, not a tensordict"):
        td[0] = TensorDict({"s": TensorDict({"q": 1.0})})


def test_a_value_that_is_written_at_an_index_of_a_locked_tensordict_stays_locked() -> None:
    td = TensorDict({"n": {"s": NonTensorData("text")}}, [2])
    stack = lazy_stack([TensorDict({"s": NonTensorData("text")}, [2]) for _ in range(2)])
    for locked, key in ((td.lock_(), ("n", "s")), (stack.lock_(), "s")):
        locked.set_at_(key, "new", 0)
        assert locked.is_locked and locked.get(key).is_locked


def test_an_update_stores_shallow_copies_of_nested_tensordicts():
    source = TensorDict({"n": {"s": ["x", "y"], "v": torch.zeros(2)}}, [2]).lock_()
    td = TensorDict({}, [2]).update(source)
    td["n", "new"] = torch.ones(2)
    td["n", "s"][0] = "z"
    assert list(source["n"].keys()) == ["s", "v"] and source["n", "s"] == ["x", "y"]
    assert td["n", "v"] is source["n", "v"] and td["n", "s"] == ["z", "y"]
    assert TensorDict({}, [2]).set("n", source["n"])["n"] is source["n"]


def test_a_nested_source_without_entries_has_the_batch_size_of_its_node():
    td = tree()
    with pytest.raises(RuntimeError, match=r"batch size \[5\] of the source"):
        td.update({"a": torch.ones(2), "n": TensorDict({}, [5])})
    assert is_untouched(td)
    assert is_untouched(td.update({"n": TensorDict({}, [2, 5])}).update({"n": TensorDict({}, [])}))
