"""Staging names tell their target, and nothing else has such a name."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap.storage import staging
from tensordict_memmap.storage.staging import list_staged, staged_names, staging_name


@pytest.mark.parametrize("target", ["run", "a.b", "(x)*", "", ".run.tensordict-0123456789abcdef"])
def test_staging_names_of_one_target_are_recognized(target):
    mine = [staging_name(target) for _ in range(3)]
    assert len(set(mine)) == 3
    others = [staging_name(other) for other in ("rum", "aXb", "run2", "x")]
    near = [mine[0] + "0", mine[0][:-1], mine[0][1:], mine[0].upper(), mine[0] + "\n", target]
    assert staged_names([*others, *mine, *near], target) == mine


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves on by a second whenever a folder is listed; ``looks`` counts those."""
    state = SimpleNamespace(now=0.0, looks=0)
    listdir = os.listdir

    def look(path):
        state.now += 1
        state.looks += 1
        return listdir(path)

    monkeypatch.setattr(staging, "time", SimpleNamespace(monotonic=lambda: state.now))
    monkeypatch.setattr(staging.os, "listdir", look)
    return state


def test_few_names_are_listed_each_time(tmp_path, clock):
    for number in range(1, 6):
        (tmp_path / staging_name("run")).touch()
        assert len(list_staged(str(tmp_path), "run")) == number
    assert clock.looks == 5


def test_many_names_are_listed_for_a_twentieth_of_the_time(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(staging, "_CACHED_LISTING_MIN", 3)
    there = [staging_name("run"), staging_name("other"), "sample", "run"]
    for name in there:
        (tmp_path / name).touch()
    assert list_staged(str(tmp_path), "run") == there[:1]
    late = staging_name("run")
    (tmp_path / late).touch()
    for clock.now in range(1, 21):
        assert list_staged(str(tmp_path), "run") == there[:1] and list_staged(str(tmp_path), "other") == there[1:2]
    assert clock.looks == 1
    clock.now = 21
    assert sorted(list_staged(str(tmp_path), "run")) == sorted([there[0], late]) and clock.looks == 2
    for name in os.listdir(tmp_path):
        (tmp_path / name).unlink()
    clock.now += 20
    assert list_staged(str(tmp_path), "run") == [] and not staging._listings.get(str(tmp_path))


@pytest.mark.parametrize("ending", [".safetensors", ""], ids=["one file", "a folder"])
def test_a_later_save_removes_staging_files_of_killed_ones_among_many(tmp_path, clock, monkeypatch, ending):
    monkeypatch.setattr(staging, "_CACHED_LISTING_MIN", 3)
    td = TensorDict({"a": torch.arange(3)})

    def leave():
        staged = tmp_path / staging_name(f"run{ending}")
        staged.touch() if ending else staged.mkdir()
        return staged

    for number in range(3):
        (tmp_path / f"sample-{number}").touch()
    first = leave()
    for number in range(10):
        td.memmap(tmp_path / f"{number}{ending}")
    assert first.exists() and clock.looks == 1
    td.memmap(tmp_path / f"run{ending}")
    assert not first.exists() and clock.looks == 1
    second = leave()
    clock.now += 20
    td.memmap(tmp_path / f"run{ending}")
    assert not second.exists()
