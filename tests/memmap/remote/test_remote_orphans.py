"""Orphaned snapshots: a remote save removes what killed saves left, and nothing that is still needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time

import orjson
import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import load_memmap, save
from tensordict_memmap.remote import snapshots
from tensordict_memmap.remote.store import Store
from tensordict_memmap.storage import staging
from tensordict_memmap.storage.manifest import NAME

memory = pytest.importorskip("fsspec.implementations.memory", reason="remote URLs need fsspec, the extra under test")

HOUR = 3600.0


@pytest.fixture
def store():
    """A URL in the memory of this process, emptied afterwards."""
    yield Store("memory://bucket/x")
    memory.MemoryFileSystem.store.clear()
    memory.MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def later(monkeypatch):
    """Moves the clock forward by some hours."""
    now = time.time()
    return lambda hours: monkeypatch.setattr(time, "time", lambda: now + hours * HOUR)


def td(value=0.0):
    return TensorDict({"a": torch.full((3,), value)})


def begin(store):
    """Starts a save that uploads a file and goes no further."""
    snapshot = snapshots.SnapshotWriter(store)
    store.write(f"{snapshot.name}/a.memmap", b"some")
    return snapshot.name


def exists(store, name):
    return any(path.startswith(name + "/") for path in store.sizes())


@pytest.mark.parametrize("earlier", [False, True], ids=["no earlier save", "an earlier save"])
def test_snapshots_with_expired_leases_are_removed(store, later, earlier):
    if earlier:
        save(td(), store.url)
    names = [begin(store) for _ in range(3)]
    later(25)
    save(td(1.0), store.url)
    assert not any(exists(store, name) for name in names)
    assert load_memmap(store.url)["a"].tolist() == [1, 1, 1]
    assert len(store.sizes()) == 5, "the manifest, the lease, and the manifest, description and leaf of the snapshot"


def test_a_replaced_snapshot_is_removed_although_its_lease_is_valid(store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(snapshots, "_remove", lambda *arguments: None)  # killed before the removal
        name = begin(store)
        snapshots.SnapshotWriter(store).publish(snapshots.Manifest({}))
        record = orjson.loads(store.read(NAME))
        store.write(NAME, orjson.dumps({**record, "replaces": name}))
    save(td(), store.url)
    assert not exists(store, name) and load_memmap(store.url)["a"].tolist() == [0, 0, 0]


def test_a_snapshot_in_progress_stays(store):
    mine = snapshots.SnapshotWriter(store)
    store.write(f"{mine.name}/a.memmap", b"some")
    other = begin(store)
    save(td(), store.url)
    assert exists(store, mine.name) and exists(store, other)
    mine.remove()
    assert not exists(store, mine.name)


def test_an_unpublished_snapshot_stays_for_a_day(store, later):
    name = begin(store)
    save(td(), store.url)
    assert exists(store, name)
    later(23)
    save(td(), store.url)
    assert exists(store, name)
    later(25)
    save(td(), store.url)
    assert not exists(store, name)


def test_leases_of_earlier_releases_expire_too(store, later):
    name = begin(store)
    saver = {"machine": "0c4f7a2e-boot pid:[4026531836]", "process": 1, "started": 100}
    store.write(f"{name}.json", orjson.dumps({"saved_by": saver}))
    save(td(), store.url)
    assert exists(store, name)
    later(25)
    save(td(), store.url)
    assert not exists(store, name)


def test_the_current_snapshot_stays_although_its_lease_has_expired(store, later):
    save(td(2.0), store.url)
    later(1000)
    snapshots.remove_orphans(store)
    assert load_memmap(store.url)["a"].tolist() == [2, 2, 2]


def test_copies_of_saves_and_user_files_of_similar_names_stay(store, later):
    other = Store("memory://bucket/y")
    save(td(3.0), other.url)
    (name,) = {path.split("/")[0] for path in other.sizes() if "/" in path}
    other.fs.cp(other.full_path(name), store.full_path(name), recursive=True)
    similar = ["tensordict-0123456789abcdef.json", "tensordict-0.json", "tensordict-fedcba9876543210.json"]
    for path, data in zip(similar, (b"{}", b"mine", b'{"saved_by": [1, 2]}'), strict=True):
        store.write(path, data)
    for hours in (0, 25):
        later(hours)
        save(td(), store.url)
    assert load_memmap(f"{store.url}/{name}")["a"].tolist() == [3, 3, 3]
    assert all(store.read(path) is not None for path in similar)


def test_a_save_whose_snapshot_was_removed_fails(store, monkeypatch):
    save(td(), store.url)
    plain = snapshots.SnapshotWriter.renew_lease

    def renew_lease(self):
        monkeypatch.setattr(snapshots.SnapshotWriter, "renew_lease", plain)
        with monkeypatch.context() as patch:
            patch.setattr(snapshots, "LEASE_SECONDS", -HOUR)
            save(td(1.0), store.url)  # by another process, a day later

    monkeypatch.setattr(snapshots.SnapshotWriter, "renew_lease", renew_lease)
    with pytest.raises(FileNotFoundError, match="save again"):
        save(td(2.0), store.url)
    assert load_memmap(store.url)["a"].tolist() == [1, 1, 1]
    save(td(3.0), store.url)
    assert load_memmap(store.url)["a"].tolist() == [3, 3, 3] and len(store.sizes()) == 5


def test_a_long_save_renews_its_lease(store, monkeypatch):
    snapshot = snapshots.SnapshotWriter(store)
    path = store.full_path(f"{snapshot.name}.json")
    first = store.fs.modified(path)
    snapshot.renew_lease()
    assert store.fs.modified(path) == first
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + HOUR)
    snapshot.renew_lease()
    assert store.fs.modified(path) > first
    snapshot.remove()


def test_nothing_loads_where_the_first_save_was_killed(store, later):
    begin(store)
    with pytest.raises(FileNotFoundError, match="no saved tensordict at"):
        load_memmap(store.url)
    later(25)
    save(td(), store.url)
    assert len(store.sizes()) == 5


def test_a_damaged_manifest_is_replaced_and_its_snapshot_expires(store, later):
    save(td(), store.url)
    store.write(NAME, b"{not json")
    with pytest.raises(ValueError, match="save again"):
        load_memmap(store.url)
    for hours, value in ((0, 1.0), (25, 2.0)):
        later(hours)
        save(td(value), store.url)
        assert load_memmap(store.url)["a"].tolist() == [value] * 3
    assert len(store.sizes()) == 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_keeps_the_snapshot_of_its_parent(store):
    name = begin(store)
    child = os.fork()
    if child == 0:
        snapshots.remove_orphans(store)
        os._exit(not exists(store, name))
    assert os.waitpid(child, 0)[1] == 0


# --- local staging folders


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs signals that kill")
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
    assert staging.staged_names([left], "tensordict") == [left]
    (tmp_path / "tensordict-mine").mkdir()
    alike = staging.staging_name("tensordict")
    (tmp_path / alike).write_text("a file")
    with staging.temporary_folder(), staging.temporary_folder():
        assert len(os.listdir(tmp_path)) == 4 and left not in os.listdir(tmp_path), "one that is used stays"
    assert sorted(os.listdir(tmp_path)) == [alike, "tensordict-mine"]
