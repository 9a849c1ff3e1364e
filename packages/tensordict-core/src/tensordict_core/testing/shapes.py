"""Tests of shape operations: each moves rows as it moves the positions of a tensor of the batch size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tensordict_core.testing.container import ContainerCase
from tensordict_core.testing.contents import assert_rows, map_rows, positions, rows

SHAPE_OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "unsqueeze 0": lambda x: x.unsqueeze(0),
    "unsqueeze 1": lambda x: x.unsqueeze(1),
    "unsqueeze -1": lambda x: x.unsqueeze(-1),
    "squeeze": lambda x: x[:, :1].squeeze(),
    "squeeze first": lambda x: x[:1].squeeze(0),
    "squeeze none": lambda x: x.squeeze(0),
    "permute": lambda x: x.permute(1, 0),
    "transpose": lambda x: x.transpose(0, -1),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "movedim": lambda x: x.unsqueeze(0).movedim(2, 0),
    "expand": lambda x: x.expand(2, *x.shape),
    "expand first": lambda x: x[:1].expand(4, 3),
    "expand last": lambda x: x[:, :1].expand(-1, 5),
    "reshape flat": lambda x: x.reshape(-1),
    "reshape": lambda x: x.reshape(3, 2),
    "reshape first": lambda x: x.reshape(2, 1, 3),
    "view": lambda x: x.view(-1, 1),
    "view flat": lambda x: x.view(6),
    "flatten": lambda x: x.flatten(0, 1),
    "unflatten": lambda x: x.flatten(0, 1).unflatten(0, (3, -1)),
    "flip": lambda x: x.flip(0),
    "flip both": lambda x: x.flip(0, 1),
    "roll": lambda x: x.roll(1, 1),
    "roll flat": lambda x: x.roll(2),
    "rot90": lambda x: x.rot90(1, (0, 1)),
    "repeat": lambda x: x.repeat(2, 1),
    "tile": lambda x: x.tile(2),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "repeat_interleave each": lambda x: x.repeat_interleave(torch.tensor([1, 2], device=x.device), 0),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "unbind": lambda x: x.unbind(0)[1],
    "unbind last": lambda x: x.unbind(-1)[2],
    "split": lambda x: x.split(2, 1)[1],
    "split sizes": lambda x: x.split([1, 2], 1)[1],
    "split first": lambda x: x.split(1)[1],
    "chunk": lambda x: x.chunk(2, 1)[0],
    "tensor_split": lambda x: x.tensor_split(2, 1)[1],
    "tensor_split at": lambda x: x.tensor_split((1, 2), 1)[2],
}

BLOCKS: dict[str, Callable[[Any], Any]] = {
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x.squeeze(0),
    "transpose": lambda x: x.transpose(0, 1),
    "reshape": lambda x: x.reshape(3, 2),
    "flatten": lambda x: x.flatten(0, 1),
    "to": lambda x: x.to(torch.float64),
    "flatten_keys": lambda x: x.flatten_keys("_"),
}


class ShapeTests(ContainerCase):
    """Reshaping, splitting and combining."""

    @pytest.mark.parametrize("name", BLOCKS)
    def test_a_block_writes_replaced_entries_back(self, name: str) -> None:
        td = self.make()
        was = td * 2
        if td.is_locked:
            td.unlock_()
        with BLOCKS[name](td) as block:
            block.update(block * 2)
        assert_rows(td, rows(was), positions(td.batch_size))

    @pytest.mark.parametrize("name", SHAPE_OPERATIONS)
    def test_rows_go_where_positions_go(self, name: str) -> None:
        td = self.make()
        operation = SHAPE_OPERATIONS[name]
        assert_rows(operation(td), rows(td), operation(positions(td.batch_size)))

    @pytest.mark.parametrize("dim", [0, 1, 2, -1])
    @pytest.mark.parametrize("name", ["stack", "lazy_stack", "maybe_dense_stack"])
    def test_stacked_rows_stand_side_by_side(self, name: str, dim: int) -> None:
        td = self.make()
        other = td * 2
        stack = getattr(td, name)
        numbers = positions(td.batch_size)
        both = torch.stack([numbers, numbers + numbers.numel()], dim)
        assert_rows(stack([td, other], dim), rows(td) + rows(other), both)

    @pytest.mark.parametrize("dim", [0, 1, -1])
    def test_concatenated_rows_stand_one_after_the_other(self, dim: int) -> None:
        td = self.make()
        other = td * 2
        numbers = positions(td.batch_size)
        both = torch.cat([numbers, numbers + numbers.numel()], dim)
        assert_rows(torch.cat([td, other], dim), rows(td) + rows(other), both)

    def test_it_stacks_with_a_dense_tensordict(self) -> None:
        if self.ragged:
            pytest.skip("a dense tensordict has one shape for all rows")
        td: Any = self.make()
        dense: Any = self.dense() * 2
        numbers = positions(td.batch_size)
        both = torch.stack([numbers, numbers + numbers.numel()])
        assert_rows(torch.stack([td, dense]), rows(td) + rows(dense), both)
        assert_rows(torch.stack([dense, td]), rows(dense) + rows(td), both)

    def test_stack_undoes_unbind(self) -> None:
        td = self.make()
        for dim in range(td.batch_dims):
            assert_rows(td.maybe_dense_stack(td.unbind(dim), dim), rows(td), positions(td.batch_size))

    def test_stacking_other_keys_is_refused(self) -> None:
        td = self.make()
        with pytest.raises(RuntimeError):
            torch.stack([td, td.empty()])

    def test_dims_outside_the_batch_are_refused(self) -> None:
        td = self.make()
        for call in (td.unbind, td.squeeze, td.unsqueeze, td.flip):
            with pytest.raises(IndexError):
                call(5)
        with pytest.raises(RuntimeError):
            td.reshape(7)
        with pytest.raises(RuntimeError):
            td.expand(2, 4)

    def test_names_follow_their_dimensions(self) -> None:
        td = self.make()
        td.names = ["time", "env"]
        assert td.names == ["time", "env"]
        assert td.permute(1, 0).names == ["env", "time"]
        assert td.unsqueeze(1).names == ["time", None, "env"]
        assert td[0].names == ["env"]
        assert td[:, 0].names == ["time"]
        assert td[:, None].names == ["time", None, "env"]
        assert td[torch.tensor([0, 1])].names == ["time", "env"]
        assert td.clone().names == ["time", "env"]
        assert (td + 1).names == ["time", "env"]
        assert td.stack([td, td], 1).names == ["time", None, "env"]
        assert td.unbind(0)[0].names == ["env"]
        assert td.unbind(1)[0].names == ["time"]
        td.names = None
        assert td.names == [None, None]

    def test_names_that_do_not_fit_are_refused(self) -> None:
        td = self.make()
        with pytest.raises(RuntimeError):
            td.names = ["time"]
        with pytest.raises(ValueError):
            td.names = ["time", "time"]

    def test_reading_an_entry_gives_the_whole_batch(self) -> None:
        if self.ragged:
            pytest.skip("ragged entries are not read whole")
        td, dense = self.make(), self.dense()
        for path in dense._leaf_keys():
            torch.testing.assert_close(td[path], dense[path])
        assert_rows(td, map_rows(lambda x: x, rows(dense)))
