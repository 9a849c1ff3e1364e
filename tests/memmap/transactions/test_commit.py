"""Commit: a save replaces an earlier one as a whole, and foreign files are kept."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import time

import pytest
from tests.memmap.transactions.saves import save_folder

from tensordict_memmap.engine import syscalls as system
from tensordict_memmap.storage import cleanup, exchange
from tensordict_memmap.storage.ownership import JOURNAL, manifest_for, read_manifest
from tensordict_memmap.storage.transaction import recover

pytestmark = pytest.mark.skipif(not system.POSIX, reason="children are forked and killed")

BIG = 70_000

CASES = ["foreign", "current folder", "no exchange"]
"""What keeps a target from being exchanged; `hindered` makes it so."""


def map_file(path):
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


@pytest.mark.parametrize("durable", [False, True])
def test_a_save_replaces_the_earlier_one(target, durable, writer, found, leftovers):
    for version in range(4):
        save_folder(target, writer(version), durable=durable)
        assert found(target) == version
        assert not leftovers(target)


@pytest.mark.skipif(not system.LINUX, reason="what scatters folders is a flag of ext4")
def test_large_saves_lie_apart_from_those_removed_of_late(target, writer, found, leftovers):
    kind = subprocess.run(["stat", "-f", "-c", "%T", os.path.dirname(target)], stdout=-1, check=True).stdout
    if kind.strip() != b"ext2/ext3" or os.statvfs(os.path.dirname(target)).f_files < 1 << 20:
        pytest.skip("the file system is not ext4, or has few places")
    places = set()
    for version in range(4):
        save_folder(target, writer(version), count=1000)
        assert found(target) == version and not leftovers(target)
        places.add(os.stat(target).st_ino >> 13)  # inodes of a group of blocks
    assert len(places) > 1, "the place is chosen by a random name among a hundred and more"


def test_a_folder_that_cannot_be_scattered_is_saved_as_any_other(target, monkeypatch, writer, found, leftovers):
    monkeypatch.setattr(system, "LINUX", False)
    for version in range(3):
        save_folder(target, writer(version), count=1000)
        assert found(target) == version and not leftovers(target)


@pytest.mark.parametrize(("since", "count", "asked"), [(10, 1000, True), (10, 3, False), (1000, 1000, False)])
def test_a_large_save_is_scattered_when_one_was_removed_of_late(target, monkeypatch, writer, since, count, asked):
    monkeypatch.setattr(cleanup, "_latest", time.monotonic() - since)
    calls = []
    monkeypatch.setattr(system, "scatter", lambda folder: calls.append(folder) is None)
    save_folder(target, writer(0), count=count)
    assert bool(calls) == asked and os.listdir(os.path.dirname(target)) == ["saved"]


def test_a_save_that_replaced_another_is_remembered(target, monkeypatch, writer):
    monkeypatch.setattr(cleanup, "_latest", -1e9)
    save_folder(target, writer(0))
    assert not cleanup.was_recent()
    save_folder(target, writer(1))
    assert cleanup.was_recent()


def test_an_earlier_save_is_exchanged_and_open_files_keep_it(target, content, writer):
    save_folder(target, writer(0))
    with open(os.path.join(target, "a.memmap"), "rb") as early:
        inode = os.stat(target).st_ino
        save_folder(target, writer(1))
        assert os.stat(target).st_ino != inode, "another folder took its place"
        assert early.read() == content(0)["a.memmap"]


def test_overwriting_in_place_keeps_the_folder_and_drops_stale_files(target, writer, found, put_foreign):
    save_folder(target, writer(0))
    inode = os.stat(target).st_ino
    foreign = put_foreign(target)
    save_folder(target, writer(1), atomic=False)
    assert os.stat(target).st_ino == inode and found(target, foreign) == 1

    def stopped(folder):
        writer(2)(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_folder(target, stopped, atomic=False)
    assert read_manifest(target).complete is False


@pytest.mark.parametrize("case", CASES)
def test_targets_that_cannot_be_exchanged_are_replaced_file_by_file(
    target, case, monkeypatch, writer, found, leftovers, check_foreign, hindered
):
    monkeypatch.setattr(system, "exchange", system.exchange)
    monkeypatch.chdir(os.path.dirname(target))
    save_folder(target, writer(0))
    inode = os.stat(target).st_ino
    foreign = hindered(case, target)
    save_folder(target, writer(1))
    assert found(target, foreign) == 1 and os.stat(target).st_ino == inode
    check_foreign(target, foreign)
    assert not leftovers(target)


def test_folders_without_a_manifest_and_symbolic_links_are_kept(
    target, tmp_path, writer, found, put_foreign, check_foreign
):
    foreign = put_foreign(target)
    link = str(tmp_path / "link")
    os.symlink(target, link)
    save_folder(link, writer(0))
    assert os.path.islink(link) and found(target, foreign) == 0
    check_foreign(target, foreign)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("foreign")
    shutil.rmtree(os.path.join(target, "n0"))
    os.symlink(outside, os.path.join(target, "n0"))
    save_folder(target, writer(1))  # drops n0/x, which now is another folder's
    assert (outside / "x").read_text() == "foreign"


def test_empty_targets_and_absent_parents(target, writer, found):
    os.mkdir(target)
    save_folder(target, writer(0))
    assert found(target) == 0
    deep = os.path.join(os.path.dirname(target), "x", "y", "z")
    save_folder(deep, writer(1))
    assert found(deep) == 1


def test_a_conflicting_folder_is_an_error_before_anything_changes(target, writer, found, leftovers, put_foreign):
    save_folder(target, writer(0))
    foreign = put_foreign(target)
    os.makedirs(os.path.join(target, "only1.memmap"))
    with pytest.raises(FileExistsError, match="a folder has the name of the file of a leaf"):
        save_folder(target, writer(1))
    assert found(target, foreign) == 0 and not leftovers(target)
    with open(target + "-file", "w"), pytest.raises(FileExistsError):
        save_folder(target + "-file", writer(0))


def test_a_foreign_file_that_appears_during_an_exchange_is_kept(target, monkeypatch, writer, found, check_foreign):
    save_folder(target, writer(0))
    original = system.exchange

    def late(a, b):
        with open(os.path.join(target, "b", "late.txt"), "w") as file:
            file.write("b/late.txt")
        return original(a, b)

    monkeypatch.setattr(system, "exchange", late)
    save_folder(target, writer(1))
    assert found(target, ("b/late.txt",)) == 1
    check_foreign(target, ["b/late.txt"])


def test_hostile_journals_change_nothing(target, writer, found):
    save_folder(target, writer(0))
    victim = os.path.join(os.path.dirname(target), "victim")
    with open(victim, "w") as file:
        file.write("precious")
    stage = ".tensordict-0123456789abcdef"
    for journal in (
        [],
        {"stage": "../..", "files": [], "remove": []},
        {"stage": stage, "files": [], "remove": ["../victim"]},
        {"stage": stage, "files": ["../victim"], "remove": []},
        {"stage": f"{stage}/../..", "files": [], "remove": []},
        {"stage": stage, "files": ["absent"], "remove": []},
    ):
        with open(os.path.join(target, JOURNAL), "w") as file:
            json.dump(journal, file)
        with pytest.raises(ValueError, match="journal"):
            recover(target)
        with open(victim) as file:
            assert file.read() == "precious"
        os.unlink(os.path.join(target, JOURNAL))
        assert found(target) == 0


def test_a_save_into_a_part_of_a_save_updates_the_manifest_above(target, writer, found):
    save_folder(target, writer(0))
    part = os.path.join(target, "b")
    assert set(manifest_for(part).files) == {"meta.json", "c.memmap"}
    save_folder(part, lambda folder: writer(7)(folder))
    assert found(part) == 7
    above = read_manifest(target)
    assert above.under("b").files == read_manifest(part).files
    assert "a.memmap" in above.files

    inode = os.stat(target).st_ino
    save_folder(target, writer(1))
    assert found(target) == 1 and os.stat(target).st_ino != inode, "all of it was ours, the part included"


def test_another_save_inside_a_folder_is_foreign_to_it(target, writer, found):
    save_folder(target, writer(0))
    other = os.path.join(target, "other")
    save_folder(other, writer(5))
    assert not read_manifest(target).under("other").files
    save_folder(target, writer(1))
    assert found(other) == 5


@pytest.mark.parametrize("case", ["exchanged", *CASES])
@pytest.mark.parametrize("size", [BIG, 0])
def test_existing_mappings_keep_the_old_content(target, case, size, monkeypatch, content, writer, fork, hindered):
    monkeypatch.setattr(system, "exchange", system.exchange)
    monkeypatch.setattr(exchange, "is_long_removal", lambda *sizes: size == 0)
    monkeypatch.chdir(os.path.dirname(target))
    save_folder(target, writer(0))
    path = os.path.join(target, "a.memmap")
    mapped_here, go = map_file(path), os.pipe()

    def child():
        mapped = map_file(path)
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        assert mapped[:] == content(0)["a.memmap"]

    ready = os.pipe()
    other = fork(child)
    os.read(ready[0], 1)
    if case != "exchanged":
        hindered(case, target)
    save_folder(target, writer(1))
    cleanup.wait()
    os.write(go[1], b"x")
    assert other.wait() == 0 and mapped_here[:] == content(0)["a.memmap"]
    with open(path, "rb") as file:
        assert file.read() == content(1)["a.memmap"]
    for fd in (*go, *ready):
        os.close(fd)


def test_a_target_behind_a_dangling_link_is_created_at_its_end(tmp_path, writer, found, leftovers):
    os.symlink(tmp_path / "real", tmp_path / "link")
    save_folder(tmp_path / "link", writer(0))
    assert found(tmp_path / "real") == 0 and os.path.islink(tmp_path / "link")
    os.mkdir(tmp_path / "folder")
    os.symlink(tmp_path / "folder", tmp_path / "way")
    save_folder(tmp_path / "way" / "x", writer(1))
    save_folder(tmp_path / "way" / "x", writer(2))
    assert found(str(tmp_path / "folder" / "x")) == 2 and not leftovers(str(tmp_path / "folder" / "x"))
