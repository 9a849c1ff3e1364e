"""Gradients of all leaves as one tensordict."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tensordict_core import TensorDict, lazy_stack
from tensordict_core.extension import OpSpec, operations


@pytest.fixture
def td() -> TensorDict:
    x, y = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
    return TensorDict({"x": x, "n": {"y": y}, "s": "text"}, [3])


def test_detach_and_data_share_storage_outside_the_graph(td: TensorDict) -> None:
    for result in (td.detach(), td.data, torch.detach(td)):
        assert not result.requires_grad and result["s"] == "text"
        assert result["n", "y"].data_ptr() == td["n", "y"].data_ptr()
    td.lock_()
    assert td.detach().is_locked and td.data.is_locked


def test_assigning_data_replaces_the_data_of_leaves(td: TensorDict) -> None:
    other = td.detach().clone().zero_()
    td.data = other
    assert td["x"].requires_grad and td["x"].sum().item() == 0.0
    with pytest.raises(KeyError, match="'x' not found"):
        td.data = other.exclude("x")


def test_detach_in_place(td: TensorDict) -> None:
    doubled = td * 2
    leaf = doubled["x"]
    assert doubled.detach_() is doubled and doubled["x"] is leaf and not leaf.requires_grad


def test_a_clone_requires_the_gradients_that_its_leaves_require() -> None:
    weight = torch.ones(3, requires_grad=True)
    td = TensorDict({"obs": torch.ones(2, 3), "value": torch.ones(2, 3) * weight, "n": {"obs": torch.ones(2)}}, [2])
    copy = td.clone()
    assert not copy["obs"].requires_grad and not copy["n", "obs"].requires_grad
    assert copy["obs"].data_ptr() != td["obs"].data_ptr()
    copy["value"].sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [2.0, 2.0, 2.0]


def test_grad_contains_only_leaves_with_a_gradient(td: TensorDict) -> None:
    assert td.grad is None
    (td["x"] * 3).sum().backward()
    assert td.grad["x"].tolist() == [3.0] * 3 and "n" not in td.grad
    td.grad = TensorDict({"x": torch.zeros(3), "n": {"y": torch.ones(3)}}, [3])
    assert td["x"].grad.sum() == 0 and td["n", "y"].grad.sum() == 3
    with pytest.raises(KeyError, match="zz"):
        td.grad = TensorDict({"zz": torch.zeros(3)}, [3])
    td.grad = None
    assert td.grad is None


def test_zero_grad_removes_gradients_or_fills_them_with_zeros(td: TensorDict) -> None:
    (td * 3).sum(reduce=True).backward()
    assert td.zero_grad(set_to_none=False) is td and td.grad["x"].sum() == 0
    assert td.zero_grad().grad is None


@pytest.mark.parametrize(
    "operate",
    [
        lambda td: td.exp(),
        lambda td: td * 2,
        lambda td: 1 - td,
        lambda td: td + td,
        lambda td: td.sub(td, alpha=2),
        lambda td: td + td.detach(),
        lambda td: td.lerp(td, 0.5),
        lambda td: td.norm(),
    ],
)
def test_results_require_the_gradients_of_their_own_operands(operate) -> None:
    td = TensorDict({"weight": torch.ones(3, requires_grad=True), "n": {"obs": torch.ones(3)}})
    result = operate(td)
    assert result["weight"].requires_grad and not result["n", "obs"].requires_grad


def test_a_tensor_that_requires_gradients_passes_them_to_all_results() -> None:
    scale = torch.ones((), requires_grad=True)
    result = TensorDict({"a": torch.ones(3), "b": torch.ones(2)}) * scale
    result.sum(reduce=True).backward()
    assert scale.grad is not None and scale.grad.item() == 5


def test_requires_grad_is_all_or_nothing() -> None:
    td = TensorDict({"a": torch.ones(1), "b": torch.ones(1, dtype=torch.int64)})
    with pytest.raises(RuntimeError, match="key 'b' has dtype"):
        td.requires_grad_()
    assert not td["a"].requires_grad
    assert td.exclude("b").requires_grad_()["a"].requires_grad and td.requires_grad
    assert not td.requires_grad_(False).requires_grad


def test_backward_runs_once_from_all_leaves(td: TensorDict) -> None:
    losses = TensorDict({"a": td["x"].sum(), "n": {"b": (td["x"] * td["n", "y"]).sum()}, "constant": torch.ones(())})
    losses.backward(TensorDict({"a": torch.tensor(0.5), "n": {"b": torch.tensor(1.0)}}), retain_graph=True)
    assert td.grad["x"].tolist() == [2.5] * 3
    td.zero_grad()
    losses.backward(inputs=[td["x"]])
    assert td.grad["x"].tolist() == [3.0] * 3 and td["n", "y"].grad is None


def test_backward_refuses_leaves_without_gradients(td: TensorDict) -> None:
    for call, error, message in (
        (lambda: td.detach().backward(), RuntimeError, "none does"),
        (lambda: (td * 2).backward(), RuntimeError, r"'x' has shape \[3\], .*; pass gradient="),
        (lambda: (td * 2).backward(TensorDict({"x": torch.ones(3)}, [3])), KeyError, "no entry for key"),
        (lambda: (td * 2).backward(td.apply(lambda x: x[:1], batch_size=[])), RuntimeError, "expand it"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_autograd_grad_accepts_and_returns_tensordicts(td: TensorDict) -> None:
    grads = torch.autograd.grad(td * td, td, torch.ones_like(td))
    assert grads["x"].tolist() == [2.0] * 3 and grads["n", "y"].tolist() == [4.0] * 3 and grads["s"] == "text"
    grads = torch.autograd.grad((td * 2).sum(reduce=True), td)
    assert grads["x"].tolist() == [2.0] * 3
    (x,) = torch.autograd.grad(td * 2, td["x"], td.detach())
    assert x.tolist() == [2.0] * 3
    unused = torch.autograd.grad(td["x"].sum(), td, allow_unused=True)
    assert "x" in unused and ("n", "y") not in unused.keys(True)
    torch.autograd.backward(td * 2, torch.ones_like(td))
    assert td.grad["x"].tolist() == [2.0] * 3
    with pytest.raises(TypeError, match="give a tensordict with the same keys"):
        torch.autograd.grad(td * 2, td, [torch.ones(3)])


# each differentiable operation, by the records ----------------------------------------------------------------------


def _small(seed: int) -> list[Tensor]:
    """Leaves between 0.2 and 0.8, no two of them equal, where every function is defined and smooth."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [(2,), (2, 3)]
    values = [(torch.randperm(math.prod(s), generator=generator).double() + 1) / (math.prod(s) + 1) for s in sizes]
    return [
        (value * 0.6 + 0.11 + 0.03 * seed).reshape(s).requires_grad_() for value, s in zip(values, sizes, strict=True)
    ]


