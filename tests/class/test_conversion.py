"""To and from tensordicts, dictionaries and dataclasses."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
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
    with pytest.raises(KeyError, match="in both"):
        Sample.from_tensordict(td, {"x": 1})
    with pytest.raises(
        ValueError, match=r"Keys from the tensordict \('typo'\) must correspond to the class attributes of Sample"
    ):
        Sample.from_tensordict(td, {"typo": 1})


def test_foreign_keys_and_foreign_things_are_refused():
    with pytest.raises(
        ValueError, match=r"Keys from the tensordict \('typo'\) must correspond to the class attributes of Sample"
    ):
        Sample.from_tensordict(TensorDict({"typo": 1}))
    with pytest.raises(RuntimeError, match=r"Expected a TensorDictBase instance but got .*Sample"):
        Sample.from_tensordict(Sample(torch.zeros(1)))
    with pytest.raises(ValueError, match="class attributes of Sample"):
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


def test_instances_of_dataclasses_convert_with_their_nested_values():
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
    with pytest.raises(
        ValueError, match=r"Keys from the tensordict \('label', 'x'\) must correspond to the class attributes of Linked"
    ):
        Linked.from_dataclass(Point(torch.zeros(1)))
    with pytest.raises(TypeError, match="Expected a dataclass input"):
        from_dataclass(3)
    assert type(TensorDict.from_dataclass(Point(torch.zeros(1)), dest_cls=Sample)) is Sample


class Named(TensorClass):
    x: torch.Tensor
    label: str | None = None


def test_select_returns_the_class_or_a_plain_tensordict():
    named = Named(torch.zeros(3), "text", batch_size=[3])
    part = named.select("x", as_tensordict=True)
    assert type(part) is TensorDict and part["x"] is named.x and part.sorted_keys == ["x"]
    assert type(named.select("x")) is Named and named.select("x").label is None
    assert named.select("x", inplace=True) is named and named.label is None
    with pytest.raises(KeyError, match="typo"):
        named.select("typo", as_tensordict=True)


def test_unset_fields_are_kept_as_none_on_request():
    named = Named(torch.zeros(3), batch_size=[3])
    assert named.to_tensordict().sorted_keys == ["x"] == named.to_tensordict(retain_none=False).sorted_keys
    kept = named.to_tensordict(retain_none=True)
    assert type(kept) is TensorDict and kept.sorted_keys == ["label", "x"] and kept["label"] is None
    nested = TensorDict({"n": named}).to_tensordict(retain_none=True)
    assert nested["n"].sorted_keys == ["label", "x"] and type(nested["n"]) is TensorDict
    assert Named.from_tensordict(kept).label is None


def test_values_by_name_are_written_into_fields():
    named = Named(torch.zeros(3), "a", batch_size=[3])
    x = named.x
    named.update_(x=torch.ones(3), label="b")
    assert named.x is x and x.all() and named.label == "b"
    named.update_({"x": torch.zeros(3)}, label="c")
    assert not x.any() and named.label == "c"
    stack = TensorDict.lazy_stack([named, named.clone()])
    assert stack.update_(x=torch.ones(2, 3)).x.all() and type(stack) is Named
    with pytest.raises((KeyError, ValueError), match="typo"):
        named.update_(typo=1)


def test_a_dictionary_takes_the_classes_of_an_instance():
    td = TensorDict({"n": Named(torch.zeros(3), "a"), "d": {"n": Named(torch.zeros(3))}})
    out = td.from_dict_instance({"n": {"x": torch.ones(4), "label": "b"}, "d": {"n": {"x": torch.ones(5)}}})
    assert type(out["n"]) is Named and out["n"].label == "b" and type(out["d", "n"]) is Named
    assert out["n"].x.shape == (4,) and td["n"].x.shape == (3,)
    assert type(td["n"].from_dict_instance({"x": torch.ones(2)}, auto_batch_size=True)) is Named
    with pytest.raises(ValueError, match="'typo'"):
        td.from_dict_instance({"n": {"typo": 1}})


def test_a_lazy_stack_of_instances_converts_to_itself():
    stack = TensorDict.lazy_stack([Named(torch.zeros(3), batch_size=[3])] * 2, 1, stack_dim_name="s")
    assert type(stack) is Named and stack.names == [None, "s"] and stack.to_lazystack(1) is stack
    assert sorted(stack.data_ptr().keys(True, True)) == [("0", "x"), ("1", "x")]


@pytest.mark.parametrize(
    "wrap", [dict, lambda state: TensorDict(state, [3]), lambda state: Sample(**state, batch_size=[3])]
)
def test_tensordicts_and_instances_are_loaded_as_state_dicts(wrap):
    sample = Sample(torch.zeros(3), batch_size=[3])
    x = sample.x
    sample.load_state_dict(wrap({"x": torch.ones(3)}), strict=False)
    assert sample.x is x and x.tolist() == [1, 1, 1]
    assert sample.label == "none"
    with pytest.raises(KeyError, match="'z'"):
        sample.load_state_dict(TensorDict({"x": torch.ones(3), "z": torch.ones(3)}, [3]))


def test_values_by_field_in_the_attribute_of_a_state_dict_load():
    state = OrderedDict({"x": torch.ones(3)})
    info = {"batch_size": torch.Size([3]), "device": None, "_type": "Named", "_non_tensor": {"label": "b"}}
    state._metadata = OrderedDict({"": info})
    named = Named(torch.zeros(3), "a", batch_size=[3])
    named.load_state_dict(state)
    assert named.x.all() and named.label == "b"
    named.load_state_dict(Named(torch.zeros(3), "c", batch_size=[3]).state_dict())
    assert not named.x.any() and named.label == "c"


def test_from_dict_instance_takes_the_defaults_of_fields_that_the_dictionary_lacks():
    class Default(TensorClass):
        x: torch.Tensor
        label: str = "d"
        y: torch.Tensor | None = None

    instance = Default(torch.zeros(3), "own", batch_size=[3])
    out = instance.from_dict_instance({"x": torch.ones(3)}, batch_size=[3])
    assert out.label == "d" and out.y is None and sorted(out.keys()) == ["label", "x"]
    assert TensorDict({"n": instance}).from_dict_instance({"n": {"x": torch.ones(3)}})["n"].label == "d"
    assert instance.from_dict_instance({"x": torch.ones(3), "label": "new"}).label == "new"


def test_a_foreign_key_of_a_source_is_an_error_of_each_kind():
    for write in (Named(torch.zeros(3)).update_, Named(torch.zeros(3)).update):
        for error in (ValueError, KeyError, AttributeError):
            with pytest.raises(error, match=r"^Keys from the tensordict \('typo'\)"):
                write({"typo": torch.ones(3)})


def test_a_dictionary_with_none_makes_an_instance_without_the_field():
    class Point(TensorClass):
        x: torch.Tensor
        label: str = "origin"

    point = Point(torch.zeros(2), None, batch_size=[2])
    again = Point.from_dict(point.to_dict(), batch_size=[2])
    assert list(again.keys()) == list(point.keys()) == ["x"] and again.label is None
    assert torch.stack([again, point]).shape == (2, 2)
