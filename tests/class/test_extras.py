"""Behavior without the extras of the package."""

from __future__ import annotations

import sys

import pytest

from tensordict_class import from_pydantic


def test_without_pydantic_the_error_names_the_package_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(ImportError, match=r"pip install 'tensordict-class\[pydantic\]'"):
        from_pydantic(object())
