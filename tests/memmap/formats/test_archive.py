"""Archives: a tree in one zip file, mapped in place, packed and unpacked, and what is wrong with damaged ones."""

from __future__ import annotations

import os
import random
import zipfile

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict
from tensordict_memmap import (
    MemoryMappedTensor,
    SaveFuture,
    is_memmap_archive,
    memmap_like,
    pack_memmap,
    refresh_archive_checksums,
    save,
    unpack_memmap,
)


def tree():
    return TensorDict(
        {
            "a": torch.arange(12).reshape(3, 4),
            "half": torch.rand(3, 5).bfloat16(),
            "strided": torch.rand(7, 3).T,
            "none": torch.zeros(3, 0),
            "b": {"c": torch.rand(3), "weird/key": torch.rand(3), "s": "text"},
            "t": NonTensorData((1, b"x"), batch_size=[3]),
            "q": NonTensorStack("a", "b", "c"),
            "j": torch.nested.nested_tensor([torch.rand(2), torch.rand(1), torch.rand(4)], layout=torch.jagged),
            "l": LazyStackedTensorDict(*(TensorDict({"x": torch.rand(n)}) for n in (1, 2, 3))),
        },
        [3],
        names=["time"],
    )


def same(one, two):
    assert type(one) is type(two) and one.batch_size == two.batch_size and one.names == two.names
    if isinstance(one, LazyStackedTensorDict):
        for a, b in zip(one.tensordicts, two.tensordicts, strict=True):
            same(a, b)
        return
    assert set(one.keys()) == set(two.keys())
    for key in one.keys():  # noqa: SIM118  # iterating a tensordict gives rows
        a, b = one.get(key), two.get(key)
        if isinstance(a, torch.Tensor) and a.is_nested:
            assert all(torch.equal(x, y) for x, y in zip(a.unbind(), b.unbind(), strict=True))
        elif isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype and torch.equal(a, b)
        elif isinstance(a, NonTensorData | NonTensorStack):
            assert a.tolist() == b.tolist()
        else:
            same(a, b)


@pytest.mark.parametrize("compression", [None, "deflate"])
def test_a_single_element_with_a_stride_is_saved(tmp_path, compression):
    td = TensorDict(
        {"a": torch.arange(4)[1:2].as_strided((1,), (2,)), "b": torch.arange(6.0).view(2, 3)[1:, ::2][:, 1]}
    )
    td.save(tmp_path / "x.tdz", compression=compression)
    back = TensorDict.load(tmp_path / "x.tdz")
    assert back["a"].tolist() == [1] and back["b"].tolist() == [5.0]


@pytest.mark.parametrize("compression", [None, "stored", "deflate", "bzip2", "lzma", zipfile.ZIP_DEFLATED])
def test_an_archive_is_loaded_as_it_was_saved(tmp_path, compression):
    td = tree()
    assert td.save(tmp_path / "x.tdz", compression=compression) is td
    back = TensorDict.load(tmp_path / "x.tdz")
    same(td, back)
    assert not back.is_locked and back.saved_path == tmp_path / "x.tdz" and is_memmap_archive(tmp_path / "x.tdz")
    with zipfile.ZipFile(tmp_path / "x.tdz") as file:
        assert file.testzip() is None and file.namelist()[0] == "meta.json"
    assert os.listdir(tmp_path) == ["x.tdz"]


def test_payloads_are_aligned_and_mapped(tmp_path):
    tree().save(tmp_path / "x.tdz")
    back = TensorDict.load(tmp_path / "x.tdz")
    for key in ("a", "half", "strided", ("b", "c")):
        assert isinstance(back[key], MemoryMappedTensor) and back[key].data_ptr() % 64 == 0
        assert back[key].filename == str(tmp_path / "x.tdz") and back[key].offset % 64 == 0


def test_the_option_or_the_ending_chooses(tmp_path):
    td = TensorDict({"a": torch.arange(3)})
    td.save(tmp_path / "x", archive=True)
    td.save(tmp_path / "y.tdz", archive=False)
    td.save(tmp_path / "z.tdz", format="safetensors")
    td.save(tmp_path / "zip", format="archive")
    assert (
        is_memmap_archive(tmp_path / "x")
        and (tmp_path / "y.tdz").is_dir()
        and not is_memmap_archive(tmp_path / "z.tdz")
        and is_memmap_archive(tmp_path / "zip")
    )
    for name in ("x", "y.tdz", "z.tdz", "zip"):
        assert TensorDict.load(tmp_path / name)["a"].tolist() == [0, 1, 2]
    refused = [{"archive": True, "format": "safetensors"}, {"archive": True, "format": "tree"}]
    refused += [{"archive": False, "format": "archive"}, {"compression": "deflate"}]
    for options in refused:
        with pytest.raises(ValueError, match="archive"):
            td.save(tmp_path / "folder", **options)
    assert not (tmp_path / "folder").exists()
    with pytest.raises(ValueError, match="unknown compression"):
        td.save(tmp_path / "x.tdz", compression="zstd")
    with pytest.raises(ValueError, match="as a whole"):
        td.save(tmp_path / "x.tdz", atomic=False)


