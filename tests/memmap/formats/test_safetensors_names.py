"""Odd names beside odd values in one safetensors file, where the structure is written by the slow encoder."""

from __future__ import annotations

import math

import pytest
import torch

from tensordict_core import NonTensorData, TensorDict
from tensordict_memmap import from_safetensors, to_safetensors


@pytest.mark.parametrize("value", [1.5, math.inf, 1 << 70, "\ud800"])
@pytest.mark.parametrize("name", ["a", 'quo"te', "back\\slash", "new\nline", "dot.ted", "\u00e9", "__metadata__"])
def test_any_name_with_any_value_is_restored(tmp_path, name, value):
    inner = TensorDict({name: torch.arange(3), "other": torch.ones(2)})
    td = TensorDict({"value": NonTensorData(value), name: inner, "deep": TensorDict({name: inner})})
    to_safetensors(td, tmp_path / "x.safetensors")
    back = from_safetensors(tmp_path / "x.safetensors")
    assert back["value"] == value
    for found in (back[name], back["deep", name]):
        assert list(found.keys()) == [name, "other"]
        assert found[name].tolist() == [0, 1, 2] and found["other"].tolist() == [1, 1]
