"""What the examples in docstrings take for granted: torch and the container are imported, and the folder is theirs.

Examples of stores on a server reach one, although they give no port.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from redis_process import WHY_NOT, Server, executable

from tensordict_core import TensorDict

REACHES_SERVER = ("to_store(", "from_store(", "TensorDictStore(", "TensorDictStore.from_")


@pytest.fixture(autouse=True)
def _prelude(
    request: pytest.FixtureRequest,
    doctest_namespace: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    doctest_namespace |= {"torch": torch, "TensorDict": TensorDict}
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    test = getattr(request.node, "dtest", None)
    sources = "".join(example.source for example in test.examples) if test else ""
    if any(call in sources for call in REACHES_SERVER):
        request.getfixturevalue("_default_server")


@pytest.fixture(scope="session")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("redis", reason="redis-py is an extra")
    program = executable()
    if program is None:
        pytest.skip(WHY_NOT)
    server = Server(program, tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def _default_server(_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send connections to the usual port of Redis to the server of the tests."""
    from tensordict_store.redis.connection import Connection

    begin = Connection.__init__

    def begin_there(self: Connection, backend: str, client: Any, options: dict[str, Any]) -> None:
        begin(self, backend, client, {**options, "port": _server.port} if options["port"] == 6379 else options)

    monkeypatch.setattr(Connection, "__init__", begin_there)
