"""Selection by content, padding and its inverse, and collation."""

from __future__ import annotations

from collections import namedtuple
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from tensordict_core import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    UnbatchedTensor,
    assert_close,
    collate,
    dense_stack_tds,
    is_leaf_nontensor,
    lazy_stack,
    merge_tensordicts,
    pad,
    pad_sequence,
    unpad_sequence,
)


@pytest.fixture
def td() -> TensorDict:
    nested = TensorDict({"c": torch.arange(24.0).reshape(2, 3, 4)}, [2, 3, 4])
    return TensorDict({"a": torch.arange(12.0).reshape(2, 3, 2), "b": nested, "s": "text"}, [2, 3], names=["x", "y"])


# where ---------------------------------------------------------------------------------------------------------------


def test_where_aligns_the_condition_with_the_batch(td: TensorDict) -> None:
    rows = torch.tensor([True, False])
    result = td.where(rows, 0.0)
    assert result["a"][0].equal(td["a"][0]) and result["a"][1].eq(0).all() and result["b", "c"][1].eq(0).all()
    cells = torch.tensor([[True, False, True], [False, True, False]])
    result = td.where(cells, td * -1)
    assert result["b", "c"].equal(torch.where(cells[..., None], td["b", "c"], -td["b", "c"]))
    assert result.names == td.names and result.batch_size == td.batch_size and result["s"] == "text"


def test_where_accepts_tensors_over_the_batch_or_the_whole_leaf() -> None:
    td = TensorDict({"a": torch.ones(2, 3)}, [2])
    no = torch.zeros(2, dtype=torch.bool)
    assert td.where(no, torch.tensor([5.0, 6.0]))["a"][:, 0].tolist() == [5.0, 6.0]
    assert td.where(no, torch.full((2, 3), 7.0))["a"].eq(7).all()


def test_where_mixes_values_position_by_position() -> None:
    left = TensorDict({"s": "left", "v": NonTensorStack("a", "b")}, [2])
    right = TensorDict({"s": "right", "v": NonTensorStack("c", "d")}, [2])
    result = left.where(torch.tensor([True, False]), right)
    assert result["s"] == ["left", "right"] and result["v"] == ["a", "d"]


def test_where_pads_entries_that_one_side_lacks(td: TensorDict) -> None:
    other = TensorDict({"a": torch.zeros(2, 3, 2), "z": torch.ones(2, 3)}, [2, 3])
    rows = torch.tensor([True, False])
    with pytest.raises(KeyError, match="'b'"):
        td.where(rows, other)
    result = td.where(rows, other, pad=-1)
    assert result["b", "c"][1].eq(-1).all() and result["b", "c"][0].equal(td["b", "c"][0])
    assert result["z"][0].eq(-1).all() and result["z"][1].eq(1).all()


def test_where_writes_into_out(td: TensorDict) -> None:
    rows = torch.tensor([True, False])
    out = td.clone()
    leaf = out["a"]
    assert td.where(rows, 0.0, out=out) is out and out["a"][1].eq(0).all()
    assert out["a"] is not leaf and leaf.equal(td["a"])  # who holds the old tensor keeps its values
    smaller = TensorDict({})
    td.where(rows, 0.0, out=smaller, update_batch_size=True)
    assert smaller.batch_size == td.batch_size
    empty = TensorDict({}, [2, 3])
    assert torch.where(rows, td, td, out=empty) is empty and empty["a"].equal(td["a"])


def test_torch_where_takes_the_tensordict_on_either_side(td: TensorDict) -> None:
    rows = torch.tensor([True, False])
    assert torch.where(rows, 0.0, td)["a"][0].eq(0).all()
    assert_close(torch.where(rows, td, 0.0), td.where(rows, 0.0))
    with pytest.raises(TypeError, match="condition"):
        td.where(True, 0.0)


def test_where_on_lazy_stacks() -> None:
    lazy = lazy_stack([TensorDict({"a": torch.ones(3)}, [3]) for _ in range(2)])
    assert lazy.where(torch.tensor([True, False]), lazy * 0)["a"].tolist() == [[1.0] * 3, [0.0] * 3]


