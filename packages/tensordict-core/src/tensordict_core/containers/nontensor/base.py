"""Base class of non-tensor data: a node of values with a batch size, without entries and without leaves.

The values have one of two forms: one value is shared by all positions, or each position has its own. Operations on
leaves pass such a node by; indexing and shape operations are lists of flat positions for both forms.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.entry import non_tensor_entry
from tensordict_core.base.index import Index
from tensordict_core.base.keys import unravel_key
from tensordict_core.base.meta import Meta, cat_meta, stacked_meta, unbound_meta
from tensordict_core.base.options import current as options
from tensordict_core.base.rebuild import KEEP
from tensordict_core.base.registry.types import containers
from tensordict_core.base.shape_op import Expand, ShapeOp, Unsqueeze
from tensordict_core.base.write_plan import WritePlan
from tensordict_core.containers.collection import TensorCollection
from tensordict_core.containers.nontensor.pointwise import choose, compared, different, logical, ordered, same
from tensordict_core.containers.nontensor.positions import (
    index_positions,
    nested,
    nested_size,
    product_positions,
    reshape_positions,
    unbind_positions,
)
from tensordict_core.containers.nontensor.update import UpdatesValues
from tensordict_core.ops.factories.owner import owns_methods

ValueWriter = Callable[["NonTensorDataBase", "NonTensorDataBase"], None]
"""Stores the values of the second argument in place of those of the first, in a file for example."""

value_writers: list[ValueWriter] = []


def _put_values(holder: Any, key: str, index: Index, values: NonTensorDataBase) -> None:
    """Write values into positions of an entry of ``holder``; the entry may be replaced."""
    old = holder._get(key)
    new = old._put_node(index, values)
    if new is not old:
        holder._set(key, new.lock_() if old._locked else new)


def register_value_writer(writer: ValueWriter) -> None:
    """Register a function that stores the values which in-place writes give to annotated non-tensor data.

    It is called before the entry changes in memory, with the entry and with its new values; if it raises, the entry
    does not change.

    Args:
        writer: The function. It looks at the annotations of the entry.

    >>> from tensordict_core.extension import annotate
    >>> seen = []
    >>> register_value_writer(lambda old, new, seen=seen: seen.append((old.data, new.data)))
    >>> td = TensorDict({"a": "before"})
    >>> annotate(td.get("a"), "origin", "docs")
    >>> td.update_({"a": "after"})["a"], seen
    ('after', [('before', 'after')])
    """
    value_writers.append(writer)


@owns_methods
class NonTensorDataBase(UpdatesValues, abstract=True):
    """Base class of `NonTensorData` and `NonTensorStack`.

    >>> from tensordict_core import NonTensorDataBase
    >>> td = TensorDict({"name": ["a", "b"], "unit": "m"}, [2])
    >>> [isinstance(td.get(key), NonTensorDataBase) for key in ("name", "unit")]
    [True, True]
    """

    __slots__ = ("_annotations", "_holders", "_last_exit", "_locked", "_meta")

    _is_non_tensor = True
    _is_shared = False
    """Whether all positions share one value; otherwise each position has its own."""
    _shares_when_stacked = False
    """Whether a stack of equal values is one shared value, regardless of the options."""

    if TYPE_CHECKING:

        def _replace_value(self, value: Any) -> None: ...

        def _set_flat(self, flat: list[Any]) -> None: ...

        def _again(self, copies: bool = False) -> Self:
            """Return data of its own, which no other process shares, with the values or with copies of them."""

        def _at_positions(self, positions: list[int] | None, meta: Meta) -> Any:
            """Return the values at flat positions (``None``: all, in order) as a node with other metadata."""

    def _set(self, key: str, value: Any) -> None:
        raise errors.NoEntriesError(
            f"key {key!r} cannot be set: {type(self).__name__} holds one value and no entries; "
            "replace the value instead"
        )

    def _no_entry(self, key: str) -> KeyError:
        return errors.NoEntriesError(
            f"key {key!r} not found: {type(self).__name__} holds one value; read it with .data"
        )

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write one value to the positions that an index selects, or one to each from a list, which is broadcast.

        >>> from tensordict_core import NonTensorStack
        >>> stack = NonTensorStack("a", "b", "c")
        >>> stack[1:] = ["x", "y"]
        >>> stack.tolist()
        ['a', 'x', 'y']
        """
        if isinstance(value, list) and not isinstance(index, str):
            dims = len(Index(index, self._meta.batch_size).size)
            if dims:  # the value of a single position may be a list
                value = containers.non_tensor_stack.from_list(value, batch_size=nested_size(value)[:dims])
        super().__setitem__(index, value)

    def _plan_value(
        self, holder: Any, key: str, index: Index | None, value: Any, plan: WritePlan, prefix: tuple[str, ...]
    ) -> None:
        """Plan to write a value into this entry of ``holder``, one for all positions or one for each."""
        path = (*prefix, key) if prefix else key
        if not isinstance(value, NonTensorDataBase):
            if isinstance(value, TensorCollection):
                raise errors.not_a_node(path, self)
            if index is not None and isinstance(value, Tensor):
                raise errors.in_place_kind(path, value, self)
            value = self._as_values(holder, value) if index is None else non_tensor_entry(Meta(index.size), value)
        if index is not None:
            plan.before(partial(_put_values, holder, key, index, value))
            return
        own, size = self._meta.batch_size, value._meta.batch_size
        if not value._is_shared and own != size:
            if own[: len(size)] != size:
                raise errors.in_place_shape(path, size, own)
            value = value._again()
            value._change_batch_size(own)
        if not self._is_made_of(value):
            plan.before(partial(self._take, holder, key, value))

    def get(self, key: Any, default: Any = KEEP, **kwargs: Any) -> Any:
        """Return the value under the key ``"data"``; there are no other entries.

        >>> from tensordict_core import NonTensorData
        >>> NonTensorData("text").get("data")
        'text'
        """
        return self._entry_value() if unravel_key(key) == "data" else self._absent(key, default)

    def _is_made_of(self, value: NonTensorDataBase) -> bool:
        """Return whether other data hold the very values of this data, so that there is nothing to write."""
        return False

    def _as_values(self, holder: Any, value: Any) -> Any:
        """Return a plain value as an entry; a list of this or the holder's batch size has one for each position."""
        try:
            return non_tensor_entry(self._meta, value)
        except ValueError:
            return non_tensor_entry(holder._meta, value)

    def _take(self, holder: Any, key: str, value: Any) -> None:
        """Take a value for this entry of ``holder``, which may get another entry."""
        self._become(value)

    def _become(self, value: Any) -> None:
        """Take the values of other data, or one plain value, in place."""
        if self._annotations is not None:
            new = self._again()
            new._replace_value(value)
            self._keep(new)
        self._replace_value(value)

    def _keep(self, new: NonTensorDataBase) -> None:
        """Call the value writers, before the new values are taken in memory; processes that share them see them."""
        for writer in value_writers:
            writer(self, new)
        cell = self._cell()
        if cell is not None:
            cell.write(new._payload())

    # shape -----------------------------------------------------------------------------------------------------------

    def _index(self, index: Index) -> Any:
        positions = None if self._is_shared else index_positions(self._meta.batch_size, index)
        return self._at_positions(positions, index.meta(self._meta))

    def contiguous(self, *, canonical: bool = False, inplace: bool = False) -> Self:
        """Return this object: values have no memory layout."""
        return self

    def _reshape(self, op: ShapeOp) -> Any:
        adds = isinstance(op, Unsqueeze) or (isinstance(op, Expand) and not op.one_value)
        if self._is_shared and adds and not self._shares_when_stacked:
            meta = op.meta(self._meta)  # a new dimension has a value for each of its positions, as in a stack
            dims = op.dim + 1 if isinstance(op, Unsqueeze) else expanded_dims(self._meta.batch_size, meta.batch_size)
            return containers.non_tensor_stack._full(self._entry_value(), meta, dims) if dims else self._clone(False)
        positions = None if self._is_shared else reshape_positions(self._meta.batch_size, op)
        return self._at_positions(positions, op.meta(self._meta))

    def _unbind(self, dim: int) -> tuple[Any, ...]:
        size = self._meta.batch_size
        meta = unbound_meta(self._meta, dim)
        if self._is_shared:
            return tuple(self._at_positions(None, meta) for _ in range(size[dim]))
        return tuple(self._at_positions(part, meta) for part in unbind_positions(size, dim))

    @classmethod
    def _stack(cls, items: Sequence[Any], dim: int) -> Any:
        first = items[0]
        size = first._meta.batch_size
        if any(item._meta.batch_size != size for item in items):
            if not dim and all(item._meta.batch_size for item in items):  # as the values of a ragged lazy stack
                meta = Meta(torch.Size([len(items)]), first._meta.device)
                return containers.non_tensor_stack._make([item.tolist() for item in items], meta)
            raise errors.not_stackable(
                "stack", f"non-tensor data have the batch sizes {[list(i._meta.batch_size) for i in items]}"
            )
        meta = stacked_meta(items, dim)
        if _share_value(items):
            return first._at_positions(None, meta)
        dims = _row_dims(items)
        if dim > dims:
            dims = len(size)
        rows = _held_once([value for item in items for value in _rows(item, dims)])
        if dim:
            # the values are in the order of the items, so the new dimension is the first and is moved afterwards
            order = [*range(1, dim + 1), 0, *range(dim + 1, dims + 1)]
            stacked = (len(items), *size[:dims])
            rows = [rows[i] for i in product_positions(stacked, [range(n) for n in stacked], order)]
        return containers.non_tensor_stack._make(rows, meta, dims + 1)

    @classmethod
    def _cat(cls, items: Sequence[Any], dim: int) -> Any:
        first, meta = items[0], cat_meta(items, dim)
        if _share_value(items):
            return first._at_positions(None, meta)
        if type(first) is containers.non_tensor and _equal_values(items):
            return first._at_positions(None, meta)
        slices = [part for item in items for part in item._unbind(dim)]
        return containers.non_tensor_stack._make(cls._stack(slices, dim)._flat_values() if slices else [], meta)

    @classmethod
    def _ragged(cls, items: Sequence[Any], values: list[Any], meta: Meta) -> Any:
        """Return the column of a lazy stack whose elements differ in batch size, given its values as nested lists.

        It has the batch dimensions in front of those that differ, and lists in place of the others, which have no size.
        """
        meta = Meta(known_size(meta.batch_size), meta.device)
        if _share_value(items):
            return items[0]._at_positions(None, meta)
        stack = containers.non_tensor_stack
        return stack._of(stack.from_list(values, batch_size=meta.batch_size)._flat_values(), meta)

    def tolist(self, **kwargs: Any) -> Any:
        """Return the values as a nested list of the batch size; the value itself if there is no batch dimension."""
        return nested(list(self._flat_values()), self._meta.batch_size)

    def to_dict(self, **kwargs: Any) -> Any:
        """Return the value, or the nested list of values, as in the dictionary of a tensordict."""
        return self._plain_value()

    def numpy(self) -> Any:
        """Return the value, or the nested list of values, as in the dictionary of a tensordict."""
        return self._plain_value()

    def to_tensordict(self, *, retain_none: bool | None = None) -> Any:
        """Return non-tensor data with the same values."""
        return self._again()

    def empty(self, recurse: bool = False, **options: Any) -> Any:
        """Return non-tensor data with the same values: there are no entries to omit."""
        return self._again()

    def pin_memory(self, *args: Any, **kwargs: Any) -> Any:
        """Return this object: values are Python objects."""
        return self

    def _clone(self, recurse: bool) -> Self:
        return self._shared_with(self._again(recurse), recurse)

    # comparisons and choice ------------------------------------------------------------------------------------------

    def _has_values_of(self, other: Any) -> bool:
        """Return whether values are equal at every position."""
        return bool((self == other).all())

    __eq__ = compared(same, "Whether values are equal at each position, as a bool tensor.", of_any=True)
    __ne__ = compared(different, "Whether values differ at each position, as a bool tensor.", of_any=True)
    __lt__ = compared(ordered("<", operator.lt), "Whether values are less, as Python orders them.")
    __le__ = compared(ordered("<=", operator.le), "Whether values are less or equal, as Python orders them.")
    __gt__ = compared(ordered(">", operator.gt), "Whether values are greater, as Python orders them.")
    __ge__ = compared(ordered(">=", operator.ge), "Whether values are greater or equal, as Python orders them.")
    __and__ = __rand__ = compared(logical("&", operator.and_), "Whether both of two bools are true.")
    __or__ = __ror__ = compared(logical("|", operator.or_), "Whether at least one of two bools is true.")
    __xor__ = __rxor__ = compared(logical("^", operator.xor), "Whether two bools differ.")

    def where(
        self,
        condition: Tensor,
        other: Any,
        *,
        out: Any = None,
        pad: float | bool | None = None,
        update_batch_size: bool = False,
    ) -> Self:
        """Return the values where ``condition`` is true, those of ``other`` elsewhere.

        Args:
            condition: A bool tensor over the batch dimensions, or the first of them.
            other: Non-tensor data, or one plain value for all positions.
            out: Non-tensor data into which the result is written; `NonTensorData` can hold a single value only.
            pad: Has no effect, because there are no leaves.
            update_batch_size: Whether ``out`` gets the batch size of the result.

        Raises:
            TypeError: ``condition`` is not a bool tensor, or ``other`` a tensor or a tensordict.
            RuntimeError: Shapes do not fit, or ``out`` has one value for all positions and the result several.

        >>> from tensordict_core import NonTensorData
        >>> NonTensorData("a", batch_size=[2]).where(torch.tensor([True, False]), "b").tolist()
        ['a', 'b']
        """
        if getattr(condition, "dtype", None) is not torch.bool:
            raise errors.no_condition(condition)
        chosen: Any = choose(condition, self, self._operand("where", other))
        if out is None:
            return cast("Self", chosen)
        if update_batch_size and out._meta.batch_size != chosen._meta.batch_size:
            out.batch_size = chosen._meta.batch_size
        out._take_all(chosen)
        return cast("Self", out)

    def maybe_to_stack(self) -> Any:
        """Return a `NonTensorStack` of these values; this object if it is one or has no batch dimension.

        >>> from tensordict_core import NonTensorData
        >>> NonTensorData("a", batch_size=[2]).maybe_to_stack()
        NonTensorStack(
            ['a', 'a'],
            batch_size=torch.Size([2]),
            device=None)
        """
        if not self._meta.batch_size or not self._is_shared:
            return self
        return containers.non_tensor_stack._make(self._flat_values(), self._meta)

    def masked_fill(self, mask: Tensor, value: Any) -> Self:
        """Return the values with ``value`` where the mask is true.

        >>> from tensordict_core import NonTensorStack
        >>> NonTensorStack("a", "b").masked_fill(torch.tensor([True, False]), None).tolist()
        [None, 'b']
        """
        if getattr(mask, "dtype", None) is not torch.bool:
            raise errors.no_condition(mask)
        return self.where(~mask, value)

    def masked_fill_(self, mask: Tensor, value: Any) -> Self:
        """Apply ``masked_fill`` in place; of `NonTensorData`, only if the mask is true everywhere or nowhere."""
        self._take_all(self.masked_fill(mask, value))
        return self

    def _operand(self, name: str, other: Any) -> Any:
        """Return the other operand of an operation as non-tensor data."""
        if isinstance(other, NonTensorDataBase):
            return other
        if isinstance(other, TensorCollection | Tensor):
            raise errors.no_value_operand(name, other)
        return containers.non_tensor._make(other, self._meta)

    def _take_all(self, values: NonTensorDataBase) -> None:
        """Take the values of other data of this batch size, in place.

        Raises:
            RuntimeError: The batch sizes differ, or this is one value for all positions and those are several.
        """
        own, size = self._meta.batch_size, values._meta.batch_size
        if own != size or (self._is_shared and not values._is_shared):
            raise errors.values_shape(size, own, one=self._is_shared)
        self._become(values)

    @property
    def data(self) -> Any:
        """The value, or the nested list of values; settable."""
        return self._entry_value()

    @data.setter
    def data(self, value: Any) -> None:
        self._assign_data(value)


