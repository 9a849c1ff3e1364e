"""S3: ranks upload parts of one save to a server of the S3 protocol, and read their ranges from there."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import sys
from xml.etree import ElementTree

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

from tensordict_core import TensorDict
from tensordict_memmap import load_memmap, save
from tensordict_memmap.distributed import upload
from tensordict_memmap.remote.multipart import Multipart
from tensordict_memmap.remote.store import Store

pytest.importorskip("moto.server", reason="needs the server of moto")
s3fs = pytest.importorskip("s3fs", reason="s3:// needs s3fs")

KEYS = {"key": "test", "secret": "test", "client_kwargs": {"region_name": "eu-west-1"}}
SERVER = """
import sys, time
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def endpoint():
    """A server in a process of its own: the ranks are forked from this one, which has no threads of it."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    yield f"http://127.0.0.1:{int(server.stdout.readline())}"
    server.stdin.close()
    server.stdout.close()
    server.wait()


def use(endpoint):
    """Makes this process use the server; s3fs has a thread, so every rank does this for itself."""
    import fsspec

    fsspec.config.conf["s3"] = {**KEYS, "endpoint_url": endpoint}
    s3fs.S3FileSystem.clear_instance_cache()


class Bucket:
    """Runs steps on ranks, and says what the server has."""

    def __init__(self, ranks, endpoint):
        self.ranks, self.endpoint = ranks, endpoint
        self.request("bucket", "PUT")

    def start(self, count, work):
        def run(rank):
            use(self.endpoint)
            return work(rank)

        return self.ranks.start(count, run)

    def run(self, count, work):
        def run(rank):
            use(self.endpoint)
            return work(rank)

        return self.ranks.run(count, run)

    def holds(self, url, value):
        return self.run(1, lambda rank: matches(url, value))[0]

    def request(self, path, method="GET"):
        """The answer of the server, asked without s3fs and its thread, which this process must not have."""
        with contextlib.closing(http.client.HTTPConnection(self.endpoint.removeprefix("http://"))) as connection:
            connection.request(method, f"/{path}")
            answer = connection.getresponse()
            assert answer.status == 200, answer.reason
            return answer.read()

    def uploads(self):
        """The number of unfinished uploads."""
        return len(ElementTree.fromstring(self.request("bucket?uploads")).findall("{*}Upload"))


@pytest.fixture
def bucket(ranks, endpoint):
    return Bucket(ranks, endpoint)


def content(value=0):
    """24 MiB: several parts of 8 MiB, which begin and end inside of tensors."""
    rows = torch.arange(3 << 20, dtype=torch.int32).view(3072, 1024) + value
    return TensorDict(
        {"rows": rows, "columns": rows[:1000, :700] * 2, "in": {"whole": rows[:2048] + 1, "text": "hello"}}
    )


def sharded(td, mesh):
    made = td.clone()
    for key, placement in (("rows", Shard(0)), ("columns", Shard(1)), (("in", "whole"), Replicate())):
        made[key] = distribute_tensor(td[key].contiguous(), mesh, [placement], src_data_rank=None)
    return made


def matches(url, value):
    loaded, expected = load_memmap(url), content(value)
    assert loaded["in", "text"] == "hello"
    return all(torch.equal(loaded[key], expected[key]) for key in ("rows", "columns", ("in", "whole")))


TARGETS = [
    ("x.safetensors", {}),
    pytest.param("shards", {"format": "safetensors", "shard_size": 10 << 20}, marks=pytest.mark.long),
    ("tree", {}),
]


@pytest.mark.parametrize(("name", "options"), TARGETS)
def test_ranks_upload_parts_of_one_save(bucket, name, options):
    url = f"s3://bucket/{name}"

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        sent = []
        plain = Multipart.put_part

        def put(self, path, upload, number, data):
            if upload:  # else it is a whole object
                sent.append(len(data))
            return plain(self, path, upload, number, data)

        Multipart.put_part = put
        for value in (1, 2):  # the second replaces the first
            sharded(content(value), mesh).save(url, **options)
        return sum(sent)

    sent = bucket.run(2, work)
    assert all(count >= 4 << 20 for count in sent)  # both upload
    assert bucket.holds(url, 2) and bucket.uploads() == 0


@pytest.mark.parametrize(("name", "options"), TARGETS)
def test_ranks_read_their_ranges(bucket, name, options):
    url = f"s3://bucket/read-{name}"

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        if rank == 0:
            save(content(), url, **options)
        torch.distributed.barrier()
        seen = []
        plain = Store.read_ranges
        Store.read_ranges = lambda self, wanted: seen.extend(wanted) or plain(self, wanted)
        wanted = sharded(content(), mesh)
        like = wanted.apply(torch.zeros_like)
        loaded = TensorDict.load(url, like=like)
        like.load_(url)
        for key in ("rows", "columns", ("in", "whole")):
            assert torch.equal(loaded[key].to_local(), wanted[key].to_local()), key
            assert torch.equal(like[key].to_local(), wanted[key].to_local()), key
        return sum(end - start for _, start, end in seen) / 2

    # half of the rows, the whole replicated tensor, and all columns, whose gaps cost less than requests
    needed = (6 << 20) + (8 << 20) + 2_800_000
    assert all(read < 1.05 * needed + (1 << 17) for read in bucket.run(2, work))


@pytest.mark.parametrize("failed", [pytest.param(0, marks=pytest.mark.long), 1])
@pytest.mark.parametrize(("name", "options"), TARGETS)
def test_a_failed_upload_leaves_the_earlier_save(bucket, name, options, failed):
    url = f"s3://bucket/failed-{failed}-{name}"

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        sharded(content(1), mesh).save(url, **options)
        before = sorted(Store(url).sizes())
        if rank == failed:

            def broken(*arguments):
                raise OSError("the network is gone")

            upload.Multipart.put_part = broken
        with pytest.raises((OSError, RuntimeError), match="the network is gone"):
            sharded(content(2), mesh).save(url, **options)
        torch.distributed.barrier()
        return before == sorted(Store(url).sizes())

    assert all(bucket.run(2, work))
    assert bucket.holds(url, 1) and bucket.uploads() == 0


@pytest.mark.parametrize("killed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_killed_rank_leaves_the_earlier_save(bucket, killed):
    url = f"s3://bucket/killed-{killed}.safetensors"

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        sharded(content(1), mesh).save(url)
        if rank == killed:

            def die(*arguments):
                os.kill(os.getpid(), signal.SIGKILL)

            upload.Multipart.put_part = die
        sharded(content(2), mesh).save(url)

    outcomes = bucket.start(2, work).wait()
    assert outcomes[killed].died and outcomes[1 - killed].error == "RankError"
    assert outcomes[1 - killed].ranks == [killed]
    assert bucket.holds(url, 1)
    assert bucket.uploads() == (1 if killed == 0 else 0)  # a dead coordinator cannot abort

    def again(rank):
        from tensordict_memmap.remote import snapshots

        snapshots.LEASE_SECONDS = -3600.0
        sharded(content(3), init_device_mesh("cpu", (2,))).save(url)

    bucket.run(2, again)
    assert bucket.holds(url, 3) and bucket.uploads() == 0


def test_stores_without_multipart_calls_are_refused(ranks):
    def work(rank):
        with pytest.raises((ValueError, RuntimeError), match="save to s3://"):
            TensorDict({"a": torch.ones(3)}).save("memory://x.safetensors", group=torch.distributed.group.WORLD)

    ranks.run(2, work)
