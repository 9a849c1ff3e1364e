"""Every function of the dispatch table equals the function on each leaf, for every parameter and place of a tensordict.

The calls are made from the schemas of torch: each parameter alone and all together, by position and by name, with the
tensordict in each place that takes a tensor. What a function does not take is a `TypeError`; nothing is dropped.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tensordict_core import TensorDict, lazy_stack
from tensordict_core.base.registry.torch_functions import _HANDLERS, _PYTHON_HANDLERS

SIZE = (2, 3)
OPERANDS = {"self", "other", "tensor1", "tensor2", "end", "weight", "exponent", "min", "max"}
"""Parameters that may be a tensordict."""

ALL = {handler for handler in _HANDLERS if getattr(torch, handler.__name__, None) is handler}
SEQUENCES = {torch.stack, torch.cat, torch.concat, torch.concatenate}
INTEGERS = {torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor}
RANDOM = {torch.rand_like, torch.randn_like, torch.randint_like, torch.empty_like}
WHOLE = {torch.all, torch.any, torch.equal, torch.allclose, torch.is_floating_point}
"""Functions whose result is one value for the whole tensordict."""

SAMPLES: dict[str, list[Any]] = {
    "dim": [1],
    "dim0": [0],
    "dim1": [1],
    "axis0": [0],
    "axis1": [1],
    "start_dim": [0],
    "end_dim": [1],
    "keepdim": [True],
    "dtype": [torch.float64],
    "alpha": [2],
    "value": [3],
    "rounding_mode": ["floor", "trunc"],
    "decimals": [1],
    "unbiased": [False],
    "correction": [0],
    "interpolation": ["lower"],
    "q": [0.25, torch.tensor([0.25, 0.5])],
    "rtol": [10.0],
    "atol": [10.0],
    "equal_nan": [True],
    "sparse_grad": [True],
    "memory_format": [torch.contiguous_format],
    "layout": [torch.strided],
    "device": ["cpu"],
    "pin_memory": [False],
    "chunks": [2],
    "sections": [2],
    "indices": [[1]],
    "split_size": [2],
    "start": [1],
    "length": [1],
    "source": [0],
    "destination": [1],
    "shifts": [1],
    "k": [3],
    "index": [1],
    "fill_value": [5.0],
    "high": [7],
    "low": [2],
    "repeats": [2],
    "output_size": [6],
    "mask": [torch.tensor([[True, False, True], [False, True, True]])],
    "condition": [torch.tensor([[True, False, True], [False, True, True]])],
    "min": [0.4],
    "max": [0.6],
    "weight": [0.25],
    "exponent": [2],
    "other": [2],
}
BY_FUNCTION: dict[tuple[str, str], list[Any]] = {
    ("flip", "dims"): [[1]],
    ("roll", "dims"): [[1]],
    ("rot90", "dims"): [[1, 0]],
    ("permute", "dims"): [[1, 0]],
    ("tile", "dims"): [[2, 1]],
    ("squeeze", "dim"): [1],
    ("reshape", "shape"): [[3, 2]],
    ("unflatten", "sizes"): [[3, 1]],
    ("broadcast_to", "size"): [[4, 2, 3]],
    ("gather", "index"): [torch.tensor([[0, 2], [1, 1]])],
    ("index_select", "index"): [torch.tensor([2, 0])],
    ("masked_fill", "value"): [9.0, torch.tensor(9.0)],
    ("moveaxis", "source"): [0],
}

REFUSED = {
    # the sparse gradient of one tensor has no counterpart among several
    ("gather", "sparse_grad"),
    # one value of the whole tensordict is a Python bool, which no tensor holds
    ("all", "out"),
    ("any", "out"),
    # indices and values are two results, which one tensordict does not hold
    ("max", "out"),
    ("min", "out"),
    ("cummax", "out"),
    ("cummin", "out"),
}
"""Functions and parameters that raise a `TypeError` for tensordicts."""


def data(function: Any, shift: float = 0.0) -> TensorDict:
    def leaf(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        if function in INTEGERS:
            return torch.randint(0, 8, SIZE, generator=generator) + int(shift)
        return torch.rand(SIZE, generator=generator) * 0.8 + 0.1 + shift

    return TensorDict({"a": leaf(1), "n": {"c": leaf(2)}}, batch_size=SIZE)


def plain(function: Any) -> Tensor:
    """A tensor operand of the batch size, the same for each leaf."""
    return data(function, 0.05 if function not in INTEGERS else 1)["a"].clone()


def on_leaves(function: Any, args: list[Any], kwargs: dict[str, Any]) -> dict[Any, Any]:
    """The function of each leaf."""

    def leaf(value: Any, key: Any) -> Any:
        if isinstance(value, TensorDict):
            return value[key]
        return [leaf(part, key) for part in value] if isinstance(value, list) else value

    return {
        key: function(*[leaf(a, key) for a in args], **{name: leaf(v, key) for name, v in kwargs.items()})
        for key in ("a", ("n", "c"))
    }


def assert_same(function: Any, result: Any, expected: dict[Any, Any]) -> None:
    if function is torch.numel:
        assert result == torch.Size(SIZE).numel()  # of the batch
        return
    if function in WHOLE and not isinstance(result, TensorDict):
        values = [bool(v) if function in (torch.all, torch.any) else v for v in expected.values()]
        whole = any(values) if function is torch.any else all(values)
        assert result == whole
        return
    for key, leaf in expected.items():
        if isinstance(leaf, tuple | list):
            assert len(result) == len(leaf)
            for mine, theirs in zip(result, leaf, strict=True):
                assert_equal(function, mine[key], theirs)
        else:
            assert_equal(function, result[key], leaf)


def assert_equal(function: Any, mine: Tensor, theirs: Tensor) -> None:
    assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
    if function not in RANDOM:
        torch.testing.assert_close(mine, theirs, equal_nan=True)


def schemas(function: Any) -> list[Any]:
    """The overloads of a function that work on tensors and return new ones."""
    out = []
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{function.__name__}"):
        names = {a.name: str(a.type) for a in schema.arguments}
        works_on_tensors = any(kind in ("Tensor", "List[Tensor]") for kind in names.values())
        if not works_on_tensors or any(a.is_out for a in schema.arguments) or "str" in str(schema.arguments[:2]):
            continue
        if any("name" in kind.lower() or name in ("generator", "values") for name, kind in names.items()):
            continue
        if "name" in schema.overload_name.lower() or any(  # names of dimensions
            a.name == "tensor_indices_or_sections" for a in schema.arguments
        ):
            continue
        out.append(schema)
    return out


Call = tuple[str, list[Any], dict[str, Any]]


def calls(function: Any) -> Iterator[Call]:
    """Calls of a function: with what it needs, with each other parameter alone, and with all of them."""
    for schema in schemas(function):
        optional = [a for a in schema.arguments if a.has_default_value()]
        choices = [[], *[[a] for a in optional]] + ([optional] if len(optional) > 1 else [])
        for chosen in choices:
            arguments = [a for a in schema.arguments if not a.has_default_value() or a in chosen]
            for label, named in filled(function, arguments):
                yield from spelled(label, arguments, named)


def filled(function: Any, arguments: list[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Values for the parameters, with a tensordict in each place, and in several."""
    places = [a.name for a in arguments if a.name in OPERANDS and str(a.type) in ("Tensor", "Optional[Tensor]")]
    sequences = [a.name for a in arguments if str(a.type) == "List[Tensor]"]
    columns = [[None] if a.name in places + sequences else values_of(function, a) for a in arguments]
    for values in itertools.product(*columns):
        for tds in itertools.chain.from_iterable(itertools.combinations(places, n) for n in range(1, len(places) + 1)):
            named = {}
            for i, (a, value) in enumerate(zip(arguments, values, strict=True)):
                shift = 0.05 * i if function not in INTEGERS else i
                operand = data(function, shift) if a.name in tds else plain(function)
                named[a.name] = operand if a.name in places else value
            yield f"{'+'.join(named)} with {'+'.join(tds)}", named
        for name in sequences:
            named = dict(zip([a.name for a in arguments], values, strict=True))
            yield "+".join(named), {**named, name: [data(function), data(function, 1)]}


