"""``torch.vmap`` over and into tensordicts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tensordict_core import (
    LazyStackedTensorDict,
    NonTensorStack,
    TensorDict,
    UnbatchedTensor,
    assert_close,
    lazy_stack,
)


@pytest.fixture
def td() -> TensorDict:
    torch.manual_seed(0)
    nested = TensorDict({"c": torch.rand(2, 3, 4)}, [2, 3, 4])
    return TensorDict({"a": torch.rand(2, 3, 5), "b": nested, "s": "text", "e": {}}, [2, 3], names=["x", "y"])


def _sizes(td: Any) -> tuple[torch.Size, ...]:
    return td["b"].batch_size, td["e"].batch_size, td.get("s").batch_size, td.batch_size


@pytest.mark.parametrize("out_dim", [0, 1])
@pytest.mark.parametrize("in_dim", [0, 1])
def test_vmap_takes_a_batch_dimension_and_gives_it_back(td: TensorDict, in_dim: int, out_dim: int) -> None:
    rest = 3 if in_dim == 0 else 2
    seen = []

    def function(one: TensorDict) -> TensorDict:
        seen.append((one.names, *_sizes(one)))
        return one + 1

    result = torch.vmap(function, in_dims=in_dim, out_dims=out_dim)(td)
    name = "y" if in_dim == 0 else "x"
    assert seen == [([name], *map(torch.Size, ([rest, 4], [rest], [rest], [rest])))]
    expected = torch.vmap(lambda x: x + 1, in_dim, out_dim)(td["b", "c"])
    assert result["b", "c"].equal(expected) and result["s"] == "text"
    size = list(expected.shape[:2])
    assert _sizes(result) == tuple(map(torch.Size, ([*size, 4], size, size, size)))
    assert result.names == ([None, name] if out_dim == 0 else [name, None])
    result[0].set("new", torch.zeros(size[1]))  # the result is a tensordict like any other


def test_vmap_beside_other_inputs_and_captured_tensordicts(td: TensorDict) -> None:
    result = torch.vmap(lambda x, one: one.exclude("s") * x, in_dims=(None, 0))(torch.tensor(2.0), td)
    assert result["a"].equal(td["a"] * 2) and result.batch_size == td.batch_size
    result = torch.vmap(lambda x, whole: whole + x, in_dims=(0, None))(torch.ones(7), td)
    assert result.batch_size == torch.Size([7, 2, 3]) and result["b"].batch_size == torch.Size([7, 2, 3, 4])
    result = torch.vmap(lambda x: td + x)(torch.ones(7))
    assert result.batch_size == torch.Size([7, 2, 3]) and result["a"][3].equal(td["a"] + 1)
    result = torch.vmap(lambda both: both["td"]["a"] + both["x"], in_dims=({"td": 1, "x": None},))(
        {"td": td, "x": torch.ones(())}
    )
    assert result.shape == (3, 2, 5)
    result = torch.vmap(lambda x: td)(torch.ones(7))
    assert result.batch_size == torch.Size([7, 2, 3]) and result["a"][6].equal(td["a"])


def test_vmap_makes_tensordicts_of_tensors() -> None:
    x = torch.rand(2, 3)
    assert torch.vmap(lambda row: TensorDict({"r": row}))(x).batch_size == torch.Size([2])
    made = torch.vmap(lambda row: TensorDict({"r": row}, [3]), out_dims=1)(x)
    assert made.batch_size == torch.Size([3, 2]) and made["r"].equal(x.T)
    first, second = torch.vmap(lambda row: (TensorDict({"r": row}, [3]), row.sum()), out_dims=(1, 0))(x)
    assert first.batch_size == torch.Size([3, 2]) and second.shape == (2,)


def test_vmap_of_every_kind_of_operation(td: TensorDict) -> None:
    td = td.exclude("s", "e")
    for function in (
        lambda one: one.sum(dim=0),
        lambda one: one.mean(reduce=False),
        lambda one: one[1],
        lambda one: one[:, None],
        lambda one: one.reshape(3, 1),
        lambda one: torch.stack([one, one], 1),
        lambda one: torch.cat([one, one], 0),
        lambda one: one.double(),
        lambda one: one.where(one["a"][..., 0] > 0.5, one * 2),
        lambda one: one.clamp(0.2, 0.4),
        lambda one: torch.zeros_like(one),
        lambda one: one.clone().set("new", one["a"] * 2),
        lambda one: one.apply(lambda x: x.exp()),
    ):
        result = torch.vmap(function)(td)
        assert_close(result, torch.stack([function(row) for row in td.unbind(0)]))


def test_nested_vmap(td: TensorDict) -> None:
    twice = torch.vmap(torch.vmap(lambda one: one + 1))(td)
    assert_close(twice.exclude("s"), (td + 1).exclude("s"))
    assert twice.batch_size == td.batch_size and twice["s"] == "text"
    crossed = torch.vmap(torch.vmap(lambda one: one * 2, in_dims=0, out_dims=0), in_dims=1, out_dims=1)(td)
    assert crossed["a"].equal(td["a"] * 2) and crossed["b"].batch_size == torch.Size([2, 3, 4])
    sums = torch.vmap(torch.vmap(lambda one: one["b", "c"].sum()))(td)
    torch.testing.assert_close(sums, td["b", "c"].sum(-1))


def test_vmap_in_chunks_and_with_randomness(td: TensorDict) -> None:
    chunked = torch.vmap(lambda one: one + 1, chunk_size=1)(td)
    assert chunked.batch_size == td.batch_size and chunked["a"].equal(td["a"] + 1)
    drawn = torch.vmap(lambda one: one * 0 + torch.rand(()), randomness="different")(td)
    assert drawn["a"][0, 0, 0] != drawn["a"][1, 0, 0]


def test_vmap_carries_values_of_their_own() -> None:
    td = TensorDict(
        {"a": torch.arange(6).reshape(2, 3), "v": NonTensorStack.from_list([["p", "q", "r"], ["s", "t", "u"]])}, [2, 3]
    )
    seen = []

    def function(one: TensorDict) -> TensorDict:
        seen.append(one["v"])
        return one

    for dim in (0, 1):
        result = torch.vmap(function, in_dims=dim, out_dims=dim)(td)
        assert result["v"] == td["v"] and result.get("v").batch_size == torch.Size([2, 3])
    assert seen == [[["p", "s"], ["q", "t"], ["r", "u"]], [["p", "q", "r"], ["s", "t", "u"]]]
    assert torch.vmap(torch.vmap(lambda one: one))(td)["v"] == td["v"]
    moved = torch.vmap(lambda one: one[2:], in_dims=0)(td)
    assert moved["v"] == [["r"], ["u"]]
    made = torch.vmap(lambda x: TensorDict({"x": x, "v": NonTensorStack("a", "b", "c")}, [3]))(td["a"])
    assert made["v"] == [["a", "b", "c"]] * 2


@pytest.mark.parametrize("out_dim", [0, 1, 2])
@pytest.mark.parametrize("in_dim", [0, 1, 2])
def test_equal_sizes_do_not_confuse_names_and_values(in_dim: int, out_dim: int) -> None:
    values = [[[f"{i}{j}{k}" for k in range(2)] for j in range(2)] for i in range(2)]
    td = TensorDict({"a": torch.rand(2, 2, 2), "n": {"b": torch.rand(2, 2, 2, 2)}}, [2, 2, 2], names=["x", "y", "z"])
    td["v"] = NonTensorStack.from_list(values, batch_size=[2, 2, 2])
    for function in (lambda one: one, lambda one: one + 1, lambda one: one.set("new", one["a"].T)):
        result = torch.vmap(function, in_dims=in_dim, out_dims=out_dim)(td.clone(False))
        rest = [name for i, name in enumerate("xyz") if i != in_dim]
        assert result.names == [*rest[:out_dim], None, *rest[out_dim:]]
        expected = td.movedim(in_dim, out_dim)
        assert result["v"] == expected["v"] and result["n"].batch_size == torch.Size([2, 2, 2])
    assert torch.vmap(torch.vmap(lambda one: one, out_dims=1))(td).names == [None, "z", None]


def test_tensordicts_that_vmap_only_repeats_keep_names_and_values() -> None:
    td = TensorDict({"a": torch.rand(2, 2), "v": NonTensorStack(["p", "q"], ["s", "t"])}, [2, 2], names=["x", "y"])
    result = torch.vmap(lambda x: td)(torch.ones(2))
    assert result.names == [None, "x", "y"] and result["v"] == [td["v"]] * 2
    try:  # torch before 2.14 puts the dimension of what it only repeats in front, whatever out_dims says
        refused = torch.vmap(lambda x: torch.zeros(2), out_dims=1)(torch.ones(3)).shape != (2, 3)
    except RuntimeError:
        refused = True
    for function in (lambda x: td.clone().set("b", td["a"] * x), lambda x: td.select("a").set("b", td["a"] * x)):
        if refused:
            with pytest.raises(RuntimeError, match="leaves do not share"):
                torch.vmap(function, out_dims=1)(torch.ones(2))
        else:
            result = torch.vmap(function, out_dims=1)(torch.ones(2))
            assert result.names == ["x", None, "y"] and result["b"].equal(td["a"].unsqueeze(1).expand(2, 2, 2))
            assert result["a"].equal(result["b"])
            assert "v" not in result or result["v"] == [[row, row] for row in td["v"]]
    plain = torch.vmap(lambda x: (td.select("a"), x), out_dims=(0, 0))(torch.ones(3))
    assert plain[0].names == [None, "x", "y"] and plain[0]["a"].equal(td["a"].expand(3, 2, 2))


def test_plain_results_keep_locks_and_stand_anywhere_in_a_tuple() -> None:
    td = TensorDict({"a": torch.rand(3, 2), "n": {"b": torch.rand(3, 2)}, "s": "text"}, [3, 2], names=["x", "y"])
    ragged = lazy_stack([TensorDict({"c": torch.rand(n)}) for n in (1, 2)])
    one, tensor, other, lazy = torch.vmap(
        lambda row: (row.lock_(), row["a"].sum(), row.clone(), ragged), out_dims=(1, 0, 0, 0)
    )(td)
    assert one.is_locked and one.names == ["y", None] and one["n", "b"].equal(td["n", "b"].T) and one["s"] == "text"
    assert tensor.equal(td["a"].sum(1)) and other.batch_size == torch.Size([3, 2])
    assert lazy.batch_size == torch.Size([3, 2]) and not other.is_locked


@pytest.mark.parametrize("size", [2, 4])
def test_names_are_kept_with_and_without_non_tensor_data(size: int) -> None:
    td = TensorDict({"a": torch.rand(2, 2, 2, size), "n": {"b": torch.rand(2, 2, 2)}}, [2, 2], names=["x", "y"])
    for one in (td, td.clone().set("s", "text"), td.select("n")):
        for in_dim, out_dim in ((0, 0), (0, 1), (1, 0), (1, 1)):
            result = torch.vmap(lambda row: row + 1, in_dims=in_dim, out_dims=out_dim)(one)
            rest = "y" if in_dim == 0 else "x"
            assert result.names == ([None, rest] if out_dim == 0 else [rest, None])
            assert result["n"].names == result.names and result["n", "b"].equal(
                td["n", "b"].movedim(in_dim, out_dim) + 1
            )


@pytest.mark.parametrize("text", [False, True])
def test_out_dims_behind_the_batch_are_refused_for_any_sizes(text: bool) -> None:
    td = TensorDict({"a": torch.rand(2, 2, 2), **({"s": "text"} if text else {})}, [2, 2])
    with pytest.raises(RuntimeError, match="use out_dims from 0 to 1"):
        torch.vmap(lambda row: row + 1, out_dims=2)(td)
    with pytest.raises(RuntimeError, match="use out_dims from 0 to 1"):
        torch.vmap(lambda row: row + 1, out_dims=-1)(td)


def test_results_of_vmap_carry_no_annotations(td: TensorDict) -> None:
    seen = []
    result = torch.vmap(lambda row: (seen.append(row), row + 1)[1])(td)
    assert all(node._annotations is None for one in (seen[0], result) for node in (one, one["b"], one["e"]))


def test_ambiguous_dimensions_drop_names_and_refuse_values() -> None:
    td = TensorDict({"a": torch.rand(1, 1).expand(3, 3)}, [3, 3], names=["x", "y"])
    result = torch.vmap(lambda one: one)(td)
    assert result.batch_size == torch.Size([3, 3]) and result.names == [None, "y"]  # a plain one has no ambiguity
    unbatched = td.set("u", UnbatchedTensor(torch.zeros(5)))
    assert torch.vmap(lambda one: one)(unbatched).names == [None, None]
    values = TensorDict({"a": torch.rand(1, 1).expand(2, 2), "v": NonTensorStack(["p", "q"], ["s", "t"])}, [2, 2])
    with pytest.raises(RuntimeError, match="order of non-tensor values"):
        torch.vmap(lambda one: one)(values)


def test_vmap_over_lazy_stacks() -> None:
    tds = [TensorDict({"a": torch.rand(3, 2)}, [3]) for _ in range(4)]
    lazy, dense = lazy_stack(tds, 1), torch.stack(tds, 1)
    for dim in (0, 1):
        result = torch.vmap(lambda one: one * 2, in_dims=dim)(lazy)
        assert result["a"].equal(torch.vmap(lambda one: one * 2, in_dims=dim)(dense)["a"])
    kinds = []
    torch.vmap(lambda one: (kinds.append((type(one), one.batch_size)), one)[1], in_dims=0)(lazy)
    torch.vmap(lambda one: (kinds.append((type(one), one.batch_size)), one)[1], in_dims=1)(lazy)
    assert kinds == [(TensorDict, torch.Size([4])), (TensorDict, torch.Size([3]))]
    result = torch.vmap(lambda one: one + 1)(lazy)
    assert type(result) is TensorDict and result.batch_size == lazy.batch_size


def test_vmap_over_ragged_lazy_stacks_maps_shared_dimensions() -> None:
    ragged = lazy_stack([TensorDict({"a": torch.rand(2, n)}, [2]) for n in (1, 3)], 1)
    result = torch.vmap(lambda one: one * 2)(ragged)
    assert isinstance(result, LazyStackedTensorDict) and result.stack_dim == 1
    assert result.batch_size == torch.Size([2, 2])
    for one, other in zip(result.unbind(1), ragged.unbind(1), strict=True):
        assert_close(one, other * 2)
    with pytest.raises((RuntimeError, ValueError)):
        torch.vmap(lambda one: one, in_dims=1)(ragged)


def test_vmap_refuses_unsupported_dims_and_unbatched_tensors(td: TensorDict) -> None:
    mixed = TensorDict({"a": torch.rand(2, 3), "b": torch.rand(2, 3, 3)}, [2, 3])
    for call, message in (
        (lambda: torch.vmap(lambda one: one, in_dims=-1)(mixed), "counted for each leaf"),
        (lambda: torch.vmap(lambda one: one, out_dims=-1)(td), "use out_dims from 0 to 1"),
        (
            lambda: torch.vmap(lambda x: TensorDict({"u": UnbatchedTensor(x), "x": x}))(torch.rand(2)),
            "but one",
        ),
    ):
        with pytest.raises(RuntimeError, match=message):
            call()


def test_unbatched_tensors_pass_whole_through_vmap() -> None:
    whole = torch.vmap(lambda x: TensorDict({"u": UnbatchedTensor(torch.arange(5)), "x": x}))(torch.rand(2))
    assert whole["u"].tolist() == [0, 1, 2, 3, 4] and whole["u"].batch_size == torch.Size([2])
    td = TensorDict({"u": UnbatchedTensor(torch.arange(5.0)), "x": torch.zeros(2, 3)}, [2, 3])
    seen = []

    def function(row: TensorDict) -> TensorDict:
        seen.append((row["u"].shape, row["u"].batch_size, row.batch_size))
        return row.set("y", row["x"] + row["u"].sum())

    for in_dim, out_dim, size in ((0, 0, [2, 3]), (1, 1, [2, 3]), (0, 1, [3, 2])):
        result = torch.vmap(function, in_dim, out_dim)(td)
        assert result["u"].tolist() == [0, 1, 2, 3, 4] and result["u"].batch_size == result.batch_size == tuple(size)
        assert type(result["y"]) is torch.Tensor and result["y"].tolist() == [[10.0] * size[1]] * size[0]
    assert seen == [((5,), (3,), (3,)), ((5,), (2,), (2,)), ((5,), (3,), (3,))]
    chunked = torch.vmap(lambda row: row, chunk_size=1)(td)
    assert chunked["u"].batch_size == chunked.batch_size == (2, 3) and chunked["u"].tolist() == [0, 1, 2, 3, 4]
    assert torch.vmap(lambda row: row["u"])(td).batch_size == (2, 3)
    alone = torch.vmap(lambda u: u + 1)(UnbatchedTensor(torch.arange(5), batch_size=[3]))
    assert alone.tolist() == [1, 2, 3, 4, 5] and alone.batch_size == (3,)


def test_out_dims_of_one_tensordict_may_stand_in_a_tuple(td: TensorDict) -> None:
    for chunk_size in (None, 1):
        result = torch.vmap(lambda a, b: a.select("a") + b.select("a"), (0, 0), (0,), chunk_size=chunk_size)(td, td)
        assert_close(result, td.select("a") * 2)
    assert torch.vmap(lambda row: row.select("a"), 0, (1,))(td).batch_size == (3, 2)
    with pytest.raises(ValueError, match="out_dims"):
        torch.vmap(lambda row: (row, row), 0, (0,))(td)


def test_locks_hold_inside_vmap(td: TensorDict) -> None:
    locked = td.select("a", "b").lock_()
    with pytest.raises(RuntimeError, match="locked"):
        torch.vmap(lambda row: row.set("a", row["a"] + 1))(locked)
    assert torch.vmap(lambda row: row["b"].is_locked * row["a"])(locked).equal(locked["a"])
    assert torch.vmap(lambda row: row.set("a", row["a"] + 1))(td.select("a"))["a"].equal(td["a"] + 1)


@pytest.mark.parametrize("content", [{}, {"n": {}}])
@pytest.mark.parametrize(
    ("in_dim", "out_dim", "size"), [(0, 0, [3, 4]), (0, 1, [4, 3]), (1, 0, [4, 3]), (1, 1, [3, 4])]
)
def test_the_batch_size_of_a_tensordict_without_tensors_is_mapped(content, in_dim, out_dim, size):
    td = TensorDict(content, [3, 4])
    alone = torch.vmap(lambda td: td, in_dim, out_dim)(td)
    beside, _ = torch.vmap(lambda td: (td, torch.ones(2)), in_dim, (out_dim, 0))(td)
    for mapped in (alone, beside):
        assert mapped.batch_size == torch.Size(size) and sorted(mapped.keys()) == sorted(content)
    filled = torch.vmap(lambda td: td.set("x", torch.ones(td.batch_size)), in_dim, 0)(td)
    assert filled["x"].shape == filled.batch_size == torch.Size([td.batch_size[in_dim], td.batch_size[1 - in_dim]])


def test_a_tensordict_without_tensors_is_mapped_beside_a_tensor():
    td = TensorDict({}, [3])
    assert torch.vmap(lambda td, x: td.set("x", x))(td, torch.arange(3))["x"].tolist() == [0, 1, 2]
    assert torch.vmap(lambda td, x: td, (None, 0))(td, torch.arange(2)).batch_size == torch.Size([2, 3])
    with pytest.raises(ValueError, match="same size"):
        torch.vmap(lambda td, x: td)(td, torch.arange(4))


@pytest.mark.parametrize("keys", [("", "e", ""), ("e", "", ""), ("e", "e", "")])
@pytest.mark.parametrize(("stack_dim", "in_dim"), [(1, 0), (2, 0), (2, 1)])
def test_vmap_maps_lazy_stacks_of_which_some_elements_have_no_tensors(keys, stack_dim, in_dim):
    tds = [TensorDict({key: torch.zeros(3, 2), "n": {}} if key else {"s": "text"}, [3, 2]) for key in keys]
    stack = lazy_stack(tds, stack_dim)
    for td in (stack, TensorDict({"n": stack, "a": torch.zeros(stack.batch_size)}, stack.batch_size)):
        inside = []
        result = torch.vmap(lambda td, inside=inside: inside.append(td.batch_size) or td + 1, in_dim, in_dim)(td)
        assert inside == [torch.Size([n for i, n in enumerate(td.batch_size) if i != in_dim])]
        assert result.batch_size == td.batch_size
        result = result.get("n") if td is not stack else result
        assert [set(part.keys()) for part in result.tensordicts] == [set(part.keys()) for part in tds]
        assert all((part["e"] == 1).all() for part in result.tensordicts if "e" in part)
