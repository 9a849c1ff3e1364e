"""Flattening and unflattening keys, and combining several entries into one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensordict_core import LazyStackedTensorDict, TensorDict, lazy_stack


def sample() -> TensorDict:
    nested = TensorDict({"c": torch.ones(3, 2), "d": {"e": torch.zeros(3, 2)}}, [3, 2])
    return TensorDict({"a": torch.zeros(3, 4), "b": nested, "s": "text", "empty": {}}, [3], names=["n"])


def test_flat_keys_share_the_entries():
    td = sample()
    flat = td.flatten_keys(".")
    assert list(flat.keys()) == ["a", "b.c", "b.d.e", "s"]
    assert flat["b.d.e"] is td["b", "d", "e"] and flat["s"] == "text"
    assert flat.batch_size == td.batch_size and flat.names == ["n"]
    assert list(td.flatten_keys("/").keys())[1] == "b/c"
    assert list(td.flatten_keys(is_leaf=lambda kind: True).keys()) == ["a", "b", "s", "empty"]
    assert not td.lock_().flatten_keys().is_locked and td.is_locked


def test_nested_keys_share_the_entries():
    flat = TensorDict({"a.b": torch.zeros(3), "c": torch.ones(3), "a.d.e": torch.ones(3)}, [3], names=["n"])
    td = flat.unflatten_keys(".")
    assert list(td.keys(True, True)) == [("a", "b"), ("a", "d", "e"), "c"]
    assert td["a", "b"] is flat["a.b"] and td["a", "d"].batch_size == torch.Size([3]) and td["a"].names == ["n"]
    merged = TensorDict({"a.b": 1, "a": {"c": 2}}).unflatten_keys(".")
    assert merged["a"].sorted_keys == ["b", "c"]
    source = TensorDict({"a": {"c": 2}, "a.b": 1})
    source.unflatten_keys(".")
    assert source["a"].sorted_keys == ["c"]


def test_flatten_and_unflatten_keys_in_place():
    td = sample()
    assert td.flatten_keys(".", inplace=True) is td
    assert set(td.keys()) == {"a", "b.c", "b.d.e", "s"}
    assert td.unflatten_keys(".", inplace=True) is td
    assert set(td.keys(True, True)) == {"a", ("b", "c"), ("b", "d", "e")} and td["s"] == "text"
    for method in (td.lock_().flatten_keys, td.flatten_keys().lock_().unflatten_keys):
        with pytest.raises(RuntimeError, match="locked"):
            method(".", inplace=True)
    assert td.unflatten_keys(".", inplace=True) is td  # no key has the separator


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(
    ("method", "source"),
    [
        ("flatten_keys", {"a.b": 1, "a": {"b": 2}}),
        ("flatten_keys", {"a.b": {"c": 3}, "a": {"b.c": 2}}),
        ("unflatten_keys", {"a.b": 1, "a": 2}),
        ("unflatten_keys", {"a": 2, "a.b": 1}),
        ("unflatten_keys", {"a": "text", "a.b": 1}),
        ("unflatten_keys", {"a.b": 1, "a": {"b": 2}}),
        ("unflatten_keys", {"a": {"b": 2}, "a.b": 1}),
        ("unflatten_keys", {"a.b.c": 1, "a.b": 2}),
        ("unflatten_keys", {"a.b": {"c": 1}, "a.b.c": 2}),
        ("unflatten_keys", {"a.b.c": 2, "a.b": {"c": 1}}),
    ],
)
def test_key_collisions_are_refused(method, source, inplace):
    td = TensorDict(source)
    before = list(td.keys(True))
    with pytest.raises(KeyError, match=f"would both become .* in {method}"):
        getattr(td, method)(".", inplace=inplace)
    assert list(td.keys(True)) == before


def test_a_with_block_writes_back_added_and_replaced_entries():
    td = sample()
    with td.flatten_keys(".") as flat:
        flat["b.new"] = torch.zeros(3, 2)
        flat["x.y"] = torch.zeros(3)
        flat["a"] = torch.ones(3, 4)
        flat["s"] = "other"
    assert td["b"].batch_size == torch.Size([3, 2]) and "new" in td["b"] and td["s"] == "other"
    assert (td["a"] == 1).all() and td["x", "y"].shape == (3,)
    td = TensorDict({"a.b": 1, "c": 2})
    with td.unflatten_keys(".") as nested:
        nested["a", "d"] = 3
        nested["c"] = 4
    assert td.sorted_keys == ["a.b", "a.d", "c"] and td["c"] == 4
    locked = sample().lock_()
    with locked.flatten_keys("."):
        pass
    with pytest.raises(RuntimeError, match="locked"), locked.flatten_keys(".") as flat:
        flat["z"] = torch.zeros(3)


def test_a_with_block_in_place_restores_the_keys():
    td = sample()
    with td.flatten_keys(".", inplace=True) as flat:
        assert flat is td and "b.c" in td
        td["b.z"] = torch.zeros(3)
    assert ("b", "z") in td and ("b", "c") in td and "b.c" not in td
    td = TensorDict({"a.b": 1})
    with td.unflatten_keys(".", inplace=True):
        assert ("a", "b") in td
    assert list(td.keys()) == ["a.b"]


def test_a_key_that_contains_the_separator_is_written_back_under_itself():
    td = TensorDict({"a.b": {"c": 1}})
    with td.flatten_keys(".") as flat:
        flat["a.b.c"] = 2
    assert td["a.b", "c"] == 2


def test_lazy_stacks_stay_lazy_and_ragged():
    td = lazy_stack([TensorDict({"a": {"b": torch.zeros(n)}}) for n in (1, 2)])
    flat = td.flatten_keys(".")
    assert type(flat) is LazyStackedTensorDict and list(flat.keys()) == ["a.b"]
    again = flat.unflatten_keys(".")
    assert type(again) is LazyStackedTensorDict and again[1]["a", "b"].shape == (2,)
    assert td.flatten_keys(".", inplace=True) is td and list(td[0].keys()) == ["a.b"]
    dense = lazy_stack([TensorDict({"a": {"b": torch.zeros(1)}}) for _ in range(2)])
    with dense.flatten_keys(".") as flat:
        flat["a.c"] = torch.ones(2)
    assert dense[1]["a", "c"] == 1


names = st.text("abc", min_size=1, max_size=2)


@given(st.recursive(st.just(0), lambda inner: st.dictionaries(names, inner, min_size=1, max_size=3), max_leaves=8))
def test_unflatten_inverts_flatten(tree):
    td = TensorDict(tree if isinstance(tree, dict) else {"a": tree})
    again = td.flatten_keys(".").unflatten_keys(".")
    assert list(again.keys(True)) == list(td.keys(True))
    assert all(again[key] is td[key] for key in td.keys(True, True))


# several entries as one ----------------------------------------------------------------------------------------------


def test_cat_and_stack_from_tensordict_combine_all_tensors():
    td = TensorDict({"b": torch.zeros(2), "n": {"a": torch.ones(2)}, "s": "text"})
    assert td.cat_from_tensordict().tolist() == [0, 0, 1, 1]
    assert td.cat_from_tensordict(sorted=[("n", "a"), "b"]).tolist() == [1, 1, 0, 0]
    assert td.stack_from_tensordict(-1, sorted=True).tolist() == [[0, 1], [0, 1]]
    out = torch.empty(4)
    assert td.cat_from_tensordict(out=out) is out
    with pytest.raises(RuntimeError, match="every key once"):
        td.cat_from_tensordict(sorted=["b"])
    with pytest.raises(RuntimeError, match="stack_from_tensordict needs at least one tensor"):
        TensorDict({"s": "text"}).stack_from_tensordict()


def test_cat_and_stack_tensors_replace_entries_by_one():
    td = TensorDict({"b": torch.zeros(1), "x": {"a": torch.ones(2)}})
    assert td.cat_tensors("b", ("x", "a"), out_key=("y", "z")) is td
    assert td["y", "z"].tolist() == [0, 1, 1] and set(td.keys()) == {"x", "y"}
    td = TensorDict({"b": torch.zeros(3), "a": torch.ones(3)}, [3])
    td.stack_tensors("b", "a", out_key="b", dim=1, keep_entries=True)
    assert td["b"].shape == (3, 2) and "a" in td
    td = TensorDict({"p": {"z": torch.zeros(2)}, "q": {"z": torch.ones(2)}}).stack_tensors("p", "q", out_key="r")
    assert td["r"].batch_size == torch.Size([2]) and td.sorted_keys == ["r"]


def test_a_failed_combination_keeps_the_entries():
    td = TensorDict({"a": torch.zeros(2), "b": torch.ones(2)}, [2])
    with pytest.raises(RuntimeError, match="batch size"):
        td.cat_tensors("a", "b", out_key="c")
    assert td.sorted_keys == ["a", "b"]
    with pytest.raises(KeyError, match='"z"'):
        td.cat_tensors("a", "z", out_key="c")
    with pytest.raises(ValueError, match="at least one key"):
        td.stack_tensors(out_key="c")
    with pytest.raises(RuntimeError, match="locked"):
        td.lock_().stack_tensors("a", "b", out_key="c", dim=1)


@pytest.mark.parametrize("key", ["a", "n"])
def test_an_entry_can_be_renamed_to_a_key_nested_under_its_own_name(key):
    td = TensorDict({"a": torch.ones(2), "n": {"b": torch.zeros(2)}}, [2])
    moved = td.get(key)
    td.rename_key_(key, (key, "x"))
    assert td.get((key, "x")) is moved and set(td.keys()) == {"a", "n"}
    td.rename_key_((key, "x"), key)
    assert td.get(key) is moved


def test_a_failed_rename_keeps_the_entry():
    td = TensorDict({"a": torch.ones(2), "b": torch.zeros(2)}, [2])
    with pytest.raises(KeyError, match="is a Tensor, not a tensordict"):
        td.rename_key_("a", ("b", "x"))
    assert set(td.keys()) == {"a", "b"}


@pytest.mark.parametrize(("key", "path"), [("a...b", ("a", ".b")), (".a", ("", "a")), ("a..", ("a", ""))])
def test_a_flat_key_is_split_from_the_left(key, path):
    separator = ".." if ".." in key else "."
    assert list(TensorDict({key: 1}).unflatten_keys(separator).keys(True, True)) == [path]


@pytest.mark.parametrize(
    "td", [TensorDict({"a": 1}), TensorDict({}), lazy_stack([TensorDict({"a": 1}), TensorDict({})])]
)
def test_a_separator_that_is_no_string_is_refused(td):
    for call in (td.flatten_keys, td.unflatten_keys):
        with pytest.raises(TypeError, match="separator is a string, got None"):
            call(None)


@pytest.mark.parametrize("method", ["cat_tensors", "stack_tensors"])
def test_a_refused_key_of_combined_entries_changes_nothing(method):
    td = TensorDict({"a": torch.zeros(3), "s": "text"})
    with pytest.raises(KeyError):
        getattr(td, method)("a", out_key=("s", "b"))
    assert list(td.keys()) == ["a", "s"] and td["s"] == "text"
    getattr(td, method)("a", out_key=("a", "b"))  # in the place of the entry
    assert td["a", "b"].tolist() in ([0, 0, 0], [[0, 0, 0]])
    getattr(td, method)(("a", "b"), out_key="a")  # in the place of its tensordict
    assert isinstance(td["a"], torch.Tensor)