def values_of(function: Any, argument: Any) -> list[Any]:
    """Samples of a parameter that is no operand."""
    kind = str(argument.type)
    if argument.name == "self":
        return [2]  # a number before the tensordict
    known = BY_FUNCTION.get((function.__name__, argument.name), SAMPLES.get(argument.name))
    assert known is not None, f"no sample for the parameter {argument.name} of {function.__name__}"
    if "List[int]" in kind and not isinstance(known[0], list):
        return [[value] for value in known]
    return [value for value in known if isinstance(value, Tensor) == (kind == "Tensor")] or known


def spelled(label: str, arguments: list[Any], named: dict[str, Any]) -> Iterator[Call]:
    """The call with what it needs by position, and with every parameter after the first by name."""
    by_position = [named[a.name] for a in arguments if not a.has_default_value()]
    by_name = {python_name(a.name): named[a.name] for a in arguments if a.has_default_value()}
    yield label, by_position, by_name
    if len(arguments) > len(by_name) + 1:
        yield (
            f"{label}, by name",
            [named[arguments[0].name]],
            {python_name(a.name): named[a.name] for a in arguments[1:]},
        )


def python_name(name: str) -> str:
    known = {"self": "input", "sections": "indices_or_sections", "indices": "indices_or_sections"}
    return known.get(name, name)


