"""Names of tensorclasses that published programs use."""

from __future__ import annotations

import torch

from tensordict_class import TensorClass
from tensordict_core import TensorDict


class Point(TensorClass):
    x: torch.Tensor


def test_a_program_wraps_a_tensordict_by_the_private_name():
    td = TensorDict({"x": torch.zeros(2)}, [2])
    made = Point._from_tensordict(td)
    assert type(made) is Point
    assert made.x is td["x"]
