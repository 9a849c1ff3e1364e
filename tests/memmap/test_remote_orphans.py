"""What saves elsewhere leave when they are killed: the next one removes it, and nothing that is still needed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time

import orjson
import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import load_memmap, save
from tensordict_memmap.engine import syscalls as system
from tensordict_memmap.remote import snapshots as generations
from tensordict_memmap.remote.ranges import Store
from tensordict_memmap.storage import staging
from tensordict_memmap.storage.manifest import NAME

pytestmark = pytest.mark.skipif(not system.LINUX, reason="/proc tells which processes of this machine have ended")

memory = pytest.importorskip("fsspec.implementations.memory", reason="addresses need fsspec, the extra that this tests")


@pytest.fixture
def store():
    """An address in the memory of this process, emptied afterwards."""
    yield Store("memory://bucket/x")
    memory.MemoryFileSystem.store.clear()
    memory.MemoryFileSystem.pseudo_dirs[:] = [""]


def td(value=0.0):
    return TensorDict({"a": torch.full((3,), value)})


def begin(store, **saver):
    """A save that sent some files and went no further; says who saves it otherwise."""
    generation = generations.Generation(store)
    store.write(f"{generation.name}/a.memmap", b"some")
    generations._under_way.discard(generation.name)
    if saver:
        told = orjson.loads(store.read(f"{generation.name}.json"))
        store.write(f"{generation.name}.json", orjson.dumps({"saved_by": told["saved_by"] | saver}))
    return generation.name


def is_there(store, name):
    return any(path.startswith(name + "/") for path in store.sizes())


def ended():
    """The number of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.mark.parametrize("earlier", [False, True], ids=["nothing there", "an earlier save"])
def test_what_ended_processes_left_is_removed(store, earlier):
    if earlier:
        save(td(), store.url)
    names = [begin(store), begin(store, process=ended()), begin(store, process=os.getppid(), started=1)]
    save(td(1.0), store.url)
    assert not any(is_there(store, name) for name in names), "a number that another process has by now is no life sign"
    assert load_memmap(store.url)["a"].tolist() == [1, 1, 1]
    assert len(store.sizes()) == 5, "manifest, who saved it, and manifest, description and leaf of the save"


def test_what_a_save_took_the_place_of_goes_though_its_process_lives(store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(generations, "_remove", lambda *arguments: None)  # killed before that
        name = begin(store, process=os.getppid(), started=generations._started(os.getppid()))
        generations.Generation(store).publish(generations.Manifest({}))
        record = orjson.loads(store.read(NAME))
        store.write(NAME, orjson.dumps({**record, "replaces": name}))
    save(td(), store.url)
    assert not is_there(store, name) and load_memmap(store.url)["a"].tolist() == [0, 0, 0]


def test_what_is_under_way_stays(store):
    mine = generations.Generation(store)
    store.write(f"{mine.name}/a.memmap", b"some")
    parent = begin(store, process=os.getppid(), started=generations._started(os.getppid()))
    save(td(), store.url)
    assert is_there(store, mine.name) and is_there(store, parent)
    mine.remove()
    assert not is_there(store, mine.name)


def test_what_other_machines_began_stays_for_a_day(store, monkeypatch):
    name = begin(store, machine="elsewhere")
    save(td(), store.url)
    assert is_there(store, name)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 23 * 3600)
    save(td(), store.url)
    assert is_there(store, name)
    monkeypatch.setattr(time, "time", lambda: now + 25 * 3600)
    save(td(), store.url)
    assert not is_there(store, name)


def test_the_save_that_counts_stays_whoever_made_it(store):
    save(td(2.0), store.url)
    name = orjson.loads(store.read(NAME))["generation"]
    generations._under_way.discard(name)
    store.write(f"{name}.json", orjson.dumps({"saved_by": {"machine": generations._machine(), "process": ended()}}))
    generations.remove_orphans(store)
    assert load_memmap(store.url)["a"].tolist() == [2, 2, 2]


