"""S3: saves, loads, range requests and replacement against a server of the S3 protocol."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import compare, convert, load_memmap, save
from tensordict_memmap.remote import snapshots
from tensordict_memmap.remote.store import Store

KEYS = {"key": "test", "secret": "test", "client_kwargs": {"region_name": "eu-west-1"}}


def content(value=0.0):
    return TensorDict(
        {
            "x": torch.arange(60_000.0).view(2000, 30) + value,
            "b": {str(n): torch.full((2000,), n + value) for n in range(10)},
            "s": "text",
        },
        [2000],
    )


def folders(url):
    return {path.split("/")[0] for path in Store(url).sizes() if "/" in path}


@pytest.mark.parametrize("name", ["tree", "one.safetensors", "one.tdz"])
def test_saves_load_back_and_are_replaced_as_a_whole(bucket, name):
    url = f"{bucket}/{name}"
    for value in (0.0, 1.0):
        save(content(value), url)
        assert not compare(url, content(value), values=True)
    assert len(folders(url)) == (name == "tree")


@pytest.mark.parametrize("name", ["parts", "parts.safetensors", "parts.tdz"])
def test_parts_are_read_by_ranges(bucket, name, monkeypatch):
    url = f"{bucket}/{name}"
    td = TensorDict({"x": torch.arange(400_000).view(20_000, 20), "y": torch.arange(20_000)}, [20_000])
    save(td, url)
    seen = []
    plain = Store.read_ranges
    monkeypatch.setattr(Store, "read_ranges", lambda self, wanted: seen.extend(wanted) or plain(self, wanted))
    assert torch.equal(load_memmap(url, keys="x", rows=[19_999, 4])["x"], td["x"][[19_999, 4]])
    assert torch.equal(load_memmap(url, subpath="y", rows=slice(7, 9)), td["y"][7:9])
    assert sum(end - start for _, start, end in seen) < 1 << 19


def test_shards_and_conversions(bucket, tmp_path):
    save(content(), f"{bucket}/shards", format="safetensors", shard_size=100_000)
    convert(f"{bucket}/shards", tmp_path / "x")
    convert(tmp_path / "x", f"{bucket}/again.tdz")
    assert not compare(f"{bucket}/again.tdz", content(), values=True)


def test_a_failed_save_keeps_the_earlier_one(bucket, monkeypatch):
    url = f"{bucket}/kept"
    save(content(), url)
    before = sorted(Store(url).sizes())
    with monkeypatch.context() as patch:

        def gone(self, path, data):
            raise OSError("the network is gone")

        patch.setattr(Store, "write", gone)
        with pytest.raises(OSError, match="network"):
            save(content(1.0), url)
    assert sorted(Store(url).sizes()) == before and not compare(url, content(), values=True)


KILLED = f"""
import os, signal, sys
import fsspec, torch
from tensordict_core import TensorDict
from tensordict_memmap import save
from tensordict_memmap.remote import snapshots
from tensordict_memmap.remote.store import Store

url, endpoint, moment = sys.argv[1:]
snapshots.LEASE_SECONDS = -3600.0
fsspec.config.conf["s3"] = {{**{KEYS!r}, "endpoint_url": endpoint}}

def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

if moment == "while files go out":
    snapshots.SnapshotWriter.renew_lease = die
elif moment == "before the manifest":
    snapshots.SnapshotWriter.publish = die
else:
    snapshots._remove = die
save(TensorDict({{"x": torch.ones(3)}}), url)
"""


@pytest.mark.parametrize("moment", ["while files go out", "before the manifest", "before the earlier save is removed"])
def test_the_next_save_removes_the_snapshot_of_a_killed_save(bucket, moment, monkeypatch):
    import fsspec

    monkeypatch.setattr(snapshots, "LEASE_SECONDS", -3600.0)  # the leases of the killed saves have expired
    url = f"{bucket}/killed {moment}"
    save(content(), url)
    command = [sys.executable, "-c", KILLED, url, fsspec.config.conf["s3"]["endpoint_url"], moment]
    for times in (1, 2):
        assert subprocess.run(command, timeout=120).returncode == -signal.SIGKILL
        assert len(folders(url)) == 2, "each save removes the snapshot of the one before it"
        expected = content() if "manifest" in moment or "out" in moment else TensorDict({"x": torch.ones(3)})
        assert not compare(url, expected, values=True), times
    save(content(1.0), url)
    assert len(Store(url).sizes()) == len(Store(f"{url}/{folders(url).pop()}").sizes()) + 2
    assert not compare(url, content(1.0), values=True)


def test_a_missing_save_is_a_file_not_found_error(bucket):
    with pytest.raises(FileNotFoundError, match="nothing"):
        load_memmap(f"{bucket}/nothing")
