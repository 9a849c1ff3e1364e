"""Eager loads: what is loaded lies in memory, only its bytes are read, and files that change meanwhile are errors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import load_memmap, prefetch
from tensordict_memmap.engine import mounts, syscalls
from tensordict_memmap.loading import eager

FORMATS = ["folder", "file.safetensors", "archive.td"]


@pytest.fixture
def td() -> TensorDict:
    shared = torch.arange(8.0).reshape(4, 2)
    nested = TensorDict(b=torch.ones(4, 3, dtype=torch.bfloat16), empty=torch.zeros(4, 0), name="x", batch_size=[4])
    return TensorDict(a=torch.arange(12).reshape(4, 3), tied=shared, again=shared, nested=nested, batch_size=[4])


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of bytes of each request."""
    sizes: list[int] = []
    original = syscalls.read_parts

    def read_parts(fd: int, parts: Any, offset: int, path: str) -> None:
        sizes.append(sum(map(len, parts)))
        original(fd, parts, offset, path)

    monkeypatch.setattr(syscalls, "read_parts", read_parts)
    return sizes


def _save(td: TensorDict, path: Path) -> Path:
    td.save(path)
    return path


@pytest.mark.parametrize("name", FORMATS)
def test_loaded_tensors_outlive_their_file(td: TensorDict, tmp_path: Path, name: str) -> None:
    loaded = TensorDict.load(_save(td, tmp_path / name), eager=True)
    for file in [tmp_path / name] if (tmp_path / name).is_file() else list((tmp_path / name).rglob("*.memmap")):
        os.truncate(file, 0)  # a mapping would end the process
    assert (loaded == td).all() and loaded["nested", "name"] == "x" and loaded.batch_size == td.batch_size
    leaves = [leaf for leaf in loaded.values(True, True) if isinstance(leaf, torch.Tensor)]
    assert {type(leaf) for leaf in leaves} == {torch.Tensor} and not loaded.is_memmap()
    assert loaded["tied"].data_ptr() == loaded["again"].data_ptr() or name == "file.safetensors"


def test_consolidated_files_and_single_tensors_are_read_too(td: TensorDict, tmp_path: Path) -> None:
    plain = td.exclude("nested")
    plain.consolidate(tmp_path / "file")
    assert (load_memmap(tmp_path / "file", eager=True) == plain).all()
    one = load_memmap(_save(td, tmp_path / "folder"), subpath="a", eager=True)
    assert type(one) is torch.Tensor and one.equal(td["a"])


def test_nested_tensors_are_copied(tmp_path: Path) -> None:
    ragged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)
    TensorDict(x=ragged).save(tmp_path / "folder")
    loaded = load_memmap(tmp_path / "folder", eager=True)
    for file in (tmp_path / "folder").rglob("*.memmap"):
        os.truncate(file, 0)
    assert loaded["x"].values().sum() == 9


@pytest.mark.parametrize("name", ["folder", "file.safetensors"])
def test_only_the_requested_bytes_are_read(tmp_path: Path, name: str, read: list[int]) -> None:
    td = TensorDict(a=torch.ones(1000, 100), b=torch.ones(1000, 100), batch_size=[1000])
    loaded = load_memmap(_save(td, tmp_path / name), keys=["b"], rows=slice(100, 200), eager=True)
    assert loaded["b"].shape == (100, 100) and "a" not in loaded
    assert sum(read) == 100 * 100 * 4


def test_small_neighbours_share_a_request_and_large_tensors_take_several(tmp_path: Path, read: list[int]) -> None:
    small = TensorDict({str(i): torch.full((10,), float(i)) for i in range(100)})
    assert load_memmap(_save(small, tmp_path / "s.safetensors"), eager=True)["7"].tolist() == [7.0] * 10
    assert len(read) == 1
    read.clear()
    large = TensorDict(x=torch.arange(3 << 20))
    assert load_memmap(_save(large, tmp_path / "l.safetensors"), eager=True)["x"].equal(large["x"])
    assert len(read) == 24 and max(read) == 1 << 20


def test_a_file_that_is_replaced_or_cut_during_the_load_is_an_error(td: TensorDict, tmp_path: Path) -> None:
    mapped = load_memmap(_save(td, tmp_path / "x.safetensors"), mode="r")
    os.truncate(tmp_path / "x.safetensors", 300)
    with pytest.raises(ValueError, match="ends at byte"):
        eager.in_memory(mapped)
    td.save(tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="was replaced while it was loaded"):
        eager.in_memory(mapped)


def test_writing_to_the_file_and_reading_it_into_memory_exclude_each_other(td: TensorDict, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="leave one of them out"):
        load_memmap(_save(td, tmp_path / "folder"), mode="r+", eager=True)
    before = td["a"].clone()
    load_memmap(tmp_path / "folder", eager=True)["a"].zero_()
    assert load_memmap(tmp_path / "folder")["a"].equal(before)


@pytest.mark.parametrize(
    ("name", "mode", "is_read"),
    [
        ("folder", None, False),
        ("folder", "r", True),
        ("file.safetensors", None, True),
        ("file.safetensors", "r+", False),
    ],
)
def test_private_loads_from_a_network_are_eager(
    td: TensorDict,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read: list[int],
    name: str,
    mode: Any,
    is_read: bool,
) -> None:
    _save(td, tmp_path / name)
    monkeypatch.setattr(eager, "is_on_network", lambda path: True)
    load_memmap(tmp_path / name, mode=mode)
    assert bool(read) is is_read
    read.clear()
    load_memmap(tmp_path / name, mode=mode, eager=False)
    monkeypatch.setattr(eager, "free_memory", lambda: 100)
    load_memmap(tmp_path / name, mode=mode)
    assert not read


def test_network_file_systems_are_recognized_by_the_mounts(tmp_path: Path) -> None:
    lines = [
        "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw",
        "40 22 0:40 / /net\\040work rw shared:2 - nfs4 server:/x rw",
        "41 22 0:41 / /s3 rw shared:3 - fuse.s3fs bucket rw",
        "42 41 0:42 / /s3/local rw shared:4 - fuse.bindfs /home rw",
        "no mount",
    ]
    listed = tmp_path / "mountinfo"
    listed.write_text("\n".join(lines))
    devices = {os.makedev(254, 0): False, os.makedev(0, 40): True, os.makedev(0, 41): True, os.makedev(0, 42): False}
    assert {device: mounts._is_network(device, str(listed)) for device in devices} == devices
    assert not mounts._is_network(os.makedev(9, 9), str(listed))
    assert not mounts._is_network(os.makedev(0, 40), str(tmp_path / "missing"))
    assert not mounts.is_on_network(str(tmp_path))


def test_prefetch_requests_only_the_pages_of_the_keys(
    td: TensorDict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(syscalls, "read_ahead", lambda address, nbytes: asked.append(nbytes))
    loaded = load_memmap(_save(td, tmp_path / "folder"))
    assert prefetch(loaded, ("nested", "b")) is loaded and asked == [4 * 3 * 2]
    asked.clear()
    prefetch(loaded)
    assert sum(asked) >= 4 * 3 * 8 + 4 * 2 * 4 + 4 * 3 * 2
    asked.clear()
    assert prefetch(td) is td and not asked
    with pytest.raises(KeyError, match="no entry 'missing'"):
        prefetch(loaded, "missing")
