"""The page about the architecture names files and folders that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
SOURCES = [*ROOT.glob("packages/*/src/**/*.py"), *ROOT.glob("tools/*.py")]


@pytest.mark.parametrize("name", sorted(set(re.findall(r"[\w/]+\.py\b", PAGE))))
def test_a_file_that_the_page_names_exists(name: str) -> None:
    assert any(path.as_posix().endswith(f"/{name}") for path in SOURCES)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"[\w/]+(?=/[\s`])", PAGE))))
def test_a_folder_that_the_page_names_exists(name: str) -> None:
    assert any(path.parent.as_posix().endswith(f"/{name}") for path in SOURCES)
