"""A full disk: an error that names the key, no signal, nothing lost, nothing left behind; in every format.

Where mounts are permitted, the disk is a small tmpfs that really is full; everywhere it is a limit on the size of files
in a forked child, which is what a quota looks like to a process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import subprocess

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import from_consolidated, load_memmap, memmap, memmap_like, save
from tensordict_memmap.engine import syscalls as system

pytestmark = pytest.mark.skipif(not system.POSIX, reason="disks are mounted, and children forked and limited")

ROOM = 4 << 20
"""Bytes of the disk."""


def save_shards(td, path, **options):
    save(td, path, format="safetensors", shard_size=1 << 20, **options)


def save_compressed(td, path, **options):
    save(td, path, compression="deflate", **options)


def save_consolidated(td, path, **options):
    td.consolidate(path)


FORMATS = {
    "tree": ("saved", save, load_memmap),
    "mapped tree": ("saved", lambda td, path: memmap(td, path, copy_existing=True), load_memmap),
    "durable tree": ("saved", lambda td, path: save(td, path, durable=True), load_memmap),
    "tree in the background": ("saved", lambda td, path: save(td, path, return_early=True).result(), load_memmap),
    "safetensors": ("saved.safetensors", save, load_memmap),
    "shards": ("saved", save_shards, load_memmap),
    "archive": ("saved.tdz", save, load_memmap),
    "compressed archive": ("saved.tdz", save_compressed, load_memmap),
    "consolidated": ("saved.bin", save_consolidated, from_consolidated),
}


def small():
    return TensorDict({"a": torch.arange(1000), "b": {"c": torch.ones(10)}})


def too_much(kind):
    """More than the disk holds; random, so that it does not compress."""
    torch.manual_seed(0)
    large = torch.randint(0, 1 << 30, (ROOM // 4 + 1000, 2), dtype=torch.int32)
    if kind == "one large leaf":
        return TensorDict({"first": torch.ones(3), "in": {"large": large}})
    if kind == "strided leaf":
        return TensorDict({"first": torch.ones(3), "in": {"large": large.T}})
    return TensorDict({"in": {f"large{i:04}": part.clone() for i, part in enumerate(large.split(2000))}})


KINDS = ["one large leaf", "strided leaf", "many leaves"]


@pytest.fixture
def disk(tmp_path):
    """A folder on a disk of a few megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", place]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting is not permitted here; the quota tests still limit what may be written")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def check_unchanged(load, target, leftovers):
    found = load(target)
    assert torch.equal(found["a"], torch.arange(1000)) and torch.equal(found["b", "c"], torch.ones(10))
    assert not leftovers(target.parent, target)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_full_disk_is_an_error_that_names_the_key_and_keeps_the_earlier_save(disk, leftovers, name, kind):
    file, store, load = FORMATS[name]
    target = disk / file
    store(small(), target)
    before = os.listdir(disk)
    # of many that are alike, what describes them all may be the largest part of a file
    named = "in.*large" if kind != "many leaves" else "in.*large|meta.json|the header|the description"
    for _ in range(2):  # what the first left would be in the way of the second
        with pytest.raises(OSError, match=named) as caught:
            store(too_much(kind), target)
        assert caught.value.errno == errno.ENOSPC
        check_unchanged(load, target, leftovers)
    assert sorted(os.listdir(disk)) == sorted(before)
    store(small(), target)
    check_unchanged(load, target, leftovers)


@pytest.mark.parametrize("name", FORMATS)
def test_a_save_that_fits_only_without_the_earlier_one_is_refused(disk, leftovers, name):
    """Both are on the disk until the new one is whole: that is what all or nothing costs."""
    file, store, load = FORMATS[name]
    target = disk / file
    torch.manual_seed(0)
    td = TensorDict({"a": torch.randint(0, 1 << 30, (ROOM // 4 * 3 // 5,), dtype=torch.int32)})
    store(td, target)
    with pytest.raises(OSError, match="a") as caught:
        store(td + 1, target)
    assert caught.value.errno == errno.ENOSPC
    assert torch.equal(load(target)["a"], td["a"]) and not leftovers(disk, target)


def limited(limit, work):
    """What a forked child does whose files may not grow beyond a limit; a signal would end it."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it from its start; what embeds it may not
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    work()


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("name", FORMATS)
def test_a_quota_is_an_error_that_names_the_key_and_keeps_the_earlier_save(tmp_path, fork, leftovers, name, kind):
    file, store, load = FORMATS[name]
    target = tmp_path / file
    store(small(), target)
    td = too_much(kind)

    def work():
        with pytest.raises(OSError, match=r"in.*large") as caught:
            store(td, target)
        assert caught.value.errno == errno.EFBIG

    assert fork(limited, 1 << 20, work).wait() == 0
    check_unchanged(load, target, leftovers)
    assert os.listdir(tmp_path) == [file]


def test_overwriting_in_place_on_a_full_disk_marks_the_save_as_incomplete(disk):
    """Files are overwritten one by one with ``atomic=False``: what was there is lost, and loading says so."""
    target = disk / "saved"
    save(small(), target)
    with pytest.raises(OSError, match="large") as caught:
        save(too_much("many leaves"), target, atomic=False)
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(ValueError, match="stopped while it overwrote"):
        load_memmap(target)
    save(small(), target, atomic=False)  # what the stopped save left is removed first
    assert torch.equal(load_memmap(target)["a"], torch.arange(1000))


def test_a_disk_that_is_full_to_the_last_byte_keeps_the_earlier_save_or_takes_the_new_one(disk, leftovers):
    """The manifest and the journal need room as well, and may be what does not fit."""
    target = disk / "saved"
    save(small(), target)
    (target / "notes.txt").write_text("foreign")
    pages = os.sysconf("SC_PAGESIZE")
    seen = set()
    for free in range(20):
        with open(disk / "filler", "wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(pages))
        os.truncate(disk / "filler", os.path.getsize(disk / "filler") - free * pages)
        try:
            save(small() + 0, target)
            seen.add("saved")
        except OSError as error:
            assert error.errno == errno.ENOSPC
            seen.add("refused")
        os.unlink(disk / "filler")
        check_unchanged(load_memmap, target, leftovers)
        assert (target / "notes.txt").read_text() == "foreign"
    assert seen == {"saved", "refused"}


def test_room_for_a_dataset_is_sparse_and_larger_than_the_disk(disk):
    """Nothing is written, so nothing is missing; what is written to it later may find the disk full, by a signal."""
    made = memmap_like(TensorDict({"image": torch.ones(3)}).expand(ROOM), disk / "data")
    assert made["image"].shape == (ROOM, 3) and made["image"][:: ROOM // 50].sum() == 0
    assert torch.equal(load_memmap(disk / "data")["image"][0], torch.zeros(3))


@pytest.mark.parametrize("file", ["data", "data.tdz"])
def test_rows_that_do_not_fit_are_an_error_where_files_are_written_and_not_mappings(disk, file):
    """``update_`` fills cold files by writes, so a full disk is an error and not the end of the process."""
    source = TensorDict({"x": torch.arange(ROOM, dtype=torch.int32)})
    made = memmap_like(source, disk / file)
    with pytest.raises(OSError, match="No space left"):
        made.update_(source)
    assert made["x"][0] == 0 or made["x"][1] == 1
