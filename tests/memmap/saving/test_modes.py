"""File modes: what its owner has closed to others stays closed, while the next save is written and afterwards."""

from __future__ import annotations

import os
import stat

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import MemmapDataset, load_memmap, make_memmap, save
from tensordict_memmap.engine import syscalls as system
from tensordict_memmap.engine import write_plan

pytestmark = pytest.mark.skipif(not system.POSIX, reason="modes of POSIX")


def content(number=0):
    return TensorDict({"a": torch.full((3,), number), "b": {"c": torch.full((70_000,), number)}, "text": "some"})


def modes(folder):
    found = {".": stat.S_IMODE(os.stat(folder).st_mode)}
    for place, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = os.path.join(place, name)
            found[os.path.relpath(path, folder)] = stat.S_IMODE(os.stat(path).st_mode)
    return found


@pytest.fixture
def readable(monkeypatch, tmp_path):
    """The paths that other users can read whenever a file has been written."""
    found = set()

    def look(*arguments, **options):
        result = write_files(*arguments, **options)
        for place, folders, files in os.walk(tmp_path):
            closed = [name for name in folders if not os.stat(os.path.join(place, name)).st_mode & stat.S_IXOTH]
            folders[:] = [name for name in folders if name not in closed]
            for name in files:
                if os.stat(os.path.join(place, name)).st_mode & (stat.S_IRGRP | stat.S_IROTH):
                    found.add(os.path.relpath(os.path.join(place, name), tmp_path))
        return result

    write_files = write_plan.write_files
    monkeypatch.setattr("tensordict_memmap.saving.writer.write_files", look)
    return found


@pytest.mark.parametrize("foreign", [False, True], ids=["exchanged", "file by file"])
def test_a_folder_that_is_closed_to_others_stays_closed(tmp_path, readable, foreign):
    target = tmp_path / "saved"
    save(content(), target)
    for place, _, names in os.walk(target):
        os.chmod(place, 0o700)
        for name in names:
            os.chmod(os.path.join(place, name), 0o600)
    if foreign:
        (target / "notes.txt").write_text("mine")
    before = modes(target)
    readable.clear()
    save(content(1), target)
    assert not readable
    assert modes(target) == before and load_memmap(target)["b", "c"][0] == 1


def test_one_closed_file_of_a_folder_stays_closed(tmp_path, readable):
    target = tmp_path / "saved"
    save(content(), target)
    (target / "b" / "c.memmap").chmod(0o600)
    before = modes(target)
    readable.clear()
    save(content(1), target)
    assert modes(target) == before
    assert not [path for path in readable if path.startswith(".")], "staged files are closed to others"


def test_files_that_are_new_in_a_closed_save_are_closed_too(tmp_path):
    target = tmp_path / "saved"
    save(content(), target)
    for name in ("a.memmap", "meta.json", "tensordict.manifest.json"):
        (target / name).chmod(0o600)
    save(content().set("later", torch.zeros(3)), target)
    assert modes(target)["later.memmap"] == 0o600
    td = load_memmap(target)
    made = make_memmap(td, "last", (3,))
    assert made.shape == (3,) and modes(target)["last.memmap"] == modes(target)["meta.json"] == 0o600


@pytest.mark.parametrize("name", ["saved.safetensors", "saved.tdz", "saved.bin"])
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400])
def test_a_file_that_is_closed_to_others_stays_closed(tmp_path, readable, name, mode):
    target = tmp_path / name

    def store(number):
        content(number).consolidate(target) if name.endswith("bin") else save(content(number), target)

    store(0)
    target.chmod(mode)
    readable.clear()
    store(1)
    assert not readable - {name}
    assert stat.S_IMODE(target.stat().st_mode) == mode and load_memmap(target)["a"][0] == 1


def test_commits_of_rows_keep_the_modes_of_the_files_that_they_replace(tmp_path):
    row = TensorDict({"a": torch.zeros(3)})
    with MemmapDataset.create(tmp_path / "rows", row) as dataset:
        for place, _, names in os.walk(tmp_path / "rows"):
            for name in names:
                os.chmod(os.path.join(place, name), 0o600)
        before = modes(tmp_path / "rows")
        dataset.append(row)
    assert modes(tmp_path / "rows") == before


@pytest.mark.parametrize("before", [None, "folder", "empty folder"])
def test_other_saves_get_the_usual_modes(tmp_path, before):
    (tmp_path / "usual").mkdir()
    (tmp_path / "usual" / "file").touch()
    usual = modes(tmp_path / "usual")
    target = tmp_path / "saved"
    if before == "folder":
        save(content(), target)
    elif before:
        target.mkdir()
    save(content(), target)
    found = modes(target)
    assert {found["."], found["b"]} == {usual["."]} and found["meta.json"] == found["b/c.memmap"] == usual["file"]


@pytest.mark.parametrize(
    "mapped",
    [
        lambda td, path: td.memmap(path),
        lambda td, path: td.memmap_(path),
        lambda td, path: td.memmap(path / "x.safetensors"),
        lambda td, path: td.memmap(path / "x.tdz", archive=True),
        lambda td, path: td.memmap(),
        lambda td, path: td.memmap_like(path),
    ],
)
def test_a_block_over_a_mapped_tensordict_leaves_it_locked(mapped, tmp_path):
    with mapped(TensorDict({"a": torch.zeros(2), "n": {"b": torch.ones(2)}}, [2]), tmp_path) as td:
        pass
    assert td.is_locked and td["n"].is_locked
    with td.unlock_():
        assert not td.is_locked
    assert td.is_locked
