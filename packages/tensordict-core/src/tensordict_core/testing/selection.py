"""Tests of where, gather, masks, padding, and of functions of all leaves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tensordict_core.testing.container import ContainerCase
from tensordict_core.testing.contents import Row, assert_rows, map_rows, positions, rows

MASK = torch.tensor([[True, False, True], [False, False, True]])
TURNS = {0: torch.tensor([[1, 0, 1], [0, 0, 1]]), 1: torch.tensor([[2, 2], [0, 1]])}


def _mixed(one: list[Row], other: list[Row]) -> list[Row]:
    """Return the rows that the mask marks from the first table, the others from the second."""
    return [mine if marked else theirs for marked, mine, theirs in zip(MASK.reshape(-1), one, other, strict=True)]


class SelectionTests(ContainerCase):
    """Selection by masks and by indices along a dimension, row by row."""

    def test_where_takes_each_row_from_one_of_two(self) -> None:
        td = self.make()
        expected = _mixed(rows(td), map_rows(lambda x: x * 2, rows(td)))
        mask = MASK.to(self.device)
        assert_rows(td.where(mask, td * 2), expected)
        assert_rows(torch.where(mask, td, td * 2), expected)

    def test_where_with_a_number_fills_the_other_rows(self) -> None:
        td = self.make("floating")
        filled = map_rows(lambda x: torch.full_like(x, 3), rows(td))
        assert_rows(td.where(MASK.to(self.device), 3.0), _mixed(rows(td), filled))

    def test_masked_fill_fills_the_marked_rows(self) -> None:
        td = self.make()
        expected = _mixed(map_rows(lambda x: torch.full_like(x, 1), rows(td)), rows(td))
        mask = MASK.to(self.device)
        assert_rows(td.masked_fill(mask, 1), expected)
        assert td.masked_fill_(mask, 1) is td
        assert_rows(td, expected)

    def test_masked_select_takes_the_marked_rows(self) -> None:
        td = self.make()
        assert_rows(td.masked_select(MASK), rows(td), positions(td.batch_size)[MASK])

    @pytest.mark.parametrize("dim", [0, 1])
    def test_gather_takes_rows_along_a_dimension(self, dim: int) -> None:
        if self.ragged:
            pytest.skip("rows of several shapes stand at one place")
        td = self.make()
        turns = TURNS[dim].to(self.device)
        assert_rows(td.gather(dim, turns), rows(td), positions(td.batch_size).gather(dim, TURNS[dim]))

    def test_pad_adds_rows_and_leaves_the_others(self) -> None:
        if self.ragged:
            pytest.skip("rows of several shapes have no common padding")
        td = self.make("floating")
        padded = td.pad([1, 0, 0, 2], value=5.0)
        assert padded.batch_size == torch.Size([3, 5])
        assert_rows(padded[1:, :3], rows(td))
        added = [value for row in rows(padded[0]) for value in row.values() if isinstance(value, Tensor)]
        assert added and all(bool((value == 5).all()) for value in added)

    @pytest.mark.parametrize("name", ["zeros_like", "ones_like", "full_like", "empty_like"])
    def test_likes_have_the_rows_of_their_pattern(self, name: str) -> None:
        td = self.make()
        fill = (2.0,) if name == "full_like" else ()
        result = getattr(torch, name)(td, *fill)
        if name == "empty_like":
            result = result.zero_()
            name = "zeros_like"
        assert_rows(result, map_rows(lambda x: getattr(torch, name)(x, *fill), rows(td)))

    def test_filling_in_place_reaches_every_row(self) -> None:
        td = self.make()
        assert td.zero_() is td
        assert_rows(td, map_rows(torch.zeros_like, rows(self.make())))

    def test_one_number_of_all_leaves_is_that_of_all_rows(self) -> None:
        td = self.make("floating")
        values = [value.double() for row in rows(td) for value in row.values() if isinstance(value, Tensor)]
        flat = torch.cat([value.reshape(-1) for value in values])
        got: Any = td.double().sum(reduce=True)
        torch.testing.assert_close(got, flat.sum())
        torch.testing.assert_close(td.double().amax(reduce=True), flat.max())

    def test_clamping_and_interpolating_take_numbers(self) -> None:
        td = self.make("floating")
        assert_rows(td.clamp(0.3, 0.5), map_rows(lambda x: x.clamp(0.3, 0.5), rows(td)))
        assert_rows(td.lerp(td * 2, 0.5), map_rows(lambda x: x.lerp(x * 2, 0.5), rows(td)))
        assert_rows(td.clamp(max=td * 0.5), map_rows(lambda x: x * 0.5, rows(td)))
