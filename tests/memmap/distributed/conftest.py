"""Ranks: forked children in a process group over gloo, which run one function and tell how it ended."""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import signal
import sys
import time
import traceback
import warnings
from typing import Any, NamedTuple

import pytest
import torch

dist = pytest.importorskip("torch.distributed", reason="this torch is built without it")
pytest.importorskip("torch.distributed.tensor", reason="this torch is built without it")
# what the first DTensor of a process imports, once for all children
pytest.importorskip("torch.fx.experimental.symbolic_shapes", reason="this torch is built without it")
pytest.importorskip("torch._dynamo", reason="this torch is built without it")

if not dist.is_available() or not hasattr(os, "fork"):
    pytest.skip("ranks are forked and talk over torch.distributed", allow_module_level=True)


class Outcome(NamedTuple):
    """How a rank ended: its result, or the error's class, text and ``ranks``; a rank that was killed has neither."""

    value: Any = None
    error: str | None = None
    text: str = ""
    ranks: list[int] | None = None
    seconds: float = 0.0
    died: bool = False


def serve_store():
    """A child that serves a store: this process has no threads of it, since it forks the ranks."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            os.write(theirs, server.port.to_bytes(4, "little"))
            signal.pause()
        finally:
            os._exit(1)
    os.close(theirs)
    port = int.from_bytes(os.read(ours, 4), "little")
    os.close(ours)
    return pid, port


def connect(port):
    return dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)


class Ranks:
    """Runs functions on several ranks; the store of the process group lives here, as with torchrun in its agent."""

    def __init__(self):
        self.number = 0
        self.children = []
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self.server, self.port = serve_store()
        self.store = connect(self.port)

    def start(self, count, function, *arguments):
        """Starts the ranks; `wait` gives their outcomes, and ``children`` has their processes."""
        self.number += 1
        self.children = []
        for rank in range(count):
            ours, theirs = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(ours)
                self._child(rank, count, theirs, function, arguments)
            os.close(theirs)
            self.children.append((pid, ours))
        return self

    def _child(self, rank, count, pipe, function, arguments):
        status = 1
        try:
            gc.freeze()  # garbage of other tests may belong to threads that are not here, and crashes when it is freed
            torch.set_num_threads(1)
            faulthandler.enable(pipe)
            if os.environ.get("RANKS_TRACE"):
                faulthandler.dump_traceback_later(15, file=sys.__stderr__)
            warnings.simplefilter("error")
            start = time.monotonic()
            try:
                store = connect(self.port)
                place = dist.PrefixStore(f"run{self.number}", store)
                dist.init_process_group("gloo", store=place, rank=rank, world_size=count)
                start = time.monotonic()
                made = Outcome(function(rank, *arguments), seconds=time.monotonic() - start)
            except BaseException as error:
                spent = time.monotonic() - start
                if os.environ.get("RANKS_TRACE"):
                    traceback.print_exc(file=sys.__stderr__)
                made = Outcome(None, type(error).__name__, str(error), getattr(error, "ranks", None), spent)
            faulthandler.disable()
            with os.fdopen(pipe, "wb") as file:
                pickle.dump(made, file)
            # ranks stay until all have told how they ended: who leaves earlier looks like one that died
            store.add(f"done{self.number}", 1)
            deadline = time.monotonic() + 20
            while store.add(f"done{self.number}", 0) < count and time.monotonic() < deadline:
                time.sleep(0.002)
            status = 0
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(status)

    def wait(self, seconds=60.0):
        """The outcomes of all ranks; those that take longer are killed, and fail the test."""
        found = []
        deadline = time.monotonic() + seconds
        for pid, pipe in self.children:
            os.set_blocking(pipe, False)
            data, hung = b"", False
            while True:
                try:
                    part = os.read(pipe, 1 << 20)
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        os.kill(pid, signal.SIGKILL)
                        hung = True
                        break
                    time.sleep(0.001)
                    continue
                if not part:
                    break
                data += part
            os.close(pipe)
            found.append(
                Outcome(error="Hung", text=f"no answer in {seconds} s")
                if hung
                else Outcome(text=data.decode(), died=True)
                if not data or data.startswith(b"Fatal Python error")
                else pickle.loads(data)
            )
        for outcome in found:  # the others wait for one that was killed
            if outcome.died:
                self.store.add(f"done{self.number}", 1)
        for number, (pid, _) in enumerate(self.children):
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if found[number].died:
                found[number] = found[number]._replace(
                    text=f"died with exit code {code}\n{found[number].text}".rstrip()
                )
        self.children = []
        return found

    def run(self, count, function, *arguments, seconds=60.0):
        """The results of a function of the rank on each rank; an error of one is an assertion here."""
        outcomes = self.start(count, function, *arguments).wait(seconds)
        bad = [f"rank {rank}: {one.error}: {one.text}" for rank, one in enumerate(outcomes) if one.error or one.died]
        assert not bad, "\n".join(bad)
        return [outcome.value for outcome in outcomes]

    def kill(self):
        for pid, pipe in self.children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(pipe)
        self.children = []


@pytest.fixture(scope="module")
def every_rank():
    """Runs functions on ranks; one for all tests of a module."""
    made = Ranks()
    yield made
    made.kill()
    os.kill(made.server, signal.SIGKILL)
    os.waitpid(made.server, 0)


@pytest.fixture
def ranks(every_rank):
    """The same, with no child left after a test."""
    yield every_rank
    every_rank.kill()
