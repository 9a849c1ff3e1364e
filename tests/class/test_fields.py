"""Declarations of a class body: fields, defaults, methods, reserved names."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, TypeVar

import numpy as np
import pytest
import torch

from tensordict_class import TensorClass, tensorclass
from tensordict_core import NonTensorData, TensorDict, set_printoptions

T = TypeVar("T")


class Sample(TensorClass):
    x: torch.Tensor
    label: str = "none"
    extra: Any = None


class Linked(TensorClass):
    value: torch.Tensor
    next: Linked | None = None


@pytest.fixture
def sample() -> Sample:
    return Sample(torch.arange(3.0), "cat", batch_size=[3])


def test_fields_are_given_in_order_or_by_name():
    by_order = Sample(torch.zeros(3), "cat", batch_size=[3])
    by_name = Sample(label="cat", x=torch.zeros(3), batch_size=[3])
    assert by_order.label == by_name.label == "cat"
    assert (by_order == by_name).all()


def test_metadata_are_given_by_keyword():
    sample = Sample(torch.zeros(3, 4), batch_size=[3], device="cpu", names=["time"], lock=True)
    assert sample.batch_size == torch.Size([3])
    assert sample.device == torch.device("cpu")
    assert sample.names == ["time"]
    assert sample.is_locked


def test_the_constructor_raises_the_errors_of_dataclasses():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        Sample()
    with pytest.raises(TypeError, match="unexpected keyword argument 'typo'"):
        Sample(torch.zeros(3), typo=1)
    with pytest.raises(TypeError, match="positional arguments"):
        Sample(1, 2, 3, 4)


def test_a_value_must_start_with_the_batch_size():
    with pytest.raises(RuntimeError, match=r"batch dimension mismatch.*for key 'x'"):
        Sample(torch.zeros(3), batch_size=[4])


def test_an_unset_field_is_none_and_is_not_stored(sample):
    assert sample.extra is None
    assert list(sample.keys()) == ["x", "label"]
    assert "extra" not in sample and "x" in sample


def test_assigning_none_unsets_a_field(sample):
    sample.label = None
    assert sample.label is None and "label" not in sample
    sample.set("x", None)
    assert sample.x is None and sample.is_empty()


def test_deleting_a_field_unsets_it(sample):
    del sample.x
    assert sample.x is None
    with pytest.raises(AttributeError, match="'typo'"):
        del sample.typo


def test_values_of_every_type_are_stored_and_read():
    values = {"number": 3, "flag": True, "list": [1, 2], "array": torch.ones(2).numpy()}
    for value in values.values():
        stored = Sample(torch.zeros(2), extra=value).extra
        assert isinstance(stored, torch.Tensor) and stored.tolist() == torch.as_tensor(value).tolist()
    for kept in ("text", {"a": 1}, (1, 2), ["a", "b"], object, b"raw"):
        assert Sample(torch.zeros(2), extra=kept).extra == kept
    nested = TensorDict({"a": torch.zeros(2)}, [2])
    assert Sample(torch.zeros(2), extra=nested, batch_size=[2]).extra["a"].shape == (2,)


def test_an_unknown_attribute_is_an_error(sample):
    with pytest.raises(AttributeError, match="typo"):
        _ = sample.typo
    with pytest.raises(AttributeError, match="its fields are 'x', 'label', 'extra'"):
        sample.typo = 1
    with pytest.raises(AttributeError, match="Cannot set the attribute 'typo'"):
        sample.set("typo", torch.zeros(3))
    with pytest.raises(AttributeError, match="'typo'"):
        sample["typo"] = torch.zeros(3)
    with pytest.raises(AttributeError, match="'typo'"):
        sample.update({"typo": torch.zeros(3)})
    with pytest.raises(AttributeError, match="'typo'"):
        sample.rename_key_("x", "typo")
    assert set(sample.keys()) == {"x", "label"}


def test_get_returns_the_value_of_the_attribute(sample):
    assert sample.get("label") == "cat"
    assert sample.get("x") is sample.x
    assert sample.get("extra") is None and sample.get("extra", 5) == 5
    assert sample.get("typo", 5) == 5
    assert sample.entry_class("label") is NonTensorData and sample.is_non_tensor("label")
    assert sample.get_item_shape("label") == torch.Size([3])


def test_nested_keys_reach_into_nested_instances():
    linked = Linked(torch.zeros(3), Linked(torch.ones(3), batch_size=[3]), batch_size=[3])
    assert linked.get(("next", "value")).tolist() == [1.0, 1.0, 1.0]
    linked.set(("next", "value"), torch.full((3,), 2.0))
    assert linked.next.value.tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(AttributeError, match="Cannot set the attribute 'typo': Linked has no such field"):
        linked.set(("next", "typo"), torch.zeros(3))
    assert list(linked.keys(True, True)) == ["value", ("next", "value")]


def test_a_name_that_is_no_field_of_a_locked_instance_is_an_error_of_the_lock_too():
    linked = Linked(torch.zeros(3), batch_size=[3]).lock_()
    for error in (AttributeError, RuntimeError):
        with pytest.raises(error, match=r"Cannot modify locked TensorDict.*'typo': Linked has no such field"):
            linked.set("typo", torch.zeros(3))


def test_defaults_factories_and_field_options():
    class Options(TensorClass):
        a: torch.Tensor
        made: torch.Tensor = dataclasses.field(default_factory=lambda: torch.zeros(3))
        shared: torch.Tensor = torch.ones(3)
        hidden: str = dataclasses.field(default="secret", repr=False)
        keyword: int = dataclasses.field(default=1, kw_only=True)
        fixed: int = dataclasses.field(default=7, init=False, metadata={"unit": "s"})

    one, two = Options(torch.zeros(3)), Options(torch.zeros(3))
    assert one.made is not two.made and one.shared is two.shared
    assert one.fixed.item() == 7 and "secret" not in repr(one)
    assert Options(torch.zeros(3), keyword=2).keyword.item() == 2
    with pytest.raises(TypeError):
        Options(torch.zeros(3), fixed=1)
    assert {f.name: f.metadata.get("unit") for f in dataclasses.fields(Options)}["fixed"] == "s"


def test_fields_behind_the_marker_of_dataclasses_are_keyword_only():
    class Marked(TensorClass):
        x: torch.Tensor
        _: dataclasses.KW_ONLY
        y: torch.Tensor
        z: str = "z"

    assert Marked(torch.zeros(1), y=torch.ones(1)).y == 1
    assert [f.name for f in dataclasses.fields(Marked)] == ["x", "y", "z"]
    with pytest.raises(TypeError, match="positional"):
        Marked(torch.zeros(1), torch.ones(1))


def test_dataclass_functions_reach_into_nested_instances():
    linked = Linked(torch.zeros(2), Linked(torch.ones(2)))
    found = dataclasses.asdict(linked)
    assert found["next"]["value"].tolist() == [1.0, 1.0] and found["next"]["next"] is None
    assert dataclasses.astuple(linked)[1][0].tolist() == [1.0, 1.0]


def test_a_mutable_default_is_refused():
    with pytest.raises(ValueError, match="use default_factory"):

        class Bad(TensorClass):
            tags: list = []  # noqa: RUF012 (that it is refused is tested)


def test_a_field_without_default_after_one_with_is_refused():
    with pytest.raises(TypeError, match="non-default argument 'b' follows default argument 'a'"):

        class Bad(TensorClass):
            a: int = 1
            b: int

    @tensorclass(kw_only=True)
    class Good:
        a: int = 1
        b: int

    assert Good(b=2).b.item() == 2
    with pytest.raises(TypeError):
        Good(1, 2)


def test_class_variables_methods_and_properties():
    class Shape(TensorClass):
        sides: torch.Tensor
        kind: ClassVar[str] = "polygon"

        @property
        def perimeter(self) -> torch.Tensor:
            return self.sides.sum(-1)

        @property
        def first(self) -> torch.Tensor:
            return self.sides[..., 0]

        @first.setter
        def first(self, value: torch.Tensor) -> None:
            self.sides[..., 0] = value

        @classmethod
        def square(cls, n: int) -> Shape:
            return cls(torch.full((4,), float(n)))

        @staticmethod
        def corners() -> int:
            return 4

    square = Shape.square(2)
    assert square.perimeter == 8 and Shape.corners() == 4
    assert square.kind == Shape.kind == "polygon" and list(square.keys()) == ["sides"]
    square.first = torch.tensor(5.0)
    assert square.perimeter == 11
    with pytest.raises(AttributeError):
        square.perimeter = 3


def test_a_property_that_fails_shows_its_own_error():
    class Failing(TensorClass):
        x: torch.Tensor

        @property
        def broken(self) -> int:
            return self.x.no_such_thing

    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = Failing(torch.zeros(1)).broken


def test_post_init_runs_when_an_instance_is_made_and_when_an_operation_makes_one():
    runs = []

    class Counted(TensorClass):
        x: torch.Tensor

        def __post_init__(self) -> None:
            runs.append("run")

    counted = Counted(torch.zeros(3), batch_size=[3])
    assert len(runs) == 1
    _ = counted + 1, counted[0], counted.clone()
    assert len(runs) == 4
    Counted.from_tensordict(TensorDict({"x": torch.zeros(3)}))
    assert len(runs) == 5
    counted.empty()
    assert len(runs) == 5


def test_post_init_can_be_kept_from_results():
    runs = []

    class Counted(TensorClass, skip_post_init_on_rebuild=True):
        x: torch.Tensor

        def __post_init__(self) -> None:
            runs.append("run")

    counted = Counted(torch.zeros(3), batch_size=[3])
    _ = counted + 1, counted[0], torch.stack([counted, counted])
    assert len(runs) == 1
    Counted.from_tensordict(TensorDict({"x": torch.zeros(3)}))
    assert len(runs) == 2


def test_post_init_may_set_fields_and_the_batch_size():
    class Sized(TensorClass, skip_post_init_on_rebuild=True):
        x: torch.Tensor
        scale: dataclasses.InitVar[float] = 2.0

        def __post_init__(self, scale: float) -> None:
            self.x = self.x * scale
            self.auto_batch_size_()

    assert Sized(torch.ones(3)).batch_size == torch.Size([3])
    assert Sized(torch.ones(3), scale=3.0).x.tolist() == [3.0, 3.0, 3.0]
    assert Sized.from_tensordict(TensorDict({"x": torch.ones(2)})).x.tolist() == [2.0, 2.0]
    assert [f.name for f in dataclasses.fields(Sized)] == ["x"]


def test_a_custom_init_replaces_the_constructor():
    @tensorclass
    class Own:
        x: torch.Tensor

        def __init__(self, n: int) -> None:
            self.x = torch.zeros(n)
            self.batch_size = [n]

    assert Own(3).batch_size == torch.Size([3])
    assert torch.stack([Own(3), Own(3)]).x.shape == (2, 3)


def test_recursive_classes():
    linked = Linked(torch.zeros(3), Linked(torch.ones(3), batch_size=[3]), batch_size=[3])
    assert isinstance(linked.next, Linked) and linked.next.next is None
    assert isinstance(linked[0].next, Linked) and linked[0].next.batch_size == torch.Size([])
    assert (linked + 1).next.value.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("name", ["batch_size", "device", "names", "shape", "keys", "get", "mean", "to", "_tensordict"])
def test_a_field_may_not_hide_a_member(name):
    with pytest.raises(AttributeError, match=f"Attribute name {name} can't be used with @tensorclass"):
        type("Bad", (TensorClass,), {"__annotations__": {name: torch.Tensor}})


@pytest.mark.parametrize("name", ["data", "long", "label", "index", "name", "mask", "fields", "batch", "_private"])
def test_common_names_are_free(name):
    cls = type("Good", (TensorClass,), {"__annotations__": {name: torch.Tensor}})
    instance = cls(torch.arange(3.0), batch_size=[3])
    assert getattr(instance + 1, name).tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "name", ["mean", "keys", "items", "get", "set", "clone", "batch_size", "device", "names", "update"]
)
def test_shadow_lets_a_field_hide_a_member_and_operations_work_on(name):
    cls = type("Shadowed", (TensorClass["shadow"],), {"__annotations__": {name: torch.Tensor, "other": Any}})
    meta = {} if name == "batch_size" else {"batch_size": [3]}
    instance = cls(torch.arange(3.0), "text", **meta)
    assert getattr(instance, name).tolist() == [0.0, 1.0, 2.0]
    if name == "batch_size":
        instance = cls.from_tensordict(TensorDict({name: torch.arange(3.0), "other": "text"}, [3]))
    for result in (instance + 1, 1 + instance, instance.apply(lambda leaf: leaf + 1), instance.reshape(3, 1)[:, 0] + 1):
        assert type(result) is cls and getattr(result, name).tolist() == [1.0, 2.0, 3.0] and result.other == "text"
    assert getattr(torch.stack([instance, instance]), name).shape == (2, 3)
    assert getattr(instance[1:], name).tolist() == [1.0, 2.0]
    assert instance.to_dict()["other"] == "text"
    instance[0] = instance[2]
    assert getattr(instance, name).tolist() == [2.0, 1.0, 2.0]


def test_dataclass_functions_work(sample):
    assert dataclasses.is_dataclass(Sample)
    assert [f.name for f in dataclasses.fields(sample)] == ["x", "label", "extra"]
    changed = dataclasses.replace(sample, label="dog")
    assert changed.label == "dog" and changed.x is sample.x
    as_dict = dataclasses.asdict(sample)
    assert as_dict["label"] == "cat" and as_dict["extra"] is None and as_dict["x"].equal(sample.x)
    match sample:
        case Sample(x, label):
            assert x is sample.x and label == "cat"


def test_replace_keeps_the_batch_size(sample):
    changed = sample.replace(x=torch.ones(3))
    assert changed.batch_size == torch.Size([3]) and changed.x.sum() == 3 and sample.x.sum() == 3


def test_repr_shows_set_fields_in_alphabetical_order_then_unset_ones(sample):
    with set_printoptions(compact=True):
        assert repr(sample) == "Sample(batch_size=[3], fields={label: str, x: f32[], extra: None})"
    assert repr(sample) == (
        "Sample(\n"
        "    label=NonTensorData(data=cat, batch_size=torch.Size([3]), device=None),\n"
        "    x=Tensor(shape=torch.Size([3]), device=cpu, dtype=torch.float32, is_shared=False),\n"
        "    extra=None,\n"
        "    batch_size=torch.Size([3]),\n"
        "    device=None,\n"
        "    is_shared=False)"
    )


def test_a_field_of_elements_of_several_batch_sizes_is_nested_lists():
    def stack(*labels: str) -> Any:
        return Sample.lazy_stack([Sample(torch.zeros(n), s, batch_size=[n]) for n, s in enumerate(labels, 1)])

    assert stack("cat", "cat").label == [["cat"], ["cat", "cat"]]
    assert stack("cat", "dog").label == stack("cat", "dog")["label"] == [["cat"], ["dog", "dog"]]


def test_the_fallback_for_missing_attributes_can_be_read_and_replaced_on_the_class():
    class Loose(TensorClass):
        x: torch.Tensor

    own = Loose.__getattr__
    Loose.__getattr__ = lambda self, name: name.upper() if name == "other" else own(self, name)
    loose = Loose(torch.zeros(2))
    assert loose.other == "OTHER"
    with pytest.raises(AttributeError, match="typo"):
        loose.typo  # noqa: B018 (the access is the test)


def test_a_number_that_stands_for_the_annotated_type_stays_one_with_batch_dimensions():
    class Scores(TensorClass):
        rate: float
        other: torch.Tensor = None

    scores = Scores(3, np.float32(1.5), batch_size=[2])
    assert scores.rate == 3 and type(scores[0].rate) is int and type(scores[0].other) is np.float32


class End(TensorClass):
    x: torch.Tensor


class Line(TensorClass):
    start: End = None
    end: End | None = None


@pytest.mark.parametrize("value", [{"x": torch.zeros(2)}, TensorDict({"x": torch.zeros(2)}, [2])])
def test_update_of_a_field_of_a_tensorclass_makes_an_instance_where_the_keys_fit(value):
    line = Line(batch_size=[2]).update({"start": value, "end": value})
    assert type(line.start) is type(line.end) is End
    line.start.x = torch.ones(2)
    assert value["x"].eq(0).all()
    assert type(line[:1].update({"start": {"x": torch.ones(1)}}).start) is End
    assert type(Line(batch_size=[2]).update({"start": {"other": torch.zeros(2)}}).start) is TensorDict


def test_a_field_of_non_tensor_data_takes_a_tensordict():
    class Labelled(TensorClass):
        label: NonTensorData = None

    td = TensorDict({"label": {"a": torch.zeros(2)}}, [2])
    assert type(Labelled.from_tensordict(td).label) is type(Labelled(batch_size=[2]).update(td).label) is TensorDict
