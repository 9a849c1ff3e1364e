"""Calls of tensorclasses that random programs beside the reference found to be lost, refused or of another kind."""

from __future__ import annotations

import pytest
import torch

from tensordict_class import TensorClass
from tensordict_core import TensorDict, lazy_stack


class Point(TensorClass):
    x: torch.Tensor
    y: torch.Tensor
    label: str | None = None


def point() -> Point:
    return Point(x=torch.zeros(2), y=torch.ones(2), batch_size=[2])


def test_a_missing_non_tensor_value_is_an_error_unless_there_is_a_default() -> None:
    for instance in (point(), lazy_stack([point()])):
        with pytest.raises(KeyError, match="label"):
            instance.get_non_tensor("label")
        assert instance.get_non_tensor("label", default="none") == "none"


def test_the_shape_of_a_field_is_read_by_keyword_too() -> None:
    assert point().get_item_shape(key="x") == torch.Size([2])


def test_a_lazy_stack_of_instances_is_not_contiguous_as_one_of_tensordicts() -> None:
    assert not lazy_stack([point()]).is_contiguous()


def test_separates_keeps_the_class_of_nested_instances() -> None:
    td = TensorDict({"p": point()}, [2])
    taken = td.separates(("p", "x")).get("p")
    assert type(taken) is Point and torch.equal(taken.x, torch.zeros(2))


def test_instances_of_which_one_lacks_a_value_are_not_compared() -> None:
    labelled = point()
    labelled.label = "origin"
    for one, other in ((point(), labelled), (labelled, point())):
        with pytest.raises(KeyError, match="label"):
            one == other  # noqa: B015 (for its error)


def test_an_empty_lazy_stack_of_nested_instances_keeps_their_type():
    stack = lazy_stack([TensorDict({"p": Point(x=torch.ones(1), y=torch.ones(1), batch_size=[1])}, [1])])
    assert type(stack.new_zeros([1], empty_lazy=True).tensordicts[0]["p"]) is Point


@pytest.mark.parametrize("rows", [[{"a": 1}, {"b": 2}], [{"x": 1}, {"x": 2, "typo": 3}]])
def test_keys_that_only_some_rows_have_are_fields_too(rows):
    with pytest.raises(ValueError, match="must correspond to the class attributes"):
        Point.from_list(rows)
    with pytest.raises(ValueError, match="must correspond to the class attributes"):
        Point.from_tensordict(lazy_stack([TensorDict(row) for row in rows]))
    assert Point.from_list([{"x": 1}, {"y": 2}])[1].y == 2
