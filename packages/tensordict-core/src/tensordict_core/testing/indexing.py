"""Tests of indexing: an index selects the expected rows, and an indexed write changes these rows only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tensordict_core.base.node import Node
from tensordict_core.testing.container import ContainerCase
from tensordict_core.testing.contents import assert_rows, map_rows, positions, rows

INDICES: dict[str, Any] = {
    "integer": 1,
    "negative": -1,
    "slice": slice(0, 1),
    "stepped": slice(None, None, 2),
    "empty slice": slice(0, 0),
    "ellipsis": ...,
    "none": None,
    "nothing": (),
    "two integers": (1, 2),
    "integer of the last": (..., -1),
    "slice of the last": (slice(None), slice(1, 3)),
    "slice and integer": (slice(None), 0),
    "none between": (slice(None), None, slice(None)),
    "tensor": torch.tensor([1, 0, 1]),
    "tensor of rank 2": torch.tensor([[1, 0], [0, 1]]),
    "tensor of rank 0": torch.tensor(1),
    "negative tensor": torch.tensor([-1, -2]),
    "empty tensor": torch.tensor([], dtype=torch.long),
    "list": [1, 0],
    "array": np.array([0, 1]),
    "range": range(2),
    "mask of rows": torch.tensor([True, False]),
    "list of bools": [False, True],
    "mask of positions": torch.tensor([[True, False, True], [False, False, True]]),
    "mask of nothing": torch.zeros(2, dtype=torch.bool),
    "slice and tensor": (slice(None), torch.tensor([2, 0])),
    "tensor and slice": (torch.tensor([1, 1]), slice(0, 2)),
    "slice and mask": (slice(None), torch.tensor([True, False, True])),
    "two tensors": (torch.tensor([0, 1, 1]), torch.tensor([2, 0, 1])),
    "tensors that broadcast": (torch.tensor([[0], [1]]), torch.tensor([2, 0])),
    "integer and tensor": (1, torch.tensor([0, 2])),
    "tensor and integer": (torch.tensor([0, 1]), 2),
    "tensors around none": (torch.tensor([0, 1]), None, torch.tensor([1, 2])),
    "none and tensor": (None, torch.tensor([1, 0])),
}

# A row that is chosen twice would be written twice, in no order that torch promises.
_WRITABLE = {
    name: index
    for name, index in INDICES.items()
    if name not in ("tensor", "tensor of rank 2", "tensor and slice", "ellipsis", "none", "nothing")
}


def _all(indices: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("index", list(indices.values()), ids=list(indices))


class IndexTests(ContainerCase):
    """Reading and writing by index."""

    @_all(INDICES)
    def test_an_index_selects_rows(self, index: Any) -> None:
        td = self.make()
        assert_rows(td[index], rows(td), positions(td.batch_size)[index])

    @_all(_WRITABLE)
    def test_a_tensordict_is_written_to_the_indexed_rows(self, index: Any) -> None:
        td = self.make()
        before, numbers = rows(td), positions(td.batch_size)
        td[index] = (td * 2)[index].clone()
        chosen = set(numbers[index].reshape(-1).tolist())
        doubled = map_rows(lambda x: x * 2, before)
        assert_rows(td, [doubled[i] if i in chosen else before[i] for i in range(len(before))])

    @_all(_WRITABLE)
    def test_a_number_is_written_to_the_indexed_rows(self, index: Any) -> None:
        td = self.make()
        before, numbers = rows(td), positions(td.batch_size)
        td[index] = 5
        chosen = set(numbers[index].reshape(-1).tolist())
        fives = map_rows(lambda x: torch.full_like(x, 5), before)
        assert_rows(td, [fives[i] if i in chosen else before[i] for i in range(len(before))])

    def test_rows_of_a_dense_tensordict_are_written(self) -> None:
        if self.ragged:
            pytest.skip("a dense tensordict has one shape for all rows")
        td, source = self.make(), self.dense() * 3
        td[:, 1:] = source[:, 1:]
        expected = rows(self.make())
        tripled = rows(source)
        for i in positions(td.batch_size)[:, 1:].reshape(-1).tolist():
            expected[i] = tripled[i]
        assert_rows(td, expected)

    def test_slices_share_memory_with_their_source(self) -> None:
        if not self.shares_slices:
            pytest.skip("entries are copies")
        td = self.make()
        part = td[0]
        part.zero_()
        expected = rows(self.make())
        for i in positions(td.batch_size)[0].tolist():
            expected[i] = map_rows(torch.zeros_like, [expected[i]])[0]
        assert_rows(td, expected)

    def test_get_at_and_set_at_reach_one_entry(self) -> None:
        if self.ragged:
            pytest.skip("ragged entries are not read whole")
        td = self.make()
        key = self.tensor_key(td)
        td.set_at_(key, 0.0, (slice(None), 1))
        assert not td.get(key)[:, 1].any() and td.get(key)[:, 0].all()
        torch.testing.assert_close(td.get_at(key, (1, 0)), td.get(key)[1, 0])

    @pytest.mark.parametrize("wrong", ["shape", "kind"])
    def test_indexed_writes_change_all_or_nothing(self, wrong: str) -> None:
        if self.ragged:
            pytest.skip("its leaves are read from elements of several shapes")
        td, before = self.make(), rows(self.make())
        source = {key: td.get(key)[0] * 2 for key, value in td._peek_items() if not isinstance(value, Node)}
        last = list(source)[-1]
        rest = td.batch_size[1:]
        source[last] = torch.zeros(*rest, 7, 7, 7) if wrong == "shape" else {"below": torch.zeros(rest)}
        with pytest.raises((RuntimeError, KeyError)):
            td.update_at_(source, 0)
        assert_rows(td, before)

    def test_update_at_writes_some_rows(self) -> None:
        td = self.make()
        td.update_at_(td[0] * 2, 0)
        before = rows(self.make())
        chosen = positions(td.batch_size)[0].tolist()
        doubled = map_rows(lambda x: x * 2, before)
        assert_rows(td, [doubled[i] if i in chosen else before[i] for i in range(len(before))])

    def test_iteration_and_length_are_of_the_first_dimension(self) -> None:
        td = self.make()
        parts = list(td)
        assert len(td) == len(parts) == td.batch_size[0]
        for part, numbers in zip(parts, positions(td.batch_size), strict=True):
            assert_rows(part, rows(td), numbers)

    @pytest.mark.parametrize(
        ("index", "error"),
        [
            (9, IndexError),
            ((0, 9), IndexError),
            ((0, 0, 0), IndexError),
            (torch.ones(5, dtype=torch.bool), IndexError),
            ((..., ...), IndexError),
            (("a", 0), TypeError),
            (1.5, TypeError),
        ],
        ids=str,
    )
    def test_an_index_that_does_not_fit_is_refused(self, index: Any, error: type[Exception]) -> None:
        with pytest.raises(error):
            self.make()[index]

    @pytest.mark.parametrize(
        "index",
        [[9], torch.tensor([-9]), (slice(None), [0, 9]), (slice(None), torch.tensor([-9])), (..., torch.tensor([9]))],
        ids=str,
    )
    def test_positions_out_of_bounds_are_an_index_error(self, index: Any) -> None:
        with pytest.raises(IndexError):  # views and files look at positions when they read entries
            self.make()[index].to_tensordict()

    def test_a_value_of_another_batch_size_is_refused(self) -> None:
        td = self.make()
        with pytest.raises(RuntimeError, match="batch size"):
            td[0] = td.clone()

    def test_a_new_key_gets_room_in_every_row(self) -> None:
        if not (self.supports_new_keys and self.fills_rows):
            pytest.skip("rows have keys of their own, or none are added")
        td = self.make()
        td[:, 0] = type(self.dense())({"new": torch.ones(len(td), 4)}, batch_size=[len(td)])
        assert td["new"].shape == (*td.batch_size, 4)
        assert td["new"][:, 0].all() and not td["new"][:, 1:].any()
