"""Calls on tensorclasses that the differential fuzzer found, as programs written for the reference rely on them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tensordict_class import TensorClass
from tensordict_core import TensorDict, lazy_stack


class Point(TensorClass):
    x: torch.Tensor
    z: Any = None


def test_the_shape_of_a_field_is_a_size():
    point = Point(torch.zeros(3, 2), batch_size=[3])
    assert type(point.get_item_shape("x")) is torch.Size and point.get_item_shape("x") == (3, 2)


def test_rows_have_the_fields_that_are_set():
    assert [list(row) for row in Point(torch.zeros(2), batch_size=[2]).tolist()] == [["x"]] * 2
    assert list(Point(torch.zeros(2), "text", batch_size=[2]).tolist()[0]) == ["x", "z"]


def test_new_instances_without_lazy_entries_are_instances():
    made = Point(torch.ones(3), batch_size=[3]).new_zeros([2], empty_lazy=True)
    assert type(made) is Point and made.x.tolist() == [0.0, 0.0]


def test_one_value_stays_one_where_an_instance_is_broadcast():
    assert Point(torch.zeros(3), "text", batch_size=[3]).broadcast_to([2, 3]).z == "text"


def test_the_identical_permutation_of_a_lazy_stack_is_a_new_instance():
    stack = lazy_stack([Point(torch.zeros(3), batch_size=[3])] * 2)
    assert stack.permute(0, 1) is not stack and stack.flatten(1, 1) is stack


def test_a_class_lists_its_fields():
    point = Point(torch.zeros(1))
    assert [field.name for field in Point.fields()] == [field.name for field in point.fields()] == ["x", "z"]

    class Table(TensorClass):
        fields: torch.Tensor

    assert Table(torch.ones(2)).fields.tolist() == [1.0, 1.0]


def test_keys_are_flattened_in_place_only_if_they_stay_fields():
    point = Point(torch.zeros(2), TensorDict({"a": torch.ones(2)}, [2]), batch_size=[2])
    with pytest.raises(ValueError, match=r"z\.a"):
        point.flatten_keys(inplace=True)
    assert point.z["a"].tolist() == [1.0, 1.0]
    flat = Point(torch.zeros(2), "text", batch_size=[2])
    assert flat.flatten_keys(inplace=True) is flat and flat.unflatten_keys(inplace=True) is flat
    assert list(point.flatten_keys().keys()) == ["x", "z.a"]


def test_densify_stacks_nested_tensordicts_of_a_stack_of_instances():
    points = lazy_stack([Point(torch.zeros(2), TensorDict({"a": torch.tensor(float(i))})) for i in range(3)])
    assert type(points.densify().z) is TensorDict and points.densify().z["a"].tolist() == [0.0, 1.0, 2.0]
