"""Static types: the annotations are in the modules, and the files of `tests/typing` run."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import ModuleType

import pytest

import tensordict_class
from tensordict_class import TensorClass

FOLDER = Path(inspect.getfile(tensordict_class)).parent
CHECKED = Path(__file__).parents[1] / "typing" / "tensorclasses.py"


def test_the_package_is_typed_and_has_no_stub_beside_its_code():
    assert (FOLDER / "py.typed").exists()
    assert not list(FOLDER.rglob("*.pyi"))


def test_lines_that_checkers_accept_run(monkeypatch):
    lines = CHECKED.read_text().splitlines()
    refused = [line for line in lines if "ignore[" in line and not line.startswith((" ", "class "))]
    assert len(refused) > 10
    source = "\n".join("" if line in refused else line for line in lines)
    module = ModuleType("checked")
    monkeypatch.setitem(sys.modules, "checked", module)
    exec(compile(source, str(CHECKED), "exec"), vars(module))


@pytest.mark.parametrize("name", ["reshape", "sum", "to", "clone", "apply"])
def test_signatures_and_docstrings_of_operations_are_those_of_core(name):
    member = getattr(TensorClass, name)
    assert inspect.getdoc(member) and len(inspect.signature(member).parameters) > 1


def test_the_signature_of_a_class_shows_its_fields_then_the_metadata():
    class Point(TensorClass):
        x: int
        label: str = "origin"

    assert list(inspect.signature(Point).parameters) == ["x", "label", "batch_size", "device", "names"]
    assert inspect.signature(Point).parameters["label"].annotation == "str"
