"""Inheritance: subclasses, generics, mixins, and the decorator on subclasses."""

from __future__ import annotations

import dataclasses
from abc import ABC, ABCMeta, abstractmethod
from typing import Any, Generic, TypeVar

import pytest
import torch

from tensordict_class import TensorClass, TypedTensorDict, tensorclass
from tensordict_class.compat import TensorClassMeta
from tensordict_core import TensorCollection

T = TypeVar("T")


class Sample(TensorClass):
    x: torch.Tensor
    label: str = "none"
    extra: Any = None


def test_a_generic_class_of_a_generic_class():
    class Box(TensorClass, Generic[T]):
        content: T

    class Labelled(Box[T]):
        label: str = "full"

    class OfTensors(Labelled[torch.Tensor]):
        pass

    full = OfTensors(torch.zeros(2), batch_size=[2])
    assert type(full[0]) is OfTensors and full[0].label == "full" and Labelled[int](3).content.item() == 3


def test_inheritance_adds_fields_and_changes_defaults():
    class Child(Sample):
        y: torch.Tensor = None
        label: str = "child"

    child = Child(torch.zeros(3), y=torch.ones(3), batch_size=[3])
    assert [f.name for f in dataclasses.fields(Child)] == ["x", "label", "extra", "y"]
    assert child.label == "child" and child.y.sum() == 3
    assert isinstance(child[0], Child) and isinstance(child, Sample)


def test_a_field_that_is_annotated_again_keeps_its_default():
    class Child(Sample):
        label: Any

    assert Child(torch.zeros(3)).label == "none"


def test_multiple_inheritance_with_mixins_and_other_tensorclasses():
    class Mixin:
        def greet(self) -> str:
            return f"hi {self.label}"

    class Other(TensorClass):
        y: torch.Tensor

    class Both(Sample, Mixin):
        pass

    class Three(Sample, Other, Mixin):
        z: torch.Tensor = None

    assert Both(torch.zeros(1), "you").greet() == "hi you"
    assert [f.name for f in dataclasses.fields(Three)] == ["y", "x", "label", "extra", "z"]
    three = Three(x=torch.zeros(1), y=torch.ones(1))
    assert three.y == 1 and isinstance(three + 1, Three)
    with pytest.raises(AttributeError):
        three.typo = 1  # although a mixin without slots gives instances a __dict__


def test_generic_classes():
    class Box(TensorClass, Generic[T]):
        content: T

    assert Box[torch.Tensor](torch.zeros(2)).content.shape == (2,)
    assert isinstance(Box(torch.zeros(2)) + 1, Box)

    @tensorclass
    class Decorated(Generic[T]):
        content: T

    assert Decorated[int](torch.zeros(2)).content.shape == (2,)


def test_super_finds_the_class_that_the_decorator_made():
    @tensorclass
    class Louder:
        x: torch.Tensor

        def clone(self, recurse: bool = True) -> Louder:
            return super().clone(recurse) + 1

        @property
        def me(self) -> type:
            return __class__

    assert Louder(torch.zeros(1)).clone().x == 1
    assert Louder(torch.zeros(1)).me is Louder


def test_a_dataclass_can_be_decorated():
    @tensorclass
    @dataclasses.dataclass
    class Point:
        x: torch.Tensor
        tags: Any = dataclasses.field(default_factory=lambda: {"a": 1})
        label: str = "origin"

    point = Point(torch.zeros(2), batch_size=[2])
    assert isinstance(point, TensorCollection) and point.tags == {"a": 1} and point.label == "origin"
    assert "Tensor(shape" in repr(point) and isinstance(point == point, Point)


def test_methods_of_the_class_win_over_those_of_every_tensorclass():
    @tensorclass
    class Own:
        x: torch.Tensor

        def __repr__(self) -> str:
            return "mine"

        def __len__(self) -> int:
            return 77

        def sum(self) -> str:
            return "summed"

    own = Own(torch.zeros(3), batch_size=[3])
    assert repr(own) == "mine" and len(own) == 77 and own.sum() == "summed"


def test_the_decorator_takes_a_subclass_of_a_tensorclass():
    @tensorclass
    class Parent:
        x: torch.Tensor

    @tensorclass
    class Child(Parent):
        y: torch.Tensor = None

    @tensorclass(autocast=True)
    class Cast(Parent):
        n: int = 0

    assert Child.__mro__[1] is Parent and Child(torch.zeros(1), torch.ones(1)).y == 1
    assert Cast(torch.zeros(1), torch.tensor(3)).n == 3 and type(Cast(torch.zeros(1)).n) is int


def test_a_decorated_class_keeps_its_metaclass():
    made = []

    class Registering(type):
        def __init__(cls, name, bases, body):
            super().__init__(name, bases, body)
            made.append(cls)

    @tensorclass
    class Point(metaclass=Registering):
        x: torch.Tensor

    assert type(Point) is Registering and made[-1] is Point
    assert Point(torch.arange(3), batch_size=[3])[1].x == 1

    @tensorclass
    class Further(Point):
        y: torch.Tensor = None

    assert made[-1] is Further and Further(torch.zeros(1), torch.ones(1), batch_size=[1]).y == 1