def _held_once(values: list[Any]) -> list[Any]:
    """Return the values; one that equals its predecessor is that very object, so that equal neighbours cost one."""
    for i in range(1, len(values)):
        before, value = values[i - 1], values[i]
        if value is not before and type(value) is type(before) is str and value == before:
            values[i] = before
    return values


def _row_dims(items: Sequence[Any]) -> int:
    """Return the number of dimensions in front of those that each row of all items has one value for."""
    return max(
        0 if item._is_shared else len(item._meta.batch_size) if item._row_dims is None else item._row_dims
        for item in items
    )


def _rows(item: Any, dims: int) -> list[Any]:
    """Return the values of non-tensor data, one for each position of the first ``dims`` dimensions."""
    size = item._meta.batch_size
    if item._is_shared:
        return [item._value] * size[:dims].numel()
    own = len(size) if item._row_dims is None else item._row_dims
    times = size[own:dims].numel()
    return item._rows if times == 1 and own == dims else [value for value in item._rows for _ in range(times)]


def expanded_dims(old: torch.Size, new: torch.Size) -> int:
    """Return the number of leading dimensions of an expanded size up to the last that the old size lacks."""
    added = len(new) - len(old)
    grown = [added + dim + 1 for dim, (a, b) in enumerate(zip(old, new[added:], strict=True)) if a != b]
    return max([added, *grown])


def common_size(items: list[Any]) -> torch.Size | None:
    """Return the batch size of non-tensor data if all items are such data with one batch size."""
    sizes = {item._meta.batch_size if isinstance(item, NonTensorDataBase) else None for item in items}
    return sizes.pop() if len(sizes) == 1 else None


def known_size(size: torch.Size) -> torch.Size:
    """Return the dimensions in front of the first whose size differs between the elements of a lazy stack (-1)."""
    return size[: size.index(-1)] if -1 in size else size


def _share_value(items: Sequence[Any]) -> bool:
    """Return whether a stack keeps the value of all items as one: that of `MetaData` always, others by an option."""
    first = items[0]
    if not first._shares_when_stacked and not (
        type(first) is containers.non_tensor and options.capture_non_tensor_stack
    ):
        return False
    return _equal_values(items)


def _equal_values(items: Sequence[Any]) -> bool:
    """Return whether all items are of one type and have one value, which is the same for all."""
    first = items[0]
    return all(type(item) is type(first) and same(item._value, first._value) for item in items)
