"""Zarr: a persistent tensordict passes the tests of every container."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("zarr", reason="zarr is an extra")

import zarr.storage

from tensordict_core import TensorDict
from tensordict_core.testing import ContainerSuite


class TestPersistentTensorDictOnZarr(ContainerSuite):
    copies_shallowly = False
    shares_slices = False
    pickles_entries = False
    compiles = False

    def wrap(self, td: TensorDict) -> Any:
        return td.to_zarr(zarr.storage.MemoryStore())