def test_abstract_methods_of_a_decorated_class_with_flags_stay_abstract():
    @tensorclass(nocast=True)
    class Abstract(metaclass=ABCMeta):
        x: torch.Tensor

        @abstractmethod
        def total(self): ...

    with pytest.raises(TypeError, match="abstract"):
        Abstract(torch.zeros(1), batch_size=[1])


def test_a_metaclass_makes_decorated_classes_with_flags_without_taking_them():
    names = []

    class Registering(type):
        def __new__(cls, name, bases, body):
            names.append(name)
            return super().__new__(cls, name, bases, body)

        def __init__(cls, name, bases, body):
            super().__init__(name, bases, body)
            cls.registered = name

    @tensorclass(nocast=True, kw_only=True)
    class Point(metaclass=Registering):
        x: int

    assert type(Point) is Registering and Point.registered == "Point" and set(names) == {"Point"}
    assert Point(x=3).x == 3 and type(Point(x=3).x) is int
    assert not any("decorator" in name for name in vars(Point))
    with pytest.raises(TypeError):
        Point(3)


@pytest.mark.parametrize(
    "decorate",
    [
        tensorclass,
        tensorclass(nocast=True),
        tensorclass(kw_only=True),
        tensorclass(frozen=True, kw_only=True),
    ],
    ids=["no flags", "nocast", "kw_only", "frozen"],
)
def test_a_metaclass_that_makes_tensorclasses_is_called_for_subclasses(decorate):
    class Making(type):
        def __new__(cls, name, bases, body):
            return decorate(super().__new__(cls, name, bases, body))

    class Base(metaclass=Making):
        def total(self):
            return self.x.sum()

    class Point(Base):
        x: torch.Tensor

    assert type(Point) is Making
    assert Point(x=torch.arange(3), batch_size=[3]).total() == 3


def test_a_class_with_abstract_methods_has_no_instances():
    class State(TensorClass):
        x: torch.Tensor

        @abstractmethod
        def diff(self, other): ...

        @property
        @abstractmethod
        def weight(self): ...

    class Further(State):
        y: torch.Tensor = None

    class Tool(Further):
        weight: torch.Tensor = None  # a field implements the property

        def diff(self, other):
            return self.x - other.x

    for cls in (State, Further):
        with pytest.raises(TypeError, match="abstract"):
            cls(torch.zeros(2))
        with pytest.raises(TypeError, match="abstract"):
            cls.from_dict({"x": torch.zeros(2)})
    assert Tool(torch.ones(2)).diff(Tool(torch.zeros(2))).tolist() == [1, 1]
    assert tensorclass(shadow=True)(Tool)(torch.ones(2)).x.tolist() == [1, 1]


def test_a_typed_tensordict_with_abstract_methods_has_no_instances():
    class State(TypedTensorDict):
        x: torch.Tensor

        @abstractmethod
        def diff(self): ...

    class Tool(State):
        def diff(self):
            return self

    with pytest.raises(TypeError, match="abstract"):
        State(x=torch.zeros(2))
    assert Tool(x=torch.zeros(2)).diff().x.tolist() == [0, 0]


def test_abstract_methods_of_a_decorated_plain_class_are_called():
    @tensorclass
    class State:
        x: torch.Tensor

        @abstractmethod
        def diff(self):
            return self.x

    assert State(torch.zeros(2)).diff().tolist() == [0, 0]

    @tensorclass
    class Strict(State, ABC):
        @abstractmethod
        def other(self): ...

    with pytest.raises(TypeError, match="abstract"):
        Strict(torch.zeros(2))


def test_a_metaclass_of_tensorclasses_is_derived_from_their_public_one():
    class FieldsWithDefaults(TensorClassMeta):
        def __new__(mcs, name, bases, namespace, **flags):
            for field in namespace.get("__annotations__", {}):
                namespace.setdefault(field, dataclasses.field(default=None))
            return super().__new__(mcs, name, bases, namespace, **flags)

    class Base(TensorClass["nocast", "shadow"], metaclass=FieldsWithDefaults):
        pass

    class Data(Base, ABC, frozen=True):
        size: torch.Tensor
        names: Any

    data = Data(names="abc")
    assert data.names == "abc" and data.size is None and data._flags.frozen
    with pytest.raises(AttributeError, match="frozen"):
        data.size = torch.zeros(1)
    assert isinstance(Data, FieldsWithDefaults) and not isinstance(Sample, FieldsWithDefaults)
    assert isinstance(Data, TensorClassMeta) and isinstance(Sample, TensorClassMeta)
    assert not isinstance(int, TensorClassMeta) and not isinstance(data, TensorClassMeta)
