"""Entries: one text for thousands, which says the same as a dictionary for each."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensordict_core import NonTensorData, TensorDict
from tensordict_memmap import from_safetensors, to_safetensors
from tensordict_memmap.formats.safetensors.columns import Entries

NAMES = st.lists(st.text(st.characters(max_codepoint=127), max_size=5), unique=True, max_size=6)


def one_by_one(names, start):
    return {name: {"tensor": start + name} for name in names}


@given(NAMES, st.text(st.characters(max_codepoint=127), max_size=5))
def test_the_text_is_that_of_a_dictionary_for_each(names, start):
    assert list(json.loads(Entries(names, start).text()).items()) == list(one_by_one(names, start).items())


@given(st.lists(st.text(), unique=True, min_size=1, max_size=6), st.text())
def test_what_is_changed_in_one_is_in_the_text(names, start):
    entries = Entries(names, start)
    entries.each()[names[0]]["shapes"] = "\ud800"
    expected = one_by_one(names, start)
    expected[names[0]]["shapes"] = "\ud800"
    assert json.loads(entries.text()) == expected


@pytest.mark.parametrize("value", [1.5, math.inf, 1 << 70, "\ud800"])
@pytest.mark.parametrize("name", ["a", 'quo"te', "back\\slash", "new\nline", "dot.ted", "\u00e9", "__metadata__"])
def test_any_name_beside_any_value_comes_back(tmp_path, name, value):
    inner = TensorDict({name: torch.arange(3), "other": torch.ones(2)})
    td = TensorDict({"value": NonTensorData(value), name: inner, "deep": TensorDict({name: inner})})
    to_safetensors(td, tmp_path / "x.safetensors")
    back = from_safetensors(tmp_path / "x.safetensors")
    assert back["value"] == value
    for found in (back[name], back["deep", name]):
        assert list(found.keys()) == [name, "other"]
        assert found[name].tolist() == [0, 1, 2] and found["other"].tolist() == [1, 1]
