"""Flags: how the fields of a class take values."""

from __future__ import annotations

import dataclasses
import enum
import pathlib
import types
from typing import Any

import numpy as np
import pytest
import torch

from tensordict_class import TensorClass, tensorclass
from tensordict_core import TensorDict


class Color(enum.Enum):
    RED = 1


class Cast(TensorClass, autocast=True):
    integer: int = 0
    text: str = ""
    real: float = 0.0
    flag: bool = False
    tensor: torch.Tensor = None
    parts: list[int] = None
    pairs: dict = None
    array: np.ndarray = None
    path: pathlib.Path = None
    color: Color = None
    optional: int | None = None
    either: int | str = None
    anything: Any = None
    td: TensorDict = None
    child: Cast = None


@pytest.mark.parametrize(
    ("field", "given", "expected"),
    [
        ("integer", torch.ones(()), 1),
        ("integer", "3", 3),
        ("integer", True, 1),
        ("text", 5, "5"),
        ("real", 2, 2.0),
        ("real", torch.tensor(2.5), 2.5),
        ("flag", torch.tensor(True), True),
        ("parts", [1, 2], [1, 2]),
        ("pairs", {"a": 1}, {"a": 1}),
        ("path", "a/b", pathlib.Path("a/b")),
        ("color", 1, Color.RED),
        ("optional", 4, 4),
        ("either", "k", "k"),
    ],
)
def test_autocast_converts_to_the_annotated_type(field, given, expected):
    value = getattr(Cast(**{field: given}), field)
    assert value == expected and type(value) is type(expected)


def test_autocast_makes_tensors_arrays_tensordicts_and_instances():
    cast = Cast(tensor=[1, 2], array=torch.ones(2), td={"a": 1}, child={"integer": 3}, anything=3, either=3)
    assert cast.tensor.tolist() == [1, 2]
    assert isinstance(cast.array, np.ndarray) and cast.array.tolist() == [1.0, 1.0]
    assert isinstance(cast.td, TensorDict) and cast.td["a"] == 1
    assert isinstance(cast.child, Cast)
    assert isinstance(cast.anything, torch.Tensor) and isinstance(cast.either, torch.Tensor)


@pytest.mark.parametrize("field", ["parts", "optional", "either", "anything"])
@pytest.mark.parametrize("value", [(1, 2), ["u", "v"], "text", {"k": 1}, {1, 2}])
def test_autocast_stores_values_as_they_are_where_the_annotation_is_no_class(field, value):
    cast = Cast(**{field: value}, batch_size=[2])
    assert getattr(cast, field) == getattr(cast[0], field) == value and type(getattr(cast, field)) is type(value)


@pytest.mark.parametrize("field", ["parts", "optional", "either", "anything"])
def test_autocast_makes_tensors_of_arrays_where_the_annotation_is_no_class(field):
    tensor = torch.arange(2)
    assert getattr(Cast(**{field: tensor}, batch_size=[2]), field) is tensor
    assert getattr(Cast(**{field: tensor.numpy()}, batch_size=[2]), field).equal(tensor)


@pytest.mark.parametrize("field", ["integer", "text", "flag", "tensor", "parts", "pairs", "array", "path", "optional"])
def test_autocast_keeps_a_dictionary_where_no_tensordict_is_annotated(field):
    assert getattr(Cast(**{field: {"a": 1}}), field) == {"a": 1}


def test_autocast_stores_a_list_as_one_value():
    class Named(TensorClass, autocast=True):
        labels: list

    named = Named(["u", "v"], batch_size=[2])
    assert named.labels == named[0].labels == ["u", "v"]


def test_autocast_raises_an_error_for_values_that_it_cannot_cast():
    with pytest.raises(TypeError, match="Failed to cast the value tensor to the type annotation"):
        Cast(tensor="text")
    with pytest.raises(ValueError):
        Cast(integer="text")
    with pytest.raises(ValueError, match="index it first"):
        Cast(integer=torch.arange(3))
    with pytest.raises(TypeError, match="cannot be cast"):
        Cast(path=3)


def test_autocast_holds_for_later_writes_and_for_slices():
    cast = Cast(integer=1, batch_size=[2])
    cast.integer = torch.tensor(5)
    assert cast.integer == 5 and type(cast.integer) is int
    assert cast[0].integer == 5 and (cast + 1).integer == 5
    cast.set("integer", "7")
    assert cast.integer == 7


