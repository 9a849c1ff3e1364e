"""The reference is complete: every public name has a page, a docstring and an example."""

from __future__ import annotations

import doctest
import importlib
import inspect
import sys
from pathlib import Path

import pytest

import tensordict_core

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))
pytest.importorskip("sphinx", reason="the extension of the reference is one of Sphinx, which the session docs installs")

from reference import PACKAGES, SHARED, of_torch, own_members, pages, public  # noqa: E402 (a module of docs/_ext)
from topics import DATA, FUNCTIONS, GUIDES, METHODS  # noqa: E402 (a module of docs/_ext)

NAMES = [(package, name) for package in PACKAGES for name in public(package) if name not in DATA]


def example_in(thing: object) -> bool:
    """Whether a docstring has an example."""
    function = thing.__func__ if isinstance(thing, classmethod | staticmethod) else thing
    return ">>>" in (inspect.getdoc(function.fget if isinstance(function, property) else function) or "")


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_every_public_name_has_an_example(package, name):
    assert example_in(getattr(importlib.import_module(package), name))


@pytest.mark.parametrize("name", sorted(SHARED))
def test_every_method_of_containers_has_an_example(name):
    assert example_in(inspect.getattr_static(tensordict_core.TensorDict, name))


def test_every_other_public_member_has_an_example():
    classes = [value for package in PACKAGES for value in public(package).values() if inspect.isclass(value)]
    own = [(owner, name) for owner in classes for name in own_members(owner)]
    members = {
        f"{owner.__module__.split('.')[0]}.{owner.__name__}.{name}": (owner, name)
        for owner, name in own
        if not of_torch(owner, name)  # the base class says what it does
    }
    assert len(members) > 300  # the walk finds them
    assert not {full for full, (owner, name) in members.items() if not example_in(inspect.getattr_static(owner, name))}


@pytest.mark.parametrize("name", sorted(DATA))
def test_the_example_of_a_constant_or_type_runs(name):
    test = doctest.DocTestParser().get_doctest(DATA[name][2], {}, name, None, 0)
    assert test.examples and not doctest.DocTestRunner().run(test).failed


def test_every_public_name_and_every_method_has_a_place():
    placed = list(pages())
    names = {(values["package"], name) for _, kind, values in placed if kind == "functions" for name in values["names"]}
    names |= {(values["package"], values["name"]) for _, kind, values in placed if kind == "class"}
    assert names == set(NAMES)
    methods = [name for _, kind, values in placed if kind == "methods" for name in values["names"]]
    assert sorted(methods) == sorted(SHARED)


def test_every_method_of_containers_belongs_to_a_topic():
    assert not [values["names"] for name, _, values in pages() if name == "tensordict-more"]


def test_topics_refer_to_existing_names_and_guides():
    for package, topics in FUNCTIONS.items():
        for topic in topics:
            assert set(topic.names) <= set(public(package)), topic.title
    guides = {t.guide for topics in (METHODS, *FUNCTIONS.values()) for t in topics if t.guide} | set(GUIDES.values())
    assert not {guide for guide in guides if not (ROOT / "docs" / f"{guide}.md").exists()}
