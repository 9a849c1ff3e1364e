"""Failures: whatever happens to a rank, the earlier checkpoint stays whole, and all ranks learn what happened where."""

from __future__ import annotations

import errno
import math
import mmap
import os
import random
import resource
import signal
import subprocess
import time

import pytest
import torch
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

from tensordict_core import TensorDict
from tensordict_memmap import load_memmap, save
from tensordict_memmap.distributed import rendezvous
from tensordict_memmap.distributed import save as saves
from tensordict_memmap.engine import direct, syscalls, write_plan

TARGETS = {
    "one file": ("saved.safetensors", {}),
    "shards": ("saved", {"format": "safetensors", "shard_size": 200_000}),
    "tree": ("saved", {}),
}
SLOW = 30.0
"""Seconds in which every rank knows of a failure, far above what it takes."""


def content(version):
    """A tensordict that tells its version in each of its parts."""
    entries = {f"leaf{n}": torch.full((40 + 700 * n, 30), version + n, dtype=torch.int32) for n in range(5)}
    return TensorDict({**entries, "in": {"tall": torch.full((50_000,), version), "small": torch.tensor(version)}})


def version_of(path):
    """Which version a checkpoint holds; an assertion where it is a mixture."""
    loaded = load_memmap(path)
    version = int(loaded["in", "small"])
    expected = content(version)
    assert set(loaded.keys(True, True)) == set(expected.keys(True, True))
    for key, leaf in expected.items(True, True):
        assert torch.equal(loaded[key], leaf), key
    return version


def sharded(version, mesh):
    """The content as ranks hold it: rows, columns, and whole."""
    td = content(version)
    for n in range(5):
        td[f"leaf{n}"] = distribute_tensor(td[f"leaf{n}"], mesh, [Shard(n % 2)], src_data_rank=None)
    td["in", "tall"] = distribute_tensor(td["in", "tall"], mesh, [Shard(0)], src_data_rank=None)
    return td


def save_version(version, target, count, **options):
    sharded(version, init_device_mesh("cpu", (count,))).save(target, **options)


def check(outcomes, failed, kind, text):
    """The failed rank has its own error, and all others one that names it and says the same; all of them in time."""
    for rank, outcome in enumerate(outcomes):
        assert outcome.seconds < SLOW, outcome
        if rank == failed:
            assert outcome.error == kind, outcome
        else:
            assert outcome.error == "RankError" and outcome.ranks == [failed], outcome
            assert f"rank {failed}" in outcome.text and "unchanged" in outcome.text
        assert text in outcome.text, outcome


@pytest.fixture(params=TARGETS)
def target(request, tmp_path):
    """An earlier checkpoint in one of the formats: its path and the options of a save there."""
    name, options = TARGETS[request.param]
    save(content(0), tmp_path / name, **options)
    return tmp_path / name, options


@pytest.mark.parametrize("failed", [0, 1])
def test_a_quota_on_one_rank_is_an_error_with_its_key_on_all(ranks, target, leftovers, failed):
    path, options = target

    def work(rank):
        if rank == failed:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))
        save_version(1, path, 2, **options)

    outcomes = ranks.start(2, work).wait()
    check(outcomes, failed, "OSError", "(writing ")
    assert version_of(path) == 0 and not leftovers(path.parent, path)
    ranks.run(2, save_version_of_rank, 2, path, 2, options)
    assert version_of(path) == 2


def test_a_full_disk_is_an_error_with_the_key_on_all_ranks(ranks, tmp_path, leftovers):
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={2 << 20}", "tmpfs", disk]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted here; the tests of quotas limit what may be written")
    try:
        for name, options in TARGETS.values():
            path = disk / name
            save(TensorDict({"a": torch.arange(3)}), path, **options)

            def work(rank, path=path, options=options):
                large = torch.zeros(3 << 20, dtype=torch.uint8)
                mesh = init_device_mesh("cpu", (2,))
                td = TensorDict({"a": torch.arange(3), "in": {"large": distribute_tensor(large, mesh, [Shard(0)])}})
                with pytest.raises((OSError, RuntimeError), match=r"in.*large") as caught:
                    td.save(path, **options)
                return getattr(caught.value, "errno", None), str(caught.value)

            found = ranks.run(2, work)
            assert errno.ENOSPC in [code for code, _ in found]
            assert all("No space left" in text for _, text in found)
            assert load_memmap(path)["a"].tolist() == [0, 1, 2] and not leftovers(disk, path)
            subprocess.run(["rm", "-rf", path], check=True)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.parametrize("failed", [0, 1])
