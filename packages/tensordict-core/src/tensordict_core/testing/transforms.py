"""Tests of apply, vmap, torch.compile and pytrees."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tensordict_core.testing.container import ContainerCase
from tensordict_core.testing.contents import assert_rows, map_rows, rows


class TransformTests(ContainerCase):
    """``apply`` and the transforms of PyTorch."""

    compiles = True
    """Whether programs with it compile as one graph."""
    maps = True
    """Whether ``torch.vmap`` takes it."""

    def test_apply_runs_on_every_leaf(self) -> None:
        td = self.make()
        assert_rows(td.apply(lambda x: x * 2 + 1), map_rows(lambda x: x * 2 + 1, rows(td)))

    def test_apply_composes(self) -> None:
        td = self.make("floating")
        assert_rows(td.apply(torch.exp).apply(torch.neg), rows(td.apply(lambda x: torch.exp(x).neg())))

    def test_apply_with_another_pairs_leaves_by_key(self) -> None:
        td = self.make()
        assert_rows(td.apply(torch.add, td * 2), map_rows(lambda x: x * 3, rows(td)))

    def test_apply_in_place_writes_into_the_leaves(self) -> None:
        td = self.make()
        assert td.apply_(lambda x: x * 2) is td
        assert_rows(td, map_rows(lambda x: x * 2, rows(self.make())))

    def test_apply_drops_entries_without_a_result(self) -> None:
        td = self.make("floating")
        result = td.apply(lambda x: None if x.dtype == torch.float64 else x)
        expected = [
            {path: value for path, value in row.items() if getattr(value, "dtype", None) != torch.float64}
            for row in rows(td)
        ]
        assert_rows(result, expected)

    def test_apply_refuses_results_without_the_batch_size(self) -> None:
        td = self.make()
        if not any(size for _, size in td._leaf_places()):
            pytest.skip("its leaves are of single rows, which have no batch size")
        with pytest.raises(RuntimeError, match="batch size"):
            td.apply(lambda x: x.reshape(-1)[:1])

    def test_apply_gives_results_a_batch_size(self) -> None:
        td = self.make()
        if self.ragged or not td.batch_dims:
            pytest.skip("its rows have no batch size of their own")
        result = td.apply(lambda x: x.unsqueeze(0), batch_size=[1, *td.batch_size])
        assert result.batch_size == (1, *td.batch_size)
        assert_rows(result[0], rows(td))

    def test_named_apply_knows_the_keys(self) -> None:
        td = self.make()
        seen: set[Any] = set()
        td.named_apply(lambda key, x: seen.add(key), nested_keys=True)
        tensors = {path for row in rows(td) for path, value in row.items() if isinstance(value, torch.Tensor)}
        assert seen == {path[0] if len(path) == 1 else path for path in tensors}
        last: set[Any] = set()
        td.named_apply(lambda key, x: last.add(key))
        assert last == {key if isinstance(key, str) else key[-1] for key in seen}

    def test_a_tensordict_is_flattened_and_restored(self) -> None:
        td = self.make()
        leaves, spec = pytree.tree_flatten(td)
        assert all(isinstance(leaf, torch.Tensor) for leaf in leaves) and leaves
        assert_rows(pytree.tree_unflatten(leaves, spec), rows(td))
        assert_rows(pytree.tree_map(lambda x: x * 2, td), map_rows(lambda x: x * 2, rows(td)))

    @pytest.mark.parametrize("in_dim", [0, 1])
    def test_vmap_sees_one_row_at_a_time(self, in_dim: int) -> None:
        if not self.maps or self.ragged:
            pytest.skip("vmap needs rows of one shape")
        td = self.make("floating")

        def double(row: Any) -> Any:
            assert row.batch_size == td.select().unbind(in_dim)[0].batch_size
            return row * 2

        result = torch.vmap(double, in_dim, in_dim)(td)
        assert_rows(result, map_rows(lambda x: x * 2, rows(td)))

    def test_a_program_compiles_as_one_graph(self) -> None:
        if not self.compiles:
            pytest.skip("programs with it do not compile")
        td = self.make("floating")

        def program(td: Any) -> Any:
            doubled = td * 2 + 1
            return doubled[0], doubled.reshape(-1), td.apply(lambda x: x - 1)

        torch.compiler.reset()
        got = torch.compile(program, backend="eager", fullgraph=True)(td)
        for one, other in zip(got, program(td), strict=True):
            assert_rows(one, rows(other))
