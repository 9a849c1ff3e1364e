"""The extensions of the site: differences by what a reader does, and notebooks from pages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="the extensions are of Sphinx, which the session docs installs")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from inventories import FOLDER, SITES, entries  # noqa: E402 (a module of docs/_ext)
from migration import GROUPS, grouped, rows  # noqa: E402 (a module of docs/_ext)
from tutorials import FIGURE, notebook  # noqa: E402 (a module of docs/_ext)


def test_the_migration_guide_shows_each_difference_once():
    found = [row for group in grouped().values() for row in group]
    assert sorted(found) == sorted(rows()) and len(found) > 100
    page = (ROOT / "docs" / "migration.md").read_text()
    assert all(page.count(f"```{{differences}} {name}\n") == 1 for name in GROUPS)


@pytest.mark.parametrize("name", GROUPS)
def test_no_group_of_differences_is_empty(name):
    assert grouped()[name]


def test_a_page_becomes_a_notebook_without_outputs_and_prompts():
    pytest.importorskip("jupytext", reason="the session docs installs it")
    text = (
        "# Title\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n<!-- figure: what\nit shows -->\n\n"
        "```python\n>>> x = 1\n>>> x\n1\n>>> y\nTraceback (most recent call last):\nNameError: no y\n```\n"
    )
    code = [cell for cell in notebook(text).cells if cell.cell_type == "code"]
    assert [cell.source for cell in code] == ["print(1)", "x = 1", "x", "y"]
    assert code[-1].metadata["tags"] == ["raises-exception"]
    assert not any("```text" in cell.source or "figure:" in cell.source for cell in notebook(text).cells)
    assert FIGURE.findall(text) == ["what\nit shows"]


@pytest.mark.parametrize("name", SITES)
def test_an_inventory_has_a_page_for_each_name(name):
    lines = list(entries((FOLDER / f"{name}.txt").read_text()))
    assert lines and len({line.split(" py:")[0] for line in lines}) == len(lines)
    assert all(".html#" in line for line in lines)
