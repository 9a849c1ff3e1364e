"""Options of loads that programs rely on: pickles, modes, longer files, paths into lazy stacks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorData, TensorDict
from tensordict_memmap import from_safetensors


def test_compressed_entries_are_not_opened_for_writing(tmp_path):
    td = TensorDict({"a": torch.arange(3), "n": {"b": torch.ones(2)}})
    td.save(tmp_path / "x.tdz", compression="deflate")
    with pytest.raises(RuntimeError, match="key 'a' is compressed"):
        TensorDict.load_memmap(tmp_path / "x.tdz", mode="r+")
    with pytest.raises(RuntimeError, match=r"key \('n', 'b'\) is compressed"):
        TensorDict.load_memmap(tmp_path / "x.tdz", mode="r+", subpath=("n", "b"))
    assert TensorDict.load_memmap(tmp_path / "x.tdz")["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("value", [0, 1, np.True_, "yes"])
def test_allow_pickle_is_a_bool(tmp_path, value):
    TensorDict({"a": torch.ones(1)}).save(tmp_path / "d")
    TensorDict({"a": torch.ones(1)}).save(tmp_path / "x.safetensors")
    with pytest.raises(TypeError, match="allow_pickle"):
        TensorDict.load_memmap(tmp_path / "d", allow_pickle=value)
    with pytest.raises(TypeError, match="allow_pickle"):
        from_safetensors(tmp_path / "x.safetensors", allow_pickle=value)


@pytest.mark.parametrize("name", ["d", "x.tdz", "x.safetensors"])
@pytest.mark.parametrize("error", [ValueError, RuntimeError])
def test_a_pickled_value_that_is_not_allowed_is_an_error_of_both_kinds(tmp_path, name, error):
    with pytest.warns(UserWarning, match="pickled"):
        TensorDict({"s": NonTensorData(object)}).save(tmp_path / name)
    with pytest.raises(error, match="allow_pickle=True"):
        TensorDict.load_memmap(tmp_path / name, allow_pickle=False)


def test_a_longer_file_of_an_older_release_is_read_with_a_warning(tmp_path):
    TensorDict({"a": torch.arange(3), "b": torch.ones(2)}).save(tmp_path)
    (tmp_path / "tensordict.manifest.json").unlink()
    for name in ("a.memmap", "b.memmap"):
        with (tmp_path / name).open("ab") as file:
            file.write(b"xyz")
    with pytest.warns(UserWarning, match="key 'a' takes 24 bytes") as caught:
        loaded = TensorDict.load_memmap(tmp_path)
    assert len(caught) == 1 and loaded["a"].tolist() == [0, 1, 2] and loaded["b"].tolist() == [1, 1]
    (tmp_path / "a.memmap").write_bytes(bytes(23))
    with pytest.raises(ValueError, match="key 'a' takes 24 bytes"):
        TensorDict.load_memmap(tmp_path)


def test_a_longer_file_is_refused_where_a_manifest_has_its_size(tmp_path):
    TensorDict({"n": {"a": torch.arange(3)}}).save(tmp_path)
    with (tmp_path / "n" / "a.memmap").open("ab") as file:
        file.write(b"x")
    for place in (tmp_path, tmp_path / "n"):
        with pytest.raises(ValueError, match="24 bytes"):
            TensorDict.load_memmap(place)


@pytest.mark.parametrize("name", ["d", "x.tdz", "x.safetensors", "c"])
def test_a_path_leads_into_elements_of_lazy_stacks(tmp_path, name):
    rows = [TensorDict({"sub": {"x": torch.full((n,), n), "a/b": torch.ones(1)}}) for n in (1, 2)]
    stack = LazyStackedTensorDict(*rows)
    td = TensorDict({"stack": stack}, [])
    td.consolidate(tmp_path / name) if name == "c" else td.save(tmp_path / name)
    for path in ("stack/1/sub", ("stack", "1", "sub")):
        assert TensorDict.load_memmap(tmp_path / name, subpath=path)["x"].tolist() == [2, 2]
    assert TensorDict.load_memmap(tmp_path / name, subpath="stack/1/sub/x").tolist() == [2, 2]
    assert TensorDict.load_memmap(tmp_path / name, subpath=("stack", "1", "sub", "a/b")).tolist() == [1]
    for path in ("stack/2/sub", "stack/1/none", "a/b"):
        with pytest.raises(KeyError):
            TensorDict.load_memmap(tmp_path / name, subpath=path)


def test_a_key_with_a_slash_takes_precedence_over_a_path(tmp_path):
    TensorDict({"a/b": torch.zeros(1), "a": {"b": torch.ones(1)}}).save(tmp_path)
    assert TensorDict.load_memmap(tmp_path, subpath="a/b").tolist() == [0]
    assert TensorDict.load_memmap(tmp_path, subpath=("a", "b")).tolist() == [1]
