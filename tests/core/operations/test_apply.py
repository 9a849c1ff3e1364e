"""``apply``: functions known to keep shapes, options, and arguments from other tensordicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tensordict_core import (
    NonTensorData,
    NonTensorStack,
    TensorDict,
    UnbatchedTensor,
    assert_close,
    is_leaf_nontensor,
    lazy_stack,
)
from tensordict_core.base.rebuild import SHAPE_KEEPING

KNOWN = sorted(SHAPE_KEEPING, key=repr)


def tree(lock: bool = False) -> TensorDict:
    leaf = torch.tensor([[0.25, 0.5], [0.5, 0.75], [0.1, 0.2]])
    return TensorDict({"a": leaf, "b": {"c": leaf[:, 0]}, "empty": {}}, [3], names=["time"], lock=lock)


def test_shape_keeping_functions_are_recorded() -> None:
    assert torch.sin in SHAPE_KEEPING
    assert torch.Tensor.sin in SHAPE_KEEPING


@pytest.mark.parametrize("function", KNOWN, ids=[f"{function!r}"[:40] for function in KNOWN])
def test_a_shape_keeping_function_equals_the_same_function_wrapped(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    known, unknown = tree().apply(function), tree().apply(lambda leaf: function(leaf))
    assert_close(known, unknown)
    assert known.names == unknown.names == ["time"]
    assert list(known.keys(True)) == list(unknown.keys(True))


def test_results_are_locked_with_propagate_lock() -> None:
    assert not tree(lock=True).apply(torch.sin).is_locked
    assert tree(lock=True).apply(torch.sin, propagate_lock=True).is_locked


def test_unhashable_functions_are_called() -> None:
    class Doubled:
        __hash__ = None

        def __call__(self, leaf: torch.Tensor) -> torch.Tensor:
            return 2 * leaf

    assert_close(tree().apply(Doubled()), 2 * tree())


def test_non_tensor_values_of_another_tensordict_are_passed_unwrapped():
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


def test_call_on_nested_passes_nodes_unchanged():
    td, other = TensorDict({"a": torch.ones(2)}, [2]), TensorDict({"a": "text"}, [2])
    kinds = []
    td.apply(lambda x, y: kinds.append(type(y)), other, call_on_nested=True)
    td.apply(lambda x, y: kinds.append(type(y)), TensorDict({"a": ["p", "q"]}, [2]))
    assert kinds == [NonTensorData, NonTensorStack]


def test_nested_batch_sizes_that_are_longer_are_kept_if_the_results_have_them() -> None:
    td = TensorDict({"a": torch.ones(4, 3), "n": TensorDict({"x": torch.ones(4, 3, 2)}, [4, 3])}, [4])
    assert td.apply(lambda x: x + 1, batch_size=[4, 3])["n"].batch_size == (4, 3)
    assert td.apply(lambda x: x[0], batch_size=[])["n"].batch_size == (3,)
    total = td.apply(lambda x: x.sum(), batch_size=[])
    assert total["n"].batch_size == () and total["n", "x"] == 24


def test_filter_empty_removes_nodes_that_never_had_leaves():
    td = TensorDict({"a": {"b": {}}, "c": 1})
    assert td.apply(lambda x: x, filter_empty=True).sorted_keys == ["c"]
    assert td.apply(lambda x: x).sorted_keys == ["a", "c"]
    assert td.select("a").apply(lambda x: x, filter_empty=True) is None
    assert TensorDict({}).apply(lambda x: x, filter_empty=True) is None
    assert lazy_stack([TensorDict({}), TensorDict({})]).apply(lambda x: x, filter_empty=True) is None


def test_a_function_may_return_a_string_for_an_unbatched_tensor():
    td = TensorDict({"u": UnbatchedTensor(torch.ones(2))}, [3])
    assert td.named_apply(lambda name, x: name + "!")["u"] == "u!"


def test_the_device_is_that_of_all_elements_of_a_lazy_stack_also_without_results() -> None:
    stack = lazy_stack([TensorDict({"b": {"s": "text"}}), TensorDict({})])
    result = stack.apply(lambda leaf: leaf, device="cpu", filter_empty=True)
    assert result.device == torch.device("cpu") and [td.device for td in result.tensordicts] == [result.device] * 2
    stack = lazy_stack([TensorDict({"a": torch.ones(2)}, device="cpu"), TensorDict({}, device="cpu")])
    assert [td.device for td in stack.apply(lambda leaf: leaf, device=None).tensordicts] == [None, None]


def test_nested_values_among_the_leaves_decide_about_their_batch_size_as_tensors_do() -> None:
    def fewer(value: Any) -> Any:
        return TensorDict({"n": TensorDict({"leaf": value}, [1, 3, 2])}, [1, 3]).apply(
            lambda leaf: leaf.unsqueeze(-1), batch_size=[1], is_leaf=is_leaf_nontensor
        )

    tensors, values = fewer(torch.zeros(1, 3, 2)), fewer("text")
    assert tensors["n"].batch_size == values["n"].batch_size == torch.Size([1])
    assert values.get(("n", "leaf")).batch_size == torch.Size([1, 3, 2, 1])
