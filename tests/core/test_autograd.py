"""Gradients of the leaves as one tensordict."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import TensorDict


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


def test_data_rebinds(td: TensorDict) -> None:
    other = td.detach().clone().zero_()
    td.data = other
    assert td["x"].requires_grad and td["x"].sum().item() == 0.0
    with pytest.raises(KeyError, match="'x' not found"):
        td.data = other.exclude("x")


def test_detach_in_place(td: TensorDict) -> None:
    doubled = td * 2
    leaf = doubled["x"]
    assert doubled.detach_() is doubled and doubled["x"] is leaf and not leaf.requires_grad


def test_grad_holds_what_has_a_gradient(td: TensorDict) -> None:
    assert td.grad is None
    (td["x"] * 3).sum().backward()
    assert td.grad["x"].tolist() == [3.0] * 3 and "n" not in td.grad
    td.grad = TensorDict({"x": torch.zeros(3), "n": {"y": torch.ones(3)}}, [3])
    assert td["x"].grad.sum() == 0 and td["n", "y"].grad.sum() == 3
    with pytest.raises(KeyError, match="zz"):
        td.grad = TensorDict({"zz": torch.zeros(3)}, [3])
    td.grad = None
    assert td.grad is None


def test_zero_grad_takes_gradients_away_or_fills_them(td: TensorDict) -> None:
    (td * 3).sum(reduce=True).backward()
    assert td.zero_grad(set_to_none=False) is td and td.grad["x"].sum() == 0
    assert td.zero_grad().grad is None


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


def test_backward_refuses_what_has_no_gradient(td: TensorDict) -> None:
    for call, error, message in (
        (lambda: td.detach().backward(), RuntimeError, "none does"),
        (lambda: (td * 2).backward(), RuntimeError, r"'x' has shape \[3\]; pass gradient="),
        (lambda: (td * 2).backward(TensorDict({"x": torch.ones(3)}, [3])), KeyError, "no entry for key"),
        (lambda: (td * 2).backward(td.apply(lambda x: x[:1], batch_size=[])), RuntimeError, "expand it"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_autograd_grad_takes_and_gives_tensordicts(td: TensorDict) -> None:
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
    with pytest.raises(TypeError, match="is a tensordict of its keys"):
        torch.autograd.grad(td * 2, td, [torch.ones(3)])
