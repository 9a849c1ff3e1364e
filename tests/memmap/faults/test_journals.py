"""Journals: whoever loads a part finishes the save that was stopped around it, and none leads out of its folder."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import load_memmap, save
from tensordict_memmap.engine import syscalls as system
from tensordict_memmap.storage import journal
from tensordict_memmap.storage.ownership import JOURNAL

pytestmark = pytest.mark.skipif(not system.POSIX, reason="children are forked and stopped, and links are made")

STAGE = ".tensordict-0123456789abcdef"


def content(number):
    return TensorDict({"a": torch.full((10,), number), "part": {"b": torch.full((10,), number), "z": {"c": number}}})


def stop_before_the_last_file(folder):
    """Saves over a folder with a foreign file, file by file, and dies before the last of them is moved."""
    replace = os.replace
    moved = []

    def stopped(source, destination):
        moved.append(destination)
        if destination.endswith(os.path.join("part", "meta.json")):
            os._exit(7)
        replace(source, destination)

    os.replace = stopped
    save(content(2), folder)


@pytest.mark.parametrize("part", ["", "part", "part/z"])
def test_loading_any_part_finishes_the_save_that_was_stopped(tmp_path, fork, leftovers, part):
    target = tmp_path / "saved"
    save(content(1), target)
    (target / "notes.txt").write_text("foreign")
    assert fork(stop_before_the_last_file, target).wait() == 7
    assert (target / JOURNAL).exists()
    expected = content(2)
    for key in filter(None, part.split("/")):
        expected = expected[key]
    loaded = load_memmap(target / part)
    assert (loaded == expected).all()
    assert not (target / JOURNAL).exists() and not leftovers(tmp_path, target)
    assert (load_memmap(target) == content(2)).all() and (target / "notes.txt").exists()


def write_journal(folder, files, remove=()):
    (folder / JOURNAL).write_text(json.dumps({"version": 1, "stage": STAGE, "files": files, "remove": list(remove)}))


@pytest.fixture
def target(tmp_path):
    save(content(1), tmp_path / "saved")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("precious")
    return tmp_path / "saved"


def test_a_journal_takes_nothing_through_a_link(target):
    os.symlink(target.parent / "outside", target / STAGE)
    write_journal(target, ["secret"])
    with pytest.raises(ValueError, match="is a symbolic link"):
        load_memmap(target)
    assert (target.parent / "outside" / "secret").read_text() == "precious" and not (target / "secret").exists()


def test_a_journal_puts_nothing_through_a_link(target):
    (target / STAGE / "way").mkdir(parents=True)
    (target / STAGE / "way" / "secret").write_text("replaced")
    os.symlink(target.parent / "outside", target / "way")
    write_journal(target, ["way/secret"])
    with pytest.raises(ValueError, match="is a symbolic link"):
        load_memmap(target)
    assert (target.parent / "outside" / "secret").read_text() == "precious"


def test_a_journal_removes_nothing_through_a_link(target):
    os.symlink(target.parent / "outside", target / "way")
    (target / STAGE).mkdir()
    write_journal(target, [], ["way/secret"])
    assert (load_memmap(target) == content(1)).all()
    assert (target.parent / "outside" / "secret").read_text() == "precious"


@pytest.mark.parametrize("lost", ["stage", "a.memmap", "part/meta.json"])
def test_a_journal_without_its_staged_files_removes_nothing(tmp_path, fork, fingerprint, lost):
    """As in a backup that was taken during a commit and has no staging folders."""
    target = tmp_path / "saved"
    save(TensorDict({"old": torch.zeros(3), "a": torch.zeros(5)}), target)
    (target / "notes.txt").write_text("foreign")
    assert fork(stop_before_the_journal_is_applied, target).wait() == 7
    (stage,) = (path for path in tmp_path.iterdir() if ".tensordict-" in path.name)
    if lost == "stage":
        shutil.rmtree(stage)
    else:
        (stage / lost).unlink()
    before = fingerprint(tmp_path)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"is missing.*restore"):
            load_memmap(target)
        assert fingerprint(tmp_path) == before
    (target / JOURNAL).unlink()
    assert load_memmap(target)["old"].shape == (3,)
    save(content(3), target)
    assert (load_memmap(target) == content(3)).all()


def stop_before_the_journal_is_applied(folder):
    journal.redo = lambda *arguments, **options: (folder / JOURNAL).exists() and os._exit(7)
    save(content(2), folder)


@pytest.mark.parametrize("size", [180, 213, 230, 255])
@pytest.mark.parametrize("ending", ["", ".safetensors", ".tdz"])
def test_names_may_be_as_long_as_the_file_system_allows(tmp_path, leftovers, size, ending):
    target = tmp_path / ("n" * (size - len(ending)) + ending)
    for number in range(2):
        save(content(number), target)
    assert (load_memmap(target) == content(1)).all()
    assert os.listdir(tmp_path) == [target.name]
    if not ending:  # and file by file
        (target / "notes.txt").write_text("foreign")
        save(content(2), target)
        assert (load_memmap(target) == content(2)).all() and not leftovers(tmp_path, target)


def test_a_killed_save_to_a_long_name_is_removed_by_the_next(tmp_path, fork):
    target = tmp_path / ("n" * 250)
    save(content(1), target)
    (target / "notes.txt").write_text("foreign")
    assert fork(stop_before_the_last_file, target).wait() == 7
    assert len(os.listdir(tmp_path)) == 2
    assert (load_memmap(target) == content(2)).all() and os.listdir(tmp_path) == [target.name]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files to another user")
def test_a_journal_of_another_user_in_a_folder_above_is_ignored(target):
    above = target.parent
    (above / STAGE).mkdir()
    (above / STAGE / "planted").write_text("x")
    write_journal(above, ["planted"], ["outside/secret"])
    os.chown(above / JOURNAL, 12345, 12345)
    assert (load_memmap(target) == content(1)).all()
    assert not (above / "planted").exists() and (above / "outside" / "secret").exists()
    os.chown(above / JOURNAL, os.geteuid(), os.getegid())
    assert (load_memmap(target) == content(1)).all()
    assert (above / "planted").exists() and not (above / "outside" / "secret").exists()
