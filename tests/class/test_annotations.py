"""Annotations of fields: names of later classes, strings, optional types, unions, the class itself."""

from __future__ import annotations

import pickle
import sys
import types
from dataclasses import fields
from typing import Any, Optional, Self, TypeVar

import pytest
import torch

from tensordict_class import TensorClass
from tensordict_core import TensorDict

T = TypeVar("T")


class Tree(TensorClass):
    value: torch.Tensor
    leaf: Leaf | None = None
    same: "Optional[Leaf]" = None  # noqa: UP037, UP045 both spellings are meant
    parent: Tree | None = None

    def doubled(self) -> Self:
        return self * 2

    @classmethod
    def of(cls, value: float) -> Self:
        return cls(torch.tensor(value))

    @staticmethod
    def answer() -> int:
        return 42


class Leaf(TensorClass, autocast=True):
    width: int
    either: int | str = 0
    tag: str | None = None
    tensor: torch.Tensor | None = None


def test_a_field_may_name_a_class_that_is_defined_later():
    td = TensorDict(
        {"value": torch.zeros(2)} | {key: TensorDict({"tensor": torch.ones(2)}) for key in ("leaf", "same")}
    )
    tree = Tree.from_tensordict(td)
    assert type(tree.leaf) is type(tree.same) is Leaf and tree.leaf.tensor.tolist() == [1.0, 1.0]


def test_a_field_may_name_its_own_class():
    tree = Tree.from_tensordict(TensorDict({"value": torch.zeros(2), "parent": {"value": torch.ones(2)}}))
    assert type(tree.parent) is Tree and type((tree + 1).parent) is Tree


def test_optional_fields_of_tensors_are_cast_others_keep_matching_values_and_all_may_be_none():
    leaf = Leaf("3", tag="t", tensor=[1.0, 2.0])
    assert (leaf.width, leaf.tag, leaf.tensor.tolist()) == (3, "t", [1.0, 2.0])
    assert Leaf(3).tag is None and Leaf(3).tensor is None


@pytest.mark.parametrize("value", ["text", None])
def test_unions_of_several_types_take_values_as_they_are(value: Any):
    assert Leaf(3, either=value).either == value


def test_methods_of_every_kind_know_the_class():
    class Child(Tree):
        pass

    assert type(Child.of(1.0).doubled()) is Child and Child.answer() == Child.of(1.0).answer() == 42


class Numbered(TensorClass):
    x: torch.Tensor
    count: int | None = None
    share: float = 0.5


def test_numbers_of_the_annotated_type_are_kept_in_a_batch():
    one = Numbered(torch.zeros(2), 3, batch_size=[2])
    assert one.count == 3 and one.share == 0.5 and one[0].count == 3
    one.count = True
    assert one.count is True
    for value in (2.5, torch.tensor(3), [1, 2, 3]):
        with pytest.raises(RuntimeError, match="batch size"):
            one.count = value
    assert one.count is True
    one.count = [1, 2]
    assert one.count.tolist() == [1, 2]
    assert Numbered(torch.zeros(2), 3).count.equal(torch.tensor(3))


# annotations of Python 3.14, which evaluates them when they are read --------------------------------------------------

NEWER = pytest.mark.skipif(sys.version_info < (3, 14), reason="names in annotations have to be defined there")
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


@NEWER
def test_a_class_names_itself_and_later_ones(module):
    tree = module.Tree(ones(), child=module.Tree(ones()), first=module.Leaf(4))
    assert [f.name for f in fields(module.Tree)] == ["value", "child", "first", "of_a_checker"]
    assert type(tree.child) is module.Tree and tree.first.number == 4 and tree.of_a_checker is None and tree.shared == 3


@NEWER
def test_values_are_cast_to_them(module):
    tree = module.Tree(ones(), child={"value": ones()}, first={"number": torch.tensor(4)})
    assert type(tree.child) is module.Tree and type(tree.first) is module.Leaf and tree.first.number == 4


@NEWER
def test_subclasses_and_operations_keep_them(module):
    tree = pickle.loads(pickle.dumps(module.Grown(ones(), child=module.Tree(ones()), more=None)))
    assert type((tree + 1).child) is module.Tree and (tree + 1).child.value.tolist() == [2, 2]


@NEWER
def test_a_local_class_names_later_ones(module):
    later, inner = module.local()
    assert type(later({"x": ones()}).first) is inner


@NEWER
def test_classes_of_the_decorator(module):
    point = module.Point(x=ones(), above=module.Point(x=ones()))
    assert type(point.above) is module.Point and list(point.keys()) == ["x", "above"]


@NEWER
def test_dataclasses_are_converted(module):
    assert list(module.Converted(x=ones()).keys()) == ["x"]


@NEWER
def test_typed_tensordicts_declare_them(module):
    assert list(module.Typed(x=ones()).keys()) == ["x"] and module.Typed.__optional_keys__ == {"other"}