@pytest.mark.parametrize("options", [{}, {"durable": True}], ids=str)
def test_a_disk_that_is_full_for_one_rank_leaves_the_earlier_checkpoint(ranks, tmp_path, leftovers, failed, options):
    path = tmp_path / "saved.safetensors"
    save(TensorDict({"large": torch.zeros(3)}), path)

    def work(rank):
        write_plan.DIRECT_FILE_MIN = direct.DIRECT_MIN = 1 << 12
        if rank == failed:

            def full(*arguments):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            syscalls.write_at = syscalls.write_ranges_at = full
        large = distribute_tensor(torch.ones(1 << 20), init_device_mesh("cpu", (2,)), [Shard(0)])
        TensorDict({"large": large}).save(path, **options)

    outcomes = ranks.start(2, work).wait()
    check(outcomes, failed, "OSError", "No space left on device")
    assert "large" in outcomes[failed].text and load_memmap(path)["large"].tolist() == [0, 0, 0]
    assert not leftovers(tmp_path, path)


@pytest.mark.parametrize("absent", [0, 1])
def test_a_rank_that_never_arrives_is_named_in_time(ranks, tmp_path, absent):
    path, reported, options = tmp_path / "saved", tmp_path / "reported", {}
    save(content(0), path)

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        if rank == absent:
            while not reported.exists():  # an absent rank that has ended is another error
                time.sleep(0.05)
            return None
        td = sharded(1, mesh)
        started = time.monotonic()
        with pytest.raises(rendezvous.RankError, match=rf"rank {absent}.* did not arrive.* within 0.5 s") as caught:
            td.save(path, timeout=0.5, **options)
        reported.touch()
        assert caught.value.ranks == [absent]
        return time.monotonic() - started

    grace = rendezvous._GRACE
    rendezvous._GRACE = 0.5
    try:
        times = ranks.run(2, work)
    finally:
        rendezvous._GRACE = grace
    assert max(one for one in times if one is not None) < SLOW and version_of(path) == 0


def test_a_time_limit_is_a_positive_number(ranks, tmp_path):
    def work(rank):
        for wrong, kind in ((0, ValueError), (-1.0, ValueError), (math.nan, ValueError), ("5", TypeError)):
            with pytest.raises(kind, match="timeout="):
                save_version(1, tmp_path / "x", 1, timeout=wrong)
        save_version(1, tmp_path / "x", 1, timeout=5)

    ranks.run(1, work)
    assert version_of(tmp_path / "x") == 1


def test_ranks_that_met_an_error_save_together_again(ranks, target):
    path, options = target

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        if rank == 0:  # rank 1 does not take part in the first save
            with pytest.raises(rendezvous.RankError, match="rank 1"):
                sharded(1, mesh).save(path, timeout=0.2, **options)
        torch.distributed.barrier()
        sharded(2, mesh).save(path, **options)
        other = path if rank else str(path) + "2"
        with pytest.raises((rendezvous.RankError), match="it has path="):
            sharded(3, mesh).save(other, **options)
        sharded(4, mesh).save(path, **options)

    ranks.run(2, work)
    assert version_of(path) == 4


