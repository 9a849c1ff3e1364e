"""Constructors from named tuples, mappings and tensordicts."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

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