# gather, masks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gather_applies_to_each_leaf(td: TensorDict, dim: int) -> None:
    index = torch.tensor([[0, 1, 1], [1, 0, 0]])
    result = torch.gather(td, dim, index)
    at = dim % 2
    expected = torch.gather(td["b", "c"], at, index[..., None].expand(2, 3, 4))
    assert result["b", "c"].equal(expected) and result.names == td.names and result["b"].batch_size == (2, 3, 4)
    assert td.gather(dim, index[:, :2] * 0).batch_size == torch.Size([2, 2])


def test_gather_moves_non_tensor_values_and_keeps_inner_dimensions_whole() -> None:
    td = TensorDict({"a": torch.arange(6).reshape(3, 2), "v": NonTensorStack("x", "y", "z")}, [3])
    result = td.gather(0, torch.tensor([2, 0]))
    assert result["v"] == ["z", "x"] and result["a"].tolist() == [[4, 5], [0, 1]]
    wide = TensorDict({"a": torch.arange(6).reshape(3, 2)}, [3, 2]).gather(0, torch.tensor([2]))
    assert wide.batch_size == torch.Size([1, 2]) and wide["a"].tolist() == [[4, 5]]


def test_gather_writes_into_out_or_in_place(td: TensorDict) -> None:
    index = torch.ones(2, 3, dtype=torch.int64)
    out = td.clone()
    assert td.gather(1, index, out=out) is out and out["a"].equal(td["a"][:, [1, 1, 1]])
    whole = td.clone()
    assert whole.gather(1, index[:, :1], inplace=True) is whole and whole.batch_size == torch.Size([2, 1])
    with pytest.raises(TypeError, match="leave one out"):
        td.gather(1, index, out=out, inplace=True)
    with pytest.raises(IndexError, match="Incompatible dim 2"):
        td.gather(2, index)


def test_masked_select_returns_the_selected_positions(td: TensorDict) -> None:
    mask = torch.tensor([[True, False, True], [False, True, False]])
    result = torch.masked_select(td, mask)
    assert result.batch_size == torch.Size([3]) and result["b", "c"].equal(td["b", "c"][mask])
    assert td.masked_select(torch.tensor([False, True])).batch_size == torch.Size([1, 3])
    whole = td.clone()
    assert whole.masked_select(mask, inplace=True) is whole and whole.batch_size == torch.Size([3])
    with pytest.raises(TypeError, match="bool tensor"):
        td.masked_select(torch.ones(2, dtype=torch.int64))


def test_masked_fill_aligns_the_mask_with_the_leading_dimensions(td: TensorDict) -> None:
    rows = torch.tensor([True, False])
    for result in (td.masked_fill(rows, 9), td.clone().masked_fill_(rows, 9), torch.masked_fill(td, rows, 9)):
        assert result["a"][0].eq(9).all() and result["b", "c"][1].equal(td["b", "c"][1])
    lazy = lazy_stack([TensorDict({"a": torch.zeros(3)}, [3]) for _ in range(2)])
    assert lazy.masked_fill(rows, 9)["a"].tolist() == [[9.0] * 3, [0.0] * 3]


# padding -------------------------------------------------------------------------------------------------------------


def test_pad_adds_positions_at_both_ends(td: TensorDict) -> None:
    result = td.pad([1, 0, 0, 2], value=7.0)
    assert result.batch_size == torch.Size([3, 5]) and result["b"].batch_size == torch.Size([3, 5, 4])
    assert (
        result[1:, :3]["b", "c"].equal(td["b", "c"]) and result["a"][0].eq(7).all() and result["a"][:, 3:].eq(7).all()
    )
    assert result.names == td.names
    assert result["s"] == [[None] * 5, *[["text"] * 3 + [None] * 2] * 2]
    assert_close(pad(td, [1, 0, 0, 2], 7.0), result)


def test_pad_of_non_tensor_values_and_of_empty_batches() -> None:
    td = TensorDict({"v": NonTensorStack("x", "y", "z"), "u": UnbatchedTensor(torch.arange(2))}, [3])
    assert td.pad([1, -1])["v"] == [None, "x", "y"] and td.pad([-1, 0])["v"] == ["y", "z"]
    assert td.pad([1, 1])["u"].tolist() == [0, 1]
    assert TensorDict({"s": "text"}, [0]).pad([0, 2])["s"] == [None, None]


