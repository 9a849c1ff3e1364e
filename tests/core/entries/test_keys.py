"""Nested keys: what is one."""

from __future__ import annotations

import enum
from typing import get_type_hints

import pytest
import torch

from tensordict_core import (
    NestedKey,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    UnbatchedTensor,
    lazy_stack,
    unravel_key,
)


class Name(str):
    __slots__ = ()


@pytest.mark.parametrize("key", ["a", "", ("a",), ("a", ("b",)), (("a",), "b"), Name("a")])
def test_a_string_and_a_tuple_of_keys_are_keys(key):
    assert isinstance(key, NestedKey)
    unravel_key(key)


@pytest.mark.parametrize("key", [("a", 1), (), ("a", ()), ["a"], 1, None, {"a"}, b"a", ("a", ["b"])])
def test_nothing_else_is_a_key(key):
    assert not isinstance(key, NestedKey)


def test_it_can_be_used_in_annotations():
    def find(key: NestedKey | None, keys: list[NestedKey]) -> None: ...

    assert get_type_hints(find)["key"] == NestedKey | None


def test_keys_compare_as_sets_do():
    keys = TensorDict({"a": 1, "b": {"c": 2}}).keys(True, True)
    assert keys <= {"a", ("b", "c")} and keys >= {"a"} and keys < {"a", ("b", "c"), "d"} and keys > {"a"}
    assert {"a"} <= keys and not {"a", "d"} <= keys and not keys < keys


def test_entries_are_added_to_a_lazy_stack_while_its_keys_are_iterated():
    td = lazy_stack([TensorDict({"a": 1, "b": 2}), TensorDict({"a": 3, "b": 4})])
    for key in td.keys():  # noqa: SIM118 (iterating a tensordict gives its rows)
        td["new_" + key] = td[key]
    assert td.sorted_keys == ["a", "b", "new_a", "new_b"]


def test_a_view_has_its_options_as_attributes():
    td = TensorDict({"b": 0, "a": {"x": 1}})
    for view in (td.keys(True, True), td.values(True, True), td.items(True, True, sort=True)):
        assert view.include_nested and view.leaves_only and view.tensordict is td and view.is_leaf is None
    assert td.items(sort=True).sort and not td.keys().sort
    assert not td.keys().include_nested and not td.keys().leaves_only and td.keys().is_leaf is None
    assert td.keys(True, is_leaf=callable).is_leaf is callable


LEAVES = {
    "tensors": (lambda kind: issubclass(kind, torch.Tensor), ["a", ("n", "b")]),
    "values": (lambda kind: issubclass(kind, NonTensorData | NonTensorStack), ["s", ("n", "q")]),
    "nodes": (lambda kind: not issubclass(kind, torch.Tensor), ["s", "n", ("n", "q")]),
    "all": (lambda kind: True, ["a", "s", "n", ("n", "b"), ("n", "q")]),
    "none": (lambda kind: False, []),
}


@pytest.mark.parametrize(("is_leaf", "expected"), LEAVES.values(), ids=LEAVES)
@pytest.mark.parametrize("stacked", [False, True])
def test_is_leaf_decides_which_entries_are_leaves_and_not_which_are_opened(is_leaf, expected, stacked):
    td = TensorDict({"a": torch.ones(2), "s": "x", "n": {"b": torch.ones(2), "q": "y"}}, [2])
    td = lazy_stack(list(td.unbind(0))) if stacked else td
    for nested in (True, False):
        keys = [key for key in expected if nested or isinstance(key, str)]
        view = td.keys(nested, True, is_leaf=is_leaf)
        assert list(view) == keys and len(view) == len(keys) and all(key in view for key in keys)
        assert "a" in keys or "a" not in view
        assert [key for key, _ in td.items(nested, True, is_leaf=is_leaf)] == keys
        assert len(list(td.values(nested, True, is_leaf=is_leaf))) == len(keys)


LEAF_VALUES = [torch.zeros(2), UnbatchedTensor(torch.zeros(3)), NonTensorData("text"), NonTensorStack("u", "v")]
THROUGH = {
    "read": lambda td: td["leaf", "x"],
    "pop": lambda td: td.pop(("leaf", "x")),
    "delete": lambda td: td.del_(("leaf", "x")),
    "rename": lambda td: td.rename_key_(("leaf", "x"), "y"),
    "write": lambda td: td.set_(("leaf", "x"), 1.0),
    "write rows": lambda td: td.set_at_(("leaf", "x"), 1.0, 0),
}


