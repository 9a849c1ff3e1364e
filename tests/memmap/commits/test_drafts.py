"""Drafts: their names tell whose they are, and nothing else has such a name."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap.storage import staging_names as drafts
from tensordict_memmap.storage.staging_names import drafts_among, drafts_in, new_draft


@pytest.mark.parametrize("target", ["run", "a.b", "(x)*", "", ".run.tensordict-0123456789abcdef"])
def test_drafts_of_one_target_are_told_from_all_else(target):
    mine = [new_draft(target) for _ in range(3)]
    assert len(set(mine)) == 3
    others = [new_draft(other) for other in ("rum", "aXb", "run2", "x")]
    near = [mine[0] + "0", mine[0][:-1], mine[0][1:], mine[0].upper(), mine[0] + "\n", target]
    assert drafts_among([*others, *mine, *near], target) == mine


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves on by a second whenever a folder is looked through; ``looks`` counts those."""
    state = SimpleNamespace(now=0.0, looks=0)
    listdir = os.listdir

    def look(path):
        state.now += 1
        state.looks += 1
        return listdir(path)

    monkeypatch.setattr(drafts, "time", SimpleNamespace(monotonic=lambda: state.now))
    monkeypatch.setattr(drafts.os, "listdir", look)
    return state


def test_few_names_are_looked_through_each_time(tmp_path, clock):
    for number in range(1, 6):
        (tmp_path / new_draft("run")).touch()
        assert len(drafts_in(str(tmp_path), "run")) == number
    assert clock.looks == 5


def test_many_names_are_looked_through_for_a_twentieth_of_the_time(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(drafts, "_MANY", 3)
    there = [new_draft("run"), new_draft("other"), "sample", "run"]
    for name in there:
        (tmp_path / name).touch()
    assert drafts_in(str(tmp_path), "run") == there[:1]
    late = new_draft("run")
    (tmp_path / late).touch()
    for clock.now in range(1, 21):
        assert drafts_in(str(tmp_path), "run") == there[:1] and drafts_in(str(tmp_path), "other") == there[1:2]
    assert clock.looks == 1
    clock.now = 21
    assert sorted(drafts_in(str(tmp_path), "run")) == sorted([there[0], late]) and clock.looks == 2
    for name in os.listdir(tmp_path):
        (tmp_path / name).unlink()
    clock.now += 20
    assert drafts_in(str(tmp_path), "run") == [] and not drafts._drafts.get(str(tmp_path))


@pytest.mark.parametrize("ending", [".safetensors", ""], ids=["one file", "a folder"])
def test_what_was_killed_goes_with_a_later_save_among_many(tmp_path, clock, monkeypatch, ending):
    monkeypatch.setattr(drafts, "_MANY", 3)
    td = TensorDict({"a": torch.arange(3)})

    def leave():
        draft = tmp_path / new_draft(f"run{ending}")
        draft.touch() if ending else draft.mkdir()
        return draft

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
