"""Shape operations of a lazy stack: reshape, permute, stack, concatenate, unbind.

An operation that does not mix the stack dimension with others is mapped over the elements. Any other operation returns
a dense result if the entries can be stacked; if they are ragged, it returns a lazy stack of the rows of the batch in
their new order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from tensordict_core.base.predicates import is_tensorclass
from tensordict_core.base.shape_op import BatchOp, Reshape, ShapeOp, Unsqueeze
from tensordict_core.containers.lazy.indexing import nest
from tensordict_core.containers.nontensor.positions import reshape_positions
from tensordict_core.ops.shape.combine import cat_nodes, stack_nodes


def _rows(td: Any, dims: int) -> list[Any]:
    """Return every position of the first ``dims`` batch dimensions as a tensordict without them."""
    if not dims:
        return [td]
    return [row for part in td._unbind(0) for row in _rows(part, dims - 1)]


class LazyReshaping:
    """Shape operations, and combining lazy stacks with each other."""

    __slots__ = ()

    def _reshape(self: Any, op: ShapeOp) -> Any:
        result = self._reshaped(op)
        if op.lock and self._locked:
            result.lock_()
        return result

    def _reshaped(self: Any, op: ShapeOp) -> Any:
        tds = self.tensordicts
        if not tds:
            return self._expanded_first()._reshape(op)
        at, dims = self.stack_dim, len(op.old)
        # a nested stack may be one along a dimension of its own, behind those of the root that are reshaped
        through = op.through_stack(at) if at < dims else (op, at + len(op.new) - dims)
        if through is not None:
            inner, dim = through
            own = len(inner.old)  # a nested stack may have more
            ragged = -1 in op.old
            result = self._restacked(
                [td._reshape(inner.resized(td._meta.batch_size[:own]) if ragged else inner) for td in tds], dim
            )
            return self._named_by(op, result)
        if len(tds) == 1:
            one = tds[0]._reshape(Unsqueeze(tds[0]._meta.batch_size, at))
            if self._stack_name is not None:
                one._put_names(self._meta.names)
            return one._reshape(op)
        if -1 in op.old:
            op.resized(op.old)  # refuses what depends on sizes
        if not op.new.numel():
            return self._expanded_first()._reshape(op)
        keeps_class = any(map(is_tensorclass, tds))  # the rows of a dense stack would be plain tensordicts
        if not keeps_class and not self._is_ragged() and not (isinstance(op, Reshape) and not op.copies):
            result = self._solid()._reshape(op)
            if isinstance(op, BatchOp) and op.stacked:
                return self._in_slices(result, at)
            if not (isinstance(op, Reshape) and op.new):
                return result
            rows = result._unbind(0)
            return self._named_by(op, type(rows[0])._lazy(rows, 0))
        positions = reshape_positions(op.old, op)
        rows = _rows(self, dims)
        element = (lambda i: rows[i]._clone(True)) if isinstance(op, BatchOp) else rows.__getitem__
        result = nest(range(op.old.numel()) if positions is None else positions, op.new, 0, element)
        return self._named_by(op, result)

    def _named_by(self: Any, op: ShapeOp, result: Any) -> Any:
        """Return the result with the dim names of the operation, which do not depend on how it was computed."""
        result, names = self._as_own(result), op.names(self._meta.names)
        if names != result._meta.names:
            result._put_names(names)
        return result

    def _unbind(self: Any, dim: int) -> Any:
        at = self.stack_dim
        tds = self.tensordicts
        if dim == at:
            return tuple(tds)
        if not tds:
            return self._expanded_first()._unbind(dim)
        return self._joined([td._unbind(dim - (dim > at)) for td in tds], at - (dim < at))

    def _split(self: Any, sizes: list[int], dim: int) -> Sequence[Any]:
        if dim != self.stack_dim or 0 in sizes:
            pieces: Sequence[Any] = super()._split(sizes, dim)  # type: ignore[misc]  # of the class that it is mixed into
            return pieces
        tds = self.tensordicts
        return [self._restacked(tds[end - n : end]) for n, end in zip(sizes, accumulate(sizes), strict=True)]

    @classmethod
    def _stack(cls, items: Sequence[Any], dim: int) -> Any:
        first = items[0]
        if _alike(items):
            at = first.stack_dim
            inner = dim - (dim > at)
            columns = zip(*(item.tensordicts for item in items), strict=True)
            return first._restacked([stack_nodes(column, inner) for column in columns], at + (dim <= at))
        solid = [item._solid() for item in items]
        return type(solid[0])._stack(solid, dim)

    @classmethod
    def _cat(cls, items: Sequence[Any], dim: int) -> Any:
        # operands that are empty along the dimension add no element
        full = [item for item in items if item._meta.batch_size[dim]] or list(items)
        first = next((item for item in full if item._is_lazy_stack and item.tensordicts), None)
        if first is None:
            return full[0]
        at = first.stack_dim
        parts = [item._unbind(at) for item in full]
        if dim == at:
            return first._restacked([td for column in parts for td in column], at)
        columns = zip(*parts, strict=True)
        return first._restacked([cat_nodes(column, dim - (dim > at)) for column in columns], at)


def _alike(items: Sequence[Any]) -> bool:
    """Return whether all are lazy stacks of one length along one dimension, so their elements pair up."""
    first = items[0]
    return all(
        item._is_lazy_stack
        and item.stack_dim == first.stack_dim
        and len(item.tensordicts) == len(first.tensordicts) > 0
        for item in items
    )
