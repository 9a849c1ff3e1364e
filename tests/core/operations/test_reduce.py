"""Reductions over batch dimensions, own dimensions, all dimensions, and all leaves together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tensordict_core import LazyStackedTensorDict, NonTensorStack, TensorDict, UnbatchedTensor, lazy_stack


@pytest.fixture
def td() -> TensorDict:
    torch.manual_seed(0)
    nested = TensorDict({"c": torch.randn(3, 4, 5)}, [3, 4, 5])
    return TensorDict({"a": torch.randn(3, 4, 5), "b": nested, "s": "text"}, [3, 4], names=["x", "y"])


def _prod(leaf: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    for dim in sorted(dims, reverse=True):
        leaf = leaf.prod(dim, keepdim)
    return leaf


ORACLES: dict[str, Any] = {
    "sum": lambda x, d, k: x.sum(d, k),
    "mean": lambda x, d, k: x.mean(d, k),
    "prod": _prod,
    "nansum": lambda x, d, k: x.nansum(d, k),
    "nanmean": lambda x, d, k: x.nanmean(d, k),
    "std": lambda x, d, k: x.std(d, keepdim=k),
    "var": lambda x, d, k: x.var(d, keepdim=k),
    "amax": lambda x, d, k: x.amax(d, k),
    "amin": lambda x, d, k: x.amin(d, k),
}


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [0, -1, (0, 1)])
@pytest.mark.parametrize("name", ORACLES)
def test_reductions_over_batch_dimensions_equal_those_of_each_leaf(
    td: TensorDict, name: str, dim: Any, keepdim: bool
) -> None:
    dims = tuple(d % 2 for d in ((dim,) if isinstance(dim, int) else dim))
    result = getattr(td, name)(dim=dim, keepdim=keepdim)
    for key in ("a", ("b", "c")):
        torch.testing.assert_close(result[key], ORACLES[name](td[key], dims, keepdim))
    size = [1 if i in dims else n for i, n in enumerate((3, 4)) if keepdim or i not in dims]
    assert list(result.batch_size) == size
    assert result["b"].batch_size == torch.Size([*size, 5])
    assert result["s"] == "text"
    assert result.names == [n for i, n in enumerate(("x", "y")) if keepdim or i not in dims]


@pytest.mark.parametrize("name", ORACLES)
def test_reductions_without_dim_reduce_all_dimensions(td: TensorDict, name: str) -> None:
    result = getattr(td, name)()
    assert result.batch_size == torch.Size([]) and result["b"].batch_size == torch.Size([])
    torch.testing.assert_close(result["a"], ORACLES[name](td["a"].reshape(-1), (0,), False))
    kept = getattr(td, name)(keepdim=True)
    assert kept["a"].shape == (1, 1, 1) and kept.batch_size == torch.Size([1, 1])


@pytest.mark.parametrize("name", ORACLES)
def test_feature_reductions_keep_the_batch(td: TensorDict, name: str) -> None:
    if name in ("std", "var"):
        td = td.exclude(("b", "c"))  # no own dimension: torch warns that there is no degree of freedom
    result = getattr(td, name)(dim="feature")
    assert result.batch_size == td.batch_size and result.names == td.names
    torch.testing.assert_close(result["a"], ORACLES[name](td["a"], (2,), False))
    if ("b", "c") in td.keys(True):
        torch.testing.assert_close(result["b", "c"], td["b", "c"])


@pytest.mark.parametrize("name", ORACLES)
def test_reduce_returns_one_tensor_of_all_leaves(td: TensorDict, name: str) -> None:
    every = torch.cat([td["a"].reshape(-1), td["b", "c"].reshape(-1)])
    torch.testing.assert_close(getattr(td, name)(reduce=True), ORACLES[name](every, (0,), False))
    joined = torch.cat([td["a"], td["b", "c"]], 1)
    torch.testing.assert_close(getattr(td, name)(dim=-1, reduce=True), ORACLES[name](joined, (1,), False))
    joined = torch.cat([td["a"], td["b", "c"]], 2)
    torch.testing.assert_close(getattr(td, name)(dim="feature", reduce=True), ORACLES[name](joined, (2,), False))


@pytest.mark.parametrize("name", ["sum", "nansum", "amax", "amin"])
def test_reduce_of_many_elements_reduces_each_leaf_first(name: str) -> None:
    td = TensorDict({"a": torch.rand(300, 300, dtype=torch.float64), "b": torch.rand(3, dtype=torch.float64)})
    every = torch.cat([td["a"].reshape(-1), td["b"]])
    torch.testing.assert_close(getattr(td, name)(reduce=True), getattr(torch, name)(every))


def test_reduce_promotes_dtypes() -> None:
    td = TensorDict({"a": torch.ones(2, dtype=torch.int32), "b": torch.full((2,), 0.5)})
    assert td.sum(reduce=True).item() == 3.0


def test_dtype_sets_the_dtype_of_the_computation() -> None:
    td = TensorDict({"a": torch.full((4,), 100, dtype=torch.int8)}, [4])
    assert td.sum(dtype=torch.int8)["a"].item() == -112
    assert td.sum()["a"].item() == 400
    assert td.mean(dim=0, dtype=torch.float64)["a"].dtype == torch.float64


def test_correction_reduces_the_divisor() -> None:
    td = TensorDict({"a": torch.tensor([1.0, 3.0])}, [2])
    assert td.var(dim=0, correction=0)["a"].item() == 1.0
    assert td.var(dim=0)["a"].item() == 2.0


def test_nan_reductions_ignore_nan() -> None:
    td = TensorDict({"a": torch.tensor([1.0, float("nan"), 3.0])}, [3])
    assert td.nansum()["a"].item() == 4.0 and td.nanmean()["a"].item() == 2.0
    assert td.sum()["a"].isnan()


@pytest.mark.parametrize("name", ["max", "min"])
def test_max_and_min_along_a_dimension_return_indices(td: TensorDict, name: str) -> None:
    pair = getattr(td, name)(dim=1)
    values, indices = getattr(torch, name)(td["a"], 1)
    assert type(pair) is getattr(torch.return_types, name)
    assert pair.values["a"].equal(values) and pair.indices["a"].equal(indices)
    assert pair.indices.batch_size == torch.Size([3]) and pair.indices["s"] == "text"
    assert getattr(td, name)(dim=1, return_indices=False)["a"].equal(values)
    assert getattr(td, name)()["a"].equal(getattr(td["a"], name)())
    together = getattr(td, name)(dim=1, reduce=True)
    assert together.values.equal(getattr(torch.cat([td["a"], td["b", "c"]], 1), name)(1).values)
    feature = getattr(td, name)(dim="feature")
    assert feature.indices["b", "c"].eq(0).all() and feature.indices["a"].shape == (3, 4)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_cummax_and_cummin_keep_the_batch_size(td: TensorDict, name: str) -> None:
    pair = getattr(td, name)(-1)
    values, indices = getattr(torch, name)(td["a"], 1)
    assert pair.values["a"].equal(values) and pair.indices["a"].equal(indices)
    assert pair.values.batch_size == td.batch_size
    assert getattr(td, name)(0, return_indices=False)["a"].equal(getattr(torch, name)(td["a"], 0).values)
    assert getattr(td, name)(0, reduce=True).values.shape == (6, 4, 5)


@pytest.mark.parametrize(
    ("dim", "keepdim"),
    [(0, False), (0, True), ((0, 1), False), ((0, 1), True), (None, False), (None, True), ("feature", False)],
)
def test_several_quantiles_add_a_leading_dimension(td: TensorDict, dim: Any, keepdim: bool) -> None:
    leaf = td["a"]
    q = torch.tensor([0.25, 0.5, 0.75])
    if dim is None:
        expected = leaf.reshape(-1).quantile(q, 0)
        expected = expected.reshape(3, 1, 1, 1) if keepdim else expected
    elif dim == (0, 1):
        expected = leaf.flatten(0, 1).quantile(q, 0)
        expected = expected.reshape(3, 1, 1, 5) if keepdim else expected
    else:
        expected = leaf.quantile(q, 2 if dim == "feature" else 0, keepdim)
    result = td.quantile(q, dim=dim, keepdim=keepdim)
    torch.testing.assert_close(result["a"], expected)
    torch.testing.assert_close(td.quantile(0.5, dim=dim, keepdim=keepdim)["a"], expected[1])
    if dim is not None:
        assert result.batch_size == torch.Size([3, *td.quantile(0.5, dim=dim, keepdim=keepdim).batch_size])


def test_norm_and_logsumexp(td: TensorDict) -> None:
    torch.testing.assert_close(td.norm()["b", "c"], td["b", "c"].norm())
    assert td.norm().batch_size == torch.Size([]) and td.norm()["s"] == "text"
    assert TensorDict({"a": torch.tensor([3, 4])}).norm(dtype=torch.float32)["a"].item() == 5.0
    torch.testing.assert_close(td.logsumexp()["a"], td["a"].logsumexp((0, 1)))
    torch.testing.assert_close(td.logsumexp(0, True)["a"], td["a"].logsumexp(0, True))
    out = td.logsumexp(0).zero_()
    assert td.logsumexp(0, out=out) is out and out["a"].equal(td.logsumexp(0)["a"])
    out = td.norm().zero_()
    assert td.norm(out=out) is out and out["a"].equal(td.norm()["a"])


def test_key_transform_renames_every_level(td: TensorDict) -> None:
    result = td.sum(dim=0, key_transform=lambda key: f"sum_{key}")
    assert set(result.keys(True, True)) == {"sum_a", ("sum_b", "sum_c")} and result["sum_s"] == "text"
    with pytest.raises(KeyError, match="return different names"):
        td.sum(key_transform=lambda key: "same")
    with pytest.raises(TypeError, match="string"):
        td.sum(key_transform=lambda key: 1)


def test_key_transform_returns_nested_keys(td: TensorDict) -> None:
    result = td.mean(dim=0, key_transform=lambda key: ("p", key))
    assert set(result.keys(True, True)) == {("p", "a"), ("p", "b", "p", "c")} and result["p", "s"] == "text"
    assert result["p"].batch_size == result.batch_size
    assert result["p", "b", "p", "c"].equal(td.mean(dim=0)["b", "c"])
    with pytest.raises(KeyError, match="return different names"):
        td.sum(key_transform=lambda key: ("p",) if key == "a" else ("p", key))
    with pytest.raises(TypeError, match="NestedKey"):
        td.sum(key_transform=lambda key: ())


def test_all_and_any_over_every_kind_of_dimension() -> None:
    td = TensorDict({"a": torch.tensor([[True, False], [True, True]])}, [2])
    assert td.any() is True and td.all() is False
    assert td.all(dim="feature")["a"].tolist() == [False, True]
    assert td.any(dim=0)["a"].tolist() == [True, True]
    assert torch.all(td, dim=0)["a"].tolist() == [True, False]


def test_reducing_a_lazy_stack_equals_reducing_the_dense_stack() -> None:
    tds = [TensorDict({"a": torch.randn(3, 2), "n": {"b": torch.randn(3)}}, [3]) for _ in range(4)]
    dense, lazy = torch.stack(tds, 1), lazy_stack(tds, 1)
    assert isinstance(lazy, LazyStackedTensorDict)
    for dim in (None, 0, 1, (0, 1), "feature"):
        assert lazy.sum(dim=dim)["a"].equal(dense.sum(dim=dim)["a"])
    assert lazy.max(dim=1).indices["n", "b"].equal(dense.max(dim=1).indices["n", "b"])
    held = TensorDict({"lazy": lazy}, [3])
    assert held.mean(dim=0)["lazy", "a"].equal(dense.mean(dim=0)["a"])


def test_leaves_of_a_ragged_lazy_stack_are_reduced_together() -> None:
    ragged = lazy_stack([TensorDict({"a": torch.ones(n)}) for n in (2, 3)])
    assert ragged.sum(reduce=True).item() == 5.0
    with pytest.raises(RuntimeError, match="under the key 'a': their shapes"):
        ragged.sum(dim=0)


def test_unbatched_tensors_are_not_reduced() -> None:
    td = TensorDict(
        {"a": torch.ones(3), "u": UnbatchedTensor(torch.arange(2)), "v": NonTensorStack("x", "y", "z")}, [3]
    )
    result = td.sum(dim=0)
    assert result["u"].tolist() == [0, 1] and result["a"].item() == 3.0
    assert result["v"] == ["x", "y", "z"]
    assert td.max(dim=0).indices["u"].tolist() == [0, 1]


def test_bad_arguments_are_refused(td: TensorDict) -> None:
    for call, error, message in (
        (lambda: td.sum(dim=2), IndexError, "Incompatible dim 2"),
        (lambda: td.logsumexp(dim=-3), IndexError, "Incompatible dim -3"),
        (lambda: td.sum(dim="feature", keepdim=True), TypeError, "keepdim"),
        (lambda: td.sum(dim="foo"), TypeError, "'feature'"),
        (lambda: td.sum(keepdim=True, reduce=True), TypeError, "leave keepdim out"),
        (lambda: td.max(dim=(0, 1)), TypeError, "amax or amin"),
        (lambda: td.cummax("feature"), TypeError, "give an integer"),
        (lambda: TensorDict({}, [3]).sum(reduce=True), ValueError, "has none"),
        (
            lambda: TensorDict({"a": torch.ones(2, 3), "b": torch.ones(2)}, [2]).sum(dim=0, reduce=True),
            RuntimeError,
            "'b'",
        ),
    ):
        with pytest.raises(error, match=message):
            call()


def test_a_failure_names_the_entry() -> None:
    with pytest.raises(RuntimeError) as info:
        TensorDict({"f": torch.ones(2), "n": {"i": torch.ones(2, dtype=torch.int64)}}).mean()
    assert "('n', 'i')" in "".join(info.value.__notes__)


def test_reductions_are_differentiable() -> None:
    td = TensorDict({"a": torch.ones(3, requires_grad=True), "b": torch.ones(3, requires_grad=True)}, [3])
    (td * 2).sum(reduce=True).backward()
    assert td["a"].grad is not None and td["a"].grad.tolist() == [2.0, 2.0, 2.0]
