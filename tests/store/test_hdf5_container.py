"""HDF5: a persistent tensordict passes the tests of every container."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("h5py", reason="h5py is an extra")

from tensordict_core import TensorDict
from tensordict_core.testing import ContainerSuite


class TestPersistentTensorDict(ContainerSuite):
    copies_shallowly = False
    shares_slices = False
    pickles_entries = False
    compiles = False

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> Iterator[None]:
        self.folder, self.numbers, self.opened = tmp_path, itertools.count(), []
        yield
        for file in self.opened:
            file.close()

    def wrap(self, td: TensorDict) -> Any:
        stored = td.to_h5(self.folder / f"{next(self.numbers)}.h5")
        self.opened.append(stored.file)
        return stored
