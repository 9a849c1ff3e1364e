"""Batch sizes that broadcast: the result has the batch size of its leaves, for every operation of several operands."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tensordict_core import TensorDict, lazy_stack

ONE = TensorDict(a=torch.ones(1, 5) * 3, batch_size=[1])
ROWS = TensorDict(a=torch.arange(15.0).reshape(3, 5), batch_size=[3])
GRID = TensorDict(a=torch.arange(30.0).reshape(2, 3, 5), batch_size=[2, 3])
LAZY = lazy_stack([ROWS[0], ROWS[1], ROWS[2]])

OPERATIONS: dict[str, Any] = {
    "add": lambda x, y: x + y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "ge": lambda x, y: x >= y,
    "maximum": lambda x, y: x.maximum(y),
    "lerp": lambda x, y: x.lerp(y, 0.5),
    "addcmul": lambda x, y: x.addcmul(y, y),
    "clamp": lambda x, y: x.clamp(y, y),
    "isclose": torch.isclose,
    "alpha": lambda x, y: torch.add(x, y, alpha=2),
    "rounded": lambda x, y: torch.div(x, y, rounding_mode="floor"),
}
PAIRS = {
    "one_rows": (ONE, ROWS, [3]),
    "rows_one": (ROWS, ONE, [3]),
    "rows_grid": (ROWS, GRID, [2, 3]),
    "lazy_grid": (LAZY, GRID, [2, 3]),
    "grid_lazy": (GRID, LAZY, [2, 3]),
    "one_lazy": (ONE, LAZY, [3]),
    "lazy_one": (LAZY, ONE, [3]),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_two_tensordicts_broadcast_their_batch_sizes(name, pair):
    x, y, size = PAIRS[pair]
    result = OPERATIONS[name](x, y)
    assert list(result.batch_size) == size
    torch.testing.assert_close(result["a"], OPERATIONS[name](x["a"], y["a"]), equal_nan=True)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("td", [ONE, ROWS, LAZY], ids=["one", "rows", "lazy"])
@pytest.mark.parametrize("name", ["add", "ge", "pow", "mod", "floordiv"])
def test_a_tensor_broadcasts_the_batch_size(name, td, left):
    apply = {
        "add": lambda x, y: x + y,
        "ge": lambda x, y: x >= y,
        "pow": lambda x, y: x**y,
        "mod": lambda x, y: x % y,
        "floordiv": lambda x, y: x // y,
    }[name]
    tensor = torch.arange(1.0, 7.0).reshape(2, 3)
    result = apply(tensor, td) if left else apply(td, tensor)
    leaf = tensor.unsqueeze(-1)
    assert list(result.batch_size) == [2, 3]
    assert torch.allclose(result["a"], apply(leaf, td["a"]) if left else apply(td["a"], leaf), equal_nan=True)


def test_two_operands_broadcast_different_dimensions():
    result = ONE.addcmul(torch.ones(2, 1), torch.ones(3))
    assert list(result.batch_size) == [2, 3] and result["a"].shape == (2, 3, 5)


def test_names_stay_at_the_dimensions_that_had_them():
    named = TensorDict(a=torch.ones(3, 5), batch_size=[3], names=["time"])
    assert (named + torch.ones(2, 3)).names == [None, "time"]
    assert (named >= torch.ones(2, 3)).names == [None, "time"]


def test_nested_lazy_stacks_broadcast_too():
    td = TensorDict(n=LAZY, b=torch.ones(3), batch_size=[3])
    result = td + torch.ones(2, 3)
    assert list(result["n"].batch_size) == [2, 3] and result["n", "a"].shape == (2, 3, 5)


def test_quantiles_that_keep_dimensions_are_in_front_of_them():
    result = GRID.quantile(torch.tensor([0.25, 0.5]), keepdim=True)
    assert list(result.batch_size) == [2, 1, 1] and result["a"].shape == (2, 1, 1, 1)


SQUARE = torch.arange(12.0).reshape(2, 2, 3)


def row_of(kind: str) -> Any:
    """Return an operand of the batch size [2], the values of whose rows differ."""
    rows = [TensorDict(a=torch.full((3 if kind != "ragged" or i else 1,), i + 1.0)) for i in range(2)]
    return torch.stack(rows) if kind == "dense" else lazy_stack(rows)


@pytest.mark.parametrize("name", ["add", "eq", "maximum", "lerp", "addcmul", "clamp", "add_"])
@pytest.mark.parametrize(("kind", "stack_dim"), [("dense", 0), ("dense", 1), ("lazy", 0), ("lazy", 1), ("ragged", 1)])
def test_an_operand_of_fewer_batch_dims_is_aligned_from_the_last_one(name, kind, stack_dim):
    operations = OPERATIONS | {"add_": lambda x, y: x.add_(y)}
    grid = TensorDict(a=SQUARE.clone(), batch_size=[2, 2])
    stack = lazy_stack(list(grid.clone().unbind(stack_dim)), stack_dim)
    other = row_of(kind)
    result = operations[name](stack, other)
    for i in range(2):
        for j in range(2):
            torch.testing.assert_close(result[i, j]["a"], operations[name](grid[i, j], other[j])["a"])


@pytest.mark.parametrize("name", ["lerp", "addcmul"])
@pytest.mark.parametrize("kind", ["dense", "lazy"])
def test_operands_of_other_numbers_of_batch_dims_are_aligned_with_a_ragged_stack(name, kind):
    stack = lazy_stack([TensorDict(a=torch.rand(2, 3), batch_size=[2]), TensorDict(a=torch.rand(2, 1), batch_size=[2])])
    other, weight = row_of(kind), torch.rand(2, 2, 2)
    result = getattr(stack, name)(other, weight)
    for i, j, k in [(i, j, k) for i in range(2) for j in range(2) for k in range(2)]:
        expected = getattr(torch, name)(stack[j, k]["a"], other[k]["a"], weight[i, j, k])
        torch.testing.assert_close(result[i, j, k]["a"], expected)


WITH_TENSORS = {
    "mul": lambda x, w: x * w,
    "reflected sub": lambda x, w: w - x,
    "clamp": lambda x, w: x.clamp(w, w + 1),
    "maximum": lambda x, w: x.maximum(w),
    "addcmul": lambda x, w: x.addcmul(x, w),
    "where": lambda x, w: x.where(w > 1, w),
    "torch.add": lambda x, w: torch.add(w, x, alpha=2),
}


@pytest.mark.parametrize("name", WITH_TENSORS)
@pytest.mark.parametrize("dim", [0, 1, "both"])
def test_the_dtype_of_a_tensor_counts_beside_each_element_of_a_lazy_stack(name, dim):
    def element(*size):
        entries = {"a": torch.rand(size), "b": torch.rand((*size, 2), dtype=torch.float16)}
        return TensorDict({**entries, "n": {"c": torch.arange(math.prod(size)).reshape(size)}}, size)

    if dim == "both":
        stack = lazy_stack([lazy_stack([element() for _ in range(3)]) for _ in range(3)], 1)
    else:
        stack = lazy_stack([element(*[3] * dim) for _ in range(3)], dim)
    weight = torch.tensor([1, 2, 3], dtype=torch.float64)  # one number for each element
    result, expected = WITH_TENSORS[name](stack, weight), WITH_TENSORS[name](stack.to_tensordict(), weight)
    for key, leaf in expected.items(True, True):
        assert leaf.dtype is torch.float64
        torch.testing.assert_close(result[key], leaf, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("td", "condition", "other"),
    [
        (ROWS, torch.ones(2, 3, 5), 0.0),
        (ROWS, torch.ones(2, 3, 5), GRID),
        (ROWS, torch.ones(3, 5), torch.zeros(2, 3, 5)),
        (ONE, torch.ones(3, 5), 0.0),
        (ONE, torch.ones(3), ONE),
    ],
)
def test_where_refuses_a_result_that_does_not_start_with_the_batch_size(td, condition, other):
    with pytest.raises(RuntimeError):
        td.where(condition.bool(), other)
    with pytest.raises(RuntimeError):
        torch.where(condition.bool(), td, other)


@pytest.mark.parametrize(
    ("operation", "locked"),
    [
        (lambda x, y: x + y, True),
        (lambda x, y: x.maximum(y), True),
        (lambda x, y: x.lerp(y, 0.5), True),
        (lambda x, y: x.lerp(x, torch.ones(2, 3)), True),
        (lambda x, y: x.lerp(x, torch.ones(3)), True),
        (lambda x, y: x.addcmul(y, y), True),
        (lambda x, y: x.addcmul(y, torch.ones(2, 3)), True),
        (lambda x, y: x.addcmul(torch.ones(3), torch.ones(2, 3)), False),
        (lambda x, y: x.lerp(torch.ones(3), 0.5), False),
        (lambda x, y: x + torch.ones(2, 3), False),
        (lambda x, y: x == y, False),
    ],
)
def test_a_result_that_is_broadcast_to_a_tensordict_is_locked_as_one_of_the_same_size(operation, locked):
    nested = TensorDict({"a": torch.ones(3), "n": {"b": torch.ones(3)}}, [3]).lock_()
    assert operation(nested, nested.expand(2, 3).clone()).is_locked is locked
    assert not operation(nested.clone(), nested.expand(2, 3)).is_locked