@pytest.mark.parametrize("call", THROUGH.values(), ids=THROUGH)
@pytest.mark.parametrize("value", LEAF_VALUES, ids=lambda value: type(value).__name__)
def test_a_key_that_passes_through_a_leaf_names_the_leaf(value, call):
    td = TensorDict({"leaf": value}, [2])
    for container in (td, lazy_stack([td, td.clone()])):
        with pytest.raises(KeyError, match=r"'leaf' is a .*, and has no entries") as raised:
            call(container)
        assert isinstance(raised.value, ValueError)


def test_a_key_through_unbatched_tensors_that_differ_in_a_lazy_stack_names_them():
    stack = lazy_stack([TensorDict({"u": UnbatchedTensor(torch.full((3,), float(i)))}, [2]) for i in range(2)])
    with pytest.raises(KeyError, match="'u' is a UnbatchedTensor, not a tensordict"):
        stack.del_(("u", "x"))


@pytest.mark.parametrize("key", [("a", 1), ("a", "b", 1), ("a", None)])
@pytest.mark.parametrize("default", [(), (None,)])
def test_an_object_that_is_no_key_is_refused_before_entries_are_read(key, default):
    ragged = lazy_stack([TensorDict({"a": torch.zeros(2)}), TensorDict({"a": torch.zeros(3)})])
    for td in (ragged, TensorDict({"a": torch.zeros(2)})):
        if isinstance(td, TensorDict) and key == ("a", "b", 1) and not default:
            continue  # the key passes through a tensor, which is an error of its own
        with pytest.raises(KeyError) as error:
            td.get(key, *default)
        assert isinstance(error.value, TypeError)
    with pytest.raises(RuntimeError, match="do not stack"):
        ragged.get(("a", "b"))


def test_next_advances_a_view_of_nested_entries():
    td = TensorDict({"a": 1, "n": {"b": 2}})
    values = td.values(True, True)
    assert next(values) is td["a"]
    assert [value.item() for value in values] == [2]
    assert list(values) == []
    assert len(list(td.values(True, True))) == 2


def test_next_advances_a_view_of_pairs():
    pairs = TensorDict({"a": 1, "n": {"b": 2}}).items(True)
    assert next(pairs)[0] == "a"
    assert [key for key, _ in pairs] == ["n", ("n", "b")]


def test_next_advances_the_values_of_a_lazy_stack():
    stack = lazy_stack([TensorDict({"a": torch.zeros(2)}), TensorDict({"a": torch.ones(2)})])
    assert next(stack.values()).shape == (2, 2)


class Field(enum.StrEnum):
    """Keys as programs list them; each is a string."""

    SPEED = "speed"
    NAME = "name"


def test_members_of_an_enum_of_strings_are_keys_of_the_constructor() -> None:
    td = TensorDict({Field.SPEED: torch.ones(2), "nested": {Field.NAME: ["a", "b"]}}, [2])
    assert [(type(key), key) for key, _ in td.items()] == [(str, "speed"), (str, "nested")]
    assert td["nested", "name"] == ["a", "b"]


@pytest.mark.parametrize("key", [Field.SPEED, ("nested", Field.SPEED)], ids=["flat", "nested"])
def test_members_of_an_enum_of_strings_store_and_read_entries(key) -> None:
    td = TensorDict({}, [2])
    td[key] = torch.ones(2)
    assert key in td and key in td.keys(True)
    assert td[key].equal(torch.ones(2)) and td.get(key) is td[key]
    assert td.set(key, torch.zeros(2))[key].eq(0).all() and td.update({key: torch.ones(2)})[key].eq(1).all()


def test_members_of_an_enum_of_strings_are_keys_of_views_and_lazy_stacks() -> None:
    td = TensorDict({}, [2])
    view = td._get_sub_tensordict(slice(0, 1))
    view[Field.SPEED] = torch.ones(1)
    assert view[Field.SPEED].equal(torch.ones(1)) and td["speed"].tolist() == [1, 0]
    assert lazy_stack([td, td])[Field.SPEED].shape == (2, 2)
