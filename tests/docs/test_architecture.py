"""The page about the architecture names files and folders that exist, and draws each file in its own folder."""

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


def drawn_files() -> list[tuple[str, str]]:
    """The files that the drawings name, each with the folder of its line, or of the last line that has one."""
    found, folder = [], ""
    for drawing in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL):
        for line in drawing.splitlines():
            if heading := re.match(r"  (\w+)/?  ", line):
                folder = heading[1]
            elif line.startswith("  TensorDict.load(") or line.startswith("  td.save("):
                folder = "compat"
            found += [(folder, name) for name in re.findall(r"[\w/]+\.py\b", line)]
    return found


@pytest.mark.parametrize(("folder", "name"), sorted(set(drawn_files())))
def test_a_file_is_drawn_in_its_folder(folder: str, name: str) -> None:
    assert any(f"/{folder}/" in path.as_posix() and path.as_posix().endswith(f"/{name}") for path in SOURCES)


def test_the_example_quotes_the_code() -> None:
    [path, quoted] = re.findall(r"1\. `([\w/.]+)` declares `([^`]+), \.\.\.\)`", PAGE)[0]
    [source] = [one for one in SOURCES if one.as_posix().endswith(f"tensordict_core/{path}")]
    assert quoted in source.read_text()
