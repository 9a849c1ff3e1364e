"""What values that are no tensors share, one or many: they are nodes without entries and without leaves.

Operations on leaves pass such a node by; what is done to its batch size, each kind says itself.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.entry import non_tensor_entry
from tensordict_core.base.index import Index
from tensordict_core.base.registry import containers
from tensordict_core.base.write_plan import Writes
from tensordict_core.containers.collection import TensorCollection
from tensordict_core.containers.nontensor.pointwise import (
    choose,
    compared,
    different,
    flat_values,
    logical,
    ordered,
    same,
)
from tensordict_core.containers.opaque import OpaqueNode
from tensordict_core.ops.factories.owner import owns_methods

__all__ = ["NonTensorDataBase", "ValueWriter", "register_value_writer"]

ValueWriter = Callable[["NonTensorDataBase", "NonTensorDataBase"], None]
"""Keeps the values of the second argument elsewhere, in place of those of the first."""

value_writers: list[ValueWriter] = []


def register_value_writer(writer: ValueWriter) -> None:
    """Have a function keep the values that ``update_`` and indexed writes give annotated non-tensor data.

    It is called before they are taken in memory, with the entry and with what it becomes; what it raises leaves the
    entry as it is.

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
class NonTensorDataBase(OpaqueNode, abstract=True):
    """What `NonTensorData` and `NonTensorStack` share: no entries, no leaves."""

    __slots__ = ()

    _is_non_tensor = True

    def _set(self, key: str, value: Any, inplace: bool) -> None:
        raise KeyError(
            f"key {key!r} cannot be set: {type(self).__name__} holds one value and no entries; "
            "replace the value instead"
        )

    def _plan_value(self, holder: Any, key: str, value: Any, writes: Writes, prefix: tuple[str, ...]) -> None:
        """Plan to write a value into this entry of ``holder``, one for all positions or one for each."""
        path = (*prefix, key) if prefix else key
        if not isinstance(value, NonTensorDataBase):
            if isinstance(value, TensorCollection):
                raise errors.not_a_node(path, self)
            value = self._as_values(holder, value)
        own, size = self._meta.batch_size, value._meta.batch_size
        if isinstance(value, containers.non_tensor_stack) and own != size:
            if own[: len(size)] != size:
                raise errors.in_place_shape(path, size, own)
            value = value._clone(True)
            value._change_batch_size(own)
        writes.before(lambda: self._take(holder, key, value))

    def _as_values(self, holder: Any, value: Any) -> Any:
        """A plain value as an entry; a list of this batch size, or of the holder's, has one for each position."""
        try:
            return non_tensor_entry(self._meta, value)
        except ValueError:
            return non_tensor_entry(holder._meta, value)

    if TYPE_CHECKING:

        def _replace_value(self, value: Any) -> None: ...

    def _take(self, holder: Any, key: str, value: Any) -> None:
        if self._annotations is not None:
            new = self._clone(True)
            new._replace_value(value)
            self._keep(new)
        self._replace_value(value)

    def _keep(self, new: NonTensorDataBase) -> None:
        """Have what keeps this data elsewhere keep other data in its place, before they are taken here."""
        for writer in value_writers:
            writer(self, new)

    @classmethod
    def _lazy(cls, items: Sequence[Any], dim: int) -> Any:
        return containers.non_tensor_stack._stack(items, dim)

    def _view_at(self, index: Index) -> Any:
        return self._index(index)

    def _solid(self) -> Any:
        return self

    def densify(self, *, layout: torch.layout = torch.jagged) -> Any:
        """Itself: there is nothing to combine."""
        return self

    def _stack_nodes(self, column: Sequence[Any], dim: int) -> Any:
        return containers.non_tensor_stack._stack(column, dim)

    def _cat_nodes(self, column: Sequence[Any], dim: int) -> Any:
        return containers.non_tensor_stack._cat(column, dim)

    def _has_values_of(self, other: Any) -> bool:
        """Whether values are equal at every position."""
        return bool((self == other).all())

    def _flat_values(self) -> list[Any]:
        return flat_values(self)

    __eq__ = compared(same, "Whether values are equal at each position, as a bool tensor.", of_any=True)
    __ne__ = compared(different, "Whether values differ at each position, as a bool tensor.", of_any=True)
    __lt__ = compared(ordered("<", operator.lt), "Whether values are less, as Python orders them.")
    __le__ = compared(ordered("<=", operator.le), "Whether values are less or equal, as Python orders them.")
    __gt__ = compared(ordered(">", operator.gt), "Whether values are greater, as Python orders them.")
    __ge__ = compared(ordered(">=", operator.ge), "Whether values are greater or equal, as Python orders them.")
    __and__ = __rand__ = compared(logical("&", operator.and_), "Whether both of two bools are true.")
    __or__ = __ror__ = compared(logical("|", operator.or_), "Whether at least one of two bools is true.")
    __xor__ = __rxor__ = compared(logical("^", operator.xor), "Whether two bools differ.")
    __hash__ = None  # type: ignore[assignment]  # as for every class with __eq__

    def where(
        self,
        condition: Tensor,
        other: Any,
        *,
        out: Any = None,
        pad: float | bool | None = None,
        update_batch_size: bool = False,
    ) -> Self:
        """The values where ``condition`` is true, those of ``other`` elsewhere.

        Args:
            condition: A bool tensor over the batch dimensions, or the first of them.
            other: Non-tensor data, or one plain value for all positions.
            out: Non-tensor data that the result is written into; `NonTensorData` takes one value alone.
            pad: Of no effect, because there is no leaf that one side could lack.
            update_batch_size: Whether ``out`` takes the batch size of the result.

        Raises:
            TypeError: ``condition`` is no bool tensor, or ``other`` a tensor or a tensordict.
            RuntimeError: Shapes do not fit, or ``out`` has one value for all positions and the result several.

        >>> from tensordict_core import NonTensorData
        >>> NonTensorData("a", batch_size=[2]).where(torch.tensor([True, False]), "b").tolist()
        ['a', 'b']
        """
        if getattr(condition, "dtype", None) is not torch.bool:
            raise errors.no_condition(condition)
        chosen: Any = choose(condition, self, self._operand("where", other))
        if out is None:
            return chosen  # type: ignore[no-any-return]  # containers are found at run time
        if update_batch_size and out._meta.batch_size != chosen._meta.batch_size:
            out.batch_size = chosen._meta.batch_size
        out._take_all(chosen)
        return out  # type: ignore[no-any-return]  # what users pass is Any

    def maybe_to_stack(self) -> Any:
        """As a value for each position; itself where there is no batch dimension, or it is so already.

        >>> from tensordict_core import NonTensorData
        >>> NonTensorData("a", batch_size=[2]).maybe_to_stack()
        NonTensorStack(['a', 'a'], batch_size=torch.Size([2]), device=None)
        """
        if not self._meta.batch_size or isinstance(self, containers.non_tensor_stack):
            return self
        return containers.non_tensor_stack._make(flat_values(self), self._meta)

    def masked_fill(self, mask: Tensor, value: Any) -> Self:
        """One value where the mask is true, those of this data elsewhere.

        >>> from tensordict_core import NonTensorStack
        >>> NonTensorStack("a", "b").masked_fill(torch.tensor([True, False]), None).tolist()
        [None, 'b']
        """
        if getattr(mask, "dtype", None) is not torch.bool:
            raise errors.no_condition(mask)
        return self.where(~mask, value)

    def masked_fill_(self, mask: Tensor, value: Any) -> Self:
        """``masked_fill`` in place; `NonTensorData` takes it where the mask is true everywhere or nowhere."""
        self._take_all(self.masked_fill(mask, value))
        return self

    def _operand(self, name: str, other: Any) -> Any:
        """What stands on the other side of an operation, as non-tensor data."""
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
        if own != size or (isinstance(values, containers.non_tensor_stack) and isinstance(self, containers.non_tensor)):
            raise errors.values_shape(size, own, one=isinstance(self, containers.non_tensor))
        self._replace_value(values)

    def is_empty(self) -> bool:
        """Never: there is a value."""
        return False

    @property  # type: ignore[misc]  # read-only here, where tensordicts have a setter
    def data(self) -> Any:
        """The value, or the nested list of values."""
        return self._entry_value()