def test_autocast_reads_annotations_of_local_classes():
    class Local(enum.Enum):
        A = "a"

    class Holder(TensorClass["autocast"]):
        value: Local

    assert Holder("a").value is Local.A


def test_nocast_keeps_values_as_they_are():
    class Kept(TensorClass["nocast"]):
        value: Any
        x: torch.Tensor = None

    for value in (1, 2.5, True, [1, 2], (1,), {"a": 1}, "text"):
        kept = Kept(value).value
        assert kept == value and type(kept) is type(value)
    array = np.ones(2)
    assert Kept(array).value is array
    assert Kept(torch.ones(2), x=torch.ones(2)).value.sum() == 2
    assert (Kept(3, torch.zeros(2), batch_size=[2]) + 1)[0].value == 3


def test_by_default_numbers_and_arrays_become_tensors():
    class Default(TensorClass):
        value: Any

    for value in (1, 2.5, True, [1, 2], np.ones(2)):
        assert isinstance(Default(value).value, torch.Tensor)
    for value in ((1, 2), {"a": 1}, "text", ["a"]):
        assert Default(value).value == value


def test_tensor_only_takes_tensors_and_tensordicts():
    class Only(TensorClass, tensor_only=True):
        x: torch.Tensor
        y: torch.Tensor | None = None
        td: TensorDict = None

    only = Only(1, td={"a": 1})
    assert isinstance(only.x, torch.Tensor) and only.y is None and only.td["a"] == 1
    with pytest.raises(TypeError, match=r"Bad\.name is annotated with"):

        class Bad(TensorClass, tensor_only=True):
            name: str


def test_frozen_instances_cannot_be_assigned():
    class Frozen(TensorClass["frozen"]):
        x: torch.Tensor
        label: str = "a"

    frozen = Frozen(torch.zeros(3), batch_size=[3])
    assert frozen.is_locked
    for name, value in (("x", torch.ones(3)), ("batch_size", [])):
        with pytest.raises(dataclasses.FrozenInstanceError, match=name):
            setattr(frozen, name, value)
    with pytest.raises(dataclasses.FrozenInstanceError):
        del frozen.x
    with pytest.raises(RuntimeError, match="locked"):
        frozen.set("x", torch.ones(3))
    with pytest.raises(dataclasses.FrozenInstanceError):
        (frozen + 1).x = torch.zeros(3)
    assert frozen.replace(x=torch.ones(3)).x.sum() == 3 and frozen.x.sum() == 0
    assert isinstance(hash(frozen), int) and len({frozen, frozen}) == 1


def test_the_dims_of_frozen_instances_are_renamed_by_methods():
    class Frozen(TensorClass["frozen"]):
        x: torch.Tensor

    frozen = Frozen(torch.zeros(3, 2), batch_size=[3, 2])
    assert frozen.rename("a", "b").names == ["a", "b"]
    assert frozen.refine_names(..., "b").names == [None, "b"]
    assert frozen.rename_(b="c").names == [None, "c"]
    assert torch.stack([frozen, frozen]).rename(c="d").names == [None, None, "d"]


def test_a_field_named_names_takes_no_part_in_renaming_dims():
    class Shadow(TensorClass["shadow"]):
        x: torch.Tensor
        names: str = "Ada"

    renamed = Shadow(torch.zeros(3), batch_size=[3]).rename("a").rename(a="b")
    assert renamed.names == "Ada" and renamed.to_tensordict().names == ["b"]


def test_only_frozen_instances_are_hashable():
    class Open(TensorClass):
        x: torch.Tensor

    with pytest.raises(TypeError, match="unhashable"):
        hash(Open(torch.zeros(1)))


def test_frozen_is_inherited_and_cannot_be_mixed():
    class Frozen(TensorClass, frozen=True):
        x: torch.Tensor

    class Child(Frozen):
        y: torch.Tensor

    with pytest.raises(dataclasses.FrozenInstanceError):
        Child(torch.zeros(1), torch.zeros(1)).y = 3

    class Open(TensorClass):
        x: torch.Tensor

    with pytest.raises(TypeError, match="Bad is frozen, so it cannot inherit from Open"):

        class Bad(Open, frozen=True):
            y: torch.Tensor


def test_flags_are_given_in_three_ways():
    class ByKeyword(TensorClass, nocast=True):
        x: Any

    class ByBrackets(TensorClass["nocast", "frozen"]):
        x: Any

    @tensorclass(nocast=True)
    class ByArgument:
        x: Any

    assert ByKeyword(1).x == ByBrackets(1).x == ByArgument(1).x == 1
    assert type(ByKeyword(1).x) is type(ByBrackets(1).x) is type(ByArgument(1).x) is int
    assert ByBrackets(1).is_locked


