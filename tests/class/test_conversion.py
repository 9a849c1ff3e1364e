"""To and from tensordicts, dictionaries and dataclasses."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from tensordict_class import TensorClass, from_dataclass
from tensordict_core import LazyStackedTensorDict, TensorDict


class Sample(TensorClass):
    x: torch.Tensor
    label: str = "none"
    extra: Any = None


class Linked(TensorClass):
    value: torch.Tensor
    next: Linked | None = None


@dataclasses.dataclass
class Point:
    x: torch.Tensor
    label: str = "origin"


@dataclasses.dataclass
class Line:
    start: Point
    width: int = 1


def test_an_instance_shares_the_tensordict_it_is_made_of():
    td = TensorDict({"x": torch.zeros(3)}, [3])
    sample = Sample.from_tensordict(td)
    assert sample._tensordict is td and sample.label is None
    sample.x = torch.ones(3)
    assert td["x"].sum() == 3


def test_any_kind_of_tensordict_can_be_wrapped():
    lazy = LazyStackedTensorDict(*(TensorDict({"x": torch.zeros(n)}) for n in (1, 2)))
    sample = Sample.from_tensordict(lazy)
    assert sample[1].x.shape == (2,) and type(sample[1]) is Sample


def test_more_values_may_come_beside_the_tensordict():
    td = TensorDict({"x": torch.zeros(3)}, [3])
    sample = Sample.from_tensordict(td, {"label": "cat"})
    assert sample.label == "cat" and list(td.keys()) == ["x"]
    with pytest.raises(KeyError, match="stand in both"):
        Sample.from_tensordict(td, {"x": 1})
    with pytest.raises(ValueError, match="'typo' are no fields of Sample"):
        Sample.from_tensordict(td, {"typo": 1})


def test_foreign_keys_and_foreign_things_are_refused():
    with pytest.raises(ValueError, match="'typo' are no fields of Sample"):
        Sample.from_tensordict(TensorDict({"typo": 1}))
    with pytest.raises(RuntimeError, match="takes a tensordict, got Sample"):
        Sample.from_tensordict(Sample(torch.zeros(1)))
    with pytest.raises(ValueError, match="no fields of Sample"):
        Sample.from_dict({"typo": 1})


def test_nested_tensordicts_become_instances_of_the_annotated_class():
    linked = Linked(torch.zeros(3), Linked(torch.ones(3)))
    td = linked.to_tensordict()
    assert type(td["next"]) is TensorDict
    again = Linked.from_tensordict(td)
    assert type(again.next) is Linked and (again == linked).all()
    assert type(td["next"]) is TensorDict
    assert type(Linked.from_dict(linked.to_dict(retain_none=False)).next) is Linked


def test_tensordicts_and_dictionaries_of_an_instance():
    sample = Sample(torch.zeros(2), "cat", batch_size=[2])
    td = sample.to_tensordict()
    assert type(td) is TensorDict and td["label"] == "cat" and td["x"] is not sample.x
    assert sample.to_dict()["extra"] is None and "extra" not in sample.to_dict(retain_none=False)
    assert (Sample.from_dict(sample.to_dict(retain_none=False), batch_size=[2]) == sample).all()
    assert Sample.from_dict({"x": torch.zeros(2, 3)}, auto_batch_size=True).batch_size == torch.Size([2, 3])


def test_a_dataclass_has_one_tensorclass():
    cls = from_dataclass(Point)
    assert cls.__name__ == "Point_tc" and issubclass(cls, TensorClass) and from_dataclass(Point) is cls
    assert cls(torch.zeros(1)).label == "origin"
    assert from_dataclass(Point, inplace=True).__name__ == "Point"
    assert not issubclass(Point, TensorClass) and Point(torch.zeros(1)).label == "origin"


def test_instances_of_dataclasses_convert_with_what_they_hold():
    line = from_dataclass(Line(Point(torch.zeros(3))))
    assert type(line).__name__ == "Line_tc" and type(line.start).__name__ == "Point_tc" and line.width == 1
    stacked = torch.stack([line, line])
    assert stacked.start.x.shape == (2, 3)
    assert from_dataclass(Point(torch.zeros(3)), auto_batch_size=True).batch_size == torch.Size([3])
    assert from_dataclass(Point(torch.zeros(3, 4)), batch_dims=1).batch_size == torch.Size([3])
    assert from_dataclass(Point(torch.zeros(3)), batch_size=[3], device="cpu").device == torch.device("cpu")


def test_flags_go_to_the_tensorclass_of_a_dataclass():
    with pytest.raises(dataclasses.FrozenInstanceError):
        from_dataclass(Point(torch.zeros(1)), frozen=True).x = 3
    assert type(from_dataclass(Line(Point(torch.zeros(1))), autocast=True).width) is int


def test_a_class_takes_dataclass_instances_of_its_fields():
    sample = Sample.from_dataclass(Point(torch.zeros(3), "here"), batch_size=[3])
    assert type(sample) is Sample and sample.label == "here"
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        Linked.from_dataclass(Point(torch.zeros(1)))
    with pytest.raises(TypeError, match="takes a dataclass"):
        from_dataclass(3)
    assert type(TensorDict.from_dataclass(Point(torch.zeros(1)), dest_cls=Sample)) is Sample