def test_other_entries_or_shapes_of_a_rank_are_named(ranks, tmp_path):
    def work(rank):
        group = torch.distributed.group.WORLD
        td = TensorDict({"a": torch.zeros(3), "b": torch.zeros(4 + rank)})
        with pytest.raises((ValueError, rendezvous.RankError), match=r"'b' is torch.float32 \[4\] on rank 0 .* rank 1"):
            td.save(tmp_path / "x.safetensors", group=group)
        if rank:
            td["c"] = torch.zeros(1)
        for placements in (None, Shard(0)):
            with pytest.raises((ValueError, rendezvous.RankError), match=r"rank 1 has 'c', which rank 0 lacks"):
                td.save(tmp_path / "x.safetensors", group=group, placements=placements)

    ranks.run(2, work)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("failed", [0, 1])
def test_an_interrupt_of_one_rank_ends_all(ranks, target, leftovers, failed):
    path, options = target

    def work(rank):
        if rank == failed:

            def interrupt(*arguments, **named):
                raise KeyboardInterrupt

            saves.writes_of = interrupt
        save_version(1, path, 2, **options)

    outcomes = ranks.start(2, work).wait()
    assert outcomes[failed].error == "KeyboardInterrupt"
    other = outcomes[1 - failed]
    assert other.error == "RankError" and other.ranks == [failed] and other.seconds < SLOW, other
    assert version_of(path) == 0 and not leftovers(path.parent, path)


# --- kills


STEPS = [(step, killed) for step in ("joined", "gather", "writes_of") for killed in (0, 1)] + [
    ("receive", 1),
    ("scatter", 0),
]


@pytest.mark.parametrize(("step", "killed"), STEPS)
def test_a_rank_that_dies_at_a_step_leaves_the_earlier_checkpoint(ranks, target, leftovers, step, killed):
    path, options = target

    def work(rank):
        if rank == killed:
            plain = getattr(saves, step)
            seen = []

            def die(*arguments, **named):
                seen.append(1)
                if len(seen) == 2 or step in ("joined", "writes_of"):
                    os.kill(os.getpid(), signal.SIGKILL)
                return plain(*arguments, **named)

            setattr(saves, step, die)
        save_version(1, path, 2, timeout=1.0, **options)

    outcomes = ranks.start(2, work).wait()
    assert outcomes[killed].died
    other = outcomes[1 - killed]
    made = step == "receive"  # a rank that has reported its success is not needed any more
    if made:
        assert other.error is None
    else:
        assert other.error == "RankError" and other.ranks == [killed] and other.seconds < SLOW, other
    # the coordinator may die after its rename and before it says so
    assert version_of(path) == int(made or step == "scatter")
    ranks.run(2, save_version_of_rank, 2, path, 2, options)
    assert version_of(path) == 2 and not leftovers(path.parent, path)


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("failed", [0, 1])
def test_a_rank_that_fails_to_record_checksums_leaves_the_earlier_checkpoint(ranks, target, leftovers, failed, dies):
    path, options = target

    def work(rank):
        if rank == failed:

            def fail(*arguments):
                if dies:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError(errno.EIO, "the disk is gone")

            saves.hash_share = fail
        save_version(1, path, 2, checksum=True, **options)

    outcomes = ranks.start(2, work).wait()
    other = outcomes[1 - failed]
    assert outcomes[failed].died == dies and other.error == "RankError" and other.ranks == [failed], outcomes
    assert version_of(path) == 0
    ranks.run(2, save_version_of_rank, 2, path, 2, {"checksum": True, **options})
    assert version_of(path) == 2 and not leftovers(path.parent, path)


def save_version_of_rank(rank, version, path, count, options):
    save_version(version, path, count, **options)


def save_forever(rank, first, path, count, options, done):
    mesh = init_device_mesh("cpu", (count,))
    version = first
    while True:
        sharded(version, mesh).save(path, timeout=20.0, **options)
        done[8 * rank : 8 * rank + 8] = version.to_bytes(8, "little")
        version += 1


