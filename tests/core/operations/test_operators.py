"""Operators between tensors and tensordicts, in either order, eager and compiled."""

from __future__ import annotations

import operator

import numpy as np
import pytest
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorData, TensorDict, UnbatchedTensor, lazy_stack

ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
COMPARISON = ("eq", "ne", "lt", "le", "gt", "ge")
BITWISE = ("and_", "or_", "xor")
LEFT = (*ARITHMETIC, *COMPARISON, *BITWISE)
RIGHT = ("add", "sub", "mul", "truediv", "pow", *COMPARISON, *BITWISE)


def operands(name: str) -> tuple[TensorDict, torch.Tensor]:
    leaf = torch.tensor([1, 2, 3]) if name in BITWISE else torch.tensor([1.0, 2.0, 3.0])
    return TensorDict({"a": leaf, "b": {"c": leaf + 1}}, [3]), torch.full((3,), 2, dtype=leaf.dtype)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("name", "on_the_left"), [*((name, "tensordict") for name in LEFT), *((name, "tensor") for name in RIGHT)]
)
def test_an_operator_applies_to_each_leaf(name, on_the_left, compiled):
    symbol = getattr(operator, name)
    td, tensor = operands(name)

    def in_order(x):
        return (x, tensor) if on_the_left == "tensordict" else (tensor, x)

    torch._dynamo.reset()
    function = torch.compile(symbol_of(symbol), fullgraph=True, backend="eager") if compiled else symbol
    result = function(*in_order(td))
    for key in ("a", ("b", "c")):
        torch.testing.assert_close(result[key], symbol(*in_order(td[key])))


@pytest.mark.parametrize("name", (*ARITHMETIC[:4], "pow", *COMPARISON))
@pytest.mark.parametrize("number", [np.float32(2), np.array([2.0, 3.0, 4.0])], ids=["scalar", "array"])
def test_numpy_numbers_as_left_operands(name, number):
    symbol = getattr(operator, name)
    td, _ = operands(name)
    result = symbol(number, td)
    assert isinstance(result, TensorDict)
    torch.testing.assert_close(result["b", "c"], symbol(torch.as_tensor(number), td["b", "c"]), check_dtype=False)


def test_inversion_needs_integers_or_bools():
    td = TensorDict({"a": torch.tensor([True, False]), "i": torch.tensor([0, 1])}, [2])
    assert (~td)["a"].tolist() == [False, True] and (~td)["i"].tolist() == [-1, -2]
    with pytest.raises(TypeError, match="only implemented on integer and Boolean"):
        ~TensorDict({"a": torch.zeros(1)})


@pytest.mark.parametrize("lazy", [False, True])
def test_non_tensor_entries_may_be_missing_in_one_operand(lazy):
    td = TensorDict({"a": torch.ones(2), "s": "text", "n": {"t": "more"}}, [2])
    td = LazyStackedTensorDict(*td.unbind(0)) if lazy else td
    without = td.select("a")
    assert (td + without)["s"] == td["s"] and (td + without)["a"].tolist() == [2.0, 2.0]
    assert (without + td)["a"].tolist() == [2.0, 2.0] and "s" not in (without + td)
    assert td.lerp(without, 0.5)["n", "t"] == td["n", "t"]
    with pytest.raises(KeyError, match="'b'"):
        td.update({"b": torch.ones(2)}) + without


@pytest.mark.parametrize("default", [None, 0.0, "intersection"])
def test_non_tensor_values_of_one_side_stay_with_every_default(default):
    values = TensorDict({"a": torch.ones(2), "s": "text", "n": {"v": "text"}}, [2])
    tensors = TensorDict({"a": torch.ones(2)}, [2])
    result = values.add(tensors, default=default)
    assert result["s"] == result["n", "v"] == "text" and result["a"].tolist() == [2, 2]
    assert list(tensors.add(values, default=default).keys()) == ["a"]


def test_the_intersection_of_operands_keeps_common_non_tensor_entries():
    td = TensorDict({"a": torch.ones(2), "b": torch.ones(2), "s": "text"}, [2])
    common = td.add(td.exclude("b"), default="intersection")
    assert set(common.keys()) == {"a", "s"} and common["s"] == "text"


