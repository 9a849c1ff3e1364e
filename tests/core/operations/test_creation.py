"""Creation of tensordicts from another one: ``new_zeros``, ``zeros_like``, ..."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorStack, TensorDict, UnbatchedTensor, lazy_stack


@pytest.fixture
def td() -> TensorDict:
    nested = TensorDict({"c": torch.ones(3, 4, 5, dtype=torch.int64)}, [3, 4])
    return TensorDict(
        {"a": torch.ones(3, 2), "b": nested, "s": "text", "v": NonTensorStack("x", "y", "z")}, [3], names=["t"]
    )


@pytest.mark.parametrize(("name", "value"), [("new_zeros", 0), ("new_ones", 1)])
def test_new_leaves_keep_own_dimensions_and_dtypes(td: TensorDict, name: str, value: int) -> None:
    for result in (getattr(td, name)(2, 6), getattr(td, name)([2, 6]), getattr(td, name)(torch.Size([2, 6]))):
        assert result.batch_size == torch.Size([2, 6]) and result["b"].batch_size == torch.Size([2, 6, 4])
        assert result["a"].shape == (2, 6, 2) and result["b", "c"].dtype == torch.int64
        assert (result == value).exclude("s", "v").all()
        assert result["s"] == "text" and result["v"] == [[None] * 6] * 2


def test_new_empty_and_new_full(td: TensorDict) -> None:
    assert td.new_empty(7)["a"].shape == (7, 2)
    assert td.new_full(2, 5)["b", "c"].eq(5).all() and td.new_full((2,), 5).batch_size == torch.Size([2])
    assert td.new_full([], 1.5)["a"].tolist() == [1.5, 1.5]


def test_options_reach_the_leaves(td: TensorDict) -> None:
    result = td.new_zeros(2, dtype=torch.float64, requires_grad=True)
    assert result.dtype == torch.float64 and result.requires_grad
    result = td.new_ones(2, device="meta")
    assert result.device == torch.device("meta") and result["b", "c"].is_meta
    assert td.new_zeros(2).names == ["t"] and td.new_zeros(2, 2).names == [None, "t"]


def test_lazy_stacks_become_dense_or_empty(td: TensorDict) -> None:
    lazy = lazy_stack([TensorDict({"a": torch.ones(2)}, [2]) for _ in range(3)], 1)
    assert type(lazy.new_zeros(4, 5)) is TensorDict and lazy.new_zeros(4, 5)["a"].shape == (4, 5)
    emptied = lazy.new_zeros(4, 5, empty_lazy=True)
    assert isinstance(emptied, LazyStackedTensorDict) and emptied.batch_size == torch.Size([4, 5])
    assert not list(emptied.keys())
    held = TensorDict({"lazy": lazy, "x": torch.ones(2)}, [2]).new_ones(4, empty_lazy=True)
    assert held["lazy"].batch_size == torch.Size([4, 3]) and held["x"].tolist() == [1.0] * 4
    with pytest.raises(RuntimeError, match="stack dimension 1"):
        lazy.new_zeros(4, empty_lazy=True)


def test_unbatched_tensors_keep_their_shape() -> None:
    td = TensorDict({"u": UnbatchedTensor(torch.arange(5)), "a": torch.ones(3)}, [3])
    assert td.new_zeros(2)["u"].tolist() == [0] * 5 and td.new_zeros(2).get("u").batch_size == torch.Size([2])


def test_new_tensor_copies_data_in_each_dtype(td: TensorDict) -> None:
    data = torch.tensor([1.5, 2.5])
    result = td.new_tensor(data)
    assert result.batch_size == torch.Size([2])
    assert result["a"].tolist() == [1.5, 2.5] and result["b", "c"].tolist() == [1, 2]
    result["a"].zero_()
    assert data.tolist() == [1.5, 2.5]
    assert td.new_tensor(3)["a"].item() == 3.0
    again = td.new_tensor(td * 2)
    assert again["a"].eq(2).all() and again["b", "c"].shape == (3, 4, 5) and again["b", "c"].dtype == torch.int64
    with pytest.raises(KeyError, match="'b'"):
        td.new_tensor(TensorDict({"a": torch.ones(3)}))


@pytest.mark.parametrize("name", ["zeros_like", "ones_like", "empty_like", "rand_like", "randn_like"])
def test_like_functions_keep_structure(td: TensorDict, name: str) -> None:
    result = getattr(torch, name)(td, dtype=torch.float64)
    assert result.batch_size == td.batch_size and result.names == td.names and result["s"] == "text"
    assert result.dtype == torch.float64 and result["b"].batch_size == td["b"].batch_size
    assert getattr(torch, name)(td.float(), device="meta").device == torch.device("meta")
    assert getattr(torch, name)(td.float().lock_()).is_locked  # as other operations that keep the structure


def test_like_functions_fill(td: TensorDict) -> None:
    assert torch.full_like(td, 3)["b", "c"].eq(3).all()
    assert torch.zeros_like(td)["a"].eq(0).all() and torch.ones_like(input=td)["a"].eq(1).all()
    drawn = torch.randint_like(td, 5, 7)["a"]
    assert drawn.ge(5).all() and drawn.lt(7).all()
    torch.manual_seed(1)
    first = torch.randn_like(td.float())
    torch.manual_seed(1)
    assert torch.equal(first, torch.randn_like(td.float()))
