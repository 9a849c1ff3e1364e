"""Annotations that name what is not defined (yet): Python 3.14 evaluates them when they are read, without quotes."""

from __future__ import annotations

import pickle
import sys
import types
from dataclasses import fields
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.skipif(sys.version_info < (3, 14), reason="names in annotations have to be defined there")

SOURCE = """
from dataclasses import InitVar, dataclass
from typing import ClassVar, NotRequired, Optional

from torch import Tensor, ones
from tensordict_class import TensorClass, TypedTensorDict, from_dataclass, tensorclass

class Tree(TensorClass["autocast"]):
    value: Tensor
    child: Tree | None = None
    first: Optional[Leaf] = None
    of_a_checker: Absent = None
    shared: ClassVar[Absent] = 3

class Leaf(TensorClass["autocast"]):
    number: int

class Grown(Tree):
    more: list[Tree] | None = None

@tensorclass
class Point:
    x: Tensor
    above: Point | None = None
    given: InitVar[Absent] = None

@dataclass
class Plain:
    x: Tensor
    other: Absent = None

Converted = from_dataclass(Plain)

class Typed(TypedTensorDict):
    x: Tensor
    other: NotRequired[Absent]

def local():
    class Later(TensorClass["autocast"]):
        first: Inner

    class Inner(TensorClass):
        x: Tensor

    return Later, Inner
"""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of classes whose annotations are no strings, other than those of this file."""
    made = types.ModuleType("forward_references")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    exec(compile(SOURCE, made.__name__, "exec", dont_inherit=True), vars(made))
    return made


def ones() -> torch.Tensor:
    return torch.ones(2)


def test_a_class_names_itself_and_later_ones(module):
    tree = module.Tree(ones(), child=module.Tree(ones()), first=module.Leaf(4))
    assert [f.name for f in fields(module.Tree)] == ["value", "child", "first", "of_a_checker"]
    assert type(tree.child) is module.Tree and tree.first.number == 4 and tree.of_a_checker is None and tree.shared == 3


def test_values_are_cast_to_them(module):
    tree = module.Tree(ones(), child={"value": ones()}, first={"number": torch.tensor(4)})
    assert type(tree.child) is module.Tree and type(tree.first) is module.Leaf and tree.first.number == 4


def test_subclasses_and_operations_keep_them(module):
    tree = pickle.loads(pickle.dumps(module.Grown(ones(), child=module.Tree(ones()), more=None)))
    assert type((tree + 1).child) is module.Tree and (tree + 1).child.value.tolist() == [2, 2]


def test_a_local_class_names_later_ones(module):
    later, inner = module.local()
    assert type(later({"x": ones()}).first) is inner


def test_classes_of_the_decorator(module):
    point = module.Point(x=ones(), above=module.Point(x=ones()))
    assert type(point.above) is module.Point and list(point.keys()) == ["x", "above"]


def test_dataclasses_are_converted(module):
    assert list(module.Converted(x=ones()).keys()) == ["x"]


def test_typed_tensordicts_declare_them(module):
    assert list(module.Typed(x=ones()).keys()) == ["x"] and module.Typed.__optional_keys__ == {"other"}
