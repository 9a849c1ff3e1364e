"""Rotation of checkpoints: the newest are kept, and a name in the folder stands for a whole checkpoint."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from tensordict_core import TensorDict
from tensordict_memmap import latest, load_checkpoint, save_checkpoint
from tensordict_memmap.checkpoint import rotation
from tensordict_memmap.checkpoint.rotation import rotate
from tensordict_memmap.engine import syscalls
from tensordict_memmap.storage.staging import staging_name

FORMATS = [{}, {"format": "safetensors"}, {"format": "archive"}, {"format": "safetensors", "shard_size": 2000}]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def model(value):
    made = nn.Linear(40, 30)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(value)
    return made


def save(step, keep=2, **options):
    return save_checkpoint("runs", model=model(step), step=step, keep=keep, extra={"step": step}, **options)


def check(path, step):
    loaded = model(-1)
    found = load_checkpoint(path, model=loaded, verify="full")
    assert found.step == step == found.extra["step"]
    assert all((parameter == step).all() for parameter in loaded.parameters())


@pytest.mark.parametrize("options", FORMATS)
def test_the_newest_checkpoints_are_kept(options):
    for step in (8, 9, 10, 100):
        path = save(step, **options)
        assert latest("runs") == path.absolute()
        check(path, step)
    ending = {"safetensors": ".safetensors", "archive": ".tdz"}.get(options.get("format"), "")
    ending = "" if "shard_size" in options else ending
    assert sorted(os.listdir("runs")) == [f"step-000010{ending}", f"step-000100{ending}"]


def test_unfinished_and_damaged_checkpoints_are_passed_over():
    first = save(1, keep=9)
    second = save(2, keep=9)
    os.mkdir("runs/step-000003")
    Path("runs/step-000004.safetensors").write_bytes(b"half")
    shutil.copytree(second, "runs/step-000005")
    os.unlink("runs/step-000005/tensordict.manifest.json")
    shutil.copytree(second, "runs/step-000006")
    with open("runs/step-000006/model/weight.memmap", "r+b") as file:
        file.truncate(10)
    shutil.copytree(second, "runs/" + staging_name("step-000007"))
    assert latest("runs") == second.absolute()
    shutil.rmtree(second)
    assert latest("runs") == first.absolute()
    shutil.rmtree("runs")
    assert latest("runs") is None
    with pytest.raises(ValueError, match="is a URL"):
        latest("memory://runs")


def test_damaged_checkpoints_do_not_count_as_kept():
    for step in (1, 2, 3):
        save(step, keep=9)
    with open("runs/step-000003/model/weight.memmap", "r+b") as file:
        file.truncate(10)
    save(4, keep=2)
    assert sorted(os.listdir("runs")) == ["step-000002", "step-000003", "step-000004"]


def test_the_latest_written_checkpoint_is_kept_for_any_step():
    for step in (10, 20, 30):
        save(step)
    check(save(5, keep=1), 5)
    assert sorted(os.listdir("runs")) == ["step-000005"]
    for step in (10, 20):
        save(step, keep=9)
    save(7, keep=2)
    assert sorted(os.listdir("runs")) == ["step-000007", "step-000020"]


def test_files_of_others_stay():
    save(1)
    Path("runs/notes.txt").write_text("mine")
    Path("runs/step-000001/notes.txt").write_text("mine")
    os.makedirs("runs/step-000000")
    Path("runs/step-000000/data.bin").write_text("mine")
    for step in (2, 3, 4):
        save(step)
    assert Path("runs/notes.txt").read_text() == Path("runs/step-000001/notes.txt").read_text() == "mine"
    assert os.listdir("runs/step-000001") == ["notes.txt"] and os.listdir("runs/step-000000") == ["data.bin"]
    check(latest("runs"), 4)


def test_bases_of_kept_deltas_stay():
    save(1, keep=1)
    base = latest("runs")
    for step in (2, 3):
        base = save_checkpoint("runs", model=model(step), step=step, keep=1, base=base, extra={"step": step})
    assert sorted(os.listdir("runs")) == ["step-000001", "step-000002.safetensors", "step-000003.safetensors"]
    check(latest("runs"), 3)
    save(4, keep=1)
    assert sorted(os.listdir("runs")) == ["step-000004"]


def test_a_rotation_that_fails_warns_and_keeps_the_newest(monkeypatch):
    for step in (1, 2):
        save(step)

    def refuse(path):
        raise PermissionError(13, "not allowed", path)

    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="step-000001 could not be removed"):
        patch.setattr(rotation, "_remove", refuse)
        save(3)
    check(latest("runs"), 3)
    save(4)
    assert sorted(os.listdir("runs")) == ["step-000003", "step-000004"]


def test_the_remains_of_killed_saves_are_removed():
    save(1)
    for name in ("step-000002", "step-000003"):
        os.mkdir("runs/" + staging_name(name))
    Path("runs/" + staging_name("step-000004.safetensors")).write_bytes(b"x" * 100)
    removed = "runs/" + staging_name("step-000000")
    shutil.copytree("runs/step-000001", removed)
    Path(removed, "notes.txt").write_text("mine")
    save(5)
    assert sorted(os.listdir("runs")) == ["step-000000", "step-000001", "step-000005"]
    assert os.listdir("runs/step-000000") == ["notes.txt"]


def test_options_are_checked():
    with pytest.raises(ValueError, match="keep=0, and at least one"):
        save(1, keep=0)
    for step in (None, -1):
        with pytest.raises(ValueError, match="keep= names checkpoints by their step"):
            save_checkpoint("runs", step=step, keep=1)
    with pytest.raises(ValueError, match="rotates checkpoints in a local folder"):
        save_checkpoint("memory://runs", step=1, keep=1)
    assert not os.path.exists("runs")


def test_the_folder_of_checkpoints_is_not_a_checkpoint():
    save(1)
    save(2)
    with pytest.raises(
        FileNotFoundError, match=r"runs is a folder of several checkpoints; .* latest\('runs'\), .*step-000002"
    ):
        load_checkpoint("runs")


def test_a_save_that_fails_leaves_all_earlier_ones(monkeypatch):
    for step in (1, 2):
        save(step)
    with pytest.raises(TypeError, match=r"extra\['f'\]"):
        save_checkpoint("runs", step=3, keep=2, extra={"f": print})
    assert sorted(os.listdir("runs")) == ["step-000001", "step-000002"]


def test_rotation_keeps_the_given_checkpoint():
    for step in (1, 2, 3):
        TensorDict({"a": torch.ones(step)}).save(f"runs/step-{step}")
    rotate("runs", 1, written="runs/step-3")
    assert os.listdir("runs") == ["step-3"]


ROUNDS = [pytest.param(8, id="8 kills"), pytest.param(200, id="200 kills", marks=pytest.mark.long)]


def save_steps(first, options):
    step = first
    while True:
        save(step, **options)
        step += 1


@pytest.mark.skipif(not syscalls.POSIX, reason="children are forked and killed")
@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("options", FORMATS[:2])
def test_a_kill_leaves_the_newest_checkpoints_whole(fork, options, rounds):
    save(1, **options)
    save(2, **options)
    newest = 2
    for _ in range(rounds):
        child = fork(save_steps, newest + 1, options)
        time.sleep(random.uniform(0, 0.08))
        child.kill()
        names = sorted(name for name in os.listdir("runs") if not name.startswith("."))
        assert len(names) >= 2, names
        for name in names:
            check(f"runs/{name}", int(name[5:11]))  # a name stands for a whole checkpoint
        found = latest("runs")
        step = int(found.name[5:11])
        assert found.name == names[-1] and step >= newest
        newest = step
    save(newest + 1, **options)
    assert len(os.listdir("runs")) == 2
