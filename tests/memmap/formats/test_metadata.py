"""`MetaData` entries are `MetaData` again, in every format with a place for the class."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import MetaData, NonTensorData, TensorDict


@pytest.mark.parametrize("name", ["folder", "file.safetensors", "archive.tdz"])
def test_metadata_are_metadata_again(tmp_path, name):
    td = TensorDict({"m": MetaData("lab"), "s": NonTensorData("text"), "a": torch.ones(2)}, [2])
    td.save(tmp_path / name)
    again = TensorDict.load(tmp_path / name)
    assert type(again.get("m")) is MetaData and again["m"] == "lab"
    assert type(again.get("s")) is NonTensorData and again["s"] == "text"


def test_a_mapped_tensordict_keeps_metadata(tmp_path):
    td = TensorDict({"m": MetaData("lab")})
    assert type(td.memmap(tmp_path).get("m")) is MetaData
    assert type(td.memmap_like(tmp_path / "like").get("m")) is MetaData
