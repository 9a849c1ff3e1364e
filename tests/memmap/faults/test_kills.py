"""Kills: a process that dies by SIGKILL at a random moment of a save leaves the earlier content or the new one, whole.

A child saves one version after another and counts, in memory that both see, those that were made. It is killed after a
random time; what is loaded then is the last version that was made, or the one that was being made. The next save leaves
nothing beside its files.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import time

import pytest
import torch

from tensordict_core import NonTensorData, TensorDict
from tensordict_memmap import from_consolidated, load_memmap, save
from tensordict_memmap.engine import syscalls as system
from tensordict_memmap.storage.manifest import NAME
from tensordict_memmap.storage.ownership import read_manifest

pytestmark = pytest.mark.skipif(not system.POSIX, reason="children are forked and killed")

ROUNDS = [pytest.param(8, id="8 kills"), pytest.param(200, id="200 kills", marks=pytest.mark.long)]
LONGEST = 0.03
"""Seconds to the latest kill: several saves are made in them."""


def content(version):
    """A tensordict that tells its version in each of its parts; some come and go."""
    entries = {f"leaf{i}": torch.full((1 + 9000 * i,), version + i, dtype=torch.int32) for i in range(6)}
    entries["strided"] = torch.full((40, 50), version).T
    entries["inner"] = {"a": torch.full((300,), version), f"only{version % 3}": torch.full((70_000,), version).short()}
    entries["inner"]["text"] = NonTensorData(f"version {version}")
    return TensorDict(entries)


def version_of(td):
    """Which version was loaded; an assertion where it is a mixture."""
    version = int(td["inner", "a"][0])
    expected = content(version)
    assert set(td.keys(True)) == set(expected.keys(True))
    for key, leaf in expected.items(True, True):
        if isinstance(leaf, torch.Tensor):
            assert torch.equal(td[key], leaf), key
    assert td["inner", "text"] == f"version {version}"
    return version


def save_shards(td, path, **options):
    save(td, path, format="safetensors", shard_size=100_000, **options)


def save_consolidated(td, path, **options):
    td.consolidate(path)


FORMATS = {
    "tree": ("saved", save, load_memmap),
    "safetensors": ("saved.safetensors", save, load_memmap),
    "shards": ("saved", save_shards, load_memmap),
    "archive": ("saved.tdz", save, load_memmap),
    "consolidated": ("saved.bin", save_consolidated, from_consolidated),
}
FOLDERS = ("tree", "shards")


class Counter:
    """A number that a child writes and its parent reads."""

    def __init__(self):
        self.memory = mmap.mmap(-1, 8)

    def set(self, number):
        self.memory[:] = number.to_bytes(8, "little")

    def get(self):
        return int.from_bytes(self.memory[:], "little")


def save_forever(store, target, first, counter):
    for version in range(first, 1 << 30):
        store(content(version), target, durable=version % 7 == 0)
        counter.set(version)


def kill_often(fork, rounds, seed, store, load, target, *, check=lambda: None):
    """Kills ``rounds`` saves to ``target``, where version 0 is; the last version that was found."""
    chance, counter = random.Random(seed), Counter()
    found = 0
    for _ in range(rounds):
        counter.set(found)
        child = fork(save_forever, store, target, found + 1, counter)
        # children start at different speeds: the clock runs from their first save on, but for some that die early
        if chance.random() < 0.9:
            deadline = time.monotonic() + 60
            while counter.get() == found and time.monotonic() < deadline:
                time.sleep(0.0002)
        time.sleep(chance.uniform(0, LONGEST))
        assert child.kill() == -9, "it saved until it was killed"
        made = counter.get()
        found = version_of(load(target))
        assert found in (made, made + 1)
        check()
    return found


@pytest.fixture
def at(tmp_path):
    """A folder of its own for what is saved, so that all that is beside it can be seen."""
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_save_killed_over_an_earlier_one_leaves_one_of_them_whole(at, fork, leftovers, name, rounds):
    file, store, load = FORMATS[name]
    target = at / file
    store(content(0), target)
    found = kill_often(fork, rounds, name, store, load, target)
    store(content(found + 1), target)
    assert version_of(load(target)) == found + 1
    assert not leftovers(at, target)
    assert os.listdir(at) == [file]


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_save_killed_on_a_fresh_path_is_whole_or_absent(at, fork, leftovers, name, rounds):
    file, store, load = FORMATS[name]
    target = at / "new" / "parent" / file
    chance, counter = random.Random(name), Counter()
    seen = set()
    for _ in range(rounds):
        counter.set(0)
        child = fork(lambda: (store(content(1), target), counter.set(1)))
        time.sleep(chance.uniform(0.002, LONGEST))
        child.kill()
        there = target.exists()
        seen.add(there)
        assert there or not counter.get()
        if there:
            assert version_of(load(target)) == 1
        store(content(2), target)
        assert version_of(load(target)) == 2
        assert not leftovers(target.parent, target)
        shutil.rmtree(at / "new")
    assert rounds < 100 or seen == {True, False}, "some were killed before, some after the save"


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("name", FOLDERS)
def test_foreign_files_outlive_every_kill(at, fork, leftovers, name, rounds):
    file, store, load = FORMATS[name]
    target = at / file
    store(content(0), target)
    foreign = [target / "notes.txt", target / "other" / "data.bin"]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("precious")

    def check():
        assert all(path.read_text() == "precious" for path in foreign)

    found = kill_often(fork, rounds, name, store, load, target, check=check)
    store(content(found + 1), target)
    assert version_of(load(target)) == found + 1
    assert not leftovers(at, target)
    check()


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_symbolic_link_stays_one_through_every_kill(at, fork, leftovers, name, rounds):
    file, store, load = FORMATS[name]
    (at / "real").mkdir()
    target = at / "real" / file
    link = at / file
    store(content(0), target)
    os.symlink(target, link)

    def check():
        assert os.path.islink(link)

    found = kill_often(fork, rounds, name, store, load, link, check=check)
    store(content(found + 1), link)
    assert version_of(load(target)) == found + 1
    assert not leftovers(at, at / "real", target)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_part_of_a_save_is_replaced_whole_and_the_rest_stays(at, fork, leftovers, rounds):
    target = at / "whole"
    outer = TensorDict({"a": torch.arange(1000), "part": content(0), "z": {"b": torch.ones(3)}})
    save(outer, target)

    def check():
        whole = load_memmap(target)
        assert torch.equal(whole["a"], outer["a"]) and torch.equal(whole["z", "b"], outer["z", "b"])
        version_of(whole["part"])

    found = kill_often(fork, rounds, "part", save, load_memmap, target / "part", check=check)
    save(content(found + 1), target / "part")
    check()
    assert version_of(load_memmap(target)["part"]) == found + 1
    assert not leftovers(at, target, target / "part")
    save(outer, target)
    assert version_of(load_memmap(target / "part")) == 0
    assert not leftovers(at, target, target / "part") and os.listdir(at) == ["whole"]


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("earlier", [True, False], ids=["over an earlier save", "into an empty folder"])
def test_an_interrupted_overwrite_in_place_is_whole_or_marked_as_incomplete(at, fork, earlier, rounds):
    """Files are overwritten one by one with ``atomic=False``, so a kill costs the content, but never goes unseen."""

    def store(td, path, **options):
        save(td.set("large", torch.ones(4 << 20)), path, atomic=False)

    def whole(td):
        assert torch.equal(td.pop("large"), torch.ones(4 << 20))
        return version_of(td)

    target = at / "saved"
    chance = random.Random(int(earlier))
    stopped = number = 0
    while number < rounds or not stopped:
        assert number < 20 * rounds, "no kill stopped a save, not even those that waited for one to have begun"
        shutil.rmtree(target, ignore_errors=True)
        if earlier:
            store(content(0), target)
        counter = Counter()
        child = fork(save_forever, store, target, 1, counter)
        if number < rounds:
            time.sleep(chance.uniform(0, LONGEST))
        else:  # on a slow machine all others may have come before the first save or between two
            while (manifest := read_manifest(target)) is None or manifest.complete:
                time.sleep(0)
        child.kill()
        try:
            assert whole(load_memmap(target).unlock_()) in (counter.get(), counter.get() + 1)
        except (ValueError, FileNotFoundError) as error:
            assert "stopped" in str(error) or not earlier, error
            stopped += 1
        save(content(7), target, atomic=number % 2 == 0)
        assert version_of(load_memmap(target)) == 7
        files = {os.path.join(place, name) for place, _, names in os.walk(target) for name in names}
        listed = {*read_manifest(target).files, NAME}
        assert files == {os.path.join(target, *name.split("/")) for name in listed}, "what was stopped left nothing"
        number += 1
