"""Names of tensorclasses that published programs use."""

from __future__ import annotations

import torch

from tensordict_class import TensorClass
from tensordict_class.compat import equal_fields, item_of
from tensordict_core import TensorDict


class Point(TensorClass):
    x: torch.Tensor


def test_a_program_wraps_a_tensordict_by_the_private_name():
    td = TensorDict({"x": torch.zeros(2)}, [2])
    made = Point._from_tensordict(td)
    assert type(made) is Point
    assert made.x is td["x"]


def test_the_comparison_of_tensorclasses_is_a_function_for_classes_that_replace_it():
    class Key(TensorClass):
        x: torch.Tensor

    Key.__eq__ = lambda self, other: equal_fields(self, other).all()
    Key.__hash__ = lambda self: hash(tuple(self.x.tolist()))
    assert {Key(torch.ones(2)): "value"}[Key(torch.ones(2))] == "value"
    assert Key(torch.zeros(2)) not in {Key(torch.ones(2))} and equal_fields(Key(torch.ones(2)), None) is False


def test_the_index_of_tensorclasses_is_a_function():
    assert item_of(Point(torch.arange(3), batch_size=[3]), slice(1, None)).x.tolist() == [1, 2]
