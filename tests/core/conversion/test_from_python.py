"""Constructors from named tuples, mappings and tensordicts."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tensordict_core import LazyStackedTensorDict, TensorDict, from_pytree


class _Pair(NamedTuple):
    left: Any
    right: Any


def test_the_fields_of_named_tuples_are_keys_of_a_pytree():
    tree = _Pair(torch.ones(2), [_Pair(1, 2), defaultdict(int, b=torch.zeros(2))])
    td = from_pytree(tree)
    assert td["left"].tolist() == [1, 1] and td["right", "0", "left"] == 1 and td["right", "1", "b"].shape == (2,)
    again = td.to_pytree()
    assert isinstance(again, _Pair) and isinstance(again.right[0], _Pair) and again.right[1].default_factory is int


def test_from_namedtuple_takes_mappings():
    td = TensorDict.from_namedtuple({"a": torch.ones(2), "n": {"b": _Pair(1, 2)}})
    assert td["n", "b", "right"] == 2
    with pytest.raises(TypeError, match="named tuple"):
        TensorDict.from_namedtuple([1, 2])


def test_from_dict_returns_a_tensordict_as_it_is():
    td = TensorDict({"a": torch.ones(2)}, [2]).lock_()
    stack = LazyStackedTensorDict(td, td)
    assert TensorDict.from_dict(td) is td and TensorDict.from_dict(stack) is stack
    assert TensorDict.from_dict(td, batch_size=[]).batch_size == () and td.batch_size == (2,)


class Counted(TensorDict):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.steps = 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Counted.from_dict({"a": torch.ones(3), "n": {"b": torch.ones(3)}}, batch_size=[3], names=["time"]),
        lambda: Counted.from_any({"a": torch.ones(3)}, auto_batch_size=True),
        lambda: Counted.from_list([{"a": 1.0}] * 3),
        lambda: Counted.from_struct_array(np.ones(3, dtype=[("a", "f4")])),
    ],
)
def test_class_methods_call_the_constructor_of_a_subclass(make):
    made = make()
    assert (type(made), made.steps, made.batch_size) == (Counted, 0, (3,)) and made["a"].tolist() == [1.0] * 3
    assert "n" not in made or (type(made["n"]) is TensorDict and made.names == made["n"].names == ["time"])