def test_copies_of_saves_and_what_only_looks_like_one_stay(store):
    other = Store("memory://bucket/y")
    save(td(3.0), other.url)
    (name,) = {path.split("/")[0] for path in other.sizes() if "/" in path}
    other.fs.cp(other.at(name), store.at(name), recursive=True)
    looks = ["tensordict-0123456789abcdef.json", "tensordict-0.json", "tensordict-fedcba9876543210.json"]
    for path, data in zip(looks, (b"{}", b"mine", b'{"saved_by": [1, 2]}'), strict=True):
        store.write(path, data)
    for _ in range(2):
        save(td(), store.url)
    assert load_memmap(f"{store.url}/{name}")["a"].tolist() == [3, 3, 3]
    assert all(store.read(path) is not None for path in looks)


def test_a_save_that_was_taken_for_dead_does_not_count(store, monkeypatch):
    save(td(), store.url)
    plain = generations.Generation.renew

    def sleepy(self):
        monkeypatch.setattr(generations.Generation, "renew", plain)
        generations._under_way.discard(self.name)
        save(td(1.0), store.url)  # of another process, a day later

    monkeypatch.setattr(generations.Generation, "renew", sleepy)
    with pytest.raises(FileNotFoundError, match="save again"):
        save(td(2.0), store.url)
    assert load_memmap(store.url)["a"].tolist() == [1, 1, 1]
    save(td(3.0), store.url)
    assert load_memmap(store.url)["a"].tolist() == [3, 3, 3] and len(store.sizes()) == 5


def test_a_long_save_says_that_it_goes_on(store, monkeypatch):
    generation = generations.Generation(store)
    path = store.at(f"{generation.name}.json")
    first = store.fs.modified(path)
    generation.renew()
    assert store.fs.modified(path) == first
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3600)
    generation.renew()
    assert store.fs.modified(path) > first
    generation.remove()


def test_a_first_save_that_was_killed_is_nothing(store):
    begin(store, process=ended())
    with pytest.raises(FileNotFoundError, match=r"meta\.json"):
        load_memmap(store.url)
    save(td(), store.url)
    assert len(store.sizes()) == 5


def test_a_damaged_manifest_is_replaced_and_what_it_named_goes_later(store):
    save(td(), store.url)
    store.write(NAME, b"{not json")
    with pytest.raises(ValueError, match="save again"):
        load_memmap(store.url)
    for value in (1.0, 2.0):
        save(td(value), store.url)
        assert load_memmap(store.url)["a"].tolist() == [value] * 3
    assert len(store.sizes()) == 5


def test_a_child_takes_no_save_of_its_parent_for_dead(store):
    name = begin(store)
    generations._under_way.add(name)
    child = os.fork()
    if child == 0:
        os._exit(bool(generations._under_way) or generations._has_ended(store, name))
    assert os.waitpid(child, 0)[1] == 0
    generations._under_way.discard(name)


# --- the folders here that saves are staged in


def test_staging_folders_of_killed_saves_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    script = (
        "import os, signal, sys, tempfile; from tensordict_memmap.storage.staging import temporary_folder\n"
        "tempfile.tempdir = sys.argv[1]\n"
        "with temporary_folder() as folder:\n"
        "    open(folder + '/large', 'w').close(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=120)
    (left,) = os.listdir(tmp_path)
    assert re.fullmatch(staging._NAME, left)
    (tmp_path / "tensordict-mine").mkdir()
    (tmp_path / "tensordict-staged-12345678").write_text("a file")
    with staging.temporary_folder(), staging.temporary_folder():
        assert len(os.listdir(tmp_path)) == 4 and left not in os.listdir(tmp_path), "one that is used stays"
    assert sorted(os.listdir(tmp_path)) == ["tensordict-mine", "tensordict-staged-12345678"]
