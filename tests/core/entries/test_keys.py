"""Nested keys: what is one."""

from __future__ import annotations

from typing import get_type_hints

import pytest

from tensordict_core import NestedKey, unravel_key


class Name(str):
    __slots__ = ()


@pytest.mark.parametrize("key", ["a", "", ("a",), ("a", ("b",)), (("a",), "b"), Name("a")])
def test_a_string_and_a_tuple_of_keys_are_keys(key):
    assert isinstance(key, NestedKey)
    unravel_key(key)


@pytest.mark.parametrize("key", [("a", 1), (), ("a", ()), ["a"], 1, None, {"a"}, b"a", ("a", ["b"])])
def test_nothing_else_is_a_key(key):
    assert not isinstance(key, NestedKey)


def test_it_stands_in_annotations():
    def find(key: NestedKey | None, keys: list[NestedKey]) -> None: ...

    assert get_type_hints(find)["key"] == NestedKey | None
