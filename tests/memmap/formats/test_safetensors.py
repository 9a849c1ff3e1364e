"""Safetensors files as saving and loading use them: one file or shards, mapped, replaced as a whole."""

from __future__ import annotations

import json
import os

import pytest
import torch

from tensordict_core import (
    TensorDict,
)
from tensordict_memmap import SaveFuture, from_safetensors, memmap, memmap_like, save


def test_the_ending_or_the_format_chooses(tmp_path):
    td = TensorDict({"a": torch.arange(3)}, [3])
    td.save(tmp_path / "x.safetensors")
    td.save(tmp_path / "y", format="safetensors")
    td.save(tmp_path / "z.safetensors", format="tree")
    assert (
        (tmp_path / "x.safetensors").is_file() and (tmp_path / "y").is_file() and (tmp_path / "z.safetensors").is_dir()
    )
    for name in ("x.safetensors", "y", "z.safetensors"):
        back = TensorDict.load(tmp_path / name)
        assert torch.equal(back["a"], td["a"]) and not back.is_locked and back.device.type == "cpu"
    with pytest.raises(ValueError, match="formats"):
        td.save(tmp_path / "x", format="zip")
    with pytest.raises(ValueError, match="replaced as a whole"):
        td.save(tmp_path / "x.safetensors", atomic=False)


def test_memmap_maps_the_file_and_writes_reach_it(tmp_path):
    path = tmp_path / "x.safetensors"
    td = TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(3, 2)}}, [3])
    twin = td.memmap(path)
    assert twin.is_memmap() and twin.is_locked and twin.saved_path == path and not td.is_memmap()
    twin["a"].zero_()
    twin["b", "c"][1] = 7
    back = from_safetensors(path)
    assert back["a"].sum() == 0 and back["b", "c"].sum() == 18
    assert not twin.clone().is_memmap()


def test_memmap_in_place_maps_the_tensordict_itself(tmp_path):
    td = TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(3, 2)}}, [3])
    inner = td["b"]
    assert td.memmap_(tmp_path / "x.safetensors", format="safetensors") is td and td.is_memmap() and td["b"] is inner
    inner["c"].zero_()
    assert from_safetensors(tmp_path / "x.safetensors")["b", "c"].sum() == 0


def test_memmap_like_makes_room_of_zeros(tmp_path):
    td = memmap_like(TensorDict({"a": torch.ones(2)}).expand(1000), tmp_path / "x.safetensors")
    assert td["a"].shape == (1000, 2) and not td["a"].any() and td.is_memmap()
    td["a"][3] = 1
    assert TensorDict.load(tmp_path / "x.safetensors")["a"].sum() == 2


def test_writes_to_loaded_tensors_stay_private_by_default(tmp_path):
    path = tmp_path / "x.safetensors"
    TensorDict({"a": torch.arange(3)}).save(path)
    from_safetensors(path)["a"].zero_()
    assert from_safetensors(path)["a"].sum() == 3
    from_safetensors(path, mode="r+")["a"].zero_()
    assert from_safetensors(path)["a"].sum() == 0
    with pytest.raises(ValueError, match="mode"):
        from_safetensors(path, mode="w")


def test_one_key_loads_alone_and_values_are_written_into_existing_entries(tmp_path):
    path = tmp_path / "x.safetensors"
    td = TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(2)}})
    td.save(path)
    assert TensorDict.load(path, subpath=("b", "c")).tolist() == [1, 1]
    assert list(TensorDict.load(path, subpath="b").keys()) == ["c"]
    out = td.clone().zero_()
    assert TensorDict.load_memmap(path, out=out) is out and out["a"].tolist() == [0, 1, 2]
    assert td.clone().zero_().load_memmap_(path)["b", "c"].sum() == 2


def test_the_meta_device_reads_only_the_header(tmp_path):
    path = tmp_path / "x.safetensors"
    TensorDict({"a": torch.arange(3)}).save(path)
    td = from_safetensors(path, device="meta")
    assert td["a"].is_meta and td["a"].shape == (3,) and td.device.type == "meta"


def test_each_tensor_has_a_version_and_a_storage_of_its_own(tmp_path):
    path = tmp_path / "x.safetensors"
    TensorDict({"w": torch.rand(4, 4), "n": torch.zeros(2, 2), "h": torch.rand(2, 2).bfloat16()}).save(path)
    td = from_safetensors(path)
    weight = td["w"].requires_grad_()
    loss = (weight * weight).sum()
    td["n"].add_(1)
    td["h"].add_(1)
    loss.backward()
    assert torch.equal(weight.grad, 2 * weight)
    assert td["n"].untyped_storage().nbytes() == 16 and td["h"].untyped_storage().nbytes() == 8


def test_refreshing_maps_the_new_save(tmp_path):
    path = tmp_path / "x.safetensors"
    td = TensorDict({"a": torch.zeros(2)}).memmap(path)
    TensorDict({"a": torch.ones(2), "b": torch.ones(1)}).save(path)
    assert td["a"].sum() == 0
    assert td.memmap_refresh_()["a"].sum() == 2 and set(td.keys()) == {"a", "b"} and td.is_memmap()


