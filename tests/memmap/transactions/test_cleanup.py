"""What a save replaced leaves the disk in the background, whatever happens meanwhile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections import namedtuple

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap.engine import syscalls as system
from tensordict_memmap.engine.mapped_range import MappedRange
from tensordict_memmap.engine.tuning import FOREGROUND_REMOVAL_MAX
from tensordict_memmap.storage import cleanup, exchange, ownership, transaction

pytestmark = pytest.mark.skipif(not system.POSIX, reason="children are forked")


@pytest.fixture
def always(monkeypatch):
    """However little is replaced, the background removes it."""
    for module in (transaction, exchange):  # of files, and of folders
        monkeypatch.setattr(module, "is_long_removal", lambda nbytes, files=1: True)
    yield
    cleanup.wait()


@pytest.fixture
def held(always, monkeypatch):
    """Removals wait for the event."""
    go, remove = threading.Event(), ownership.remove_owned

    def slow(folder, listed):
        assert go.wait(60)
        remove(folder, listed)

    monkeypatch.setattr(ownership, "remove_owned", slow)
    yield go
    go.set()
    cleanup.wait()


def save(version, target):
    TensorDict({"a": torch.full((3,), version), "b": {"c": torch.zeros(2)}}).save(target)


def found(target):
    return TensorDict.load_memmap(target)["a"].tolist()[0]


def test_a_large_save_that_is_replaced_gives_its_blocks_back(tmp_path):
    big = TensorDict({"a": torch.zeros(FOREGROUND_REMOVAL_MAX // 4)})
    big.save(tmp_path / "x")
    with open(tmp_path / "x" / "a.memmap", "rb") as early:
        big.save(tmp_path / "x")
        cleanup.wait()
        assert os.fstat(early.fileno()).st_nlink == 0
    assert os.listdir(tmp_path) == ["x"]
    assert sorted(os.listdir(tmp_path / "x")) == ["a.memmap", "meta.json", "tensordict.manifest.json"]


def test_a_save_returns_before_the_earlier_one_is_removed(tmp_path, held):
    save(0, tmp_path / "x")
    save(1, tmp_path / "x")
    assert found(tmp_path / "x") == 1 and len(os.listdir(tmp_path)) == 2
    held.set()
    cleanup.wait()
    assert os.listdir(tmp_path) == ["x"]


def test_saves_one_at_once_after_another_do_not_collide(tmp_path, always):
    for version in range(10):
        save(version, tmp_path / "x")
        assert found(tmp_path / "x") == version
        assert len(os.listdir(tmp_path)) <= 2, "no place has more than one removal under way"
    cleanup.wait()
    assert os.listdir(tmp_path) == ["x"]


def test_another_process_leaves_a_removal_under_way_alone(tmp_path, held):
    save(0, tmp_path / "x")
    save(1, tmp_path / "x")
    (under_way,) = set(os.listdir(tmp_path)) - {"x"}
    code = "import sys; sys.argv; from tensordict_core import TensorDict; import torch; "
    code += "TensorDict({'a': torch.full((3,), 2)}).save(sys.argv[1])"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "x")], check=True)
    assert found(tmp_path / "x") == 2 and os.path.exists(tmp_path / under_way / "a.memmap")
    held.set()
    cleanup.wait()
    assert os.listdir(tmp_path) == ["x"]


def test_the_next_save_removes_files_of_killed_processes(tmp_path, held, fork):
    save(0, tmp_path / "x")
    assert fork(lambda: save(1, tmp_path / "x")).wait() == 0  # ends without waiting
    assert found(tmp_path / "x") == 1 and len(os.listdir(tmp_path)) == 2
    held.set()
    save(2, tmp_path / "x")
    cleanup.wait()
    assert os.listdir(tmp_path) == ["x"]


def test_a_forked_child_leaves_removals_to_its_parent(tmp_path, held, fork):
    save(0, tmp_path / "x")
    save(1, tmp_path / "x")

    def child():
        cleanup.wait()
        save(2, tmp_path / "y")
        assert len(os.listdir(tmp_path)) == 3

    assert fork(child).wait() == 0
    held.set()
    cleanup.wait()
    assert sorted(os.listdir(tmp_path)) == ["x", "y"]


def test_an_interpreter_that_ends_waits(tmp_path):
    code = """
        import sys, time, torch
        from tensordict_core import TensorDict
        from tensordict_memmap.storage import exchange
        from tensordict_memmap.storage import ownership
        remove = ownership.remove_owned
        exchange.is_long_removal = lambda *sizes: True
        ownership.remove_owned = lambda *what: time.sleep(0.2) or remove(*what)
        for _ in range(2):
            TensorDict({"a": torch.zeros(3)}).save(sys.argv[1])
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), str(tmp_path / "x")]
    subprocess.run(command, check=True)
    assert os.listdir(tmp_path) == ["x"]


def test_a_save_waits_for_removals_if_the_disk_is_full(tmp_path, held, monkeypatch):
    save(0, tmp_path / "x")
    save(1, tmp_path / "x")
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: held.set() or usage(0))
    save(2, tmp_path / "x")
    assert len(os.listdir(tmp_path)) <= 2, "the first was gone before the second came"


def kept(name):
    """How many mappings hold files of a name that have none any more."""
    with open("/proc/self/maps") as file:
        return sum(f"/{name} (deleted)" in line for line in file)


@pytest.fixture
def given_back(always, monkeypatch):
    """What was replaced is given back at the event."""
    go, close = threading.Event(), MappedRange.close

    def slow(self):
        assert threading.current_thread().name != "tensordict-removal" or go.wait(60)
        close(self)

    monkeypatch.setattr(MappedRange, "close", slow)
    yield go
    go.set()
    cleanup.wait()


@pytest.mark.skipif(not system.LINUX, reason="there is no /proc")
@pytest.mark.parametrize("name", ["x.safetensors", "x.tdz"])
def test_a_file_that_is_replaced_is_given_back_in_the_background(tmp_path, given_back, name, fork):
    before = len(os.listdir("/proc/self/fd"))
    save(0, tmp_path / name)
    save(1, tmp_path / name)
    assert kept(name) == 1 and len(os.listdir("/proc/self/fd")) == before, "nothing is left to be closed"
    save(2, tmp_path / f"other-{name}")  # and nobody waits for it

    def child():
        assert kept(name) == 0
        save(3, tmp_path / f"child-{name}")

    assert fork(child).wait() == 0
    given_back.set()
    save(4, tmp_path / name)
    cleanup.wait()
    assert TensorDict.load_memmap(tmp_path / name, mode="r")["a"][0] == 4 and kept(name) == 0
    assert sorted(os.listdir(tmp_path)) == [f"child-{name}", f"other-{name}", name]


def test_foreign_files_that_come_late_are_moved_before_anything_is_removed(tmp_path, held, monkeypatch):
    save(0, tmp_path / "x")
    exchange = system.exchange

    def late(a, b):
        (tmp_path / "x" / "b" / "late.txt").write_text("mine")
        return exchange(a, b)

    monkeypatch.setattr(system, "exchange", late)
    save(1, tmp_path / "x")
    assert (tmp_path / "x" / "b" / "late.txt").read_text() == "mine"