@pytest.mark.parametrize("function", sorted(ALL, key=lambda f: f.__name__), ids=lambda f: f.__name__)
def test_a_function_equals_the_function_on_each_leaf(function):
    seen = 0
    for label, args, kwargs in calls(function):
        try:
            expected = on_leaves(function, args, kwargs)
        except (TypeError, ValueError, RuntimeError) as error:
            with pytest.raises((type(error), TypeError)):
                function(*args, **kwargs)
            continue
        seen += 1
        if any((function.__name__, name) in REFUSED for name in kwargs):
            with pytest.raises(TypeError):
                function(*args, **kwargs)
            continue
        try:
            result = function(*args, **kwargs)
        except TypeError as error:
            raise AssertionError(f"{function.__name__}: {label}") from error
        try:
            assert_same(function, result, expected)
        except AssertionError as error:
            error.add_note(f"{function.__name__}: {label}")
            raise
    assert seen or function.__name__ in ("is_floating_point",)


OUT = sorted(
    {
        function
        for function in ALL - SEQUENCES
        for schema in torch._C._jit_get_schemas_for_operator(f"aten::{function.__name__}")
        if any(argument.is_out for argument in schema.arguments)
    },
    key=lambda function: function.__name__,
)


@pytest.mark.parametrize("function", OUT, ids=lambda function: function.__name__)
def test_out_takes_the_result_or_is_refused(function):
    for label, args, kwargs in calls(function):
        try:
            expected = on_leaves(function, args, kwargs)
        except (TypeError, ValueError, RuntimeError):
            continue
        if not all(isinstance(leaf, Tensor) for leaf in expected.values()) or (function.__name__, "out") in REFUSED:
            with pytest.raises(TypeError):
                function(*args, **kwargs, out=(data(function), data(function)))
            continue
        if any((function.__name__, name) in REFUSED for name in kwargs):
            continue
        a, c = (leaf.new_zeros(leaf.shape) for leaf in expected.values())
        try:
            on_leaves(function, args, {**kwargs, "out": a.clone()})
        except TypeError:  # torch has it in another language only
            continue
        out = TensorDict({"a": a, "n": {"c": c}}, batch_size=a.shape)
        result = function(*args, **kwargs, out=out)
        assert result is out, label
        assert out["a"] is a or function in IN_NEW_TENSORS, label
        assert_same(function, out, expected)


IN_NEW_TENSORS = {torch.where}
"""Functions whose ``out`` takes new tensors, so that tensors that others hold are not changed."""

OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.floordiv, operator.mod]
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]
LEFT = {"number": 2.5, "tensor": torch.full(SIZE, 2.5), "scalar": torch.tensor(2.5), "row": torch.full((1, 3), 2.5)}


@pytest.mark.parametrize("lazy", [False, True], ids=["dense", "lazy"])
@pytest.mark.parametrize("kind", LEFT)
@pytest.mark.parametrize("apply", OPERATORS + COMPARISONS, ids=lambda function: function.__name__)
def test_an_operator_takes_the_tensordict_on_either_side(apply, kind, lazy):
    other = LEFT[kind]
    td = data(None, 1.0)
    operand = lazy_stack(list(td.unbind(0)), 0) if lazy else td
    for result, expected in (
        (apply(operand, other), {key: apply(td[key], other) for key in ("a", ("n", "c"))}),
        (apply(other, operand), {key: apply(other, td[key]) for key in ("a", ("n", "c"))}),
    ):
        for key, leaf in expected.items():
            torch.testing.assert_close(result[key], leaf)
        assert result.batch_size == SIZE


@pytest.mark.parametrize("kind", LEFT)
@pytest.mark.parametrize("name", ["iadd", "isub", "imul", "itruediv", "ipow"])
def test_an_operator_in_place_writes_into_the_leaves(name, kind):
    td, before = data(None, 1.0), data(None, 1.0)
    leaf = td["a"]
    result = getattr(operator, name)(td, LEFT[kind])
    assert result is td and td["a"] is leaf
    torch.testing.assert_close(leaf, getattr(operator, name)(before["a"], LEFT[kind]))


def test_a_function_refuses_a_tensordict_where_it_takes_a_tensor_only():
    td = data(None)
    with pytest.raises(TypeError, match="first argument"):
        torch.narrow(torch.zeros(2), td, 0, 1)
    with pytest.raises(TypeError, match="rounding_mode"):
        torch.mul(td, 2, rounding_mode="floor")
    with pytest.raises(TypeError, match="unbiased"):
        torch.lt(td, 2, unbiased=True)


def test_python_functions_of_the_table_are_tested_too():
    # they have no schema; each has tests of its own, and a new one needs some
    assert {handler.__name__ for handler, _ in _PYTHON_HANDLERS} <= {
        *("split", "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_tensors", "backward", "grad"),
        *("pow", "__rsub__", "__rdiv__", "__floordiv__", "__rfloordiv__", "__rmod__", "__rpow__"),
        *("l1_loss", "mse_loss", "smooth_l1_loss"),
    }
