"""Loading: what was saved opens again, and what is damaged, missing or not allowed is an error that names a key."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from typing import ClassVar

import pytest
import torch
from torch._subclasses import FakeTensorMode

from tensordict_core import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict
from tensordict_memmap import MemoryMappedTensor, load_memmap, print_directory_tree
from tensordict_memmap.engine import syscalls as system


@pytest.fixture
def saved(tmp_path):
    """A folder with a bit of everything."""
    td = TensorDict(
        {
            "a": torch.arange(6.0).reshape(3, 2),
            "b": {"c": torch.arange(3), "d": {"e f": torch.ones(3, 1)}},
            "lazy": TensorDict.lazy_stack([TensorDict({"i": torch.full((n,), n)}) for n in range(1, 4)]),
            "s": NonTensorData(("text", 1), batch_size=[3]),
            "t": NonTensorStack("x", "y", {"z"}),
            "empty": torch.zeros(3, 0),
        },
        [3],
        names=["n"],
    )
    td.save(tmp_path / "x")
    return tmp_path / "x"


def snapshot(root):
    """Every file under a folder with its bytes and times."""
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino)
        for path in root.rglob("*")
        if path.is_file()
    }


def test_loads_are_locked_and_mapped(saved):
    td = TensorDict.load_memmap(saved)
    assert type(td) is TensorDict and not td.is_locked and td.is_memmap()
    assert td.batch_size == (3,) and td.names == ["n"] and td["b"].names == ["n"]
    assert td["a"].tolist() == [[0, 1], [2, 3], [4, 5]] and td["b", "d", "e f"].sum() == 3
    assert isinstance(td["lazy"], LazyStackedTensorDict)
    assert [one["i"].tolist() for one in td["lazy"].unbind(0)] == [[1], [2, 2], [3, 3, 3]]
    assert td["s"] == ("text", 1) and td[1]["t"] == "y" and td[2]["t"] == {"z"}
    assert td["empty"].shape == (3, 0)
    assert td.saved_path == saved and td["b", "d"].saved_path == saved / "b" / "d"


def test_loading_and_reading_change_no_file(saved):
    before = snapshot(saved)
    td = TensorDict.load_memmap(saved)
    td.clone()
    TensorDict.load_memmap(saved, mode="r")["a"].zero_()
    assert snapshot(saved) == before


def test_mode_r_keeps_writes_in_this_process(saved):
    td = TensorDict.load_memmap(saved, mode="r")
    td["a"].zero_()
    assert td["a"].sum() == 0 and TensorDict.load_memmap(saved)["a"].sum() == 15
    with pytest.raises(ValueError, match="mode"):
        TensorDict.load_memmap(saved, mode="w")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="permissions bind no root")
def test_a_read_only_file_is_mapped_for_reading(saved):
    os.chmod(saved / "a.memmap", 0o400)
    assert TensorDict.load_memmap(saved)["a"].mode == "r"


def test_a_sub_folder_loads_alone(saved):
    td = TensorDict.load_memmap(saved / "b")
    assert td["d", "e f"].shape == (3, 1) and td.saved_path == saved / "b"


@pytest.mark.parametrize("subpath", ["b", ("b", "d"), ("b", "d", "e f"), ("lazy", "1"), ("s",), ("lazy", "2", "i")])
def test_a_nested_key_loads_alone_without_the_rest(saved, subpath):
    (saved / "a.memmap").unlink()
    whole = load_memmap(saved, subpath=subpath)
    assert whole.shape is not None
    if subpath == ("b", "d", "e f"):
        assert isinstance(whole, MemoryMappedTensor) and whole.sum() == 3
    if subpath == ("lazy", "1"):
        assert whole["i"].tolist() == [2, 2]
    if subpath == ("s",):
        assert whole.data == ("text", 1)


@pytest.mark.parametrize("subpath", ["B", ("b", "C"), ("a", "x"), ("lazy", "7"), ("s", "x")])
def test_a_nested_key_that_was_not_saved_is_a_key_error(saved, subpath):
    with pytest.raises(KeyError):
        load_memmap(saved, subpath=subpath)


def test_where_nothing_was_saved_is_a_file_not_found_error(tmp_path):
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match=r"has no meta\.json, so|no saved tensordict at"):
            TensorDict.load_memmap(place)


def test_a_missing_leaf_is_an_error_that_names_its_key(saved):
    (saved / "b" / "c.memmap").unlink()
    with pytest.raises(FileNotFoundError, match=r"\('b', 'c'\).*24 bytes"):
        TensorDict.load_memmap(saved)


@pytest.mark.parametrize("size", [0, 1, 23, 25, 4096])
def test_a_leaf_of_another_size_is_an_error_that_names_key_and_sizes_and_changes_nothing(saved, size):
    path = saved / "b" / "c.memmap"
    path.write_bytes(b"\1" * size)
    before = snapshot(saved)
    with pytest.raises(ValueError, match=rf"\('b', 'c'\) takes 24 bytes .* has {size};"):
        TensorDict.load_memmap(saved)
    assert snapshot(saved) == before


@pytest.mark.parametrize("name", ["b/meta.json", "lazy/1/meta.json", "s/meta.json"])
def test_a_missing_description_is_an_error_that_names_its_key(saved, name):
    (saved / name).unlink()
    with pytest.raises(ValueError, match=name.split("/")[0]):
        TensorDict.load_memmap(saved)


def test_a_missing_element_of_a_stack_is_an_error(saved):
    shutil.rmtree(saved / "lazy" / "2")
    with pytest.raises(ValueError, match="element 2 of 'lazy'"):
        TensorDict.load_memmap(saved)


def test_links_and_pipes_are_not_followed(saved, tmp_path):
    outside = tmp_path / "secret"
    outside.write_bytes(b"\0" * 24)
    leaf = saved / "b" / "c.memmap"
    leaf.unlink()
    leaf.symlink_to(outside)
    with pytest.raises(ValueError, match="link"):
        TensorDict.load_memmap(saved)
    leaf.unlink()
    os.mkfifo(leaf)
    with pytest.raises(ValueError, match="regular"):
        TensorDict.load_memmap(saved)
    leaf.unlink()
    leaf.mkdir()
    with pytest.raises(ValueError, match="regular"):
        TensorDict.load_memmap(saved)


def test_a_linked_node_is_not_followed(saved, tmp_path):
    shutil.move(saved / "b", tmp_path / "elsewhere")
    (saved / "b").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="'b'"):
        TensorDict.load_memmap(saved)


def test_the_saved_folder_itself_may_be_a_link(saved, tmp_path):
    (tmp_path / "link").symlink_to(saved)
    assert TensorDict.load_memmap(tmp_path / "link")["a"].sum() == 15


def test_a_folder_without_manifest_loads_with_the_same_checks(saved):
    (saved / "tensordict.manifest.json").unlink()
    assert TensorDict.load_memmap(saved)["b", "c"].tolist() == [0, 1, 2]
    os.truncate(saved / "b" / "c.memmap", 8)
    with pytest.raises(ValueError, match="'c'"):
        TensorDict.load_memmap(saved)


def test_a_save_that_was_stopped_while_it_overwrote_is_refused(saved):
    path = saved / "tensordict.manifest.json"
    path.write_text(path.read_text().replace('"complete":true', '"complete":false'))
    with pytest.raises(ValueError, match="stopped"):
        TensorDict.load_memmap(saved)


def test_ties_of_an_outdated_manifest_are_not_believed(tmp_path):
    w = torch.zeros(2)
    TensorDict({"a": w, "b": w}).save(tmp_path)
    manifest = (tmp_path / "tensordict.manifest.json").read_bytes()
    shutil.rmtree(tmp_path)
    TensorDict({"a": torch.zeros(2), "b": torch.ones(2), "other": 1}).save(tmp_path)
    (tmp_path / "tensordict.manifest.json").write_bytes(manifest)
    assert TensorDict.load_memmap(tmp_path)["b"].tolist() == [1, 1]


def test_ties_survive_a_copy_of_the_folder_and_are_found_from_a_sub_folder(tmp_path):
    w = torch.zeros(2)
    TensorDict({"n": {"a": w, "b": w}}).save(tmp_path / "x")
    shutil.copytree(tmp_path / "x", tmp_path / "copy")
    for place in (tmp_path / "copy", tmp_path / "x"):
        td = TensorDict.load_memmap(place)
        assert td["n", "a"] is td["n", "b"]
        sub = TensorDict.load_memmap(place / "n")
        assert sub["a"] is sub["b"]


def test_keys_like_fields_or_files_of_the_layout_come_back(tmp_path):
    keys = ["shape", "device", "_type", "_names", "_entries", "meta.json", "meta", "a", "a.memmap", "x/y", "..", ""]
    keys.append(".")
    td = TensorDict({key: torch.full((2,), n) for n, key in enumerate(keys)}, [2])
    nested = TensorDict({key: TensorDict({key: torch.full((2,), n)}, [2]) for n, key in enumerate(keys)}, [2])
    td.save(tmp_path / "x")
    nested.save(tmp_path / "y")
    again, nested_again = TensorDict.load(tmp_path / "x"), TensorDict.load(tmp_path / "y")
    assert list(again.keys()) == keys and list(nested_again.keys()) == keys
    for n, key in enumerate(keys):
        assert again[key].tolist() == [n, n]
        assert nested_again[key, key].tolist() == [n, n]
        assert load_memmap(tmp_path / "y", subpath=(key, key)).tolist() == [n, n]


def test_keys_written_without_encoding_are_found(tmp_path):
    TensorDict({"a b": torch.ones(1), "c d": {"e": torch.ones(1)}}).save(tmp_path)
    (tmp_path / "a%20b.memmap").rename(tmp_path / "a b.memmap")
    (tmp_path / "c%20d").rename(tmp_path / "c d")
    td = TensorDict.load_memmap(tmp_path)
    assert td["a b"].sum() == 1 and td["c d", "e"].sum() == 1


# --- values


class Opaque:
    """A value without a JSON form, whose pickles tell when they are read."""

    read: ClassVar[list[int]] = []

    def __init__(self, x):
        self.x = x

    def __setstate__(self, state):
        Opaque.read.append(state["x"])
        self.__dict__.update(state)


@pytest.fixture
def pickled(tmp_path):
    Opaque.read.clear()
    td = TensorDict({"n": {"odd": NonTensorData(Opaque(3))}, "odds": NonTensorStack(Opaque(4), 5)}, [])
    with pytest.warns(UserWarning, match="allow_pickle"):
        td.save(tmp_path)
    return tmp_path


@pytest.mark.parametrize("allowed", [None, False])
def test_values_are_unpickled_only_on_request_and_the_error_names_the_key(pickled, allowed):
    with pytest.raises(ValueError, match=r"\('n', 'odd'\).*allow_pickle"):
        TensorDict.load_memmap(pickled, allow_pickle=allowed)
    assert Opaque.read == []


def test_pickled_values_come_back_where_that_is_allowed(pickled):
    td = TensorDict.load_memmap(pickled, allow_pickle=True)
    assert td["n", "odd"].x == 3 and td["odds"][0].x == 4 and td["odds"][1] == 5
    assert load_memmap(pickled, subpath="odds", allow_pickle=True).batch_size == (2,)


def test_values_that_were_stored_with_torch_save_come_back(pickled):
    torch.save(Opaque(7), pickled / "n" / "odd" / "other.pickle")
    assert TensorDict.load_memmap(pickled, allow_pickle=True)["n", "odd"].x == 7


def test_a_pickle_in_place_of_json_is_not_read(saved):
    Opaque.read.clear()
    (saved / "meta.json").write_bytes(pickle.dumps(Opaque(1)))
    with pytest.raises(ValueError):
        TensorDict.load_memmap(saved)
    assert Opaque.read == []


# --- classes


def test_an_unknown_class_becomes_a_plain_tensordict_with_a_warning(tmp_path):
    TensorDict({"tc": {"_tensordict": {"x": torch.ones(2), "note": "n"}}}).save(tmp_path)
    (tmp_path / "tc" / "meta.json").write_text(json.dumps({"_type": "<class 'somewhere.else.Point'>"}))
    with pytest.warns(UserWarning, match=r"'tc'.*somewhere\.else\.Point"):
        td = TensorDict.load_memmap(tmp_path)
    assert td["tc"]["x"].sum() == 2 and td["tc", "note"] == "n"


# --- where to


def test_the_meta_device_looks_at_no_data(saved):
    for path in saved.rglob("*.memmap"):
        path.unlink()
    td = TensorDict.load_memmap(saved, device="meta")
    assert td.device == torch.device("meta") and td["b", "d", "e f"].is_meta and td["a"].shape == (3, 2)


def test_fake_tensors_are_made_where_their_mode_is_active(saved):
    with FakeTensorMode():
        td = TensorDict.load_memmap(saved)
    assert type(td["a"]).__name__ == "FakeTensor" and td["b", "c"].dtype is torch.int64


def test_values_go_into_a_given_tensordict(saved):
    for write in (
        lambda td: TensorDict.load_memmap(saved / "b", out=td),
        lambda td: td.load_memmap_(saved / "b"),
        lambda td: td.load_(saved / "b"),
    ):
        td = TensorDict({"c": torch.zeros(3, dtype=torch.int64), "d": {"e f": torch.zeros(3, 1)}}, [3])
        leaf = td["c"]
        assert write(td) is td
        assert td["c"] is leaf and leaf.tolist() == [0, 1, 2] and td["d", "e f"].sum() == 3 and not td.is_memmap()


def test_entries_that_a_given_tensordict_lacks_are_added(saved):
    td = TensorDict({"c": torch.zeros(3)})
    leaf = td["c"]
    assert TensorDict.load_memmap(saved / "b", out=td) is td
    assert td["c"] is leaf and leaf.tolist() == [0, 1, 2] and td["d", "e f"].sum() == 3
    with pytest.raises(KeyError, match="locked"):
        TensorDict.load_memmap(saved / "b", out=TensorDict({}, [3]).lock_())


@pytest.mark.cuda
def test_entries_go_to_another_device(saved):
    td = TensorDict.load_memmap(saved, device="cuda")
    assert td.device.type == "cuda" and td["b", "c"].is_cuda and td["b", "c"].tolist() == [0, 1, 2]


# --- refreshing


def test_refreshing_adds_new_entries_and_keeps_unchanged_ones(saved):
    td = TensorDict.load_memmap(saved)
    a, inner = td["a"], td["b"]
    other = TensorDict.load_memmap(saved)
    other.make_memmap(("b", "new"), torch.Size([3]), dtype=torch.int8)
    assert td.memmap_refresh_() is td
    assert td["a"] is a and td["b"] is inner and inner["new"].tolist() == [0, 0, 0] and not td.is_locked
    TensorDict({"a": torch.zeros(1)}).save(saved)
    td.memmap_refresh_()
    assert list(td.keys()) == ["a"] and td["a"].tolist() == [0] and td.batch_size == ()


def test_refreshing_needs_a_folder():
    for td in (TensorDict({"a": 1}), TensorDict({"a": 1}).memmap()):
        with pytest.raises(RuntimeError, match="not memory mapped or has no path"):
            td.memmap_refresh_()


# --- the oldest layout


def write_oldest(folder, entries, **about):
    folder.mkdir(parents=True)
    torch.save({"batch_size": torch.Size([2]), "device": torch.device("cpu")} | about, folder / "meta.pt")
    for key, value in entries.items():
        if isinstance(value, dict):
            write_oldest(folder / key, value)
        else:
            record = {"shape": value.shape, "device": value.device, "dtype": value.dtype}
            torch.save(record, folder / f"{key}.meta.pt")
            (folder / f"{key}.memmap").write_bytes(value.numpy().tobytes())


def test_the_oldest_layout_loads(tmp_path):
    write_oldest(tmp_path / "x", {"a": torch.arange(4.0).reshape(2, 2), "b": {"c d": torch.arange(2)}})
    td = TensorDict.load_memmap(tmp_path / "x")
    assert td.batch_size == (2,) and td["a"].tolist() == [[0, 1], [2, 3]] and td["b", "c d"].tolist() == [0, 1]
    assert load_memmap(tmp_path / "x", subpath=("b", "c d")).tolist() == [0, 1]


def test_a_lazy_stack_in_the_oldest_layout_loads(tmp_path):
    for n in range(2):
        write_oldest(tmp_path / "x" / str(n), {"i": torch.zeros(2, n + 1)})
    torch.save({"stack_dim": 1}, tmp_path / "x" / "meta.pt")
    td = TensorDict.load_memmap(tmp_path / "x")
    assert td.batch_size == (2, 2) and [one["i"].shape[1] for one in td.unbind(1)] == [1, 2]


def test_parts_of_the_oldest_layout_load_without_the_rest(tmp_path):
    write_oldest(tmp_path / "x", {"a": torch.arange(2), "b": {"c": torch.tensor([5, 6]), "d": torch.zeros(2)}})
    (tmp_path / "x" / "a.memmap").unlink()
    (tmp_path / "x" / "b" / "d.memmap").unlink()
    td = load_memmap(tmp_path / "x", keys="*.c")
    assert list(td.keys(True, True)) == [("b", "c")] and td["b", "c"].tolist() == [5, 6] and td.batch_size == (2,)
    assert load_memmap(tmp_path / "x", keys="b.c", rows=slice(1, 2))["b", "c"].tolist() == [6]
    with pytest.raises(FileNotFoundError, match="'a'"):
        load_memmap(tmp_path / "x")


def test_the_oldest_layout_is_read_without_executing_its_content(tmp_path):
    Opaque.read.clear()
    write_oldest(tmp_path / "x", {"a": torch.zeros(2)}, extra=Opaque(1))
    with pytest.raises(ValueError, match=r"meta\.pt"):
        TensorDict.load_memmap(tmp_path / "x")
    assert Opaque.read == []


# --- listing


def test_the_files_of_a_save_are_printed_as_a_tree(saved, capsys):
    print_directory_tree(saved / "b")
    first, *lines = capsys.readouterr().out.splitlines()
    total = sum(path.stat().st_size for path in (saved / "b").rglob("*") if path.is_file())
    assert first.startswith(f"{total:,} bytes")
    assert lines == ["b/", "    c.memmap", "    d/", "        e%20f.memmap", "        meta.json", "    meta.json"]


def test_saved_values_are_written_into_ragged_stacks_element_by_element(tmp_path):
    def make(value, text):
        lengths = [TensorDict({"i": torch.full((n,), value)}) for n in (1, 2)]
        sizes = [TensorDict({"j": torch.full((n,), value), "s": text * n}, [n]) for n in (1, 2)]
        return TensorDict({"i": TensorDict.lazy_stack(lengths), "j": TensorDict.lazy_stack(sizes)}, [2])

    saved, mine = make(1.0, "x"), make(0.0, "y").lock_()
    saved.save(tmp_path / "ragged")
    leaves = mine._leaves()
    mine.load_memmap_(tmp_path / "ragged")
    assert (mine == saved).all() and mine["j", "s"] == [["x"], ["xx", "xx"]]
    assert all(one is other for one, other in zip(mine._leaves(), leaves, strict=True))


def test_more_leaves_than_can_be_mapped_are_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("tensordict_memmap.loading.leaves._MANY", 10)
    td = TensorDict({f"leaf{i}": torch.tensor(i) for i in range(20)})
    td.save(tmp_path / "saved")
    monkeypatch.setattr(system, "most_mappings", lambda: 20)
    with pytest.raises(RuntimeError, match="max_map_count"):
        td.memmap(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    td.save(tmp_path / "not mapped")
    with pytest.raises(RuntimeError, match="one file"):
        load_memmap(tmp_path / "not mapped")
    assert load_memmap(tmp_path / "not mapped", keys="leaf7")["leaf7"] == 7
    assert load_memmap(tmp_path / "not mapped", device="meta")["leaf7"].is_meta
    td.memmap(tmp_path / "one.safetensors")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_is_memmap_works_for_nested_tensors_alone(tmp_path):
    td = TensorDict({"n": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])})
    assert not td.is_memmap()
    td.save(tmp_path / "n")
    assert TensorDict.load(tmp_path / "n").is_memmap()


def test_tensors_without_elements_are_mapped_only_once_they_are_saved() -> None:
    td = TensorDict({"a": torch.zeros(0, 3)}, [0])
    assert not td.is_memmap() and td.memmap().is_memmap()
    assert not TensorDict({"a": torch.zeros(0, 3), "b": torch.zeros(0)}, [0]).lock_().is_memmap()


@pytest.mark.parametrize("name", ["x", "x.safetensors", "x.tdz"])
def test_values_have_the_names_of_their_tensordict(tmp_path, name):
    nested = TensorDict({"k": "v", "l": [["a", "b", "c"]] * 2}, [2, 3], names=["t", "u"])
    td = TensorDict({"a": torch.ones(2), "k": "one", "s": ["p", "q"], "n": nested}, [2], names=["t"])
    td.save(tmp_path / name)
    td.consolidate(tmp_path / "consolidated")
    for loaded in (
        TensorDict.load(tmp_path / name),
        td.memmap(),
        TensorDict.from_consolidated(tmp_path / "consolidated"),
    ):
        assert loaded.get("k").names == loaded.get("s").names == ["t"]
        assert loaded.get(("n", "k")).names == loaded.get(("n", "l")).names == ["t", "u"]
        assert loaded[0].get("s").names == [] and loaded.unsqueeze(0).get("s").names == [None, "t"]


class Batch(TensorDict):
    """A subclass with a constructor of its own."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


def test_a_subclass_loads_an_instance_of_it(tmp_path):
    Batch({"a": torch.arange(3), "n": {"b": torch.ones(3)}}, [3]).save(tmp_path / "x")
    loaded = Batch.load_memmap(tmp_path / "x")
    assert type(loaded) is Batch and loaded.saved_path == tmp_path / "x" and not loaded.is_locked
    assert type(TensorDict.load_memmap(tmp_path / "x")) is TensorDict
    loaded["a"].fill_(7)
    assert (load_memmap(tmp_path / "x")["a"] == 7).all()
