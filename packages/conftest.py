"""What the examples in docstrings take for granted: torch and the container are imported, and the folder is theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tensordict_core import TensorDict


@pytest.fixture(autouse=True)
def _prelude(doctest_namespace: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doctest_namespace |= {"torch": torch, "TensorDict": TensorDict}
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
