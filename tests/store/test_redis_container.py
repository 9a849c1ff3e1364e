"""Redis: a store passes the tests of every container."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("redis", reason="redis-py is an extra")

from tensordict_core import TensorDict
from tensordict_core.testing import ContainerSuite
from tensordict_store import TensorDictStore


class TestTensorDictStore(ContainerSuite):
    copies_shallowly = False
    shares_slices = False
    pickles_entries = False
    compiles = False

    @pytest.fixture(autouse=True)
    def _server(self, redis_port: int) -> None:
        self.port = redis_port

    def wrap(self, td: TensorDict) -> Any:
        return TensorDictStore.from_tensordict(td, port=self.port)
