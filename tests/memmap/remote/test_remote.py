"""Remote saves and loads: saves are all or nothing, and loads read exactly the wanted bytes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import contextmanager

import orjson
import pytest
import torch

from tensordict_core import NonTensorStack, TensorDict, UnbatchedTensor
from tensordict_memmap import compare, convert, load_memmap, save
from tensordict_memmap.remote import upload
from tensordict_memmap.remote.ranges import RangeReader
from tensordict_memmap.remote.store import Store
from tensordict_memmap.storage.manifest import NAME
from tensordict_memmap_cli.main import main

fsspec = pytest.importorskip("fsspec", reason="remote URLs need fsspec, the extra under test")
memory = pytest.importorskip("fsspec.implementations.memory", reason="the extra under test")

ENDINGS = ["", ".safetensors", ".tdz"]


def content():
    return TensorDict(
        {
            "a": torch.arange(3000.0).view(1000, 3),
            "b": {"c": torch.arange(1000), "half": torch.ones(1000, 2, dtype=torch.bfloat16)},
            "complex": torch.full((1000,), 1j, dtype=torch.complex128),
            "value": ("text", 3),
            "names": NonTensorStack(*map(str, range(1000))),
            "lazy": TensorDict.lazy_stack([TensorDict({"i": torch.full((1000, n), n)}, [1000]) for n in (1, 2)], 1),
        },
        [1000],
    )


@pytest.fixture
def base():
    """A URL in the memory of this process, emptied afterwards."""
    yield "memory://bucket"
    memory.MemoryFileSystem.store.clear()
    memory.MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def seen(monkeypatch):
    """Records every range that is read, with its path."""
    found = []
    plain = Store.read_ranges

    def ranges(self, wanted):
        found.extend(wanted)
        return plain(self, wanted)

    monkeypatch.setattr(Store, "read_ranges", ranges)
    return found


def files(url):
    return sorted(Store(url).sizes())


@contextmanager
def failing(monkeypatch, name, after):
    """Makes a method of the file system raise from some call on."""
    plain, calls = getattr(memory.MemoryFileSystem, name), [0]

    def broken(self, *arguments, **options):
        calls[0] += 1
        if calls[0] > after:
            raise OSError("the network is gone")
        return plain(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(memory.MemoryFileSystem, name, broken)
        yield


# --- round trips


@pytest.mark.parametrize("ending", ENDINGS)
def test_remote_saves_load_back(base, same, ending):
    td = content()
    assert save(td, base + "/x" + ending) is td
    loaded = load_memmap(base + "/x" + ending)
    assert not loaded.is_locked
    same(loaded.to(None) if loaded.device is None else loaded, load_memmap(base + "/x" + ending))
    assert not compare(base + "/x" + ending, td, values=True)


def test_shards_compressed_archives_and_consolidated_files_load_back(base, tmp_path):
    td = content()
    td.save(tmp_path / "x")
    td.save(base + "/z.tdz", compression="deflate")
    save(td, base + "/shards", format="safetensors", shard_size=5000)
    convert(tmp_path / "x", base + "/one.bin", "consolidated")
    assert any("-of-" in name for name in files(base + "/shards"))
    for name in ("z.tdz", "shards", "one.bin"):
        assert not compare(f"{base}/{name}", td, values=True), name
    convert(base + "/z.tdz", tmp_path / "back.safetensors")
    convert(base + "/shards", base + "/tree")
    assert not compare(tmp_path / "back.safetensors", base + "/tree", values=True)


@pytest.mark.parametrize("target", ["memory://bucket/again", "file://{}/again"])
def test_converting_a_remote_save_makes_no_folder_named_like_a_url(base, tmp_path, monkeypatch, target):
    monkeypatch.chdir(tmp_path)
    content().save(base + "/x")
    target = target.format(tmp_path)
    convert(base + "/x", target)
    assert not compare(target, content(), values=True)
    assert os.listdir(tmp_path) == (["again"] if target.startswith("file") else [])


def test_file_urls_are_local_paths(tmp_path):
    url = f"file://{tmp_path}/x"
    save(content(), url)
    assert sorted(os.listdir(tmp_path)) == ["x"] and "meta.json" in os.listdir(tmp_path / "x")
    assert load_memmap(url, mode="r+").is_memmap()


def test_a_copied_local_save_loads(base, tmp_path):
    content().save(tmp_path / "x")
    store = Store(base + "/copied")
    store.fs.put(str(tmp_path / "x") + "/", store.root + "/", recursive=True)
    assert NAME in files(base + "/copied")
    assert not compare(base + "/copied", content(), values=True)
    store.fs.rm(store.full_path(NAME))
    assert not compare(base + "/copied", content(), values=True)


def test_a_downloaded_snapshot_is_a_local_save(base, tmp_path):
    save(content(), base + "/x")
    (snapshot,) = {name.split("/")[0] for name in files(base + "/x") if "/" in name}
    store = Store(base + "/x")
    store.fs.get(store.full_path(snapshot) + "/", str(tmp_path / "got") + "/", recursive=True)
    assert not compare(tmp_path / "got", content(), values=True)


def test_checksums_work_with_non_ascii_names(base):
    td = TensorDict({"é": torch.arange(3), "日": {"shape": torch.ones(2)}, "\ud800": torch.zeros(1)})
    save(td, base + "/x", checksum=True)
    back = load_memmap(base + "/x", verify="full")
    assert back["é"].tolist() == [0, 1, 2] and back["日", "shape"].tolist() == [1, 1] and back["\ud800"].tolist() == [0]


@pytest.mark.parametrize("rows", [[], [2, 0, 2], slice(3, 1)], ids=str)
def test_entries_without_rows_are_read_with_any_rows(base, rows):
    table = UnbatchedTensor(torch.arange(5.0))
    save(TensorDict({"a": torch.arange(9), "table": table}, [9]), base + "/x.safetensors")
    back = load_memmap(base + "/x.safetensors", rows=rows)
    assert back["table"].tolist() == [0, 1, 2, 3, 4] and len(back) == len(back["a"])


def test_a_save_that_returns_early_uploads_the_entries_of_the_call(base, monkeypatch):
    go, plain = threading.Event(), upload.temporary_folder
    monkeypatch.setattr(upload, "temporary_folder", lambda: go.wait() and plain())
    td = TensorDict({"a": torch.zeros(2), "b": {"c": torch.zeros(2)}})
    future = save(td, base + "/x", return_early=True)
    td["b", "d"] = torch.ones(2)
    td["a"] = torch.ones(2)
    go.set()
    assert future.result() is td
    back = load_memmap(base + "/x")
    assert set(back.keys(True, True)) == {"a", ("b", "c")} and back["a"].tolist() == [0, 0]


def test_the_meta_device_reads_only_component_shapes(base, seen):
    parts = [torch.ones(1, 2), torch.ones(3, 2)]
    td = TensorDict({"big": torch.zeros(2, 1 << 18), "j": torch.nested.nested_tensor(parts, layout=torch.jagged)}, [2])
    for name in ("/x.safetensors", "/x"):
        save(td, base + name)
        seen.clear()
        back = load_memmap(base + name, device="meta")
        assert back["big"].is_meta and back["j"].is_nested and back["j"].size(0) == 2
        assert sum(end - start for _, start, end in seen) < 1 << 17
        assert not compare(base + name, td)


def test_checksums_are_uploaded_and_verified_on_request(base):
    save(content(), base + "/x", checksum=True)
    assert load_memmap(base + "/x", verify="full").batch_size == (1000,)
    store = Store(base + "/x")
    (name,) = [name for name in files(base + "/x") if name.endswith("/a.memmap")]
    data = bytearray(store.read(name))
    data[99] ^= 1
    store.write(name, bytes(data))
    with pytest.raises(ValueError, match="'a'"):
        load_memmap(base + "/x", verify="full")


def test_tied_weights_and_nested_tensors_load_back(base):
    weight = torch.ones(3)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)], layout=torch.jagged)
    for ending in ("", ".safetensors"):
        save(TensorDict({"a": weight, "b": weight, "n": nested}), base + "/x" + ending)
        td = load_memmap(base + "/x" + ending)
        assert td["a"] is td["b"] and [len(part) for part in td["n"].unbind()] == [2, 3]
        assert td["n"].unbind()[0].tolist() == [1, 1]


def test_pickled_values_load_only_with_allow_pickle(base):
    for ending in ("", ".safetensors"):
        with pytest.warns(UserWarning, match="pickled"):
            save(TensorDict({"odd": object, "a": torch.ones(1)}), base + "/p" + ending)
        with pytest.raises(ValueError, match="odd"):
            load_memmap(base + "/p" + ending)
        assert load_memmap(base + "/p" + ending, allow_pickle=True)["odd"] is object


# --- partial loads


@pytest.mark.parametrize("ending", ENDINGS)
def test_one_leaf_is_read_without_the_others(base, seen, ending):
    td = TensorDict({"large": torch.ones(1 << 20), "small": torch.arange(10), "b": {"c": torch.arange(5)}})
    save(td, base + "/x" + ending)
    seen.clear()
    part = load_memmap(base + "/x" + ending, keys=["small"])
    assert part["small"].tolist() == list(range(10)) and set(part.keys()) == {"small"}
    assert load_memmap(base + "/x" + ending, subpath=("b", "c")).tolist() == list(range(5))
    assert sum(end - start for _, start, end in seen) < 1 << 19


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("rows", [slice(10_000, 10_010), 7, [3, 19_999, 3], slice(4, 20_000, 9_000)], ids=str)
def test_rows_are_read_without_the_others(base, seen, ending, rows):
    td = TensorDict({"x": torch.arange(20_000 * 50).view(20_000, 50), "y": torch.arange(20_000)}, [20_000])
    save(td, base + "/rows" + ending)
    seen.clear()
    part = load_memmap(base + "/rows" + ending, rows=rows)
    assert torch.equal(part["x"], td[rows]["x"]) and torch.equal(part["y"], td[rows]["y"])
    assert sum(end - start for _, start, end in seen) < 1 << 20


def test_rows_equal_indexing(base, same):
    td = content()
    for ending in ENDINGS:
        save(td, base + "/x" + ending)
        for rows in (slice(5, 9), slice(None, None, -100), [7, 1]):
            index = torch.arange(1000)[list(range(*rows.indices(1000)))] if isinstance(rows, slice) else rows
            assert not compare(load_memmap(base + "/x" + ending, rows=rows), td[index].clone(), values=True)


def test_reserved_buffers_never_overlap():
    reader = RangeReader(Store("memory://bucket"))
    spans = []
    for size in (1 << 24, 1 << 25, 1 << 24, 1 << 23, 1 << 24):
        start = reader.reserve(f"file of {size}", size).ctypes.data  # no other reference
        assert all(start + size <= first or last <= start for first, last in spans)
        spans.append((start, start + size))


def test_long_ranges_are_divided_into_requests(base, monkeypatch):
    monkeypatch.setattr("tensordict_memmap.remote.ranges._MOST_REQUEST_BYTES", 1000)
    save(content(), base + "/x.safetensors")
    assert not compare(base + "/x.safetensors", content(), values=True)


def test_the_meta_device_and_like(base, seen):
    for ending in ENDINGS:
        save(TensorDict({"a": torch.ones(1 << 18)}), base + "/x" + ending)
        seen.clear()
        assert load_memmap(base + "/x" + ending, device="meta")["a"].shape == (1 << 18,)
        assert sum(end - start for _, start, end in seen) < 1 << 17
        like = TensorDict({"a": torch.zeros(1 << 18, device="meta"), "b": torch.zeros(2, device="meta")})
        assert load_memmap(base + "/x" + ending, like=like, fill=3)["b"].tolist() == [3, 3]


# --- all or nothing


def test_the_earlier_save_loads_until_the_new_one_is_published(base, monkeypatch):
    url = base + "/x"
    save(TensorDict({"a": torch.zeros(3), "old": torch.zeros(1)}), url)
    before = files(url)
    for name in ("put_file", "pipe_file"):
        for after in range(3 if name == "put_file" else 1):
            with failing(monkeypatch, name, after), pytest.raises(OSError, match="network"):
                save(TensorDict({"a": torch.ones(3), "new": torch.ones(1)}), url)
            assert load_memmap(url)["a"].tolist() == [0, 0, 0]
            assert files(url) == before
    save(TensorDict({"a": torch.ones(3)}), url)
    assert load_memmap(url)["a"].tolist() == [1, 1, 1] and set(load_memmap(url).keys()) == {"a"}
    assert len({name.split("/")[0] for name in files(url)}) == 3  # the manifest, the snapshot and its lease


def test_foreign_files_stay(base):
    store = Store(base + "/x")
    store.write("notes.txt", b"mine")
    store.write("tensordict-notes/more.txt", b"mine too")
    for _ in range(2):
        save(TensorDict({"a": torch.ones(1)}), base + "/x")
    assert store.read("notes.txt") == b"mine" and store.read("tensordict-notes/more.txt") == b"mine too"
    assert load_memmap(base + "/x")["a"].tolist() == [1]


def test_a_load_during_a_save_returns_one_of_the_two_saves(base, monkeypatch):
    url = base + "/x"
    save(TensorDict({"a": torch.zeros(3)}), url)
    plain = Store.read_ranges
    replaced = []

    def ranges(self, wanted):
        if not replaced:
            replaced.append(True)
            save(TensorDict({"a": torch.ones(3)}), url)
        return plain(self, wanted)

    monkeypatch.setattr(Store, "read_ranges", ranges)
    assert load_memmap(url)["a"].tolist() == [1, 1, 1]


def test_existsok_false_refuses_existing_saves(base):
    save(TensorDict({"a": torch.ones(1)}), base + "/x", existsok=False)
    save(TensorDict({"a": torch.ones(1)}), base + "/x.safetensors", existsok=False)
    for ending in ("", ".safetensors"):
        with pytest.raises(RuntimeError, match="existsok"):
            save(TensorDict({"a": torch.zeros(1)}), base + "/x" + ending, existsok=False)
        assert load_memmap(base + "/x" + ending)["a"].tolist() == [1]


def test_a_background_save_reports_its_progress(base):
    td = content()
    future = save(td, base + "/x", return_early=True)
    assert future.result() is td and future.progress == 1.0
    assert not compare(base + "/x", td, values=True)


def test_nothing_is_left_in_the_temporary_folder(base, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    save(content(), base + "/x")
    save(content(), base + "/x.tdz", compression="deflate")
    load_memmap(base + "/x.tdz")
    assert not list(tmp_path.iterdir())


# --- errors


def test_a_missing_save_is_a_file_not_found_error(base):
    for name in ("/nothing", "/nothing.safetensors"):
        with pytest.raises(FileNotFoundError, match="nothing"):
            load_memmap(base + name)


def test_a_missing_or_short_file_is_an_error_that_names_it(base):
    save(content(), base + "/x")
    store = Store(base + "/x")
    (name,) = [name for name in files(base + "/x") if name.endswith("/a.memmap")]
    store.write(name, b"short")
    with pytest.raises(ValueError, match=r"a\.memmap"):
        load_memmap(base + "/x")
    store.fs.rm(store.full_path(name))
    with pytest.raises(FileNotFoundError, match=r"a\.memmap"):
        load_memmap(base + "/x")
    assert load_memmap(base + "/x", keys=["b"])["b", "c"][999] == 999


@pytest.mark.parametrize("generation", ["../other", "tensordict-1", 3, "/etc", "tensordict-" + "g" * 16])
def test_a_manifest_cannot_name_other_folders(base, generation):
    save(content(), base + "/x")
    store = Store(base + "/x")
    record = orjson.loads(store.read(NAME))
    store.write(NAME, orjson.dumps({**record, "generation": generation}))
    with pytest.raises(ValueError, match="damaged"):
        load_memmap(base + "/x")


@pytest.mark.parametrize(
    "data", [b"", b"1234", b"\xff" * 40, b"PK\x03\x04" + bytes(60), b"\x10" + bytes(7) + b"{" * 16]
)
def test_a_damaged_file_is_an_error(base, data):
    Store(base).write("x.safetensors", data)
    with pytest.raises(ValueError, match=r"x\.safetensors"):
        load_memmap(base + "/x.safetensors")


def test_remote_urls_are_not_mapped(base):
    td = TensorDict({"a": torch.ones(1)})
    save(td, base + "/x")
    for call in (td.memmap, td.memmap_, td.memmap_like):
        with pytest.raises(ValueError, match="save there"):
            call(base + "/x")
    with pytest.raises(ValueError, match="writes do not reach"):
        load_memmap(base + "/x", mode="r+")


def test_the_command_line_takes_urls(base, tmp_path, capsys):
    content().save(tmp_path / "x")
    assert main(["convert", str(tmp_path / "x"), base + "/y.safetensors"]) == 0
    assert main(["diff", str(tmp_path / "x"), base + "/y.safetensors"]) == 0
    assert main(["verify", base + "/y.safetensors"]) == 0
    assert main(["tree", base + "/y.safetensors", "--json"]) == 0
    assert orjson.loads(capsys.readouterr().out.splitlines()[-1])["entries"][0]["key"] == ["a"]


def test_without_fsspec_the_error_names_the_extra(tmp_path):
    (tmp_path / "fsspec.py").write_text("raise ImportError('not here')")
    script = "from tensordict_memmap import load_memmap\nload_memmap('s3://bucket/x')"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        timeout=120,
    )
    assert "ImportError" in done.stderr and "tensordict-memmap[remote]" in done.stderr
