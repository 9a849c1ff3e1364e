"""Zarr stores: layouts, rows, appends, other readers, and stores that are damaged or replaced."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("zarr", reason="zarr is an extra")
pytest.importorskip("fsspec", reason="fsspec is an extra")

import zarr.storage

from tensordict_core import TensorDict
from tensordict_store import PersistentTensorDict


def sample(n: int = 10) -> TensorDict:
    nested = {"y": torch.arange(n), "flag": torch.arange(n) % 2 == 0}
    return TensorDict({"x": torch.arange(4.0 * n).view(n, 4), "n": nested, "name": "run"}, [n], names=["time"])


@pytest.mark.parametrize("where", ["memory://of-the-tests", "store", "path"])
def test_any_store_of_zarr_holds_a_tensordict(where, tmp_path):
    place = {"store": zarr.storage.MemoryStore(), "path": tmp_path / "data.zarr"}.get(where, where)
    sample().to_zarr(place, chunks=3).close()
    assert (TensorDict.from_zarr(place) == sample()).all()


def test_shards_and_compressors_are_those_of_zarr(tmp_path):
    from zarr.codecs import ZstdCodec

    td = TensorDict({"x": torch.zeros(100, 8)}, [100]).to_zarr(
        tmp_path / "data.zarr", chunks=10, shards=45, compressors=ZstdCodec(level=1)
    )
    array = td.file["x"]
    assert array.chunks == (10, 8) and array.shards == (50, 8) and array.compressors[0].level == 1


def test_dimensions_are_named_for_other_readers(tmp_path):
    sample().to_zarr(tmp_path / "data.zarr").close()
    meta = json.loads((tmp_path / "data.zarr" / "x" / "zarr.json").read_text())
    assert meta["dimension_names"] == ["time", "x_0"]
    group = zarr.open_group(tmp_path / "data.zarr", mode="r")
    assert group.metadata.consolidated_metadata is not None and (group["n/y"][:] == range(10)).all()


def test_a_store_of_another_program_has_the_batch_size_that_its_shapes_share(tmp_path):
    group = zarr.open_group(tmp_path / "other.zarr", mode="w")
    group.create_array("x", shape=(3, 2), dtype=">f4", fill_value=2)
    assert TensorDict.from_zarr(tmp_path / "other.zarr").batch_size == (3, 2)
    assert TensorDict.from_zarr(tmp_path / "other.zarr", auto_batch_size=False).batch_size == ()
    td = TensorDict.from_zarr(tmp_path / "other.zarr", batch_size=[3])
    assert td[1]["x"].tolist() == [2, 2] and td["x"].dtype is torch.float32
    with pytest.raises(ValueError, match="'x' has shape"):
        TensorDict.from_zarr(tmp_path / "other.zarr", batch_size=[4])


def test_rows_are_appended(tmp_path):
    td = sample().to_zarr(tmp_path / "data.zarr", chunks=3)
    td.append(sample(4)).append(sample(1))
    assert td.batch_size == (15,) and td["n"].batch_size == (15,) and td["name"] == "run"
    again = TensorDict.from_zarr(tmp_path / "data.zarr")
    assert (again[10:14] == sample(4)).all() and (again[:10] == sample()).all()


def test_an_append_that_was_interrupted_leaves_the_rows_before_it(tmp_path, monkeypatch):
    td = sample().to_zarr(tmp_path / "data.zarr", chunks=3)
    monkeypatch.setattr(PersistentTensorDict, "_set_meta", lambda self, meta: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        td.append(sample(4))
    monkeypatch.undo()
    again = TensorDict.from_zarr(tmp_path / "data.zarr", mode="r+")
    assert again.batch_size == (10,) and (again == sample()).all()
    again.append(sample(2))
    assert again.batch_size == (12,) and (again[10:] == sample(2)).all()


def test_entries_are_renamed_removed_and_replaced(tmp_path):
    td = sample().to_zarr(tmp_path / "data.zarr", chunks=3)
    td.rename_key_("n", "m")
    td.rename_key_("x", "z")
    td["name"] = "other"
    del td["m", "flag"]
    td["z"] = torch.zeros(10, 2)
    td.close()
    again = TensorDict.from_zarr(tmp_path / "data.zarr")
    assert set(again.keys(True, True)) == {"z", ("m", "y")} and again["z"].shape == (10, 2)
    assert again["m", "y"].tolist() == list(range(10)) and again["name"] == "other"


def test_entries_of_a_renamed_node_keep_their_chunks(tmp_path):
    sample().to_zarr(tmp_path / "data.zarr", chunks=3).close()
    with_others = TensorDict.from_zarr(tmp_path / "data.zarr", mode="r+")  # which would give new arrays other chunks
    with_others.rename_key_("n", "m")
    with_others.close()
    assert zarr.open_group(tmp_path / "data.zarr")["m/y"].chunks[0] == 3


def test_a_store_for_reading_cannot_be_written(tmp_path):
    sample().to_zarr(tmp_path / "data.zarr").close()
    td = TensorDict.from_zarr(tmp_path / "data.zarr")
    for change in (
        lambda: td.set("z", torch.zeros(10)),
        lambda: td.set_("x", torch.zeros(10, 4)),
        lambda: td.del_("x"),
    ):
        with pytest.raises(RuntimeError, match="reading only"):
            change()
    assert (pickle.loads(pickle.dumps(td)) == sample()).all()
    td.close()
    with pytest.raises(RuntimeError, match="closed; open it again"):
        td["x"]


def test_a_store_that_fails_to_be_written_leaves_the_earlier_one(tmp_path):
    sample().to_zarr(tmp_path / "data.zarr").close()
    with pytest.raises(TypeError, match="layout"):
        TensorDict({"x": torch.zeros(3), "s": torch.eye(3).to_sparse()}).to_zarr(tmp_path / "data.zarr")
    with pytest.raises(KeyError, match="cannot be a name"):
        TensorDict({"x": torch.zeros(3), "a/b": torch.zeros(3)}).to_zarr(tmp_path / "data.zarr")
    assert (TensorDict.from_zarr(tmp_path / "data.zarr") == sample()).all()
    assert [one.name for one in tmp_path.iterdir()] == ["data.zarr"]


def test_missing_and_damaged_stores_are_reported(tmp_path):
    with pytest.raises(FileNotFoundError, match="write one with to_zarr"):
        TensorDict.from_zarr(tmp_path / "none.zarr")
    sample().to_zarr(tmp_path / "data.zarr", chunks=5).close()
    chunk = Path(tmp_path / "data.zarr" / "x" / "c" / "1" / "0")
    chunk.write_bytes(chunk.read_bytes()[:17])
    td = TensorDict.from_zarr(tmp_path / "data.zarr")
    with pytest.raises(OSError, match=r"chunks of '/x'.*cannot be decoded.*restore them from a copy"):
        td["x"]
    assert td[:5]["x"].shape == (5, 4) and td["n", "y"].tolist() == list(range(10))
    (tmp_path / "data.zarr" / "zarr.json").write_text("{")
    with pytest.raises(OSError, match="metadata may be damaged"):
        TensorDict.from_zarr(tmp_path / "data.zarr")


def test_each_key_of_a_new_store_is_written_once_and_the_root_last(tmp_path, monkeypatch):
    written: list[str] = []
    put = zarr.storage.LocalStore.set

    async def record(self, key, value):
        written.append(key)
        await put(self, key, value)

    monkeypatch.setattr(zarr.storage.LocalStore, "set", record)
    sample().to_zarr(tmp_path / "data.zarr", chunks=10).close()
    # the first is the empty root that makes the folder
    assert written[0] == written[-1] == "zarr.json" and len(set(written[1:])) == len(written) - 1
    assert set(written) >= {"x/zarr.json", "x/c/0/0", "n/zarr.json", "n/y/zarr.json", "n/y/c/0", "name/zarr.json"}


def test_a_store_in_memory_shares_nothing_with_the_tensordict_that_was_written():
    td = TensorDict({"x": torch.arange(6).view(3, 2)}, [3])
    stored = td.to_zarr(zarr.storage.MemoryStore())
    td["x"].zero_()
    assert stored["x"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert TensorDict({"y": torch.ones(3)}, [3]).to_zarr(stored.file.store)["y"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("options", [{"chunks": 7}, {"chunks": 3, "shards": 9}], ids=str)
def test_blocks_hold_whole_chunks(tmp_path, monkeypatch, options):
    monkeypatch.setattr("tensordict_store.persistent.writing._BLOCK", 100)
    monkeypatch.setattr("tensordict_store.zarr.creation._QUEUED", 300)
    plain = sample(40)
    assert (plain.to_zarr(tmp_path / "data.zarr", **options) == plain).all()


def test_xarray_opens_groups_with_their_dimension_names(tmp_path):
    xarray = pytest.importorskip("xarray", reason="xarray is another reader of zarr stores")
    td = TensorDict({"x": torch.arange(12.0).view(3, 4), "n": {"y": torch.ones(3, 2)}}, [3], names=["time"])
    td.to_zarr(tmp_path / "a.zarr").close()
    opened = xarray.open_datatree(tmp_path / "a.zarr", engine="zarr", consolidated=False)
    assert opened["x"].dims[0] == opened["n/y"].dims[0] == "time"
    assert np.array_equal(opened["x"].values, td["x"]) and np.array_equal(opened["n/y"].values, td["n", "y"])