def test_pad_in_place_and_refusals(td: TensorDict) -> None:
    whole = td.clone()
    assert whole.pad([0, 1], inplace=True) is whole and whole.batch_size == torch.Size([3, 3])
    with pytest.raises(RuntimeError, match="locked"):
        td.clone().lock_().pad([0, 1], inplace=True)
    for size, message in (([1], "even number"), ([0] * 6, "<= 2"), ([-3, 0], "cuts off more")):
        with pytest.raises(RuntimeError, match=message):
            td.pad(size)


@pytest.mark.parametrize("side", ["left", "right"])
def test_unpad_sequence_inverts_pad_sequence_along_the_batch(side: str) -> None:
    tds = [
        TensorDict({"a": torch.rand(n, 2), "n": {"b": torch.arange(n)}, "v": NonTensorStack(*"xyz"[:n])}, [n])
        for n in (1, 3, 2)
    ]
    padded = pad_sequence(tds, return_mask=True, padding_value=-1, padding_side=side)
    assert padded.batch_size == torch.Size([3, 3]) and padded["masks", "n", "b"].sum(-1).tolist() == [1, 3, 2]
    assert padded["v"][0] == (["x", None, None] if side == "right" else [None, None, "x"])
    assert padded["a"][0, 1 if side == "right" else 0].eq(-1).all()
    back = unpad_sequence(padded)
    assert isinstance(back, LazyStackedTensorDict)
    for one, other in zip(back.unbind(0), tds, strict=True):
        assert_close(one, other)


def test_unpad_sequence_inverts_pad_sequence_along_own_dimensions() -> None:
    tds = [TensorDict({"a": torch.rand(2, n, 3), "b": torch.rand(2, n + 1)}, [2]) for n in (1, 4)]
    padded = pad_sequence(tds, pad_dim=1, return_mask=("m", "k"))
    assert padded["m", "k", "a"].shape == (2, 2, 4) and padded["m", "k", "b"].shape == (2, 2, 5)
    back = unpad_sequence(padded.exclude("m"), padded["m", "k"], pad_dim=1)
    for one, other in zip(back.unbind(0), tds, strict=True):
        assert_close(one, other)
    assert_close(pad_sequence(tds, pad_dim=1), padded.exclude("m"))


def test_unpad_sequence_takes_one_mask_for_all() -> None:
    padded = TensorDict({"a": torch.arange(6).reshape(2, 3), "b": torch.arange(6).reshape(2, 3)}, [2])
    mask = torch.tensor([[True, True, False], [False, True, True]])
    rows = unpad_sequence(padded, mask).unbind(0)
    assert rows[0]["a"].tolist() == [0, 1] and rows[1]["b"].tolist() == [4, 5]


def test_pad_sequence_by_key_counting_from_the_end_and_into_out() -> None:
    tds = [TensorDict({"ids": torch.ones(n), "n": {"labels": torch.ones(n)}}) for n in (2, 3)]
    padded = pad_sequence(tds, padding_value={"ids": 7, ("n", "labels"): -100})
    assert padded["ids"][0].tolist() == [1.0, 1.0, 7.0] and padded["n", "labels"][0, 2] == -100
    assert_close(pad_sequence(tds, pad_dim=-1), pad_sequence(tds))
    out = padded.clone()
    assert pad_sequence(tds, out=out) is out and out["ids"][0, 2] == 0


