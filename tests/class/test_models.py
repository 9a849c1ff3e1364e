"""Pydantic models become tensorclasses: fields, defaults, nested and recursive models."""

from __future__ import annotations

from typing import Any, Optional

import pytest
import torch

from tensordict_class import TensorClass, from_pydantic

pydantic = pytest.importorskip("pydantic", reason="pydantic is an extra")


class Point(pydantic.BaseModel, arbitrary_types_allowed=True):
    """A point."""

    label: str = "origin"
    x: torch.Tensor


class Line(pydantic.BaseModel, arbitrary_types_allowed=True):
    start: Point
    end: Point | None = None
    marks: list[str] = ["none"]  # noqa: RUF012 pydantic copies it
    weight: torch.Tensor = pydantic.Field(default_factory=lambda: torch.ones(3))


class Node(pydantic.BaseModel, arbitrary_types_allowed=True):
    value: torch.Tensor
    next: Optional[Node] = None  # noqa: UP045 pydantic resolves the string either way


class Chicken(pydantic.BaseModel):
    egg: Egg | None = None


class Egg(pydantic.BaseModel):
    chicken: Chicken | None = None


def test_a_model_has_one_tensorclass_for_each_set_of_flags():
    cls = from_pydantic(Point)
    assert issubclass(cls, TensorClass) and cls.__name__ == "Point_tc" and cls.__doc__ == "A point."
    assert from_pydantic(Point) is cls and type(from_pydantic(Point(x=torch.zeros(2)))) is cls
    assert from_pydantic(Point, frozen=True) is not cls


def test_an_instance_has_the_values_of_the_model():
    point = from_pydantic(Point(x=torch.arange(3.0), label="here"), auto_batch_size=True)
    assert point.batch_size == (3,) and point.x.tolist() == [0.0, 1.0, 2.0] and point.label == "here"
    assert from_pydantic(Point(x=torch.zeros(3, 2)), batch_dims=1).batch_size == (3,)
    assert from_pydantic(Point(x=torch.zeros(3, 2)), batch_size=[3, 2])[0].x.shape == (2,)
    assert Point(**point.to_dict()).x is point.x


def test_defaults_are_those_of_the_model_and_mutable_ones_are_copied():
    cls = from_pydantic(Line)
    first, second = (cls(start=from_pydantic(Point(x=torch.zeros(3)))) for _ in range(2))
    assert first.end is None and first.weight.tolist() == [1.0, 1.0, 1.0] and first.marks == ["none"]
    first.marks[0] = "more"
    assert second.marks == ["none"]
    with pytest.raises(TypeError, match="start"):
        cls()


def test_fields_that_hold_models_are_converted_with_them():
    model = Line(start=Point(x=torch.zeros(3)), end=Point(x=torch.ones(3)), marks=["a", "b", "c"])
    line = from_pydantic(model, batch_size=[3])
    assert type(line.start) is type(line.end) is from_pydantic(Point)
    assert (line + 1)[0].end.x.item() == 2.0
    assert type(type(line).from_tensordict(line.to_tensordict()).end) is from_pydantic(Point)


def test_recursive_models():
    node = from_pydantic(Node(value=torch.zeros(2), next=Node(value=torch.ones(2))))
    assert type(node.next) is type(node) and (node + 1).next.value.tolist() == [2.0, 2.0]
    assert type(type(node).from_tensordict(node.to_tensordict()).next) is type(node)
    chicken = from_pydantic(Chicken(egg=Egg(chicken=Chicken())))
    assert type(chicken.egg.chicken) is type(chicken)


def test_flags_go_to_the_tensorclass():
    frozen = from_pydantic(Point(x=torch.zeros(2)), frozen=True)
    with pytest.raises(AttributeError, match="frozen"):
        frozen.x = torch.ones(2)


def test_a_given_class_takes_the_values():
    class Mine(TensorClass):
        x: torch.Tensor
        label: Any = None

        def norm(self) -> torch.Tensor:
            return self.x.norm()

    assert from_pydantic(Point(x=torch.tensor([3.0, 4.0])), dest_cls=Mine).norm().item() == 5.0


def test_other_objects_than_models_are_refused():
    with pytest.raises(TypeError, match="dict is not a pydantic model"):
        from_pydantic({})
    with pytest.raises(TypeError, match="int is not a pydantic model"):
        from_pydantic(int)
