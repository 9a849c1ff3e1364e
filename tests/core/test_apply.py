"""``apply`` with functions of torch that are known to keep shapes, whose results are taken without a look."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tensordict_core import NonTensorData, NonTensorStack, TensorDict, assert_close, lazy_stack
from tensordict_core.base.rebuild import SHAPE_KEEPING

KNOWN = sorted(SHAPE_KEEPING, key=repr)


def tree(lock: bool = False) -> TensorDict:
    leaf = torch.tensor([[0.25, 0.5], [0.5, 0.75], [0.1, 0.2]])
    return TensorDict({"a": leaf, "b": {"c": leaf[:, 0]}, "empty": {}}, [3], names=["time"], lock=lock)


def test_there_are_such_functions() -> None:
    assert torch.sin in SHAPE_KEEPING
    assert torch.Tensor.sin in SHAPE_KEEPING


@pytest.mark.parametrize("function", KNOWN, ids=[f"{function!r}"[:40] for function in KNOWN])
def test_a_known_function_gives_what_an_unknown_one_does(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    known, unknown = tree().apply(function), tree().apply(lambda leaf: function(leaf))
    assert_close(known, unknown)
    assert known.names == unknown.names == ["time"]
    assert list(known.keys(True)) == list(unknown.keys(True))


def test_results_are_locked_where_that_is_asked_for() -> None:
    assert not tree(lock=True).apply(torch.sin).is_locked
    assert tree(lock=True).apply(torch.sin, propagate_lock=True).is_locked


def test_functions_that_cannot_be_looked_up_are_called() -> None:
    class Doubled:
        __hash__ = None  # type: ignore[assignment]  # what is tested

        def __call__(self, leaf: torch.Tensor) -> torch.Tensor:
            return 2 * leaf

    assert_close(tree().apply(Doubled()), 2 * tree())


def test_values_of_another_tensordict_reach_the_function_as_they_are():
    td = TensorDict({"a": torch.ones(2), "b": {"c": torch.ones(2)}}, [2])
    functions = TensorDict({"a": lambda x: x + 1, "b": {"c": lambda x: x * 5}})
    result = td.apply(lambda x, function: function(x), functions)
    assert result["a"].tolist() == [2, 2] and result["b", "c"].tolist() == [5, 5]
    named = td.named_apply(lambda name, x, function: function(x), functions)
    assert (named == result).all()
    assert td.clone().apply_(lambda x, function: x.copy_(function(x)), functions)["a"].tolist() == [2, 2]
    lazy = lazy_stack([td, td]).apply(lambda x, function: function(x), lazy_stack([functions, functions]))
    assert lazy["b", "c"].tolist() == [[5, 5]] * 2
    partly = td.apply(lambda x, function: x if function is None else function(x), functions.exclude("b"), default=None)
    assert partly["a"].tolist() == [2, 2] and partly["b", "c"].tolist() == [1, 1]


def test_nodes_that_a_function_asks_for_come_as_they_are():
    td, other = TensorDict({"a": torch.ones(2)}, [2]), TensorDict({"a": "text"}, [2])
    kinds = []
    td.apply(lambda x, y: kinds.append(type(y)), other, call_on_nested=True)
    td.apply(lambda x, y: kinds.append(type(y)), TensorDict({"a": ["p", "q"]}, [2]))
    assert kinds == [NonTensorData, NonTensorStack]
