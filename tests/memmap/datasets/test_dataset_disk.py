"""Datasets on the disk: room that is taken or not, descriptions that follow, and what says how many rows there are."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import textwrap

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import (
    MemmapDataset,
    append_memmap,
    convert,
    load_memmap,
    memmap,
    pack_memmap,
    save,
    unpack_memmap,
)
from tensordict_memmap.storage.manifest import NAME, Manifest
from tensordict_memmap.storage.rows_committed import Part, RowsCommitted

# --- the disk


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a limit on the size of files")
def test_a_full_disk_is_an_error_that_names_the_key_and_costs_no_row(path):
    script = textwrap.dedent("""
        import errno, resource, sys, torch
        from tensordict_core import TensorDict
        from tensordict_memmap import MemmapDataset, load_memmap
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        row = TensorDict({"a": torch.ones(1 << 10), "b": {"big": torch.ones(1 << 14)}})
        dataset = MemmapDataset.create(sys.argv[1], row)
        dataset.extend(row.expand(10))
        for work, count in (dataset.extend, 10), (dataset.reserve, 17), (dataset.extend, 100):
            try:
                work(count if work == dataset.reserve else row.expand(count))
            except OSError as error:
                assert error.errno == errno.EFBIG and "('b', 'big')" in str(error), error
            else:
                raise SystemExit("no error")
        assert len(dataset) == 10
        dataset.extend(row.expand(6))
        dataset.close()
        found = load_memmap(sys.argv[1])
        assert found.batch_size == (16,) and found["b", "big"].min() == 1
        try:
            MemmapDataset.create(sys.argv[1] + "2", row, capacity=1000, reserve=True)
        except OSError as error:
            assert "'a'" in str(error), error
        else:
            raise SystemExit("no error")
    """)
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [found.name for found in path.parent.iterdir()] == ["data"]


def test_reserved_room_is_taken_at_once(path, rows, row, alike):
    with MemmapDataset.create(path, row(0), capacity=10_000, reserve=True) as dataset:
        taken = (path / "image.memmap").stat().st_blocks * 512
        if taken == 0:
            pytest.skip("this file system reports no blocks")
        assert taken >= 200_000
        dataset.extend(rows(0, 5))
    assert (path / "image.memmap").stat().st_blocks * 512 >= 200_000  # it is kept
    with MemmapDataset.open(path, "r+") as dataset:
        dataset.reserve(20_000)
        assert (path / "image.memmap").stat().st_blocks * 512 >= 400_000
    assert alike(load_memmap(path), rows(0, 5))


def test_no_file_is_left_open(path, dataset, rows):
    dataset.close()
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else pytest.skip("needs /proc")
    for number in range(20):
        append_memmap(path, rows(number, number + 1))
        MemmapDataset.open(path).refresh()
    forgotten = MemmapDataset.open(path, "r+")
    del forgotten
    assert len(os.listdir("/proc/self/fd")) == before


# --- what is on the disk


def test_descriptions_say_how_many_rows_there_are_and_keep_their_length(path, dataset, rows):
    sizes = set()
    for number in range(0, 120, 40):
        dataset.extend(rows(number, number + 40))
        for place, keys in {"": ["id", "image"], "deep": ["half"], "deep/er": ["done"]}.items():
            document = (path / place / "meta.json").read_bytes()
            record = json.loads(document)
            assert record["shape"][0] == number + 40 == {record[key]["shape"][0] for key in keys}.pop()
            sizes.add((place, len(document)))
    assert len(sizes) == 3
    manifest = Manifest.loads((path / NAME).read_bytes())
    assert manifest.rows_committed.rows == 120 and manifest.files["id.memmap"].size == 960


def test_a_writer_that_was_killed_before_the_descriptions_followed_is_finished(path, rows, alike):
    save(rows(0, 3), path)
    append_memmap(path, rows(3, 4))
    old = {name: (path / name).read_bytes() for name in ("meta.json", "deep/meta.json")}
    append_memmap(path, rows(4, 6))
    for broken in (["meta.json"], ["meta.json", "deep/meta.json"]):
        for name in broken:
            (path / name).write_bytes(old[name])
        assert alike(load_memmap(path), rows(0, 6)) and alike(load_memmap(path, subpath="deep"), rows(0, 6)["deep"])
    (path / f"{NAME}.0123456789abcdef").write_bytes(b"{")
    append_memmap(path, rows(6, 7))
    assert alike(load_memmap(path), rows(0, 7)) and not list(path.glob(f"{NAME}.*"))
    assert json.loads((path / "deep" / "meta.json").read_bytes())["shape"] == [7]


def test_rows_behind_those_that_count_are_never_seen(path, dataset, rows, alike):
    dataset.extend(rows(0, 3))
    dataset.extend(rows(50, 90), commit=False)
    dataset._writer.close()
    dataset._writer = None
    assert alike(load_memmap(path), rows(0, 3))
    with MemmapDataset.open(path, "r+") as again:
        again.resize(6)
    assert load_memmap(path)["id"].tolist() == [0, 1, 2, 0, 0, 0]


HOSTILE = [
    {"rows": -1, "shown": 3, "meta": []},
    {"rows": 3, "shown": 2, "meta": []},
    {"rows": True, "shown": 3, "meta": []},
    {"rows": 3, "shown": 3},
    {"rows": 3, "shown": 3, "meta": [1]},
    {"rows": 3, "shown": 3, "meta": [], "parts": [[5, 4, 5]]},
    {"rows": 3, "shown": 3, "meta": [], "parts": [[1, 2]]},
    {"rows": 1 << 63, "shown": 1 << 63, "meta": []},
    [3],
    None,
]


@pytest.mark.parametrize("record", HOSTILE, ids=str)
def test_an_invalid_record_of_committed_rows_is_refused(path, record, rows):
    save(rows(0, 3), path)
    append_memmap(path, rows(3, 4))
    manifest = json.loads((path / NAME).read_bytes())
    manifest["growing"] = record
    (path / NAME).write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="not a valid record of committed rows"):
        load_memmap(path)


def test_more_rows_than_files_hold_is_an_error(path, rows):
    save(rows(0, 3), path)
    append_memmap(path, rows(3, 4))
    manifest = json.loads((path / NAME).read_bytes())
    manifest["growing"] |= {"rows": 5, "shown": 5}
    (path / NAME).write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="'id' takes 40 bytes"):
        load_memmap(path)


def test_growth_round_trips():
    growth = RowsCommitted(3, 9, ("xxh64:1", "xxh64:2"), (Part(3, 6, 4), Part(8, 9, 8)))
    assert RowsCommitted.read(json.loads(json.dumps(growth.record()))) == growth


# --- preallocation


def test_preallocation_takes_no_space_unless_it_is_reserved(tmp_path):
    data = TensorDict({"a": torch.zeros(1000), "b": {"c": torch.zeros(2, dtype=torch.int16)}}).expand(500)
    sparse = data.memmap_like(tmp_path / "sparse")
    taken = data.memmap_like(tmp_path / "taken", reserve=True)
    for made in (sparse, taken):
        assert made.batch_size == (500,) and not made["a"].any()
    blocks = [(tmp_path / name / "a.memmap").stat().st_blocks * 512 for name in ("sparse", "taken")]
    assert blocks[0] == 0 and blocks[1] >= 2_000_000
    shared = data.memmap_like(reserve=True)
    assert shared.is_memmap() and os.fstat(shared["a"].handler.descriptor.fileno()).st_blocks * 512 >= 2_000_000
    for name in ("x.tdz", "x.safetensors"):
        with pytest.raises(ValueError, match="reserve"):
            data.memmap_like(tmp_path / name, reserve=True)


def test_a_disk_that_is_too_small_shows_when_room_is_reserved(tmp_path):
    script = textwrap.dedent("""
        import errno, os, resource, sys, torch
        from tensordict_core import TensorDict
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            row = TensorDict({"a": torch.zeros(10), "b": {"c": torch.zeros(1000)}})
            row.expand(1000).memmap_like(sys.argv[1], reserve=True)
        except OSError as error:
            assert error.errno == errno.EFBIG and "('b', 'c')" in str(error), error
        else:
            raise SystemExit("no error")
    """)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "x")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())


def test_rows_that_are_cut_off_stay_readable_where_they_are_mapped(path, dataset, rows, alike):
    dataset.extend(rows(0, 5000))
    reader = load_memmap(path)
    dataset.resize(1)
    dataset.close()  # gives nothing back that a reader may have mapped
    assert reader["id"].sum() == sum(range(5000))
    assert alike(memmap(load_memmap(path).clone(), path.parent / "copy"), rows(0, 1))


def test_archives_and_other_formats_hold_the_rows_that_count(tmp_path, dataset, rows, alike):
    dataset.reserve(100)
    dataset.extend(rows(0, 7))
    dataset.extend(rows(7, 9), commit=False)
    pack_memmap(dataset.path, tmp_path / "packed.tdz")
    convert(dataset.path, tmp_path / "one.safetensors")
    for name in ("packed.tdz", "one.safetensors"):
        assert alike(load_memmap(tmp_path / name), rows(0, 7))
    unpack_memmap(tmp_path / "packed.tdz", tmp_path / "unpacked")
    append_memmap(tmp_path / "unpacked", rows(7, 8))
    assert alike(load_memmap(tmp_path / "unpacked"), rows(0, 8))
