"""``out=``: which entries a result is written into, which it replaces, and what is refused."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import TensorDict, cat, lazy_stack, stack

MASK = torch.tensor([True, False, True])


def tree() -> TensorDict:
    return TensorDict({"a": torch.arange(6.0).view(3, 2), "n": {"b": torch.ones(3)}}, [3])


def test_norm_into_out_replaces_its_entries_and_adds_missing_ones():
    out = TensorDict({"a": torch.zeros((), dtype=torch.int64)})
    old = out["a"]
    assert tree().norm(out=out) is out
    assert out["a"].dtype is torch.float32 and out["n", "b"] == torch.ones(3).norm() and old == 0
    with pytest.raises(RuntimeError, match="locked"):
        tree().norm(out=out.lock_())


def test_logsumexp_into_out_writes_entries_and_adds_missing_ones():
    out = TensorDict({"a": torch.zeros(2)})
    old = out["a"]
    assert tree().logsumexp(0, out=out) is out
    assert out["a"] is old and torch.equal(old, tree()["a"].logsumexp(0)) and ("n", "b") in out
    with pytest.raises(RuntimeError, match="locked"):
        tree().logsumexp(0, out=out.lock_())


@pytest.mark.parametrize(
    "call",
    [
        lambda td, out: torch.stack([td, td], out=out),
        lambda td, out: stack([td, td], out=out),
        lambda td, out: cat([td, td], out=out),
        lambda td, out: lazy_stack([td, td], out=out),
        lambda td, out: TensorDict.maybe_dense_stack([td, td], out=out),
        lambda td, out: td.gather(0, torch.tensor([0, 1]), out=out),
        lambda td, out: td.clamp(0, 1, out=out),
        lambda td, out: td.logsumexp(0, out=out),
    ],
    ids=["torch.stack", "stack", "cat", "lazy_stack", "maybe_dense_stack", "gather", "clamp", "logsumexp"],
)
def test_a_result_is_not_rounded_into_integers(call):
    size = {"cat": [6]}
    for shape in ([2, 3], [6], [2], [3], []):
        out = TensorDict({"a": torch.zeros(*shape, 2, dtype=torch.int32)}, shape)
        td = TensorDict({"a": torch.full((3, 2), 0.5)}, [3])
        try:
            call(td, out)
        except (TypeError, RuntimeError) as error:
            if "does not cast" in str(error):
                assert isinstance(error, TypeError) and isinstance(error, RuntimeError) and not out["a"].any()
                return
    raise AssertionError(f"no shape of out was refused for its dtype {size}")


@pytest.mark.parametrize("lazy", [False, True])
def test_where_into_out_leaves_tensors_alone_that_others_hold(lazy):
    td = lazy_stack(list(tree().unbind(0))) if lazy else tree()
    held = td[0]["a"] if lazy else td["a"]
    before = held.clone()
    assert td.where(~MASK, td + 10, out=td) is td
    assert torch.equal(held, before) and td["a"][0, 0] == 10


def test_where_of_a_lazy_stack_keeps_its_elements_apart():
    ragged = lazy_stack([TensorDict({"a": torch.ones(2, n)}, [2]) for n in (1, 2)], 1)
    other = ragged.apply(torch.zeros_like)
    result = ragged.where(torch.tensor([[True, False], [False, True]]), other)
    assert [element["a"].tolist() for element in result.tensordicts] == [[[1.0], [0.0]], [[0.0, 0.0], [1.0, 1.0]]]
    rows = ragged.where(torch.tensor([True, False]), torch.tensor([5.0, 7.0]))
    assert [element["a"].tolist() for element in rows.tensordicts] == [[[1.0], [5.0]], [[1.0, 1.0], [7.0, 7.0]]]
