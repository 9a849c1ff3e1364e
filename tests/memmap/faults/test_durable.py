"""Durable saves: everything is on the disk before the name that stands for it."""

from __future__ import annotations

import os

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap.engine import syscalls as system

pytestmark = pytest.mark.skipif(not system.LINUX, reason="what a descriptor is open on is asked of /proc")


@pytest.fixture
def calls(monkeypatch):
    """What was synced and renamed, in order: ``(call, path, ...)``, staged paths without their random part."""
    log = []

    def plain(path):
        return os.path.realpath(path)

    def wrap(module, name, arguments):
        function = getattr(module, name)

        def call(*values, **options):
            result = function(*values, **options)
            log.append((name, *arguments(*values)))
            return result

        monkeypatch.setattr(module, name, call)

    wrap(os, "fsync", lambda fd: [os.readlink(f"/proc/self/fd/{fd}")])
    for name in ("rename", "replace", "mkdir"):
        wrap(os, name, lambda *paths: [plain(path) for path in paths if isinstance(path, str)])
    wrap(system, "exchange", lambda a, b: [plain(a), plain(b)])
    return log


def tree():
    w = torch.ones(2)
    return TensorDict({"a": torch.arange(3), "b": {"c": torch.zeros(70_000)}, "tied": w, "w": w, "s": "text"})


def synced(log):
    return {entry[1] for entry in log if entry[0] == "fsync"}


def place(log, *wanted):
    found = [number for number, entry in enumerate(log) if entry[0] in wanted]
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("earlier", [False, True])
def test_files_then_folders_then_the_name_then_the_folder_above(tmp_path, calls, earlier):
    target = str(tmp_path / "x")
    if earlier:
        tree().save(target)
        calls.clear()
    tree().save(target, durable=True)
    now = place(calls, "exchange" if earlier else "rename")
    stage = calls[now][1]
    before, after = synced(calls[:now]), [entry for entry in calls[now:] if entry[0] == "fsync"]
    names = ["a.memmap", "b/c.memmap", "b/meta.json", "meta.json", "s/meta.json", "tensordict.manifest.json"]
    assert {f"{stage}/{name}" for name in names} <= before
    assert before & {f"{stage}/w.memmap", f"{stage}/tied.memmap"}
    assert {stage, f"{stage}/b", f"{stage}/s"} <= before
    order = [entry[1] for entry in calls[:now] if entry[0] == "fsync"]
    assert max(order.index(f"{stage}/{name}") for name in names) < min(order.index(f"{stage}/b"), order.index(stage))
    assert after == [("fsync", str(tmp_path))]


def test_file_by_file_the_journal_is_on_the_disk_before_and_the_folders_after(tmp_path, calls):
    target = tmp_path / "x"
    tree().save(target)
    (target / "mine.txt").write_text("foreign")
    calls.clear()
    tree().save(target, durable=True)
    journal = next(n for n, entry in enumerate(calls) if entry[0] == "rename" and entry[2].endswith("journal.json"))
    moves = [n for n, entry in enumerate(calls) if entry[0] in ("replace", "rename") and n != journal]
    assert any(name.endswith(".draft") for name in synced(calls[:journal]))
    assert calls[journal + 1] == ("fsync", str(target)) and journal + 1 < min(moves)
    assert {str(target), str(target / "b")} <= synced(calls[max(moves) :])


def test_in_place_files_are_synced_before_the_manifest(tmp_path, calls):
    target = tmp_path / "x"
    tree().save(target, atomic=False, durable=True)
    last = max(n for n, entry in enumerate(calls) if entry[0] == "replace")
    wanted = {str(target / name) for name in ("a.memmap", "b/c.memmap", "meta.json", "b", "s")}
    assert wanted <= synced(calls[:last])
    assert calls[-1] == ("fsync", str(target))


def test_folders_that_were_made_above_are_durable_too(tmp_path, calls):
    tree().save(tmp_path / "p" / "q" / "x", durable=True)
    now = next(n for n, entry in enumerate(calls) if entry[0] == "rename")
    assert {str(tmp_path), str(tmp_path / "p")} <= synced(calls[:now])
    assert calls[-1] == ("fsync", str(tmp_path / "p" / "q"))


@pytest.mark.parametrize("name", ["x.safetensors", "x.tdz"])
@pytest.mark.parametrize("checksum", [False, True])
def test_one_file_is_synced_before_it_gets_its_name(tmp_path, calls, name, checksum):
    tree().save(tmp_path / "p" / name, durable=True, checksum=checksum)
    now = place(calls, "replace")
    assert calls[now - 1] == ("fsync", calls[now][1]), "nothing is written after the last sync"
    assert calls[now + 1 :] == [("fsync", str(tmp_path / "p"))]


def test_saves_that_are_not_durable_do_not_sync(tmp_path, calls):
    for name in ("x", "x.safetensors", "x.tdz"):
        for _ in range(2):
            tree().save(tmp_path / name)
    assert not synced(calls)