def acts(flag: str, cls: type) -> bool:
    """Whether a class of one field ``x: int`` behaves as the flag says."""
    instance = cls(torch.tensor(3)) if flag == "autocast" else cls(3)
    if flag in ("autocast", "nocast"):
        return type(instance.x) is int
    if flag == "frozen":
        return instance.is_locked and isinstance(hash(instance), int)
    return flag == "shadow" or isinstance(instance.x, torch.Tensor)


@pytest.mark.parametrize("flag", ["autocast", "nocast", "frozen", "tensor_only", "shadow"])
def test_every_flag_is_given_by_keyword_by_brackets_and_by_argument(flag):
    name = "mean" if flag == "shadow" else "x"
    body = {"__annotations__": {name: torch.Tensor if flag == "tensor_only" else int}, "__module__": __name__}
    by_keyword = types.new_class("ByKeyword", (TensorClass,), {flag: True}, lambda space: space.update(body))
    by_brackets = types.new_class("ByBrackets", (TensorClass[flag],), {}, lambda space: space.update(body))
    by_argument = tensorclass(**{flag: True})(type("ByArgument", (), dict(body)))
    unflagged = [] if flag in ("shadow", "tensor_only") else [type("Without", (TensorClass,), dict(body))]
    assert all(acts(flag, cls) for cls in (by_keyword, by_brackets, by_argument))
    assert not any(acts(flag, cls) for cls in unflagged)


def test_flags_are_inherited():
    class Parent(TensorClass, autocast=True):
        a: int = 0

    class Child(Parent):
        b: int = 0

    child = Child(torch.tensor(1), torch.tensor(2))
    assert type(child.a) is type(child.b) is int


def test_wrong_flags_are_refused():
    with pytest.raises(TypeError, match="autocast is exclusive with nocast"):
        tensorclass(autocast=True, nocast=True)(type("Bad", (), {"__annotations__": {"a": int}}))
    with pytest.raises(TypeError, match="only accepts the flags 'autocast', 'nocast'"):
        TensorClass["bogus"]
    with pytest.raises(TypeError):

        class Bad(TensorClass, bogus=True):
            x: int


def test_cast_filter_is_the_default_of_casts():
    @tensorclass(cast_filter=lambda key, leaf: key[-1] != "kept")
    class Filtered:
        cast: torch.Tensor
        kept: torch.Tensor

    filtered = Filtered(torch.zeros(2), torch.zeros(2))
    for result in (filtered.to(torch.float64), filtered.double()):
        assert result.cast.dtype == torch.float64 and result.kept.dtype == torch.float32
    assert filtered.double(cast_filter=None).kept.dtype == torch.float64

    class Child(Filtered):
        more: torch.Tensor = None

    assert Child(torch.zeros(2), torch.zeros(2)).double().kept.dtype == torch.float32


def test_the_parameters_of_a_class_are_those_of_a_dataclass():
    class Plain(TensorClass):
        x: torch.Tensor

    class Frozen(TensorClass, frozen=True):
        x: torch.Tensor

    class Further(Frozen):
        y: int = 0

    @tensorclass(frozen=True)
    class Decorated:
        x: torch.Tensor

    @dataclasses.dataclass(frozen=True)
    class Expected:
        x: torch.Tensor

    for cls, frozen in ((Plain, False), (Frozen, True), (Further, True), (Decorated, True), (Expected, True)):
        params = cls.__dataclass_params__
        assert (params.init, params.repr, params.eq, params.order, params.frozen) == (True, True, True, False, frozen)
    for cls in (Frozen, Further, Decorated):
        point = cls(torch.zeros(2), batch_size=[2])
        with pytest.raises(AttributeError, match="frozen"):
            point.x = torch.ones(2)
        assert "__setattr__" not in vars(cls)
        assert dataclasses.replace(point, x=torch.ones(2)).x.sum() == 2


def test_a_frozen_class_may_have_bases_that_only_set_flags():
    class Point(TensorClass["nocast"], frozen=True):
        x: int

    assert Point.__dataclass_params__.frozen and Point(3).x == 3
    with pytest.raises(TypeError, match="frozen"):

        class Thawed(Point, frozen=False):
            pass
