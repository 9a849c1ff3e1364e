"""Redis: a stored lazy stack of equal elements passes the tests of every container."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("redis", reason="redis-py is an extra")

from tensordict_core import TensorDict, lazy_stack
from tensordict_core.testing import ContainerSuite
from tensordict_store import LazyStackedTensorDictStore


class TestLazyStackedTensorDictStore(ContainerSuite):
    copies_shallowly = False
    shares_slices = False
    pickles_entries = False
    supports_batch_size = False
    compiles = False

    @pytest.fixture(autouse=True)
    def _server(self, redis_port: int) -> None:
        self.port = redis_port

    def wrap(self, td: TensorDict) -> Any:
        return LazyStackedTensorDictStore.from_lazy_stack(lazy_stack(list(td.unbind(0))), port=self.port)