def test_memmap_maps_the_archive_and_checksums_can_follow(tmp_path):
    path = tmp_path / "x.tdz"
    td = TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(3)}}).memmap(path)
    assert td.is_memmap() and td.saved_path == path
    td["a"].zero_()
    assert TensorDict.load(path)["a"].tolist() == [0, 0, 0]
    assert zipfile.ZipFile(path).testzip() == "a.memmap"
    with pytest.raises(ValueError, match="damaged"):
        unpack_memmap(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    refresh_archive_checksums(path)
    assert zipfile.ZipFile(path).testzip() is None


def test_writes_to_a_loaded_tensordict_stay_private_by_default(tmp_path):
    path = tmp_path / "x.tdz"
    td = TensorDict({"a": torch.arange(3)})
    td.save(path)
    TensorDict.load(path)["a"].zero_()
    assert TensorDict.load(path)["a"].sum() == 3
    TensorDict.load_memmap(path, mode="r+")["a"].zero_()
    assert TensorDict.load(path)["a"].sum() == 0
    assert td.memmap_(path) is td and td.is_memmap()
    like = memmap_like(TensorDict({"a": torch.ones(2)}).expand(100_000), tmp_path / "like.tdz")
    assert like["a"].shape == (100_000, 2) and not like["a"].any()
    like["a"][7] = 1
    assert TensorDict.load(tmp_path / "like.tdz")["a"].sum() == 2


def test_one_key_loads_alone_and_the_meta_device_reads_no_data(tmp_path):
    tree().save(tmp_path / "x.tdz")
    assert TensorDict.load(tmp_path / "x.tdz", subpath="b").keys() == {"c", "weird/key", "s"}
    assert TensorDict.load(tmp_path / "x.tdz", subpath=("b", "c")).shape == (3,)
    assert TensorDict.load(tmp_path / "x.tdz", device="meta")["a"].is_meta
    future = save(tree(), tmp_path / "x.tdz", return_early=True)
    assert isinstance(future, SaveFuture) and future.result() is not None and future.progress == 1


def test_packing_and_unpacking_are_inverse(tmp_path):
    td = tree()
    td.memmap(tmp_path / "folder")
    for compression in (None, "deflate"):
        assert pack_memmap(tmp_path / "folder", tmp_path / "x.tdz", compression=compression) == tmp_path / "x.tdz"
        same(td, TensorDict.load(tmp_path / "x.tdz"))
        assert unpack_memmap(tmp_path / "x.tdz", tmp_path / "again") == tmp_path / "again"
        same(td, TensorDict.load(tmp_path / "again"))
    with pytest.raises(ValueError, match=r"meta\.json"):
        pack_memmap(tmp_path, tmp_path / "x.tdz")
    with pytest.raises(ValueError, match="outside"):
        pack_memmap(tmp_path / "folder", tmp_path / "folder" / "x.tdz")
    with pytest.raises(ValueError, match="zip"):
        unpack_memmap(tmp_path / "folder" / "meta.json", tmp_path / "out")


def test_other_files_are_distinguished_from_archives(tmp_path):
    (tmp_path / "text").write_text("PK but no zip")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        file.writestr("a", "b")
    assert not any(is_memmap_archive(tmp_path / name) for name in ("text", "other.zip", "absent", "."))


def test_an_earlier_archive_is_whole_until_the_new_one_is(tmp_path):
    td = TensorDict({"a": torch.zeros(1000)}).memmap(tmp_path / "x.tdz")
    TensorDict({"a": torch.ones(1000)}).save(tmp_path / "x.tdz")
    assert td["a"].sum() == 0 and TensorDict.load(tmp_path / "x.tdz")["a"].sum() == 1000
    with pytest.raises(TypeError):
        TensorDict({"a": torch.rand(2, 2).to_sparse()}).save(tmp_path / "x.tdz")
    assert TensorDict.load(tmp_path / "x.tdz")["a"].sum() == 1000 and os.listdir(tmp_path) == ["x.tdz"]
    with pytest.raises(RuntimeError, match="'a'"):
        td.memmap(tmp_path / "y.tdz")


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "a\\..\\x", "C:x"])
def test_no_entry_leads_out_of_the_folder(tmp_path, name):
    TensorDict({"a": torch.zeros(3)}).save(tmp_path / "x.tdz")
    with zipfile.ZipFile(tmp_path / "x.tdz", "a") as file:
        file.writestr(zipfile.ZipInfo("placeholder"), b"x")
        file.filelist[-1].filename = name
        file.NameToInfo[name] = file.filelist[-1]
    for opening in (TensorDict.load, lambda path: unpack_memmap(path, tmp_path / "out")):
        with pytest.raises(ValueError, match="damaged"):
            opening(tmp_path / "x.tdz")
    assert os.listdir(tmp_path) == ["x.tdz"]


def test_a_missing_or_short_entry_is_an_error_that_names_the_key(tmp_path):
    TensorDict({"a": torch.zeros(3), "b": torch.zeros(2)}).save(tmp_path / "x.tdz")
    with zipfile.ZipFile(tmp_path / "x.tdz") as file:
        entries = {name: file.read(name) for name in file.namelist()}
    for change, error in (({"b.memmap": b"1234"}, ValueError), ({"b.memmap": None}, FileNotFoundError)):
        with zipfile.ZipFile(tmp_path / "y.tdz", "w") as file:
            for name, data in (entries | change).items():
                if data is not None:
                    file.writestr(name, data)
        with pytest.raises(error, match="'b'"):
            TensorDict.load(tmp_path / "y.tdz")


@pytest.mark.parametrize("compression", [None, "deflate"])
def test_a_damaged_archive_is_an_error_or_the_same_structure(tmp_path, compression):
    path = tmp_path / "x.tdz"
    TensorDict({"a": torch.zeros(30), "b": {"c": torch.ones(200), "s": "text"}}).save(path, compression=compression)
    whole = path.read_bytes()
    chance = random.Random(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        if chance.random() < 0.2:
            del damaged[chance.randrange(len(whole)) :]
        for _ in range(chance.randrange(1, 4)):
            if damaged:
                damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            TensorDict.load(path)
        except (ValueError, KeyError, FileNotFoundError):
            refused += 1
    assert refused > 50