def _grown(leaves: Sequence[Tensor]) -> TensorDict:
    return TensorDict({"a": leaves[0], "n": {"b": leaves[1]}}, [2])


def _differentiable(result: Any) -> tuple[Tensor, ...]:
    parts = result if isinstance(result, tuple) else (result,)
    leaves = [leaf for part in parts for leaf in (part._leaves() if isinstance(part, TensorDict) else [part])]
    return tuple(leaf for leaf in leaves if leaf.requires_grad)


CALLS = {"unary": 1, "binary": 2, "ternary": 3, "reduce": 1}
RECORDS = [op for op in operations() if op.family in CALLS]
ARGUMENTS: dict[str, tuple[Any, ...]] = {"quantile": (0.5,)}
WHOLE = {"norm"}  # of all leaves together


def _call(op: OpSpec, containers: Sequence[Any]) -> Any:
    first, *rest = containers
    arguments = ARGUMENTS.get(op.name, ())
    if op.family == "reduce" and "dim" in inspect.signature(getattr(first, op.name)).parameters:
        return getattr(first, op.name)(*arguments, dim=0)
    return getattr(first.clone() if op.inplace else first, op.name)(*rest, *arguments)


@pytest.mark.parametrize("op", RECORDS, ids=lambda op: op.name)
def test_gradients_of_an_operation_are_those_of_its_leaves(op: OpSpec) -> None:
    count = CALLS[op.family]
    inputs = [leaf for seed in range(count) for leaf in _small(seed)]

    def function(*leaves: Tensor) -> tuple[Tensor, ...]:
        return _differentiable(_call(op, [_grown(leaves[i : i + 2]) for i in range(0, len(leaves), 2)]))

    def of_one(*leaves: Tensor) -> tuple[Tensor, ...]:
        leaf = leaves[0].clone() if op.inplace else leaves[0]
        more: dict[str, Any] = {"dim": 0} if op.family == "reduce" and op.name not in WHOLE else {}
        return _differentiable(op.leaf(leaf, *leaves[1:], *ARGUMENTS.get(op.name, ()), **more))

    single = [inputs[2 * i] for i in range(count)]
    try:
        known = of_one(*single) and torch.autograd.gradcheck(of_one, single, raise_exception=False)
    except (RuntimeError, TypeError, NotImplementedError):  # not for floating-point numbers, or torch has no derivative
        known = None
    if known:
        assert torch.autograd.gradcheck(function, inputs)
    elif known is False:  # torch's own gradient is none of the function, so it is compared with itself
        weights = [torch.rand_like(out) for out in of_one(*single)]
        got = torch.autograd.grad([function(*inputs)[0]], single, weights, allow_unused=True)
        assert all(map(_alike, got, torch.autograd.grad(of_one(*single), single, weights, allow_unused=True)))
    elif known == ():
        assert not function(*inputs)
    else:
        with pytest.raises((RuntimeError, TypeError, NotImplementedError)):
            torch.autograd.grad([out.sum() for out in function(*inputs)], inputs)