def test_bad_sequences_are_refused() -> None:
    tds = [TensorDict({"a": torch.ones(n, 2), "b": torch.ones(n)}, [n]) for n in (2, 3)]
    masked = pad_sequence(tds, return_mask=True)
    holes = torch.tensor([[True, False, True], [True, True, True]])
    for call, error, message in (
        (lambda: pad_sequence([]), RuntimeError, "cannot be empty"),
        (lambda: pad_sequence(tds, pad_dim=1), IndexError, "'b'"),
        (lambda: pad_sequence(tds, pad_dim=-1), ValueError, "count it from the front"),
        (
            lambda: pad_sequence([td.exclude("b") for td in tds], pad_dim=1),
            RuntimeError,
            "'a'.*another dimension than 1",
        ),
        (lambda: pad_sequence(tds, padding_side="up"), ValueError, "'up'"),
        (lambda: pad_sequence(tds, padding_value={"z": 1}), KeyError, "'z'"),
        (lambda: pad_sequence([tds[0], tds[1].exclude("b")]), KeyError, "'b'"),
        (lambda: unpad_sequence(pad_sequence(tds)), ValueError, "needs a mask"),
        (lambda: unpad_sequence(masked, holes), ValueError, "not contiguous"),
        (lambda: unpad_sequence(masked, torch.ones(2, 4) > 0), ValueError, "give one of shape"),
        (lambda: unpad_sequence(masked.exclude("masks"), masked["masks"].exclude("a")), KeyError, '"a"'),
        (lambda: unpad_sequence(TensorDict({"a": torch.ones(2)})), ValueError, r"batch size is \[\]"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_to_padded_tensor_pads_nested_tensors() -> None:
    ragged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    td = TensorDict({"a": ragged, "b": torch.zeros(2)}, [2])
    padded = td.to_padded_tensor(-1.0)
    assert padded["a"].shape == (2, 4, 3) and padded["a"][0, 2:].eq(-1).all() and padded["b"] is td["b"]
    with pytest.raises(RuntimeError, match="ragged batch dimension"):
        td.to_padded_tensor(mask_key="mask")


def test_operations_in_place_on_a_lazy_stack() -> None:
    tds = [TensorDict({"a": torch.arange(3) + 10 * i, "s": "text"}, [3]) for i in range(2)]
    for size in ([1, 0], [0, 0, 0, 1]):
        lazy = lazy_stack([td.clone() for td in tds], 1)
        expected = lazy.pad(size)
        assert lazy.pad(size, inplace=True) is lazy and isinstance(lazy, LazyStackedTensorDict)
        assert torch.equal(lazy["a"], expected["a"]) and lazy.batch_size == expected.batch_size
        assert lazy["s"] == expected["s"] and len(lazy.tensordicts) == expected.batch_size[1]
    index = torch.tensor([[1], [0], [1]])
    assert lazy_stack(tds, 1).gather(1, index, inplace=True)["a"].tolist() == [[10], [1], [12]]
    with pytest.raises(RuntimeError, match="leave out inplace=True"):
        lazy_stack(tds, 1).masked_select(torch.ones(3, 2) > 0, inplace=True)


# collating -----------------------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", ["td", "label"])


def test_collate_follows_the_first_sample() -> None:
    tds = [TensorDict({"a": torch.full((2,), float(i))}) for i in range(3)]
    assert collate(tds)["a"][:, 0].tolist() == [0.0, 1.0, 2.0]
    batch, labels = collate([(td, i) for i, td in enumerate(tds)])
    assert batch.batch_size == torch.Size([3]) and labels.tolist() == [0, 1, 2]
    pair = collate([Pair(td, torch.tensor(i)) for i, td in enumerate(tds)])
    assert type(pair) is Pair and pair.label.tolist() == [0, 1, 2]
    assert collate([{"x": td, "y": "text"} for td in tds])["y"] == ["text"] * 3
    assert collate([]) == [] and collate(tds[0]) is tds[0]
    ragged = collate([TensorDict({"a": torch.ones(n)}) for n in (1, 2)])
    assert isinstance(ragged, LazyStackedTensorDict)


def test_collate_pads_and_nests_entries() -> None:
    samples = [
        TensorDict({"ids": torch.ones(n), "points": torch.rand(n, 3), "score": torch.tensor(float(n))}) for n in (2, 3)
    ]
    function = partial(collate, pad_keys={"ids": 7}, nested_keys=["points"], mask_key="mask")
    batch = next(iter(DataLoader(samples, batch_size=2, collate_fn=function)))
    assert batch["ids"].tolist() == [[1.0, 1.0, 7.0], [1.0] * 3] and batch["mask", "ids"].sum().item() == 5
    assert batch["points"].is_nested and batch["score"].tolist() == [2.0, 3.0]


def test_collate_refuses_options_that_do_not_fit() -> None:
    samples = [TensorDict({"a": torch.ones(n), "b": torch.ones(n)}) for n in (2, 3)]
    for options, error, message in (
        ({"mask_key": "m"}, ValueError, "no pad_keys"),
        ({"pad_keys": {"z": 0}}, KeyError, "'z'"),
        ({"pad_keys": {"a": 0}, "nested_keys": ["a"]}, ValueError, "both"),
        ({"pad_keys": {"a": 0}, "mask_key": "b"}, ValueError, "an entry of the samples"),
        ({"nested_keys": ["a"]}, ValueError, "to stack densely"),
    ):
        with pytest.raises(error, match=message):
            collate(samples, **options)
    with pytest.raises(ValueError, match="use pad_sequence"):
        collate([TensorDict({"a": torch.ones(2)}, [2])], pad_keys={"a": 0})


def test_the_default_collate_function_stacks_tensordicts() -> None:
    tds = [TensorDict({"a": torch.ones(2)}, [2]) for _ in range(3)]
    assert default_collate([{"td": td} for td in tds])["td"].batch_size == torch.Size([3, 2])


def test_dense_stack_tds() -> None:
    tds = [TensorDict({"a": torch.ones(3)}, [3]) for _ in range(2)]
    assert dense_stack_tds(tds, 1).batch_size == torch.Size([3, 2])
    assert type(dense_stack_tds(lazy_stack(tds, 1))) is TensorDict
    assert dense_stack_tds(tds[0]) is tds[0]
    ragged = dense_stack_tds([TensorDict({"a": torch.ones(n)}) for n in (1, 2)], 0)
    assert isinstance(ragged, LazyStackedTensorDict)
    with pytest.raises(ValueError, match="must not be None"):
        dense_stack_tds(tds)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_missing_nested_key_is_named_as_a_whole_with_the_keys_beside_it(lazy: bool) -> None:
    td = TensorDict({"n": {"reward": torch.zeros(2), "m": {"x": torch.zeros(2)}}}, [2])
    td = td.to_lazystack(0) if lazy else td
    with pytest.raises(KeyError, match=r"key \('n', 'rewrd'\) not found in .* with keys \['reward', 'm'\].*'reward'"):
        td.select(("n", "rewrd"))
    with pytest.raises(KeyError, match=r"key \('n', 'm', 'y'\) not found in .* with keys \['x'\]"):
        td.select(("n", "m", "x"), ("n", "m", "y"))
    with pytest.raises(KeyError, match=r"\('n', 'reward'\) is a Tensor, not a tensordict"):
        td.select(("n", "reward", "x"))
    assert list(td.select(("n", "rewrd"), strict=False).keys(True, True)) == []


def test_sets_of_keys_reproduce_the_structure() -> None:
    td = TensorDict({"a": 1, "n": {"x": 2, "m": {"y": 3}}})
    parts = td.split_keys(["a"], [("n", "x")], reproduce_struct=True)
    assert [sorted(map(str, part.keys(True, True))) for part in parts] == [["a"], ["('n', 'x')"], ["('n', 'm', 'y')"]]
    assert all("m" in part["n"] for part in parts)
    assert ["n" in part for part in td.split_keys(["a"], [("n", "x")])] == [False, True, True]


@pytest.mark.parametrize("value", ["text", UnbatchedTensor(torch.ones(2))], ids=["text", "unbatched"])
def test_a_key_that_passes_through_a_value_excludes_nothing(value):
    td = TensorDict({"s": value}, [3])
    assert list(td.exclude(("s", "x")).keys(True, True, is_leaf=is_leaf_nontensor)) == ["s"]
    assert td.exclude(("s", "x"), inplace=True)["s"] is td["s"]


def test_a_key_that_passes_through_a_leaf_selects_nothing():
    td = TensorDict({"u": UnbatchedTensor(torch.ones(2)), "a": torch.ones(3)}, [3])
    assert td.select(("u", "x"), ("a", "x"), strict=False).is_empty()


@pytest.mark.parametrize("make", [lambda: NonTensorData("text", [2]), lambda: NonTensorStack("a", "b")])
@pytest.mark.parametrize("method", ["select", "flatten_keys", "unflatten_keys", "empty", "replace"])
def test_methods_of_keys_return_non_tensor_data_unchanged(make, method):
    data = make()
    assert getattr(data, method)().tolist() == data.tolist()
    assert data.exclude("x").tolist() == data.select("x", strict=False).tolist() == data.tolist()
    assert data.replace({}).tolist() == data.tolist()


def test_an_empty_lazy_stack_stays_lazy_if_the_batch_size_starts_with_its_own():
    rows = [TensorDict({"a": torch.ones(3), "n": TensorDict({"b": torch.ones(3, 1)}, [3, 1])}, [3]) for _ in range(2)]
    stack = lazy_stack(rows, 1)
    for given, size in ((None, (3, 2)), ([3, 2], (3, 2)), ([3, 2, 1], (3, 2, 1))):
        empty = stack.empty(batch_size=given, names=["x", "y", "z"][: len(size)])
        assert isinstance(empty, LazyStackedTensorDict) and empty.stack_dim == 1 and empty.batch_size == size
        assert empty.names == ["x", "y", "z"][: len(size)] and not list(empty.keys(True))
    assert stack.empty(True, batch_size=[3, 2, 1])["n"].batch_size == (3, 2, 1)
    for given in ([], [3], [4, 2], [3, 5]):
        assert type(stack.empty(batch_size=given)) is TensorDict


def test_empty_keeps_the_nested_tensordicts_of_ragged_stacks():
    rows = [TensorDict({"a": torch.ones(width), "n": {"x": torch.ones(width)}}) for width in (1, 2)]
    empty = lazy_stack(rows).empty(recurse=True, batch_size=[2])
    assert list(empty.keys(True)) == ["n"] and empty["n"].batch_size == (2,)


def test_pad_sequence_leaves_unbatched_tensors_as_they_are():
    tds = [TensorDict({"a": torch.ones(n, 3), "u": UnbatchedTensor(torch.arange(2))}, [n]) for n in (1, 2)]
    padded = pad_sequence(tds, return_mask=True)
    assert padded.get("u").tensor.tolist() == [0, 1] and padded.get("u").batch_size == (2, 2)
    assert padded["masks", "a"].tolist() == [[True, False], [True, True]] and "u" not in padded["masks"]
    wide = [TensorDict({"a": torch.ones(2, n), "u": UnbatchedTensor(torch.arange(3))}, [2]) for n in (1, 2)]
    assert pad_sequence(wide, pad_dim=1)["a"].tolist() == [[[1.0, 0.0]] * 2, [[1.0, 1.0]] * 2]


@pytest.mark.parametrize("method", ["cat_tensors", "stack_tensors"])
def test_combining_an_entry_with_itself_loses_nothing(method):
    td = TensorDict({"a": torch.arange(2), "n": {"b": torch.zeros(2)}})
    for keys in [("a", "a"), (("n", "b"), "a", ("n", "b"))]:
        with pytest.raises(KeyError, match="keep_entries=True"):
            getattr(td, method)(*keys, out_key="c")
    assert td["a"].tolist() == [0, 1] and td["n", "b"].tolist() == [0, 0]
    assert getattr(td, method)("a", "a", out_key="c", keep_entries=True)["c"].flatten().tolist() == [0, 1, 0, 1]


def test_a_dictionary_that_is_a_value_stays_one_in_a_merge():
    values = [TensorDict({"s": NonTensorData({"k": i}), "n": {"a": i}}) for i in range(2)]
    merged = merge_tensordicts(*values, callback_exist=lambda *found: found[-1])
    assert merged["s"] == {"k": 1} and merged["n", "a"] == 1


def test_separates_returns_the_requested_keys_only_and_filter_empty_is_about_the_rest():
    def make():
        table = UnbatchedTensor(torch.arange(3))
        return TensorDict({"a": torch.ones(2), "n": {"u": table, "b": torch.zeros(2)}, "e": {}}, [2])

    for filter_empty in (True, False):
        td = make()
        assert list(td.separates(("n", "u"), filter_empty=filter_empty).keys(True)) == ["n", ("n", "u")]
        assert ("e" in td) != filter_empty and list(td["n"].keys()) == ["b"]
        td = make()
        assert list(td.separates("a", "e", filter_empty=filter_empty).keys(True)) == ["a", "e"]
    td = make()
    td.separates(("n", "u"), ("n", "b"), filter_empty=False)
    assert td["n"].is_empty()


@pytest.mark.parametrize("locked", [False, True])
def test_excluding_no_key_returns_a_copy_whose_nested_tensordicts_are_its_own(locked):
    td = TensorDict({"a": torch.zeros(2), "n": {"b": torch.ones(2)}}, [2], lock=locked)
    copy = td.exclude()
    copy["n", "new"] = torch.ones(2)
    assert ("n", "new") not in td and copy["n", "b"] is td["n", "b"] and td.exclude(inplace=True) is td
