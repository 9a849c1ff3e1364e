"""Functions of torch on tensordicts: each applies to every leaf or calls the method of the same name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tensordict_core import (
    LazyStackedTensorDict,
    NonTensorData,
    TensorDict,
    assert_allclose_td,
    assert_close,
    default_is_leaf,
    is_leaf_nontensor,
    is_tensor_collection,
    is_tensorclass,
    lazy_stack,
    maybe_dense_stack,
)


@pytest.fixture
def td() -> TensorDict:
    torch.manual_seed(0)
    nested = TensorDict({"c": torch.rand(2, 3, 4)}, [2, 3])
    return TensorDict({"a": torch.rand(2, 3, 4), "b": nested, "s": "text"}, [2, 3])


CALLS: dict[str, Any] = {
    "split": lambda x: torch.split(x, 2, 1),
    "split_named": lambda x: torch.split(x, split_size_or_sections=[1, 2], dim=1),
    "tensor_split": lambda x: torch.tensor_split(x, 2, 1),
    "unbind": lambda x: torch.unbind(x, 1),
    "chunk": lambda x: torch.chunk(x, 2, 0),
    "narrow": lambda x: torch.narrow(x, 1, 1, 2),
    "squeeze": lambda x: torch.squeeze(torch.unsqueeze(x, 1), dim=1),
    "unsqueeze": lambda x: torch.unsqueeze(x, dim=0),
    "transpose": lambda x: torch.transpose(x, 0, 1),
    "swapaxes": lambda x: torch.swapaxes(x, 0, 1),
    "swapdims": lambda x: torch.swapdims(x, 0, 1),
    "movedim": lambda x: torch.movedim(x, 0, 1),
    "moveaxis": lambda x: torch.moveaxis(x, 0, 1),
    "flatten": lambda x: torch.flatten(x, 0, 1),
    "unflatten": lambda x: torch.unflatten(x, 1, (3, 1)),
    "flip": lambda x: torch.flip(x, (1,)),
    "fliplr": torch.fliplr,
    "flipud": torch.flipud,
    "roll": lambda x: torch.roll(x, 1, 0),
    "rot90": torch.rot90,
    "repeat_interleave": lambda x: torch.repeat_interleave(x, 2, 1),
    "select": lambda x: torch.select(x, 1, 2),
    "index_select": lambda x: torch.index_select(x, 1, torch.tensor([2, 0])),
    "softmax": lambda x: torch.softmax(x, 0),
    "clamp": lambda x: torch.clamp(x, 0.2, 0.6),
    "clip": lambda x: torch.clip(x, 0.2),
    "rsub": lambda x: torch.rsub(x, 1.0),
    "clone": torch.clone,
    "detach": torch.detach,
    "atleast_1d": torch.atleast_1d,
    "atleast_2d": torch.atleast_2d,
    "absolute": torch.absolute,
    "negative": torch.negative,
    "multiply": lambda x: torch.multiply(x, 2),
    "subtract": lambda x: torch.subtract(x, 2),
    "divide": lambda x: torch.divide(x, 2),
    "add": lambda x: torch.add(x, x, alpha=2),
    "exp": lambda x: torch.exp(input=x) if isinstance(x, torch.Tensor) else torch.exp(x),
    "sum": lambda x: torch.sum(x, 0),
    "mean": lambda x: torch.mean(x, dim=0, keepdim=True),
    "prod": lambda x: torch.prod(x, 0),
    "amax": lambda x: torch.amax(x, 0),
    "logsumexp": lambda x: torch.logsumexp(x, 0),
    "quantile": lambda x: torch.quantile(x, 0.5, 0),
    "stack": lambda x: torch.stack([x, x], 1),
    "cat": lambda x: torch.cat([x, x], 1),
    "ones_like": torch.ones_like,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_function_of_a_tensordict_applies_to_its_leaves(td: TensorDict, name: str) -> None:
    call = CALLS[name]
    results, expected, nested = call(td), call(td["a"]), call(td["b", "c"])
    if not isinstance(results, tuple):
        results, expected, nested = (results,), (expected,), (nested,)
    assert len(results) == len(expected)
    for result, leaf, other in zip(results, expected, nested, strict=True):
        torch.testing.assert_close(result["a"], leaf)
        torch.testing.assert_close(result["b", "c"], other)
        assert leaf.shape[: result.ndim] == result.batch_size and "s" in result


def test_functions_that_take_the_batch_shape(td: TensorDict) -> None:
    assert torch.reshape(td, (6,)).batch_size == torch.Size([6]) and torch.ravel(td).batch_size == torch.Size([6])
    assert torch.reshape(input=td, shape=(3, 2)).batch_size == torch.Size([3, 2])
    assert torch.permute(td, (1, 0)).batch_size == torch.Size([3, 2])
    assert torch.tile(td, (2, 1)).batch_size == torch.Size([4, 3])
    assert torch.broadcast_to(td, (5, 2, 3)).batch_size == torch.Size([5, 2, 3])
    assert torch.numel(td) == 6 and torch.is_floating_point(td)
    assert [x.batch_size for x in torch.broadcast_tensors(td[:1], td)] == [td.batch_size] * 2
    tensor, other = torch.broadcast_tensors(torch.zeros(3), td)
    assert tensor.shape == (2, 3) and other.batch_size == td.batch_size
    assert torch.atleast_3d(td).batch_size == torch.Size([2, 3, 1])
    assert [x.ndim for x in torch.atleast_2d(td[0], td)] == [2, 2]


def test_unsupported_functions_raise_type_errors(td: TensorDict) -> None:
    for function in (torch.linalg.inv, torch.sort, torch.matmul):
        with pytest.raises(TypeError):
            function(td) if function is not torch.matmul else function(td, td)


def test_equal_compares_keys_sizes_leaves_and_values(td: TensorDict) -> None:
    assert torch.equal(td, td.clone())
    assert not torch.equal(td, td + 1) and not torch.equal(td, td.exclude("a")) and not torch.equal(td, td["a"])
    assert not torch.equal(td, td.clone().set("s", "other")) and not torch.equal(td, td.exclude("s"))
    assert not torch.equal(td, td.clone().to(batch_size=[2]))


def test_allclose_compares_every_leaf(td: TensorDict) -> None:
    near = td + 1e-7
    assert torch.allclose(td, near) and not torch.allclose(td, td + 1) and torch.allclose(td, td + 1, atol=2.0)
    close = torch.isclose(td, near)
    assert close["b", "c"].dtype == torch.bool and close.all()
    assert not torch.allclose(td, torch.ones(2, 3)) and torch.allclose(torch.ones(2, 3), td, atol=1.0)
    with pytest.raises(KeyError, match="mismatch"):
        torch.allclose(td, td.clone(False).set("z", td["a"]))


# assert_close --------------------------------------------------------------------------------------------------------


def test_assert_close_names_each_entry_and_the_largest_difference(td: TensorDict) -> None:
    assert assert_close(td, td.clone()) is True and assert_allclose_td is assert_close
    other = td.clone()
    other["a"][1, 2, 3] += 0.5
    other["a"][0, 0, 0] += 0.25
    other["b", "c"][0, 1, 2] = float("nan")
    with pytest.raises(AssertionError) as info:
        assert_close(other, td, msg="while testing", prefix="root")
    text = str(info.value)
    assert (
        "key ('root', 'a') does not match, got mse = 0.01302, largest difference 0.5 at (1, 2, 3) (2 of 24 elements"
        in text
    )
    assert (
        "key ('root', 'b', 'c') does not match, got mse = nan, largest difference inf at (0, 1, 2)" in text
        and text.endswith("while testing")
    )
    assert assert_close(other.exclude("b"), td.exclude("b"), atol=0.6, rtol=0)


def test_assert_close_compares_keys_shapes_dtypes_and_metadata(td: TensorDict) -> None:
    for actual, message in (
        (td.double(), "key 'a' does not match, got dtype torch.float64 instead of torch.float32"),
        (td.clone().set("s", "other"), "key 's' does not match, got value 'other' instead of 'text'"),
        (td.clone().set("a", torch.ones(2, 3)), r"key 'a' does not match, got shape \[2, 3\] instead of \[2, 3, 4\]"),
        (td.clone().set("a", TensorDict({}, [2, 3])), "key 'a' does not match, got TensorDict instead of Tensor"),
    ):
        with pytest.raises(AssertionError, match=message):
            assert_close(actual, td)
    assert assert_close(td.clone().to(batch_size=[2]), td)
    with pytest.raises(KeyError, match=r"only the second has \['a'\]"):
        assert_close(td.exclude("a"), td)
    assert assert_close(td.exclude("a"), td, intersection=True)
    with pytest.raises(TypeError, match="got dict"):
        assert_close(td, {})


def test_assert_close_of_integers_bools_nan_and_lazy_stacks() -> None:
    one = TensorDict({"i": torch.tensor([1, 2]), "b": torch.tensor([True, False]), "e": torch.zeros(0)})
    other = TensorDict({"i": torch.tensor([1, 5]), "b": torch.tensor([True, True]), "e": torch.zeros(0)})
    with pytest.raises(
        AssertionError, match=r"key 'i' does not match, got mse = .*, largest difference 3 at \(1,\) \(1 of 2"
    ):
        assert_close(one, other)
    nan = TensorDict({"x": torch.tensor(float("nan"))})
    assert assert_close(nan, nan.clone())
    with pytest.raises(AssertionError, match="'x'"):
        assert_close(nan, nan.clone(), equal_nan=False)
    lazy = lazy_stack([TensorDict({"a": torch.ones(n)}) for n in (1, 2)])
    assert assert_close(lazy, lazy.clone())
    with pytest.raises(AssertionError, match=r"\('1', 'a'\)"):
        assert_close(lazy, lazy_stack([lazy[0], lazy[1] + 1]))
    dense = lazy_stack([TensorDict({"a": torch.ones(2)}) for _ in range(2)])
    assert assert_close(dense, torch.stack(dense.unbind(0)))


def test_predicates_on_types() -> None:
    assert is_tensor_collection(TensorDict) and is_tensor_collection(NonTensorData("x"))
    assert not is_tensor_collection(torch.ones(1)) and not is_tensorclass(TensorDict({}))
    assert default_is_leaf(torch.Tensor) and not default_is_leaf(NonTensorData) and not default_is_leaf(TensorDict)
    assert is_leaf_nontensor(NonTensorData) and is_leaf_nontensor(torch.nn.Parameter)
    assert not is_leaf_nontensor(int) and not is_leaf_nontensor(TensorDict)


def test_a_tensor_and_a_node_under_one_key_are_stacked_lazily_in_either_order():
    tensor, node = TensorDict({"n": torch.ones(3)}, [3]), TensorDict({"n": {"b": torch.ones(3)}}, [3])
    for tds in ([tensor, node], [node, tensor]):
        assert maybe_dense_stack(tds).tensordicts == tds


def test_a_shape_that_does_not_concatenate_is_reported_with_its_path():
    left, right = (TensorDict({"n": {"x": torch.zeros(2, k)}}, [2]) for k in (3, 4))
    with pytest.raises(RuntimeError, match="'x' has the shapes") as caught:
        torch.cat([left, right])
    assert caught.value.__notes__ == ["while concatenating key 'n'"]
    assert torch.cat([left, left[:1]])["n", "x"].shape == (3, 3)


@pytest.mark.parametrize("nested", [False, True])
def test_a_loss_of_lazy_stacks_is_reduced_over_all_elements(nested):
    stacks = [
        lazy_stack([TensorDict({"a": torch.full((3,), value)}, [3]) for value in pair])
        for pair in [(1.0, 2.0), (1.0, 4.0)]
    ]
    if nested:
        stacks = [TensorDict({"n": stack}) for stack in stacks]
    for reduction, expected in {"mean": 1.0, "sum": 6.0}.items():
        loss = torch.nn.functional.l1_loss(*stacks, reduction=reduction)
        assert loss.batch_size == () and [leaf.item() for leaf in loss.values(True, True)] == [expected]
    whole = torch.nn.functional.l1_loss(*stacks, reduction="none")
    assert type(whole["n"] if nested else whole) is LazyStackedTensorDict
