"""The reference is complete: every name of core is on its page or documented where Sphinx looks for it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import tensordict_core

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
DATA = set(re.findall(r"^\.\. py:data:: (\w+)$", PAGE, re.MULTILINE))


@pytest.mark.parametrize("name", tensordict_core.__all__)
def test_every_name_of_core_is_in_the_reference(name):
    thing = getattr(tensordict_core, name)
    # autodoc lists the classes and functions of __all__ that have a docstring; other values are written on the page
    assert name in DATA or ((inspect.isclass(thing) or inspect.isroutine(thing)) and inspect.getdoc(thing))
    assert ".. automodule:: tensordict_core\n" in PAGE


def test_the_page_shows_no_name_that_is_gone():
    assert set(tensordict_core.__all__) >= DATA


METHODS = [name for name in dir(tensordict_core.TensorCollection) if not name.startswith("_")]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_containers_has_a_docstring(name):
    member = inspect.getattr_static(tensordict_core.TensorCollection, name)
    assert inspect.getdoc(member) or inspect.getdoc(getattr(tensordict_core.TensorCollection, name))
    assert "autoclass:: tensordict_core.TensorCollection\n   :members:\n   :inherited-members:" in PAGE
