"""Saves at the end of a program: the interpreter waits for those that have begun, and says which have failed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import load_memmap, save
from tensordict_memmap.engine import executor

PROGRAM = """
import atexit, sys, threading, time
import torch
from tensordict_core import TensorDict

td = TensorDict({f"k{i}": torch.full((2 << 20,), i, dtype=torch.uint8) for i in range(12)})
early = {"return_early": True}
"""


@pytest.fixture
def program(tmp_path):
    """Runs a program that has ``td`` and ``path``, and returns what it wrote on stderr."""

    def run(*lines, path="saved"):
        text = "\n".join([PROGRAM, f"path = {str(tmp_path / path)!r}", *lines])
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stderr

    return run


@pytest.mark.parametrize("name", ["saved", "saved.safetensors", "saved.tdz"])
def test_a_program_waits_for_a_background_save_that_it_began(program, tmp_path, name):
    assert program("td.save(path, **early)", path=name) == ""
    assert load_memmap(tmp_path / name)["k11"].float().mean() == 11
    assert os.listdir(tmp_path) == [name]


def test_saves_that_begin_when_the_program_ends_are_made(program, tmp_path):
    lines = [
        "def late(): time.sleep(0.2); td.save(path + '1'); td.save(path + '2', **early)",
        "threading.Thread(target=late).start()",
        "atexit.register(lambda: td.save(path + '3'))",
        "atexit.register(lambda: td.save(path + '4', **early))",
        "td.save(path + '4'); td.save(path + '3')",
    ]
    assert program(*lines) == ""
    assert sorted(os.listdir(tmp_path)) == ["saved1", "saved2", "saved3", "saved4"]
    assert all(load_memmap(tmp_path / f"saved{n}")["k11"].float().mean() == 11 for n in range(1, 5))


def test_a_failed_background_save_without_result_is_reported_at_exit(program, tmp_path):
    (tmp_path / "saved").write_text("in the way")
    shown = program("for _ in range(2): td.save(path, **early)")
    assert shown.count("tensordict-memmap: the background save to") == 2 == len(shown.splitlines())
    assert str(tmp_path / "saved") in shown and "FileExistsError" in shown
    assert program("assert td.save(path, **early).exception() is not None") == ""
    assert program("td.save(path, **early).add_done_callback(lambda future: future.exception())") == ""
    assert program("future = td.save(path + '2', **early); future.cancel()") == ""


@pytest.fixture
def no_threads(monkeypatch):
    """No thread can be started, as at the limit of a process."""

    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(executor, "_pool", executor._Pool())
    monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.mark.parametrize("name", ["saved", "saved.safetensors", "saved.tdz"])
@pytest.mark.parametrize("early", [False, True])
def test_where_no_thread_can_be_had_the_calling_thread_does_the_work(tmp_path, no_threads, name, early):
    td = TensorDict({f"k{i}": torch.full((5 << 20,), i, dtype=torch.uint8) for i in range(12)})
    for _ in range(2):  # the second save replaces the first, whose removal takes long
        done = save(td, tmp_path / name, return_early=early, num_threads=4)
        assert (done.result() if early else done) is td
    assert load_memmap(tmp_path / name)["k11"].float().mean() == 11
    assert os.listdir(tmp_path) == [name]


def test_an_error_of_a_save_in_the_calling_thread_is_in_its_future(tmp_path, no_threads):
    (tmp_path / "saved").write_text("in the way")
    future = save(TensorDict({"a": torch.zeros(3)}), tmp_path / "saved", return_early=True)
    with pytest.raises(FileExistsError):
        future.result()
