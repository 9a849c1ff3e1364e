"""Tests of operations by their records: each changes a row as it changes a tensor."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tensordict_core.ops.factories.spec import Family, OpSpec, operations
from tensordict_core.testing.container import ContainerCase
from tensordict_core.testing.contents import Row, assert_rows, assert_tensor, map_rows, positions, rows

_REFUSALS = (RuntimeError, TypeError, NotImplementedError)


def _of(family: Family, *, inplace: bool = False) -> pytest.MarkDecorator:
    chosen = [op for op in operations() if op.family == family and op.inplace is inplace]
    return pytest.mark.parametrize("op", chosen, ids=lambda op: op.name)


class OperationTests(ContainerCase):
    """One test per family of records; a new operation is tested by being recorded."""

    def _check(
        self, op: OpSpec, operands: Callable[[Any], tuple[Any, ...]], tables: Callable[[Any], list[list[Row]]]
    ) -> None:
        """Compare the operation with its leaf function on the rows, for the entries that it takes."""
        for kind in ("mixed", "floating", "integral"):
            td = self.make(kind)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    expected = map_rows(lambda x, *rest: op.leaf(x.clone(), *rest), rows(td), *tables(td))
            except _REFUSALS:
                with pytest.raises(_REFUSALS):
                    getattr(td, op.name)(*operands(td))
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = getattr(td, op.name)(*operands(td))
            assert result.batch_size == td.batch_size
            if op.inplace:
                assert result is td
            got = rows(result)
            for one, other in zip(got, expected, strict=True):
                tensors = {path: value for path, value in other.items() if isinstance(value, Tensor)}
                _assert_tensors(one, tensors)
            return
        raise AssertionError(f"no sample takes {op.name}")

    @_of("unary")
    def test_unary(self, op: OpSpec) -> None:
        self._check(op, lambda td: (), lambda td: [])

    @_of("unary", inplace=True)
    def test_unary_in_place(self, op: OpSpec) -> None:
        self._check(op, lambda td: (), lambda td: [])

    @_of("test")
    def test_tests_of_elements(self, op: OpSpec) -> None:
        self._check(op, lambda td: (), lambda td: [])

    @_of("cast")
    def test_casts(self, op: OpSpec) -> None:
        self._check(op, lambda td: (), lambda td: [])

    @_of("binary")
    def test_binary_with_a_tensordict(self, op: OpSpec) -> None:
        self._check(op, lambda td: (td.clone(),), lambda td: [rows(td)])

    @_of("binary")
    def test_binary_with_a_number(self, op: OpSpec) -> None:
        self._check(op, lambda td: (2,), lambda td: [_numbers(td, 2)])

    @_of("binary", inplace=True)
    def test_binary_in_place_with_a_number(self, op: OpSpec) -> None:
        self._check(op, lambda td: (2,), lambda td: [_numbers(td, 2)])

    @_of("binary", inplace=True)
    def test_binary_in_place_with_a_tensordict(self, op: OpSpec) -> None:
        self._check(op, lambda td: (td.clone(),), lambda td: [rows(td)])

    @_of("binary")
    def test_binary_with_a_tensor_of_the_batch_size(self, op: OpSpec) -> None:
        def table(td: Any) -> list[list[Row]]:
            numbers = positions(td.batch_size).to(self.device) + 1
            sources = zip(rows(td), numbers.reshape(-1), strict=True)
            return [[dict.fromkeys(row, number) for row, number in sources]]

        self._check(op, lambda td: (positions(td.batch_size).to(self.device) + 1,), table)

    @_of("ternary")
    def test_ternary(self, op: OpSpec) -> None:
        self._check(op, lambda td: (td.clone(), td.clone()), lambda td: [rows(td), rows(td)])

    @_of("ternary", inplace=True)
    def test_ternary_in_place(self, op: OpSpec) -> None:
        self._check(op, lambda td: (td.clone(), td.clone()), lambda td: [rows(td), rows(td)])

    @_of("compare")
    def test_comparisons_with_a_tensordict(self, op: OpSpec) -> None:
        self._check(op, lambda td: (td.clone() * 1,), lambda td: [rows(td)])

    @_of("compare")
    def test_comparisons_with_a_number(self, op: OpSpec) -> None:
        td = self.make()
        expected = map_rows(lambda x: op.leaf(x, 2), rows(td))
        for one, other in zip(rows(getattr(td, op.name)(2)), expected, strict=True):
            _assert_tensors(one, {path: value for path, value in other.items() if isinstance(value, Tensor)})

    def test_a_clone_equals_its_source_value_by_value(self) -> None:
        td = self.make()
        assert (td == td.clone()).all()
        assert not (td == td.clone() * 2).all()

    @_of("reduce")
    @pytest.mark.parametrize("dim", [0, -1])
    def test_reductions_over_a_batch_dimension(self, op: OpSpec, dim: int) -> None:
        if self.ragged:
            pytest.skip("ragged entries have no sum over the batch")
        td, dense = self.make("floating"), self.dense("floating")
        more: tuple[Any, ...] = (0.5,) if op.name == "quantile" else ()
        if "dim" not in inspect.signature(getattr(td, op.name)).parameters:
            pytest.skip("it reduces every leaf as a whole")
        result = getattr(td, op.name)(*more, dim=dim)
        at = dim % len(self.batch)
        for path in dense._leaf_keys():
            expected = op.leaf(dense[path], *more, dim=at)
            expected = expected[0] if isinstance(expected, tuple) else expected
            values = result[0] if isinstance(result, tuple) else result
            torch.testing.assert_close(values[path], expected)

    def test_operators_with_numbers_on_either_side(self) -> None:
        td = self.make("floating")
        before = rows(td)
        assert_rows(2 - td, map_rows(lambda x: 2 - x, before))
        assert_rows(td / 2 + 1, map_rows(lambda x: x / 2 + 1, before))
        assert_rows(-td, map_rows(torch.neg, before))
        assert_rows(torch.add(td, 1), map_rows(lambda x: x + 1, before))


def _numbers(td: Any, number: int) -> list[Row]:
    """Return one number beside every entry of every row."""
    return [dict.fromkeys(row, number) for row in rows(td)]


def _assert_tensors(got: Row, expected: Row) -> None:
    for path, value in expected.items():
        assert_tensor(got[path], value, path)
