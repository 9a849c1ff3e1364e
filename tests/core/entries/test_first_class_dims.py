"""First-class dimensions of functorch.dim as an index: they bind batch dimensions in each entry."""

from __future__ import annotations

import pytest
import torch
from functorch.dim import dims

from tensordict_core import NonTensorStack, TensorDict, UnbatchedTensor, lazy_stack


@pytest.fixture
def td():
    return TensorDict(
        {"a": torch.arange(24.0).reshape(2, 3, 4), "n": {"b": torch.arange(6).reshape(2, 3)}}, [2, 3], names=["x", "y"]
    )


@pytest.mark.parametrize(
    ("index", "size", "names"),
    [
        (lambda i, j: i, [3], ["y"]),
        (lambda i, j: (i, j), [], []),
        (lambda i, j: (slice(None), j), [2], ["x"]),
        (lambda i, j: (..., j), [2], ["x"]),
        (lambda i, j: (i, 0), [], []),
        (lambda i, j: (i, None), [1, 3], [None, "y"]),
        (lambda i, j: (torch.tensor([0, 1, 0]), j), [3], ["x"]),
        (lambda i, j: (torch.tensor([True, False]), j), [1], ["x"]),
    ],
)
def test_a_dim_takes_a_batch_dimension_away(td, index, size, names):
    bound = td[index(*dims(2))]
    assert bound.batch_size == torch.Size(size)
    assert bound.names == names
    assert bound["a"].shape == (*size, 4)
    assert bound["n", "b"].shape == tuple(size)


def test_entries_hold_the_dims(td):
    i, j = dims(2)
    bound = td[i, j]
    assert (bound["a"].order(i, j) == td["a"]).all()
    assert list(bound.keys(True, True)) == ["a", ("n", "b")]
    assert "Tensor(shape=(4,)" in repr(bound)


def test_a_tuple_of_dims_splits_a_dimension():
    i, j = dims(2)
    i.size = 2
    td = TensorDict({"a": torch.arange(6)}, [6])
    assert (td[(i, j),]["a"].order(i, j) == td["a"].reshape(2, 3)).all()


def test_arithmetic_and_apply_run_for_all_positions(td):
    i, j = dims(2)
    bound = td[i, j]
    outer = (bound * bound + 1).apply(lambda x: x.sum(j))
    assert (outer["a"].order(i) == (td["a"] ** 2 + 1).sum(1)).all()
    back = bound.apply(lambda x: x.order(i, j), batch_size=[2, 3])
    assert (back == td).all()


def test_values_are_written_at_all_positions(td):
    i, j = dims(2)
    twice = td * 2
    td[i] = td[i] * 2
    assert (td == twice).all()
    td[:, j] = 0
    assert not td["a"].any()


def test_a_tensor_with_dims_is_an_entry(td):
    i, _ = dims(2)
    bound = td[i]
    bound["z"] = bound["a"] + 1
    assert (bound["z"].order(i) == td["a"] + 1).all()
    assert list(bound.flatten_keys().keys()) == ["a", "n.b", "z"]


@pytest.mark.parametrize("dim", [0, 1])
def test_a_lazy_stack_is_indexed_as_the_dense_one(td, dim):
    i, j = dims(2)
    stack = lazy_stack([td, td + 1], dim)
    assert (stack[i, j]["a"].order(i, j) == torch.stack([td["a"], td["a"] + 1], dim)).all()


def test_values_that_have_no_positions_stay(td):
    i, _ = dims(2)
    td["s"] = "text"
    td["u"] = UnbatchedTensor(torch.ones(5))
    assert td[i]["s"] == "text"
    assert td[i]["u"].shape == (5,)


def test_values_of_positions_are_refused():
    i, _ = dims(2)
    with pytest.raises(ValueError, match="first-class dimensions"):
        TensorDict({"s": NonTensorStack("a", "b")}, [2])[i]


def test_too_many_dims_are_an_index_error(td):
    i, j = dims(2)
    with pytest.raises(IndexError, match="too many indices"):
        td[i, j, 0]
