"""A Redis server for the tests: on loopback, with a folder and a port of its own; skipped where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_process import WHY_NOT, Server, executable


@pytest.fixture(scope="session")
def redis_program() -> str:
    pytest.importorskip("redis", reason="redis-py is an extra")
    found = executable()
    if found is None:
        pytest.skip(WHY_NOT)
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