def _alike(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else bool(one.allclose(other))


MOVES: dict[str, Callable[[TensorDict], Any]] = {
    "index": lambda td: td[0],
    "index by tensor": lambda td: td[torch.tensor([1, 0, 1])],
    "index put": lambda td: td.clone().__setitem__(0, td[1] * 2) or td,
    "stack": lambda td: torch.stack([td, td * 2], 1),
    "lazy stack": lambda td: (lazy_stack([td, td * 2], 0) + 1).contiguous(),
    "cat": lambda td: torch.cat([td, td * 3], 0),
    "reshape": lambda td: td.reshape(2, 1).transpose(0, 1).squeeze(0).expand(3, 2),
    "split": lambda td: td.split(1)[1],
    "gather": lambda td: td.gather(0, torch.tensor([1, 1, 0])),
    "where": lambda td: td.where(torch.tensor([True, False]), td * 2),
    "masked_select": lambda td: td.masked_select(torch.tensor([True, False])),
    "pad": lambda td: td.pad([1, 1]),
    "apply": lambda td: td.apply(lambda x: x.sin()),
    "cast": lambda td: td.to(torch.float64).contiguous(),
    "flatten keys": lambda td: td.flatten_keys().unflatten_keys(),
    "sum of all": lambda td: td.sum(reduce=True),
    "norm of all": lambda td: td.norm(),
    "view": lambda td: td.view_at(0).clone(),
    "clone": lambda td: td.clone(),
    "update": lambda td: td.empty().update(td * 2),
}


@pytest.mark.parametrize("name", MOVES)
def test_gradients_flow_through_operations_that_move_and_combine_leaves(name: str) -> None:
    def function(*leaves: Tensor) -> tuple[Tensor, ...]:
        result = _differentiable(MOVES[name](_grown(leaves)))
        assert result
        return result

    assert torch.autograd.gradcheck(function, _small(0))


def test_an_update_that_a_parameter_refuses_changes_no_leaf() -> None:
    td = TensorDict({"a": torch.zeros(2), "p": torch.nn.Parameter(torch.zeros(2)), "z": torch.zeros(2)}, [2])
    for target in (td, td.view(1, 2)):
        with pytest.raises(RuntimeError, match="'p': a leaf Variable that requires grad"):
            target.update_(target.data + 1)
    assert not any(leaf.any() for leaf in td.values())
    with torch.no_grad():
        td.update_(td.data + 1)
    assert all(leaf.all() for leaf in td.values()) and td["p"].requires_grad


@pytest.mark.parametrize(
    "write",
    [
        lambda td, value: td.set_("a", value),
        lambda td, value: td.set("a", value, inplace=True),
        lambda td, value: td.update({"a": value}, inplace=True),
        lambda td, value: td.update_({"a": value}),
        lambda td, value: td.apply_(lambda _: value),
        lambda td, value: td.set_at_("a", 0.0, 0),
    ],
)
def test_a_write_that_torch_refuses_is_a_value_error_and_a_runtime_error(write: Callable[..., Any]) -> None:
    td = TensorDict({"a": torch.ones(2, requires_grad=True)}, [2])
    for kind in (ValueError, RuntimeError):
        with pytest.raises(kind, match="Failed to update 'a': a leaf Variable that requires grad"):
            write(td, torch.zeros(2))
    assert td["a"].tolist() == [1.0, 1.0]


def test_a_write_into_overlapping_memory_names_the_key() -> None:
    td = TensorDict({"a": torch.ones(2).expand(4, 2)}, [4])
    with pytest.raises(ValueError, match="Failed to update 'a': unsupported operation: more than one element"):
        td.set_("a", torch.zeros(4, 2))


def test_written_values_carry_their_gradients() -> None:
    td = TensorDict({"a": torch.zeros(2), "n": {"b": torch.zeros(2, 3)}}, [2])
    weight = torch.ones(2, requires_grad=True)
    td.update_({"a": weight * 2, "n": {"b": weight[:, None] * 3}})
    (td["a"].sum() + td["n", "b"].sum()).backward()
    assert weight.grad is not None and weight.grad.tolist() == [11.0, 11.0]