def test_a_save_in_the_background_shows_its_progress(tmp_path):
    td = TensorDict({"a": torch.rand(1 << 20)})
    future = save(td, tmp_path / "x.safetensors", return_early=True)
    assert isinstance(future, SaveFuture) and future.result() is td and future.bytes_total == 4 << 20
    assert torch.equal(from_safetensors(tmp_path / "x.safetensors")["a"], td["a"])


def test_entries_of_other_files_are_copied_only_on_request(tmp_path):
    td = TensorDict({"a": torch.arange(3)}).memmap(tmp_path / "tree")
    with pytest.raises(RuntimeError, match="'a'"):
        memmap(td, tmp_path / "x.safetensors")
    memmap(td, tmp_path / "x.safetensors", copy_existing=True)["a"].zero_()
    assert td["a"].sum() == 3


# --- shards


def test_shards_open_as_one(tmp_path, same):
    td = TensorDict({f"l{i}": {"w": torch.full((100,), i), "b": torch.rand(1)} for i in range(7)})
    save(td, tmp_path / "model", format="safetensors", shard_size=2000)
    names = sorted(os.listdir(tmp_path / "model"))
    assert names[0] == "model-00001-of-00004.safetensors" and "model.safetensors.index.json" in names
    assert all((tmp_path / "model" / name).stat().st_size < 4000 for name in names)
    index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 7 * 804 and len(index["weight_map"]) == 14
    same(td, from_safetensors(tmp_path / "model"))
    same(td, from_safetensors(tmp_path / "model" / "model.safetensors.index.json"))
    save(td, tmp_path / "model", format="safetensors", shard_size=1 << 30)
    assert sorted(os.listdir(tmp_path / "model")) == ["model.safetensors", "tensordict.manifest.json"]
    same(td, from_safetensors(tmp_path / "model"))


def test_the_method_saves_in_shards_as_the_function_does(tmp_path, same):
    td = TensorDict({"a": torch.arange(100), "b": torch.ones(100)})
    td.save(tmp_path / "method", format="safetensors", shard_size=500)
    save(td, tmp_path / "function", format="safetensors", shard_size=500)
    names = sorted(os.listdir(tmp_path / "function"))
    assert sorted(os.listdir(tmp_path / "method")) == names and len(names) > 2
    same(TensorDict.load(tmp_path / "method"), td)


@pytest.mark.parametrize("place", ["../x.safetensors", "/etc/passwd", "", ".", "a/b", 3, None, "a\0b"])
def test_an_index_names_files_beside_it_only(tmp_path, place):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": place}}))
    with pytest.raises(ValueError, match=r"index|beside"):
        from_safetensors(tmp_path / "model.safetensors.index.json")


def test_shards_of_different_saves_are_refused(tmp_path):
    for name, tensors in (("one", {"a": 3, "b": 3}), ("two", {"b": 3, "a": 3})):
        save(
            TensorDict({k: torch.rand(n) for k, n in tensors.items()}),
            tmp_path / name,
            format="safetensors",
            shard_size=12,
        )
    os.replace(
        tmp_path / "one" / "model-00001-of-00002.safetensors", tmp_path / "two" / "model-00001-of-00002.safetensors"
    )
    with pytest.raises(ValueError, match="not of one save"):
        from_safetensors(tmp_path / "two")


# --- all or nothing; the tests of faults have kills and full disks


def test_a_save_over_a_file_leaves_its_mappings_alone(tmp_path):
    path = tmp_path / "x.safetensors"
    td = TensorDict({"a": torch.zeros(1000)})
    td.save(path)
    earlier = from_safetensors(path)
    (earlier + 1).save(path)
    assert earlier["a"].sum() == 0 and from_safetensors(path)["a"].sum() == 1000
    loaded = from_safetensors(path)
    loaded.save(path)  # onto the very file that it is mapped from
    assert from_safetensors(path)["a"].sum() == 1000


def test_a_folder_in_the_way_is_an_error_and_stays(tmp_path):
    (tmp_path / "x.safetensors").mkdir()
    with pytest.raises(IsADirectoryError):
        TensorDict({"a": torch.zeros(1)}).save(tmp_path / "x.safetensors")
    with pytest.raises(RuntimeError, match="existsok"):
        TensorDict({"a": torch.zeros(1)}).memmap(__file__, existsok=False, format="safetensors")


def test_a_link_is_followed_and_the_mode_of_the_file_kept(tmp_path):
    td = TensorDict({"a": torch.zeros(1)})
    (tmp_path / "real").mkdir()
    td.save(tmp_path / "real" / "x.safetensors")
    os.chmod(tmp_path / "real" / "x.safetensors", 0o640)
    os.symlink(tmp_path / "real" / "x.safetensors", tmp_path / "x.safetensors")
    (td + 1).save(tmp_path / "x.safetensors")
    assert (
        os.path.islink(tmp_path / "x.safetensors") and from_safetensors(tmp_path / "real" / "x.safetensors")["a"] == 1
    )
    assert (tmp_path / "real" / "x.safetensors").stat().st_mode & 0o777 == 0o640
