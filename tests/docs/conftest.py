"""A Redis server for the page about it: on loopback, with a folder and a port of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis_process import WHY_NOT, Server, executable


@pytest.fixture
def redis_for_pages(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sets the environment variable of the examples to the port of a server."""
    program = executable()
    if program is None:
        pytest.skip(WHY_NOT)
    server = Server(program, tmp_path_factory.mktemp("redis"))
    server.start()
    monkeypatch.setenv("REDIS_PORT", str(server.port))
    yield
    server.stop()
