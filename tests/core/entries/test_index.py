"""Indexing against PyTorch: a tensordict of batch size ``[4, 3, 2]`` is indexed as a tensor of that shape."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorStack, TensorDict, lazy_stack
from tensordict_core.extension import Index

SIZE = (4, 3, 2)
T, U = torch.tensor([1, 0]), torch.tensor([[0], [1]])
NONE = torch.tensor([], dtype=torch.long)
PARTS = [0, -1, slice(None), slice(1, None, 2), None, T, U, torch.tensor(1), NONE, True, False]


def make():
    entries = {
        "a": torch.arange(24).reshape(SIZE),
        "n": TensorDict({"b": torch.arange(120.0).reshape(*SIZE, 5)}, [*SIZE, 5]),
    }
    return TensorDict(entries, batch_size=SIZE)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_combination_of_parts_selects_what_torch_selects(count):
    td, a = make(), make()["a"]
    lazies = [LazyStackedTensorDict(*td.unbind(dim), stack_dim=dim) for dim in range(3)]
    for index in itertools.product(PARTS, repeat=count):
        try:
            expected = a[index]
        except IndexError:
            with pytest.raises((IndexError, RuntimeError)):
                td[index]
            continue
        got = td[index]
        assert got.batch_size == expected.shape and got["a"].equal(expected), index
        assert got["n", "b"].equal(td["n", "b"][index]), index
        assert got["n"].batch_size == (*expected.shape, 5)
        for lazy in lazies if count < 3 else ():
            assert lazy[index].batch_size == expected.shape and lazy[index]["a"].equal(expected), (
                lazy.stack_dim,
                index,
            )


@pytest.mark.parametrize("count", [1, 2])
def test_every_combination_of_parts_is_written_where_torch_writes(count):
    for index in itertools.product(PARTS, repeat=count):
        td, expected = make(), make()["a"]
        try:
            expected[index] = -expected[index]
        except IndexError:
            continue
        whole = make()
        td[index] = TensorDict({"a": -td["a"][index], "n": td[index]["n"].clone()}, batch_size=td[index].batch_size)
        assert td["a"].equal(expected) and td["n", "b"].shape == whole["n", "b"].shape, index
        for dim in range(3):
            lazy = LazyStackedTensorDict(*make().unbind(dim), stack_dim=dim)
            lazy[index] = TensorDict({"a": -whole["a"][index]}, batch_size=whole[index].batch_size)
            assert lazy["a"].equal(expected), (dim, index)


@pytest.mark.parametrize(
    "index",
    [
        np.array([0, 2]), np.int64(1), range(1, 3), [0, 2], [[0, 1], [2, 3]], [True, False, True, False],
        np.array([True, False, False, True]), torch.arange(12).reshape(4, 3) % 5 < 2,
        (slice(None), torch.tensor([True, False, True])),
        True, np.array(False), torch.tensor(True), (0, torch.tensor(False)), torch.tensor(1, dtype=torch.uint8),
        (torch.arange(4) % 3 > 0, 1), torch.tensor([1, 2], dtype=torch.int32), (..., None), (None, ...), (1, ..., 0),
    ],
    ids=str,
)  # fmt: skip  # shorter than one a line
def test_arrays_lists_ranges_and_masks_are_indices(index):
    plain = tuple(torch.as_tensor(np.asarray(p)) if isinstance(p, (list, range)) else p for p in (
        index if isinstance(index, tuple) else (index,)
    ))  # fmt: skip  # shorter than one a line
    expected = make()["a"][plain]
    assert make()[index]["a"].equal(expected) and make()[index].batch_size == expected.shape


def test_a_slice_is_a_view_and_numbers_are_a_copy():
    td = make()
    assert td[1:]["a"]._base is td["a"] or td[1:]["a"].data_ptr() == td["a"][1:].data_ptr()
    assert td[[1]]["a"].data_ptr() != td["a"][1:].data_ptr()


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (4, IndexError, "out of bounds"),
        ((0, 3), IndexError, "out of bounds"),
        ((0, 0, 0, 0), IndexError, "too many"),
        ((..., ...), IndexError, "ellipsis"),
        (torch.ones(5, dtype=torch.bool), IndexError, "mask"),
        ((0, torch.ones(4, dtype=torch.bool)), IndexError, "mask"),
        (torch.tensor([9]), IndexError, None),
        (1.0, TypeError, "float"),
        (("a", 0), TypeError, "key"),
        ((True, 0, 0, 0, 0), IndexError, "too many"),
        ({}, TypeError, "dict"),
    ],
    ids=str,
)
def test_an_index_that_does_not_fit_is_an_error_with_the_reason(index, error, message):
    with pytest.raises(error, match=message):
        make()[index]


def test_an_empty_tensordict_is_filled_row_by_row():
    td = TensorDict({}, batch_size=[3, 2])
    td[2] = TensorDict({"a": torch.ones(2, 4), "n": {"b": torch.ones(2)}, "s": "text"}, batch_size=[2])
    td[0, 1] = TensorDict({"a": torch.full((4,), 2.0)})
    assert td["a"].sum((1, 2)).tolist() == [8.0, 0.0, 8.0]
    assert td["n", "b"].tolist() == [[0, 0], [0, 0], [1, 1]]
    with pytest.raises(RuntimeError, match="lock"):
        td.lock_()[0] = TensorDict({"new": torch.zeros(2)}, batch_size=[2])


def test_a_value_is_broadcast_to_the_indexed_shape():
    td = make()
    td[:2] = TensorDict({"a": torch.zeros(2, dtype=torch.long)}, batch_size=[2])
    assert not td["a"][:2].any() and td["a"][2:].all()
    td[0] = torch.arange(2)
    assert td["a"][0].tolist() == [[0, 1]] * 3
    td[1] = 7
    assert (td["a"][1] == 7).all() and (td["n", "b"][1] == 7).all()
    td[2] = {"a": torch.zeros(3, 2)}
    assert not td["a"][2].any()


@pytest.mark.parametrize(
    ("index", "value", "error"),
    [
        (0, TensorDict({"a": torch.zeros(4)}, [4]), RuntimeError),
        (0, TensorDict({"n": torch.zeros(3, 2)}, [3, 2]), KeyError),
        (0, TensorDict({"a": {"x": torch.zeros(3, 2)}}, [3, 2]), KeyError),
        (0, torch.zeros(9), RuntimeError),
    ],
)
def test_a_value_that_does_not_fit_is_refused(index, value, error):
    with pytest.raises(error):
        make()[index] = value


def test_non_tensor_values_are_indexed_with_their_rows():
    td = TensorDict({"s": NonTensorStack("x", "y", "z"), "one": "same"}, batch_size=[3])
    assert td[1]["s"] == "y" and td[[2, 0]]["s"] == ["z", "x"] and td[1:]["one"] == "same"
    td[0] = TensorDict({"s": "new", "one": "other"})
    assert td["s"] == ["new", "y", "z"] and td["one"] == ["other", "same", "same"]


@pytest.mark.parametrize("container", ["dense", "lazy", "view"])
def test_a_bool_adds_a_dimension_and_selects_all_or_nothing_of_it(container):
    make = {
        "dense": lambda td: td,
        "lazy": lambda td: LazyStackedTensorDict(*td.unbind(0)),
        "view": lambda td: td.view_at(...),
    }[container]
    td = make(TensorDict({"a": torch.arange(6).reshape(3, 2), "s": NonTensorStack("x", "y", "z")}, [3]))
    assert td[True].batch_size == (1, 3) and td[True]["s"] == [["x", "y", "z"]]
    assert (
        td[np.True_].batch_size == (1, 3)
        and td[:, False].batch_size == (3, 0)
        and td[:, torch.tensor(False)]["a"].shape == (3, 0, 2)
    )
    td[True] = TensorDict({"a": -torch.ones(1, 3, 2, dtype=torch.long), "s": "new"}, [1, 3])
    assert (td["a"] == -1).all() and [td[i]["s"] for i in range(3)] == ["new"] * 3
    td[False] = 7
    assert (td["a"] == -1).all()


def test_names_stay_with_their_dimensions():
    td = make()
    td.names = ["x", "y", "z"]
    for index, names in [
        (0, ["y", "z"]),
        ((slice(None), 0), ["x", "z"]),
        ((None, 0), [None, "y", "z"]),
        (T, ["x", "y", "z"]),
        (U, [None, None, "y", "z"]),
        ((T, T), [None, "z"]),
        ((T, slice(None), T), [None, "y"]),
        ((..., T), ["x", "y", "z"]),
        (True, [None, "x", "y", "z"]),
    ]:
        assert td[index].names == names, index


def test_an_index_is_read_once_for_all_leaves():
    index = Index((slice(None), torch.tensor([True, False, True])), torch.Size(SIZE))
    assert index.size == (4, 2, 2) and index.sources == (0, 1, 2)
    assert Index((T, slice(None), T), torch.Size(SIZE)).size == (2, 3)


def test_rows_for_a_loader_come_in_one_indexing():
    assert make().__getitems__([3, 0])["a"].equal(make()["a"][[3, 0]])
    assert len(make()) == 4 and len(TensorDict({})) == 0
    with pytest.raises(RuntimeError, match="batch"):
        iter(TensorDict({"a": 1}))


def test_get_at_has_a_default_and_set_at_needs_the_key():
    td = make()
    assert td.get_at(("n", "b"), (0, 0, 0)).shape == (5,)
    assert td.get_at("absent", 0) is None and td.get_at("absent", 0, 5) == 5
    with pytest.raises(KeyError, match="absent"):
        td.set_at_("absent", 0, 0)
    td.set_at_(("n", "b"), torch.zeros(5), (0, 0, 0))
    assert not td["n", "b"][0, 0, 0].any()


def _two(kind):
    first = TensorDict({"a": torch.zeros(2), "b": torch.zeros(2, 3)}, [2])
    if kind == "locked":
        return lazy_stack([first, TensorDict({"a": torch.zeros(2)}, [2]).lock_()])
    return lazy_stack([first, TensorDict({"a": torch.zeros(2), "b": torch.zeros(2, 4)}, [2])])


INDICES = [slice(None), torch.tensor([0, 1]), (slice(None), 0), (torch.tensor([0, 1]), torch.tensor([1, 0]))]


@pytest.mark.parametrize("kind", ["shapes", "locked"])
@pytest.mark.parametrize("index", INDICES, ids=str)
def test_an_indexed_write_that_an_element_refuses_writes_into_none(kind, index):
    stack = _two(kind)
    size = torch.zeros(2, 2)[index].shape
    value = TensorDict({"a": torch.ones(size), "b": torch.ones(*size, 3)}, size)
    with pytest.raises(RuntimeError):
        stack[index] = value
    with pytest.raises((RuntimeError, KeyError)):
        stack.update_at_(value, index)
    assert not any(leaf.any() for element in stack.tensordicts for leaf in element.values())


@pytest.mark.parametrize("kind", ["shapes", "locked"])
def test_a_lazy_stack_below_refuses_before_anything_is_written(kind):
    td = TensorDict({"first": torch.zeros(2), "s": _two(kind)}, [2])
    value = TensorDict({"a": torch.ones(2, 2), "b": torch.ones(2, 2, 3)}, [2, 2])
    with pytest.raises(RuntimeError):
        td[:] = TensorDict({"first": torch.ones(2), "s": value}, [2])
    assert not td["first"].any() and not td["s", "a"].any()


@pytest.mark.parametrize("kind", ["dense", "nested", "lazy"])
def test_a_tensor_that_a_leaf_cannot_take_is_written_into_none(kind):
    td = TensorDict({"a": torch.zeros(2, 3), "b": torch.zeros(2, 4)}, [2])
    if kind == "nested":
        td = TensorDict({"a": torch.zeros(2, 3), "n": td}, [2])
    if kind == "lazy":
        td = lazy_stack([TensorDict({"a": torch.zeros(3)}), TensorDict({"a": torch.zeros(4)})])
    for index in (slice(None), [0, 1]):
        with pytest.raises(RuntimeError, match="cannot be broadcast"):
            td[index] = torch.ones(2, 3)
        elements = td.tensordicts if kind == "lazy" else [td]
        assert not any(leaf.any() for element in elements for leaf in element.values(True, True))
    td[:] = torch.tensor([1.0, 2.0])
    assert all(leaf.all() for element in elements for leaf in element.values(True, True))


def test_rows_of_an_empty_dimension_are_out_of_bounds() -> None:
    td = TensorDict({"a": torch.zeros(0, 3)}, [0])
    for index in ([0, 1], torch.tensor([1]), (slice(None), [0])[1:]):
        with pytest.raises(IndexError, match="out of bounds for dimension 0 with size 0"):
            td[index]
    assert td[torch.tensor([], dtype=torch.long)].batch_size == (0,)


def test_a_tuple_in_an_index_is_a_list_of_positions() -> None:
    td = TensorDict({"a": torch.arange(12).reshape(4, 3)}, [4, 3])
    assert td[(2, 0),]["a"].equal(td["a"][[2, 0]])
    assert td[:, (1, 1)].batch_size == (4, 2)
    td[(0, 1),] = 0
    assert not td["a"][:2].any()


def test_values_of_fewer_batch_dimensions_are_broadcast_in_longer_nested_ones() -> None:
    td = TensorDict({"n": TensorDict({"x": torch.arange(24.0).reshape(4, 3, 2)}, [4, 3, 2])}, [4, 3])
    td[0:1] = td[3]
    td[1:3] = td[3]
    assert (td["n", "x"] == td["n", "x"][3]).all()


@pytest.mark.parametrize("values", [[1, 2, 3], (1, 2, 3), [torch.tensor(1), torch.tensor(2), torch.tensor(3)]])
@pytest.mark.parametrize("kind", ["dense", "lazy", "lazy last"])
def test_a_list_of_numbers_is_written_as_a_tensor_of_them(values, kind):
    td = TensorDict({"a": torch.zeros(2, 3), "n": {"b": torch.zeros(2, 3, 2)}}, [2, 3])
    if kind != "dense":
        dim = 0 if kind == "lazy" else 1
        td = lazy_stack(list(td.unbind(dim)), dim)
    td[1] = values
    assert td["a"].tolist() == [[0, 0, 0], [1, 2, 3]]
    assert td["n", "b"][1].tolist() == [[1, 1], [2, 2], [3, 3]]


@pytest.mark.parametrize("values", [["a", "b"], [None, 1], [1, 2, 3, 4]])
def test_a_list_that_no_entry_takes_is_refused(values):
    td = TensorDict({"a": torch.zeros(3)}, [3])
    with pytest.raises((TypeError, RuntimeError)):
        td[:] = values
    assert td["a"].tolist() == [0, 0, 0]
