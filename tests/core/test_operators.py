"""Operators between tensors and tensordicts: either may stand on the left, eagerly and compiled."""

from __future__ import annotations

import operator

import pytest
import torch

from tensordict_core import TensorDict

ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
COMPARISON = ("eq", "ne", "lt", "le", "gt", "ge")
BITWISE = ("and_", "or_", "xor")
LEFT = (*ARITHMETIC, *COMPARISON, *BITWISE)
RIGHT = ("add", "sub", "mul", "truediv", "pow", *COMPARISON, *BITWISE)


def operands(name: str) -> tuple[TensorDict, torch.Tensor]:
    leaf = torch.tensor([1, 2, 3]) if name in BITWISE else torch.tensor([1.0, 2.0, 3.0])
    return TensorDict({"a": leaf, "b": {"c": leaf + 1}}, [3]), torch.full((3,), 2, dtype=leaf.dtype)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", LEFT)
def test_a_tensordict_on_the_left(name, compiled):
    symbol = getattr(operator, name)
    td, tensor = operands(name)
    torch._dynamo.reset()
    function = torch.compile(symbol_of(symbol), fullgraph=True, backend="eager") if compiled else symbol
    result = function(td, tensor)
    torch.testing.assert_close(result["a"], symbol(td["a"], tensor))
    torch.testing.assert_close(result["b", "c"], symbol(td["b", "c"], tensor))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", RIGHT)
def test_a_tensor_on_the_left(name, compiled):
    symbol = getattr(operator, name)
    td, tensor = operands(name)
    torch._dynamo.reset()
    function = torch.compile(symbol_of(symbol), fullgraph=True, backend="eager") if compiled else symbol
    result = function(tensor, td)
    torch.testing.assert_close(result["a"], symbol(tensor, td["a"]))
    torch.testing.assert_close(result["b", "c"], symbol(tensor, td["b", "c"]))


def symbol_of(symbol):
    """A function around an operator: what is built in has no code to compile."""
    return lambda left, right: symbol(left, right)


def test_where_compiles_with_values_that_are_no_tensors():
    torch._dynamo.reset()
    td = TensorDict({"a": torch.arange(3.0), "s": "text"}, [3])
    choose = torch.compile(lambda td: torch.where(td["a"] > 0, td, td * 2), fullgraph=True, backend="eager")
    assert choose(td)["s"] == "text" and choose(td)["a"].tolist() == [0.0, 1.0, 2.0]