def test_operands_match_the_keys_of_each_lazy_stack_element():
    ones = LazyStackedTensorDict(*(TensorDict({"a": torch.ones(n), f"own {n}": torch.ones(1)}) for n in (1, 2)))
    both = ones.add(ones.clone().exclude("own 2"), default=5.0)
    assert both[0]["own 1"] == 2 and both[1]["own 2"] == 6 and both[1]["a"].tolist() == [2.0, 2.0]
    common = ones.add(ones.exclude("own 2"), default="intersection")
    assert common[0]["own 1"] == 2 and set(common[1].keys()) == {"a"}


def symbol_of(symbol):
    """A function around an operator: what is built in has no code to compile."""
    return lambda left, right: symbol(left, right)


def test_where_compiles_with_non_tensor_values():
    torch._dynamo.reset()
    td = TensorDict({"a": torch.arange(3.0), "s": "text"}, [3])
    choose = torch.compile(lambda td: torch.where(td["a"] > 0, td, td * 2), fullgraph=True, backend="eager")
    assert choose(td)["s"] == "text" and choose(td)["a"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("symbol", [operator.add, operator.mul, operator.gt, operator.eq])
def test_operands_with_a_tensor_and_a_nested_tensordict_under_one_key_are_a_key_error(symbol):
    nested, flat = TensorDict({"n": {"a": torch.ones(2)}}), TensorDict({"n": torch.ones(2)})
    pairs = [(nested, flat), (flat, nested), (TensorDict({"n": {}}), flat)]
    for left, right in [*pairs, (lazy_stack([nested, nested]), lazy_stack([flat, flat]))]:
        with pytest.raises(KeyError, match="mismatch"):
            symbol(left, right)


@pytest.mark.parametrize("value", ["text", None, object()])
def test_a_value_that_is_no_tensor_differs_from_one(value):
    td, numbers = TensorDict({"i": NonTensorData(value)}), TensorDict({"i": 3})
    for left, right in ((td, numbers), (numbers, td), (td, {"i": 3})):
        assert not (left == right)["i"] and (left != right)["i"]
    assert (TensorDict({"i": NonTensorData(3)}) == {"i": 3})["i"]
    for symbol in (operator.gt, operator.add):
        with pytest.raises(KeyError, match="mismatch"):
            symbol(td, numbers)
    rows = TensorDict({"i": ["a", "b"]}, [2]) == TensorDict({"i": torch.ones(2)}, [2])
    assert rows["i"].tolist() == [False, False]


def test_an_unbatched_tensor_is_compared_with_a_tensor():
    x = torch.tensor([1.0, 2.0])
    assert (TensorDict({"u": UnbatchedTensor(x)}) == TensorDict({"u": x}))["u"].all()
    chosen = TensorDict({"u": UnbatchedTensor(x)}).where(torch.tensor(True), TensorDict({"u": x + 1}))
    assert chosen["u"].tolist() == [1.0, 2.0]


class Anything:
    def __eq__(self, other):
        return True


@pytest.mark.parametrize("value", [object(), [1, 2], (), {1}, int, ..., torch.float32, torch.Size([3]), NotImplemented])
@pytest.mark.parametrize("td", [TensorDict({"a": [1, 2]}), lazy_stack([TensorDict({"a": 1})] * 2), TensorDict()])
def test_a_tensordict_is_not_equal_to_a_value_that_is_no_operand(td, value):
    assert (td == value, value == td, td != value, value != td) == (False, False, True, True)
    assert [value, td].index(td) == 1


def test_a_value_decides_itself_whether_it_equals_a_tensordict():
    td = TensorDict({"a": 1})
    assert (td == Anything(), Anything() == td) == (True, True)


def test_the_order_of_a_tensordict_and_a_value_that_is_no_operand_is_a_type_error():
    with pytest.raises(TypeError, match="'<' not supported between instances of 'TensorDict' and 'list'"):
        operator.lt(TensorDict({"a": 1}), [1])


@pytest.mark.parametrize("symbol", [operator.eq, operator.gt, operator.add])
def test_a_bool_of_numpy_is_a_number(symbol):
    result = symbol(TensorDict({"a": [1, 2]}), np.True_)
    assert result["a"].equal(symbol(torch.tensor([1, 2]), True))
