"""Formats and the schema describe and parse documents; what opens files is elsewhere."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tensordict_memmap

ROOT = Path(tensordict_memmap.__file__).parent
MODULES = sorted(path for folder in ("schema", "formats") for path in (ROOT / folder).rglob("*.py"))
OPENERS = {"open", "fromfile", "memmap", "from_file", "read_bytes", "read_text", "write_bytes", "write_text"}


def called(node):
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_of_the_schema_or_of_a_format_opens_no_file(path):
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert [called(node) for node in calls if called(node) in OPENERS] == []
