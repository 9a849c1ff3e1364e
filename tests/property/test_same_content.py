"""Containers of the same content give the same results: values, shapes, dtypes and types of errors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tensordict_class import tensorclass
from tensordict_core import TensorDict, lazy_stack

ROWS = torch.tensor([[True, False], [False, True], [True, True]])
PLACES = torch.tensor([[0, 1], [2, 0]])
DTYPES = [torch.float32, torch.float16, torch.int64]


@tensorclass
class Fields:
    a: torch.Tensor
    b: torch.Tensor
    n: TensorDict


def content(dtype: torch.dtype, seed: int = 0) -> TensorDict:
    """A dense tensordict of the batch size [3, 2]."""
    made = torch.Generator().manual_seed(seed)

    def entry(*shape: int) -> torch.Tensor:
        values = torch.randint(1, 9, (3, 2, *shape), generator=made)
        return (values / 7 if dtype.is_floating_point else values).to(dtype)

    nested = TensorDict({"c": entry(1), "d": entry()}, [3, 2])
    return TensorDict({"a": entry(2), "b": entry(), "n": nested}, [3, 2])


def fields(td: Any) -> Fields:
    return Fields(a=td["a"], b=td["b"], n=td["n"], batch_size=td.batch_size)


def containers(td: TensorDict) -> Iterator[tuple[str, Any]]:
    """Containers of other kinds with the entries of a tensordict."""
    for dim in (0, 1):
        yield f"lazy {dim}", lazy_stack(list(td.clone().unbind(dim)), dim)
        rows = [lazy_stack(list(row.unbind(0))) for row in td.clone().unbind(dim)]
        yield f"lazy of lazy {dim}", lazy_stack(rows, dim)
        nested = td.clone()
        nested["n"] = lazy_stack(list(nested["n"].unbind(dim)), dim)
        yield f"nested lazy {dim}", nested
        yield f"lazy instances {dim}", lazy_stack([fields(row) for row in td.clone().unbind(dim)], dim)
    yield "instance", fields(td.clone())
    yield "view", torch.cat([td, td])._get_sub_tensordict(slice(0, 3))


UNARY = {
    "sum": lambda x: x.sum(0),
    "sum of all": lambda x: x.sum(reduce=True),
    "prod": lambda x: x.prod(dim=(0, 1)),
    "amax": lambda x: x.amax(1),
    "cummax": lambda x: x.cummax(1).values,
    "softmax": lambda x: x.softmax(0),
    "quantile": lambda x: x.quantile(0.5, 0),
    "mean of a dtype": lambda x: x.mean(1, dtype=torch.float64),
    "flatten": lambda x: x.flatten(0, 1),
    "permute": lambda x: x.permute(1, 0),
    "expand": lambda x: x.expand(4, 3, 2),
    "roll": lambda x: torch.roll(x, 1, 0),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=1),
    "mask": lambda x: x[ROWS],
    "index": lambda x: x[torch.tensor([0, 1]), torch.tensor([1, 0])],
    "gather": lambda x: x.gather(0, PLACES),
    "pad": lambda x: x.pad([1, 0, 0, 1], value=2),
    "double": lambda x: x.double(),
    "named_apply": lambda x: x.named_apply(lambda key, leaf: leaf + 1 if key == "a" else leaf),
}
WITH_TENSORS = {
    "add": lambda x, w: x + w,
    "reflected div": lambda x, w: w / x,
    "pow": lambda x, w: x**w,
    "eq": lambda x, w: x == w,
    "mul_": lambda x, w: x.clone().mul_(w),
    "maximum": lambda x, w: x.maximum(w),
    "clamp": lambda x, w: x.clamp(min=w),
    "addcmul": lambda x, w: x.addcmul(x, w),
    "where": lambda x, w: x.where(ROWS, w),
    "atan2": lambda x, w: torch.atan2(x, w),
    "alpha": lambda x, w: torch.add(x, w, alpha=2),
    "setitem": lambda x, w: with_part(x, slice(None), w),
}
WITH_TENSORDICTS = {
    "sub": lambda x, y: x - y,
    "floor_divide": lambda x, y: x // y,
    "lt": lambda x, y: x < y,
    "div_": lambda x, y: x.clone().div_(y),
    "minimum": lambda x, y: x.minimum(y),
    "lerp": lambda x, y: x.lerp(y, 0.5),
    "where": lambda x, y: x.where(ROWS, y),
    "row": lambda x, y: x * y[0],
    "column": lambda x, y: x - y[:, :1],
    "default": lambda x, y: x.add(y.exclude("a"), default=2.0),
    "apply": lambda x, y: x.apply(lambda one, other: one * other, y),
    "stack": lambda x, y: torch.stack([x, y], 2),
    "cat": lambda x, y: torch.cat([x, y], 1),
    "setitem": lambda x, y: with_part(x, (slice(None), 1), y[:, 0]),
    "update": lambda x, y: x.clone().update(y),
    "update_": lambda x, y: x.clone().update_(y),
    "update_at_": lambda x, y: x.clone().update_at_(y[0], 1),
}


def with_part(td: Any, index: Any, value: Any) -> Any:
    copy = td.clone()
    copy[index] = value
    return copy


def outcome(function: Any, *operands: Any) -> Any:
    try:
        return function(*operands)
    except Exception as error:
        return error


def check(expected: Any, given: Any) -> None:
    """Compare the results, or the types of errors."""
    if isinstance(expected, Exception) or isinstance(given, Exception):
        alike = isinstance(given, type(expected)) or isinstance(expected, type(given))
        assert alike, f"{expected!r}\n{given!r}"
        return
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(given, expected, rtol=1e-3, atol=1e-3, equal_nan=True)
        return
    assert given.batch_size == expected.batch_size
    assert set(given.keys(True, True)) == set(expected.keys(True, True))
    for key, leaf in expected.items(True, True):
        torch.testing.assert_close(given.get(key), leaf, rtol=1e-3, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("name", UNARY)
def test_an_operation_of_one_container(name):
    for dtype in DTYPES:
        td = content(dtype)
        for _, other in containers(td):
            check(outcome(UNARY[name], td), outcome(UNARY[name], other))


@pytest.mark.parametrize("name", WITH_TENSORS)
def test_an_operation_with_a_tensor(name):
    shapes = [(2,), (3, 1), (3, 2), (1, 1)]
    for dtype in DTYPES:
        td = content(dtype)
        others = list(containers(td))
        for shape, of in itertools.product(shapes, [torch.float64, torch.float32, torch.int64]):
            tensor = torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape).to(of)
            expected = outcome(WITH_TENSORS[name], td, tensor)
            for _, other in others:
                check(expected, outcome(WITH_TENSORS[name], other, tensor))


@pytest.mark.parametrize("name", WITH_TENSORDICTS)
def test_an_operation_with_another_container(name):
    for dtype, of in [(torch.float32, torch.float64), (torch.float16, torch.float32), (torch.int64, torch.int64)]:
        x, y = content(dtype), content(of, seed=1)
        expected = outcome(WITH_TENSORDICTS[name], x, y)
        others = list(containers(y))
        for _, left in containers(x):
            for _, right in others:
                check(expected, outcome(WITH_TENSORDICTS[name], left, right))