def kill_often(ranks, path, options, count, killed, rounds_, seed):
    """Kills one rank again and again at random moments of saves; the last version that was found."""
    chance = random.Random(seed)
    found = version_of(path)
    for _ in range(rounds_):
        done = mmap.mmap(-1, 8 * count)
        done[:] = found.to_bytes(8, "little") * count
        ranks.start(count, save_forever, found + 1, path, count, options, done)
        deadline = time.monotonic() + 30
        while int.from_bytes(done[:8], "little") == found and time.monotonic() < deadline:
            time.sleep(0.0005)
        time.sleep(chance.random() * 0.05)
        os.kill(ranks.children[killed][0], signal.SIGKILL)
        outcomes = ranks.wait()
        for rank, outcome in enumerate(outcomes):
            if rank != killed:
                assert outcome.error == "RankError" and killed in outcome.ranks, outcome
        made = max(int.from_bytes(done[8 * rank : 8 * rank + 8], "little") for rank in range(count))
        assert made > found, "no save was made in time"
        found = version_of(path)
        assert made <= found <= made + 1
    return found


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_is_killed_at_a_random_moment(ranks, target, leftovers, killed):
    path, options = target
    last = kill_often(ranks, path, options, 2, killed, 3, killed)
    ranks.run(2, save_version_of_rank, last + 1, path, 2, options)
    assert version_of(path) == last + 1 and not leftovers(path.parent, path)


@pytest.mark.long
@pytest.mark.parametrize(("count", "killed"), [(2, 0), (2, 1), (4, 0), (4, 1), (4, 2), (4, 3)])
def test_each_rank_killed_at_100_random_moments(ranks, target, leftovers, count, killed):
    path, options = target
    last = kill_often(ranks, path, options, count, killed, 100, 10 * count + killed)
    ranks.run(count, save_version_of_rank, last + 1, path, count, options)
    assert version_of(path) == last + 1 and not leftovers(path.parent, path)


# --- readers


def test_loads_during_saves_find_one_version(ranks, target):
    path, options = target
    done = mmap.mmap(-1, 16)
    ranks.start(2, save_forever, 1, path, 2, options, done)
    seen = set()
    deadline = time.monotonic() + 30
    while len(seen) < 10 and time.monotonic() < deadline:
        seen.add(version_of(path))
    ranks.kill()
    assert len(seen) >= 10


def test_ranks_load_one_version_while_others_save(ranks, tmp_path):
    path, first_is_read, last = tmp_path / "saved.safetensors", tmp_path / "read", 59
    save(content(0), path)

    def work(rank):
        if rank == 0:
            while not first_is_read.exists():
                time.sleep(0.001)
            for version in range(1, last + 1):
                save(content(version), path)
            return None
        from torch.distributed.device_mesh import DeviceMesh

        alone = DeviceMesh("cpu", [1], _init_backend=False)
        like = TensorDict({"leaf0": distribute_tensor(content(0)["leaf0"], alone, [Shard(0)], src_data_rank=None)})
        seen = set()
        while last not in seen:
            loaded = TensorDict.load(path, like=like, strict=False)["leaf0"].to_local()
            assert loaded.unique().numel() == 1
            seen.add(int(loaded[0, 0]))
            first_is_read.touch()
        return seen

    assert {0, last} <= ranks.run(2, work)[1] <= {*range(last + 1)}


def test_a_missing_shard_and_a_shard_of_another_save_are_named(ranks, tmp_path):
    options = TARGETS["shards"][1]
    for name, version in (("one", 1), ("two", 2)):
        ranks.run(2, save_version_of_rank, version, tmp_path / name, 2, options)
    shard = "model-00002-of-00006.safetensors"
    assert shard in os.listdir(tmp_path / "one")
    os.rename(tmp_path / "one" / shard, tmp_path / "kept")
    with pytest.raises((OSError, ValueError), match=shard):
        load_memmap(tmp_path / "one")
    os.link(tmp_path / "two" / shard, tmp_path / "one" / shard)
    with pytest.raises(ValueError, match=rf"{shard} is of another save"):
        load_memmap(tmp_path / "one")
    os.unlink(tmp_path / "one" / shard)
    os.rename(tmp_path / "kept", tmp_path / "one" / shard)
    assert version_of(tmp_path / "one") == 1
