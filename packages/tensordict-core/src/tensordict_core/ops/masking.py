"""Masking, gathering and padding: ``where``, ``gather``, ``masked_select``, ``pad``, ``to_padded_tensor``.

Conditions, indices and masks are aligned with the batch dimensions and select whole rows of every leaf. Non-tensor
values are selected by the same positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self, cast

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.keys import NestedKey, unravel_key
from tensordict_core.base.meta import Meta, starts_with
from tensordict_core.base.node import Node
from tensordict_core.base.rebuild import SAME, UNLOCKED, How
from tensordict_core.base.registry.types import containers
from tensordict_core.base.shape_op import BatchOp, normal_dim
from tensordict_core.base.tracing import is_compiling
from tensordict_core.ops.factories.operands import (
    by_parts,
    complete,
    holds_lazy,
    keys_where,
    lined_up,
    match,
    without_last,
)
from tensordict_core.ops.factories.reduction import batched
from tensordict_core.ops.shape.combine import check_out, write_out


def _where_by_element(td: Any, condition: Tensor, other: Any, pad: Any) -> Any:
    """Apply ``where`` to each element of a lazy stack."""
    dim, dims, count = td.stack_dim, len(td._meta.batch_size), len(td.tensordicts)

    def parts(operand: Any, at: int) -> Sequence[Any]:
        """Return the part for each element of an operand whose dimension ``at`` is the stack dimension."""
        if isinstance(operand, Node) and len(operand._meta.batch_size) > dim:
            return operand.unbind(dim)
        if not isinstance(operand, Tensor) or not 0 <= at < operand.ndim:
            return [operand] * count
        return operand.expand(*operand.shape[:at], count, *operand.shape[at + 1 :]).unbind(at)

    # a tensor of as many dimensions as the batch, or fewer, matches the last batch dimensions
    beyond = max(dims - other.ndim, 0) if isinstance(other, Tensor) else 0
    elements, theirs = td.tensordicts, parts(other, dim - beyond)
    if isinstance(other, Tensor) and other.ndim and theirs and not theirs[0].ndim:
        elements = [_promoted(element, other.dtype) for element in elements]
    columns = zip(elements, parts(condition, dim), theirs, strict=True)
    return td._restacked([_where_element(mine, mask, part, pad) for mine, mask, part in columns])


def _promoted(td: Any, dtype: torch.dtype) -> Any:
    """Return a tensordict with the dtypes of results with a tensor of ``dtype`` that has dimensions."""
    return td.apply(lambda leaf: leaf.to(torch.promote_types(leaf.dtype, dtype)) if leaf.ndim else leaf)


def _where_element(mine: Any, mask: Tensor, theirs: Any, pad: Any) -> Any:
    """Return one of two elements, or parts of both; an element that is chosen as a whole is not broadcast."""
    if mask.ndim or not isinstance(theirs, Node) or is_compiling():
        return mine.where(mask, theirs, pad=pad)
    both: tuple[Any, Any] = (mine, theirs) if pad is None else complete(mine, theirs, pad)
    left, right = both
    if not all(a.shape == b.shape for a, b in zip(left._leaves(), _matched(left, right), strict=True)):
        return (left if mask else right).clone()
    return left.where(mask, right)


def _where_part(part: Any, key: str | None, apart: Sequence[str], condition: Tensor, other: Any, pad: Any) -> Any:
    """Apply ``where`` to the entry under a key, or with ``None`` to a tensordict without the entries ``apart``."""
    if isinstance(other, Node):
        other = other.exclude(*apart) if key is None else other._get(key)
        if other is None:
            if pad is None:
                raise KeyError(
                    f"Key {key} not found and no pad value provided; pass pad=: the other tensordict lacks it"
                )
            other = part.empty()
    elif isinstance(other, Tensor) and other.ndim:  # the first dimensions of the entry are those of the tensor
        other = other[(..., *(None,) * (len(part._meta.batch_size) - other.ndim))]
    return part.where(condition, other, pad=pad)


def _written(result: Any, out: Any, update_batch_size: bool) -> Any:
    """Return ``out`` with the entries of a result of ``where``; without ``out``, the result."""
    if out is None:
        return result
    check_out("where", out)
    return out.update(result, update_batch_size=update_batch_size)


class Masking(Node):
    """``where``, ``gather``, ``masked_select`` and padding."""

    __slots__ = ()

    def where(
        self,
        condition: Tensor,
        other: Any,
        *,
        out: Any = None,
        pad: float | bool | None = None,
        update_batch_size: bool = False,
    ) -> Self:
        """Return the entries of this tensordict where ``condition`` is true, those of ``other`` elsewhere.

        Args:
            condition: A bool tensor, aligned with the batch dimensions.
            other: A tensordict, matched by key; a number; or a tensor, aligned with the batch dimensions
                unless it has more dimensions than the batch.
            out: A tensordict that takes the entries of the result; tensors that it held before are not changed.
            pad: The value for a leaf that one side lacks; by default a missing leaf is an error. A non-tensor entry
                that one side lacks is always taken from the other.
            update_batch_size: Whether ``out`` takes the batch size of the result.

        Raises:
            KeyError: One side lacks a leaf and there is no ``pad``.

        >>> td = TensorDict({"a": torch.ones(2, 2)}, [2])
        >>> td.where(torch.tensor([True, False]), 0.0)["a"]
        tensor([[1., 1.],
                [0., 0.]])
        """
        if not isinstance(condition, Tensor):
            raise TypeError(
                f"where takes a bool tensor as condition, got {type(condition).__name__}; wrap it with torch.tensor"
            )
        condition = without_last(condition, len(self._meta.batch_size))
        if self._is_lazy_stack:  # elements of different shapes cannot be stacked
            stack = _where_by_element(self, condition, other, pad)
            return cast(Self, _written(stack, out, update_batch_size))
        dims = len(self._meta.batch_size)
        if isinstance(other, Tensor) and 0 < other.ndim < dims:
            other = other.reshape(*(1,) * (dims - other.ndim), *other.shape)
        if lazy := keys_where(self, holds_lazy):
            parts = by_parts(self, lazy, lambda part, key: _where_part(part, key, lazy, condition, other, pad))
            return cast(Self, _written(parts, out, update_batch_size))
        td: Any = self._solid()
        if isinstance(other, Node):
            other = other._solid()
            td, other = (td, other) if pad is None else complete(td, other, pad)
        leaves = td._leaves()
        flags = batched(td)
        if isinstance(other, Node):
            try:
                operands: Any = _matched(td, other)
            except KeyError as error:
                missing = next((unravel_key(key) for key in td._leaf_keys() if key not in other), "of other")
                raise KeyError(
                    f"Key {missing} not found and no pad value provided; pass pad=: {error.args[0]}"
                ) from None
            scalar = False
        elif isinstance(other, Tensor) and other.ndim > len(td._meta.batch_size):
            operands = [other] * len(leaves)
            scalar = False
        else:
            operands, scalar = match("where", td, leaves, other)
        if scalar:
            operands = [operands] * len(leaves)
        columns = zip(lined_up(condition, leaves), leaves, operands, flags, strict=True)
        results = [torch.where(wide, mine, theirs) if has else mine for wide, mine, theirs, has in columns]
        size = td._meta.batch_size
        theirs_fit = scalar or (isinstance(other, Node) and other._meta.batch_size == size)
        if not theirs_fit or condition.shape != size[: condition.ndim]:  # entries may be broadcast
            for leaf, has in zip(results, flags, strict=True):
                if has and not starts_with(leaf.shape, size):
                    raise errors.bad_where(condition.shape, size, leaf.shape)
        result = td._rebuild(iter(results), SAME if out is None and not isinstance(other, Node | Tensor) else UNLOCKED)
        if isinstance(other, Node):
            _choose_values(result, td, other, condition)
        return cast(Self, _written(result, out, update_batch_size))

    def gather(self, dim: int, index: Tensor, out: Any = None, *, inplace: bool = False) -> Self:
        """Return the rows at the positions ``index`` along a batch dimension, as `torch.gather` does.

        Args:
            dim: The batch dimension.
            index: An integer tensor with as many dimensions as the batch, or fewer (later batch dimensions are kept
                whole). Its shape becomes the leading batch size of the result.
            out: A tensordict of that batch size into which the result is written.
            inplace: Whether this tensordict takes the result.

        Raises:
            IndexError: ``dim`` is outside the dimensions of ``index``.

        >>> td = TensorDict({"a": torch.arange(6).reshape(2, 3)}, [2, 3])
        >>> td.gather(1, torch.tensor([[2], [0]]))["a"]
        tensor([[2],
                [3]])
        """
        if out is not None and inplace:
            raise TypeError("gather takes either out or inplace=True; leave one out")
        if not isinstance(index, Tensor):
            raise TypeError(
                f"gather takes an integer tensor as index, got {type(index).__name__}; wrap it with torch.tensor"
            )
        size = self._meta.batch_size
        dims = index.ndim
        rule = f"Cannot gather tensordict with shape {size} along dim {dim}"
        if dims > len(size):
            raise errors.bad_index_count(dims, size, rule)
        at = normal_dim(dim, size, rule=rule)
        if at >= dims:
            raise errors.bad_dim(dim, size[:dims], rule=rule)
        new = torch.Size((*index.shape, *size[dims:]))
        known: torch.Size | None = None  # entries in a row often have one shape; expanding costs more than to gather
        expanded = index

        def rows(tensor: Tensor) -> Tensor:  # of any dtype
            return torch.index_select(tensor, 0, index)

        def places(tensor: Tensor) -> Tensor:
            nonlocal known, expanded
            own = tensor.shape[dims:]
            if own != known:
                wide = torch.reshape(index, index.shape + (1,) * len(own))
                known, expanded = own, torch.broadcast_to(wide, index.shape + own)
            return torch.gather(tensor, at, expanded)

        leaf = rows if dims == 1 else places
        result = self._reshape(BatchOp(size, new, leaf, names=lambda names: names, device=index.device))
        if inplace:
            return cast(Self, result._replaces(self))
        return cast(Self, result if out is None else write_out("gather", result, out))

    def masked_select(self, mask: Tensor, *, inplace: bool = False) -> Self:
        """Return a copy of the positions of the batch where ``mask`` is true, as one batch dimension.

        Args:
            mask: A bool tensor of the batch size, or of its first dimensions; further dimensions have size 1.
            inplace: Whether this tensordict takes the result.

        Raises:
            TypeError: ``mask`` is not a bool tensor.

        >>> TensorDict({"a": torch.arange(3)}, [3]).masked_select(torch.tensor([True, False, True]))["a"]
        tensor([0, 2])
        """
        got: Any = getattr(mask, "dtype", type(mask).__name__)
        if got is not torch.bool:
            raise TypeError(f"masked_select takes a bool tensor as mask, got {got}; compare or cast it to bool first")
        result: Any = self._select_rows(without_last(mask, len(self._meta.batch_size)))
        if result._is_lazy_stack and not result._is_ragged():
            result = result._solid()
        return cast(Self, result._replaces(self) if inplace else result)

    def pad(self, pad_size: Sequence[int], value: float = 0.0, inplace: bool = False, safe: bool = True) -> Self:
        """Return the batch padded with ``value`` at both ends of its dimensions.

        Args:
            pad_size: The numbers of positions added before and after the first batch dimension, the second, ...;
                negative numbers remove positions.
            value: The value of the new positions; non-tensor entries are ``None`` there.
            inplace: Whether this tensordict takes the result.
            safe: Whether ``pad_size`` is checked against the batch size first; otherwise torch raises the errors.

        Raises:
            RuntimeError: ``pad_size`` does not fit the batch dimensions.

        >>> TensorDict({"a": torch.ones(2)}, [2]).pad([1, 0], value=5.0)["a"]
        tensor([5., 1., 1.])
        """
        sizes = [int(n) for n in pad_size]
        size = self._meta.batch_size
        if len(sizes) % 2:
            raise RuntimeError(
                f"pad_size must have an even number of dimensions, two sizes for each that is padded, got {sizes}; add "
                "the missing one"
            )
        if len(sizes) > 2 * len(size):
            raise RuntimeError(
                f"The length of pad_size must be <= 2 * the number of batch dimensions, got {sizes} for batch size "
                f"{list(size)}; pad the entries for their own dimensions"
            )
        ends = [(before, after) for before, after in zip(sizes[::2], sizes[1::2], strict=True)]
        new = [n + sum(ends[i]) if i < len(ends) else n for i, n in enumerate(size)]
        if safe and any(n < 0 for n in new):
            raise RuntimeError(
                f"pad_size {sizes} cuts off more than batch size {list(size)} has; use smaller negative numbers"
            )

        def leaf(tensor: Tensor) -> Tensor:
            rest = tensor.ndim - len(ends)
            flat = [n for pair in reversed(ends) for n in pair]
            return torch.nn.functional.pad(tensor, [0, 0] * rest + flat, value=value)

        td = self._solid()
        if td._is_non_tensor:
            if inplace and not td._holds_values:
                raise RuntimeError(
                    "NonTensorData has one value for all positions, and padded it has a value for each; pad without "
                    "inplace=True"
                )
            holder = self._new({"values": td}, Meta(self._meta.batch_size))
            return self._in_place(cast(Self, holder.pad(pad_size, safe=safe)._get("values")), inplace)
        rows = zip(td._leaves(), batched(td), strict=True)
        how = How(size=lambda own: torch.Size((*new, *own[len(size) :])), names=lambda own: own)
        result = td._rebuild(iter([leaf(tensor) if has_batch else tensor for tensor, has_batch in rows]), how)
        pad_values(result, td, ends)
        return cast(Self, result._replaces(self) if inplace else result)

    def to_padded_tensor(self, padding: float = 0.0, mask_key: NestedKey | None = None) -> Self:
        """Return the tensordict with nested tensors padded to dense ones; other leaves are unchanged.

        A ragged batch dimension (``-1``) takes its size from the padded leaves.

        Args:
            padding: The value after the end of shorter rows.
            mask_key: The key under which a bool mask of the positions without padding is stored.

        Raises:
            RuntimeError: ``mask_key`` without a nested leaf that is ragged in a batch dimension.

        >>> ragged = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
        >>> TensorDict({"a": ragged}, [2]).to_padded_tensor(-1.0)["a"]
        tensor([[ 1., -1.],
                [ 1.,  1.]])
        """
        size = self._meta.batch_size
        leaves = self._leaves()
        padded = [torch.nested.to_padded_tensor(leaf, padding) if leaf.is_nested else leaf for leaf in leaves]
        ragged = [dim for dim, n in enumerate(size) if n == -1]
        new = list(size)
        for dim in ragged:
            new[dim] = max((p.shape[dim] for p, leaf in zip(padded, leaves, strict=True) if leaf.is_nested), default=0)
        dims = len(size)
        how = How(size=lambda own: torch.Size((*new, *own[dims:])), names=lambda own: own)
        result = self._rebuild(iter(padded), how)
        if mask_key is not None:
            nested = [leaf for leaf in leaves if leaf.is_nested]
            if not ragged or not nested:
                raise RuntimeError(
                    f"mask_key needs a ragged batch dimension, and the batch size is {list(size)}; densify a lazy "
                    "stack of tensordicts with different batch sizes first"
                )
            ones = torch.ones_like(nested[0], dtype=torch.int8)
            mask = torch.nested.to_padded_tensor(ones, 0).bool()
            result.set(mask_key, mask.flatten(dims).any(-1) if mask.ndim > dims else mask)
        return result

    def _replaces(self, target: Any) -> Any:
        """Replace the entries and metadata of ``target`` by those of this tensordict, and return ``target``."""
        return target._in_place(self, True)


def _matched(td: Any, other: Any) -> list[Any]:
    """Return the leaves of ``other`` under the keys of ``td``; non-tensor entries need no match."""
    found: list[Any] = td._align(other, None)
    keys = td._leaf_keys()
    for key, leaf in zip(keys, found, strict=True):
        if leaf is None:
            raise errors.missing_key(unravel_key(key), [unravel_key(one) for one in other._leaf_keys()])
    if len(found) != len(other._leaves()):
        raise errors.keys_mismatch((), [unravel_key(one) for one in set(other._leaf_keys()) - set(keys)])
    return found


def _choose_values(result: Any, left: Any, right: Any, condition: Tensor) -> None:
    """Set the non-tensor values of ``result`` to those of ``right`` where the condition is false."""
    for key in left._keys():
        mine, theirs = left._get(key), right._get(key)
        if not isinstance(mine, Node) or not isinstance(theirs, Node):
            continue
        if not mine._is_non_tensor:
            _choose_values(result._get(key), mine, theirs, condition)
        else:
            result._set(key, mine.where(condition, theirs))
    for key in right._keys():
        if left._get(key) is None and isinstance(right._get(key), Node):
            result._set(key, right._get(key))


def pad_values(result: Any, source: Any, ends: Sequence[tuple[int, int]]) -> None:
    """Replace non-tensor entries of ``result`` by those of ``source`` with ``None`` at the added positions.

    Args:
        result: The padded tensordict.
        source: The tensordict before padding.
        ends: The numbers of positions added before and after the first batch dimension, the second, ...
    """
    if not any(map(any, ends)):
        return
    for key in source._keys():
        entry = source._get(key)
        if not isinstance(entry, Node):
            continue
        if not entry._is_non_tensor:
            if not entry._is_opaque:
                pad_values(result._get(key), entry, ends)
            continue
        values, meta = entry._flat_values(), entry._meta
        positions, size = list(range(len(values))), list(meta.batch_size)
        for dim, (before, after) in enumerate(ends):
            positions, size = _padded_positions(positions, size, dim, before, after)
        flat = [None if i < 0 else values[i] for i in positions]
        new = Meta(torch.Size(size), meta.device, result._get(key)._meta.names)
        result._set(key, containers.non_tensor_stack._make(flat, new))


def _padded_positions(
    positions: list[int], size: list[int], dim: int, before: int, after: int
) -> tuple[list[int], list[int]]:
    """Pad the positions of a batch along one dimension with -1; plain integers, because tracers cannot read tensors."""
    n, inner = size[dim], math.prod(size[dim + 1 :])
    out: list[int] = []
    for start in range(0, len(positions), max(n * inner, 1)) if positions else range(0):
        rows = [positions[start + i * inner : start + (i + 1) * inner] for i in range(n)]
        empty = [-1] * inner
        kept = rows[max(-before, 0) : n - max(-after, 0)]
        for row in [empty] * max(before, 0) + kept + [empty] * max(after, 0):
            out.extend(row)
    new = [*size[:dim], n + before + after, *size[dim + 1 :]]
    return (out if positions else [-1] * math.prod(new)), new
