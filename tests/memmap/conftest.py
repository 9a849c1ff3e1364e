"""What several tests of this package need: strict equality of tensordicts, children that may die, fingerprints."""

from __future__ import annotations

import hashlib
import os
import signal
import stat
import sys
import time
import traceback

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorData, NonTensorStack, UnbatchedTensor


def _raw_bytes(tensor):
    tensor = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""


def _same(a, b):
    assert type(a) is type(b) and a.batch_size == b.batch_size and a.names == b.names
    if isinstance(a, LazyStackedTensorDict):
        assert a.stack_dim == b.stack_dim and len(a.tensordicts) == len(b.tensordicts)
        for one, two in zip(a.tensordicts, b.tensordicts, strict=True):
            _same(one, two)
        return
    assert list(a.keys()) == list(b.keys())
    for key in list(a.keys()):
        one, two = a.get(key), b.get(key)
        if isinstance(one, torch.Tensor) and one.is_nested:
            assert one.layout == two.layout and one.dtype == two.dtype
            for x, y in zip(one.unbind(), two.unbind(), strict=True):
                assert x.shape == y.shape and _raw_bytes(x) == _raw_bytes(y)
        elif isinstance(one, torch.Tensor):
            assert one.dtype == two.dtype and one.shape == two.shape and _raw_bytes(one) == _raw_bytes(two), key
        elif isinstance(one, UnbatchedTensor):
            assert type(two) is type(one)
            assert one.batch_size == two.batch_size and torch.equal(one.tensor, two.tensor)
        elif isinstance(one, NonTensorData | NonTensorStack):
            assert type(two) is type(one)
            assert one.tolist() == two.tolist() and one.batch_size == two.batch_size
        else:
            _same(one, two)


@pytest.fixture(scope="session")
def raw_bytes():
    """The bytes of a tensor, in C order."""
    return _raw_bytes


@pytest.fixture(scope="session")
def same():
    """Asserts that two tensordicts are the same: keys and their order, metadata, types, dtypes and bytes."""
    return _same


class Child:
    """A forked child. It never returns into pytest, whatever happens in it; errors go to its standard error."""

    def __init__(self, function, *arguments):
        self.status = None
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                torch.set_num_threads(1)  # as workers do: OpenMP's threads are not there after a fork
                function(*arguments)
                status = 0
            except BaseException:
                traceback.print_exc(file=sys.__stderr__)
            finally:
                os._exit(status)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def wait(self, seconds=120.0):
        """How it ended: 0, the status that it gave, or minus the signal that ended it; ``"hangs"`` after a time."""
        pause = 0.0005  # seconds in which this process waited: while the machine stalls, no child makes progress
        while not self.has_ended():
            if seconds < 0:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                self.status = "hangs"
                break
            time.sleep(pause)
            seconds -= pause
            pause = min(2 * pause, 0.02)
        return self.status

    def has_ended(self):
        """Whether it has; then ``status`` is how."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None


@pytest.fixture
def fork():
    """Runs a function in a forked child; children that a test leaves are killed when it ends."""
    children = []

    def start(function, *arguments):
        child = Child(function, *arguments)
        children.append(child)
        return child

    yield start
    for child in children:
        if child.status is None:
            child.kill()


def _fingerprint(folder):
    found = {}
    for place, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = os.path.join(place, name)
            info = os.lstat(path)
            content = ""
            if stat.S_ISREG(info.st_mode):
                with open(path, "rb") as file:
                    content = hashlib.sha256(file.read()).hexdigest()
            elif stat.S_ISLNK(info.st_mode):
                content = os.readlink(path)
            found[os.path.relpath(path, folder)] = (stat.S_IFMT(info.st_mode), info.st_size, info.st_mtime_ns, content)
            if stat.S_ISDIR(info.st_mode):
                found[os.path.relpath(path, folder)] = (stat.S_IFDIR,)
    return found


@pytest.fixture(scope="session")
def fingerprint():
    """Every file below a folder with its size, time of change and hash."""
    return _fingerprint


class Openings:
    """What is done right before a path is opened by this process, whoever opens it: once for each action."""

    def __init__(self):
        self.actions = {}
        self.done = 0
        sys.addaudithook(self._hear)  # it stays until the process ends, and hears nothing once there are no actions

    def __call__(self, path, *actions):
        self.actions[str(path)] = list(actions)

    def _hear(self, event, arguments):
        if event != "open" or not self.actions or not isinstance(arguments[0], str):
            return
        actions = self.actions.pop(arguments[0], None)  # what an action opens itself starts no other
        if actions:
            actions.pop(0)()
            self.done += 1
            if actions:
                self.actions[arguments[0]] = actions


@pytest.fixture
def before_opening():
    """Lets tests put something else at a path at the very moment in which that could be taken for what was there."""
    openings = Openings()
    yield openings
    openings.actions.clear()


def _leftovers(*folders):
    return [
        os.path.join(folder, name)
        for folder in folders
        if os.path.isdir(folder)
        for name in os.listdir(folder)
        if ".tensordict-" in name or name.startswith("tensordict.journal")
    ]


@pytest.fixture(scope="session")
def leftovers():
    """What saves left in folders; an earlier save that is on its way out has some seconds to go."""

    def wait_for_none(*folders, seconds=60.0):
        deadline = time.monotonic() + seconds
        while (found := _leftovers(*folders)) and time.monotonic() < deadline:
            time.sleep(0.005)
        return found

    return wait_for_none


@pytest.fixture(scope="module")
def bucket(request):
    """The URL of an empty bucket on a server of the S3 protocol in this process."""
    server = pytest.importorskip("moto.server", reason="needs the server of moto")
    s3fs = pytest.importorskip("s3fs", reason="s3:// needs s3fs")
    import fsspec

    keys = {"key": "test", "secret": "test", "client_kwargs": {"region_name": "eu-west-1"}}
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    before = fsspec.config.conf.get("s3")
    fsspec.config.conf["s3"] = {**keys, "endpoint_url": f"http://{host}:{port}"}
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        name = request.module.__name__.rpartition(".")[2].replace("_", "-")  # servers of one process share buckets
        s3fs.S3FileSystem().mkdir(name)
        yield f"s3://{name}"
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        fsspec.config.conf.pop("s3")
        if before is not None:
            fsspec.config.conf["s3"] = before
        running.stop()
