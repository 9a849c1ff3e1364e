"""Views of what is mapped share the mapping: nothing is read into memory by taking a part."""

from __future__ import annotations

from typing import Any

import pytest

from tensordict_core import LazyStackedTensorDict, TensorDict
from tensordict_core.testing import MemoryTests
from tensordict_memmap import MemoryMappedTensor, load_memmap


class TestSaved(MemoryTests):
    """A tensordict that was put into files."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Any) -> None:
        self.folder = tmp_path / "saved"

    def wrap(self, td: TensorDict) -> Any:
        saved = td.memmap(self.folder)
        assert all(isinstance(leaf, MemoryMappedTensor) for leaf in saved._leaves())
        return saved


class TestLoaded(TestSaved):
    """A tensordict that was opened from its files."""

    def wrap(self, td: TensorDict) -> Any:
        td.save(self.folder)
        return load_memmap(self.folder)


class TestLoadedLazyStack(TestSaved):
    """A lazy stack that was opened from its files."""

    def wrap(self, td: TensorDict) -> Any:
        LazyStackedTensorDict(*td.unbind(0), stack_dim=0).save(self.folder)
        return load_memmap(self.folder)


class TestConsolidated(TestSaved):
    """Tensors that lie one after the other in one file."""

    def wrap(self, td: TensorDict) -> Any:
        return td.consolidate(self.folder.with_suffix(".td"))
