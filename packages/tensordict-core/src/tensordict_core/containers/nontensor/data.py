"""Non-tensor data: `NonTensorData` and `NonTensorStack` carry strings and other objects in a tensordict.

`NonTensorData` is one value for all positions of a batch; `NonTensorStack` has one for each position, in a flat list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import is_
from typing import Any, Self

import torch

from tensordict_core.base import errors
from tensordict_core.base.index import Index
from tensordict_core.base.meta import Meta, as_batch_size, as_device, as_names, unbound_meta
from tensordict_core.base.rebuild import How
from tensordict_core.base.registry.types import containers
from tensordict_core.base.shape_op import Expand, ShapeOp, Squeeze, Unsqueeze, normal_dim
from tensordict_core.base.tracing import is_compiling
from tensordict_core.containers.collection import TensorDictBase
from tensordict_core.containers.nontensor.base import NonTensorDataBase, common_size, expanded_dims, known_size
from tensordict_core.containers.nontensor.copies import copied, copied_one
from tensordict_core.containers.nontensor.pointwise import same
from tensordict_core.containers.nontensor.positions import broadcast, index_positions, nested_size, unbind_positions
from tensordict_core.containers.nontensor.record import Record
from tensordict_core.ops.io.linked_list import LinkedList, linked_values

_LONGEST = 50  # the characters of its values that the text of a stack has


class NonTensorData(Record, NonTensorDataBase):
    """One non-tensor value for all positions of a batch.

    Args:
        data: The value.
        batch_size: The batch size; by default none.
        device: The device of the tensordict that holds it.
        names: A name (or ``None``) for each batch dimension.

    >>> td = TensorDict({"name": NonTensorData("run", batch_size=[3])}, batch_size=[3])
    >>> td["name"], td[0]["name"]
    ('run', 'run')
    """

    __slots__ = ("_held", "_metadata")

    _is_shared = True
    _is_tensorclass_instance = True

    _held: Any
    """The value in this process, which another process may have changed since."""

    def __init__(
        self,
        data: Any,
        _metadata: Any = None,
        _is_non_tensor: bool = True,
        *,
        batch_size: Sequence[int] | int | None = None,
        device: torch.device | str | None = None,
        names: Sequence[str | None] | None = None,
    ) -> None:
        size = as_batch_size(batch_size)
        self._start(Meta(size, as_device(device), as_names(names, len(size))))
        while isinstance(data, NonTensorData):
            data = data._value
        self._held = data.tolist() if isinstance(data, LinkedList) else data
        self._metadata = _metadata

    @classmethod
    def _make(cls, value: Any, meta: Meta, metadata: Any = None) -> Self:
        self = object.__new__(cls)
        self._start(meta)
        self._held = value
        self._metadata = metadata
        return self

    @property
    def _value(self) -> Any:
        """The value, as the last process wrote it that shares it."""
        if self._annotations is not None:
            self._refresh()
        return self._held

    @_value.setter
    def _value(self, value: Any) -> None:
        self._held = value

    def _payload(self) -> Any:
        return (self._held,)

    def _load(self, payload: Any) -> None:
        (self._held,) = payload

    def _flat_values(self) -> list[Any]:
        return [self._value] * self._meta.batch_size.numel()

    def _at_positions(self, positions: list[int] | None, meta: Meta) -> Any:
        return self._make(self._held if self._annotations is None else self._value, meta, self._metadata)

    def _entry_value(self, holder: Any = None, key: str = "") -> Any:
        return self._held if self._annotations is None else self._value

    def _replace_value(self, value: Any) -> None:
        self._held = value._plain_value() if isinstance(value, NonTensorDataBase) else value

    def _has_values_of(self, other: Any) -> bool:
        # (without a tensor if possible, because Dynamo would stop there)
        return same(self._value, other._value) if isinstance(other, NonTensorData) else super()._has_values_of(other)

    def _take(self, holder: Any, key: str, value: Any) -> None:
        if isinstance(value, NonTensorStack):  # each position gets a value, as when one of them is written alone
            self._refuse_rows()
            holder._set(key, self._replaced_by(value._again()))
        else:
            super()._take(holder, key, value)

    def _refuse_rows(self) -> None:
        """Refuse a value for each position where processes share the one for all: the others would not see it."""
        if self.is_shared():
            raise RuntimeError(
                "You're attempting to update a leaf in-place with a shared tensordict: the processes share one "
                "non-tensor value for all positions, and would not see that one of them gets its own; store a "
                "NonTensorStack before share_memory_(), or write the value of all positions"
            )

    def _is_made_of(self, value: NonTensorDataBase) -> bool:
        return isinstance(value, NonTensorData) and value._value is self._value

    def _replaced_by(self, stack: NonTensorStack) -> NonTensorStack:
        """Return a stack that takes the place of this one value."""
        if self._annotations is not None:
            self._keep(stack)
            stack._annotations = self._annotations
        return stack

    def _rebuild(self, leaves: Iterator[Any], how: How) -> Any:
        return self._at_positions(None, how.meta(self._meta))

    def _index_put(self, index: Index, value: Any) -> None:
        new = value._flat_values() if isinstance(value, NonTensorDataBase) else [value]
        if not all(same(one, self._value) for one in new):
            raise errors.part_of_value()

    def _put_node(self, index: Index, source: Any) -> Any:
        if isinstance(source, NonTensorData) and same(source._value, self._value):
            return self
        if not self._meta.batch_size:
            return source._index(Index((0,) * len(source._meta.batch_size), source._meta.batch_size))
        self._refuse_rows()
        stack = NonTensorStack._make(self._flat_values(), self._meta)
        stack._index_put(index, source)
        return self._replaced_by(stack)

    def _unwritten(self, size: torch.Size) -> Any:
        # positions that were never written get the value of the others: an arbitrary object has no zero
        return self._at_positions(None, Meta(size, self._meta.device))

    def _unbind_ragged(self, dim: int, sizes: Sequence[torch.Size]) -> list[Any]:
        """Return the value for each element of a lazy stack whose elements have these batch sizes."""
        return [self._at_positions(None, Meta(size, self._meta.device)) for size in sizes]

    def _again(self, copies: bool = False) -> Self:
        return self._make(copied_one(self._value) if copies else self._value, self._meta, self._metadata)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the value: ``NonTensorData(len)([1, 2])`` is 2."""
        return self._value(*args, **kwargs)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(data={self._value}, batch_size={self._meta.batch_size}, device={self._meta.device})"
        )


class NonTensorStack(NonTensorDataBase, TensorDictBase):
    """Non-tensor values, one for each position of a batch.

    Args:
        *values: The values (or `NonTensorData`) along the first batch dimension; a list is one value. `from_list` takes
            nested lists. Data of different batch sizes become lists.
        stack_dim: The batch dimension along which the values are stacked.
        batch_size: The batch size, which is that of the values; passed to have it checked.
        device: The device of the tensordict that holds them.
        names: A name (or ``None``) for each batch dimension.

    Raises:
        RuntimeError: The values have another batch size.

    >>> stack = NonTensorStack("a", "b")
    >>> stack.tolist(), stack[1].data, stack.batch_size
    (['a', 'b'], 'b', torch.Size([2]))
    """

    __slots__ = ("_held", "_row_dims")

    _holds_values = True

    _held: list[Any]
    """The values as this process knows them, one for each position of the first `_row_dims` batch dimensions."""
    _row_dims: int | None
    """The number of those dimensions; ``None`` if they are all. A row is `NonTensorData` of the other dimensions."""

    def __init__(
        self,
        *values: Any,
        stack_dim: int = 0,
        batch_size: Sequence[int] | int | None = None,
        device: torch.device | str | None = None,
        names: Sequence[str | None] | None = None,
    ) -> None:
        items = [v if isinstance(v, NonTensorDataBase) else NonTensorData(v) for v in values]
        if not items:
            self._start(Meta(torch.Size([0])))
            self._held, self._row_dims = [], None
        else:
            stacked = NonTensorStack._stack(items, normal_dim(stack_dim, items[0]._meta.batch_size, 1))
            self._start(stacked._meta)
            self._held = stacked._held if type(stacked) is NonTensorStack else stacked._flat_values()
            self._row_dims = stacked._row_dims if type(stacked) is NonTensorStack else None
        if batch_size is not None and as_batch_size(batch_size) != self._meta.batch_size:
            raise errors.values_shape(self._meta.batch_size, as_batch_size(batch_size))
        if device is not None or names is not None:
            meta = self._meta
            names = meta.names if names is None else as_names(names, len(meta.batch_size))
            self._set_meta(Meta(meta.batch_size, as_device(device) or meta.device, names))

    @classmethod
    def _make(cls, rows: list[Any], meta: Meta, row_dims: int | None = None) -> Self:
        """Return a stack of the values of each position of the first ``row_dims`` dimensions, in order."""
        self = object.__new__(cls)
        self._start(meta)
        self._held = rows
        self._row_dims = None if row_dims == len(meta.batch_size) else row_dims
        return self

    @classmethod
    def _full(cls, value: Any, meta: Meta, row_dims: int | None = None) -> Self:
        return cls._make([value] * meta.batch_size[:row_dims].numel(), meta, row_dims)

    @classmethod
    def _of(cls, rows: list[Any], meta: Meta, row_dims: int | None = None) -> Any:
        """Return a stack of the values of each position or row; one value where there is none but one row."""
        if row_dims == 0 or not meta.batch_size:
            return NonTensorData._make(rows[0], meta)
        return cls._make(rows, meta, row_dims)

    @classmethod
    def from_nontensordata(cls, non_tensor: NonTensorData) -> Any:
        """Return a stack with the value of `NonTensorData` at each position; the data itself without batch dimensions.

        >>> NonTensorStack.from_nontensordata(NonTensorData("a", batch_size=[2])).tolist()
        ['a', 'a']
        """
        return cls._of(non_tensor._flat_values(), non_tensor._meta)

    @property
    def stack_dim(self) -> int:
        """The dimension along which `tensordicts` are stacked, which is the first.

        >>> NonTensorStack("a", "b").stack_dim
        0
        """
        return 0

    @property
    def tensordicts(self) -> list[Any]:
        """The values along the first dimension, as non-tensor data of their own.

        >>> [value.data for value in NonTensorStack("a", "b").tensordicts]
        ['a', 'b']
        """
        return list(self._unbind(0))

    @property
    def _rows(self) -> list[Any]:
        """The values, as the last process wrote them that shares them."""
        if self._annotations is not None:
            self._refresh()
        return self._held

    def _payload(self) -> Any:
        return self._held, self._row_dims

    def _load(self, payload: Any) -> None:
        self._held[:], self._row_dims = payload

    @property
    def _flat(self) -> list[Any]:
        """The value of each position, to be written to; rows are spread over their positions."""
        if self._row_dims is not None:
            self._rows[:] = self._flat_values()  # lists that write to this stack know it by its list
            self._row_dims = None
        return self._rows

    @_flat.setter
    def _flat(self, values: list[Any]) -> None:  # in pickles of releases that had a value for each position
        self._held, self._row_dims = values, None

    def _flat_values(self) -> list[Any]:
        if self._row_dims is None:
            return self._rows
        times = self._meta.batch_size[self._row_dims :].numel()
        return [value for value in self._rows for _ in range(times)]

    def _at_positions(self, positions: list[int] | None, meta: Meta) -> Any:
        flat = self._flat_values()
        return self._of(flat if positions is None else [flat[i] for i in positions], meta)

    def _index(self, index: Index) -> Any:
        found = self._at_index(index)
        return self._part(found) if index.gives_views else found

    def _at_index(self, index: Index) -> Any:
        dims = self._row_dims
        if dims is None:
            return super()._index(index)
        size = self._meta.batch_size
        meta = index.meta(self._meta)
        of_rows = index.of_leading(dims)
        if of_rows is not None:
            rows = index_positions(size[:dims], of_rows)
            return self._of([self._rows[i] for i in rows], meta, len(meta.batch_size) - len(size) + dims)
        return self._at_positions(index_positions(size, index), meta)

    def _unbind(self, dim: int) -> tuple[Any, ...]:
        dims = self._row_dims
        if dims is None or dim >= dims:
            return tuple(map(self._part, super()._unbind(dim)))
        meta = unbound_meta(self._meta, dim)
        parts = unbind_positions(self._meta.batch_size[:dims], dim)
        return tuple(self._part(self._of([self._rows[i] for i in part], meta, dims - 1)) for part in parts)

    def _reshape(self, op: ShapeOp) -> Any:
        dims, meta = self._row_dims, op.meta(self._meta)
        if dims is not None:
            if isinstance(op, Unsqueeze) and op.dim <= dims:
                return self._make(list(self._rows), meta, dims + 1)
            if isinstance(op, Squeeze):
                return self._of(list(self._rows), meta, dims - sum(dim < dims for dim in op.dims))
            old, new = self._meta.batch_size, meta.batch_size
            added = len(new) - len(old)
            if isinstance(op, Expand) and expanded_dims(old, new) <= added + dims:
                return self._make(broadcast(self._rows, old[:dims], new[: added + dims]), meta, added + dims)
        return super()._reshape(op)

    @classmethod
    def from_list(  # type: ignore[override]  # a stack has no dictionaries in its list
        cls, non_tensors: list[Any], *, batch_size: Sequence[int] | None = None, device: torch.device | None = None
    ) -> Self:
        """Return a stack of the values in a nested list.

        Args:
            non_tensors: The list, nested as deep as the batch size has dimensions.
            batch_size: The batch size; by default that of the nested lists, as deep as their lengths agree. From a size
                of -1 on, lists are values.
            device: The device of the tensordict that holds it.

        Raises:
            ValueError: The list is not of that shape; it is a `RuntimeError` too.

        >>> NonTensorStack.from_list([["a", "b"], ["c", "d"]], batch_size=[2, 2])[1, 0].data
        'c'
        """
        values = list(non_tensors)
        size = nested_size(values) if batch_size is None else as_batch_size(batch_size)
        flat: list[Any] = [values]
        for level, n in enumerate(known_size(size)):
            for item in flat:
                if not isinstance(item, list) or len(item) != n:
                    raise errors.SizeError(
                        f"batch dimension mismatch: the list is not of the shape {list(size)}, as level {level} holds "
                        f"{item!r}; give nested lists of that shape, or wrap a list that is one value in NonTensorData"
                    )
            flat = [item for items in flat for item in items]
        own = common_size(flat) if batch_size is None else None
        if own:
            flat = [value for item in flat for value in item._flat_values()]
            size += own
        return cls._make([_plain(item) for item in flat], Meta(size, device))

    def _entry_value(self, holder: Any = None, key: str = "") -> Any:
        # compiled code gets plain lists: Dynamo supports no subclass of list
        return self.tolist() if is_compiling() or not self._meta.batch_size else linked_values(self, holder, key)

    @property
    def data(self) -> Any:
        """The value that all positions share; settable.

        Raises:
            AttributeError: The values differ, or there is none; ``tolist`` returns them.

        >>> NonTensorStack("a", "a").data, hasattr(NonTensorStack("a", "b"), "data")
        ('a', False)
        """
        values = self._rows
        if not values or not all(same(value, values[0]) for value in values):
            raise errors.several_values(values)
        return values[0]

    @data.setter
    def data(self, value: Any) -> None:
        self._assign_data(value)

    def _set_flat(self, flat: list[Any]) -> None:
        self._flat[:] = flat

    def _change_batch_size(self, size: torch.Size) -> None:
        own = self._meta.batch_size
        if size[: len(own)] != own:
            raise RuntimeError(
                f"the batch size {list(size)} does not start with {list(own)}, whose positions have a value each; "
                "reshape or index the values instead"
            )
        if -1 in size:
            times = known_size(size)[len(own) :].numel()
            self._flat = [value for value in self._flat for _ in range(times)]
            super()._change_batch_size(size)
            return
        self._held = list(self._rows)  # lists that were read before do not write to the changed stack
        self._row_dims = len(own) if self._row_dims is None else self._row_dims
        super()._change_batch_size(size)
        if self._row_dims == len(size):
            self._row_dims = None

    def _replace_value(self, value: Any) -> None:
        size = self._meta.batch_size
        if isinstance(value, NonTensorStack) and value._meta.batch_size == size:
            self._rows[:], self._row_dims = value._rows, value._row_dims
        else:
            fill = value._plain_value() if isinstance(value, NonTensorDataBase) else value
            self._rows[:] = [fill] * len(self._rows)

    def _is_made_of(self, value: NonTensorDataBase) -> bool:
        return (
            isinstance(value, NonTensorStack)
            and value._row_dims == self._row_dims
            and len(value._rows) == len(self._rows)
            and all(map(is_, value._rows, self._rows))
        )

    def _rebuild(self, leaves: Iterator[Any], how: How) -> Any:
        meta = how.meta(self._meta)
        if meta.batch_size == self._meta.batch_size:
            return self._make(list(self._rows), meta, self._row_dims)  # new leaves go with values written apart
        if meta.batch_size.numel() == self._meta.batch_size.numel():
            return self._make(list(self._flat_values()), meta)
        # a reduction removed positions: the values stay together as one
        return NonTensorData._make(self.tolist(), meta)

    def _index_put(self, index: Index, value: Any) -> None:
        self._refuse_part()
        positions = index_positions(self._meta.batch_size, index)
        if isinstance(value, NonTensorStack):
            new = broadcast(value._flat_values(), value._meta.batch_size, index.meta(self._meta).batch_size)
        else:
            new = [value._plain_value() if isinstance(value, NonTensorDataBase) else value] * len(positions)
        changed = list(self._flat) if self._annotations is not None else self._flat
        for position, one in zip(positions, new, strict=True):
            changed[position] = one
        if changed is not self._flat:
            self._keep(self._make(changed, self._meta))
            self._flat[:] = changed

    def _unwritten(self, size: torch.Size) -> Any:
        return self._full(None, Meta(size, self._meta.device))

    def _unbind_ragged(self, dim: int, sizes: Sequence[torch.Size]) -> list[Any]:
        """Return the parts for the elements of such a lazy stack, whose batch sizes are given.

        Raises:
            ValueError: The lists are not of those lengths.
        """
        whole = self._make(self._flat_values(), Meta(known_size(self._meta.batch_size), self._meta.device))
        lists = [part.tolist() for part in whole._unbind(dim)]
        return [self.from_list(values, batch_size=size) for values, size in zip(lists, sizes, strict=True)]

    def _again(self, copies: bool = False) -> Self:
        return self._make(copied(self._rows, copies), self._meta, self._row_dims)

    def _plain_value(self) -> Any:
        return self.tolist()

    def __repr__(self) -> str:
        values = str(self.tolist())
        shown = values if len(values) <= _LONGEST else values[:_LONGEST] + "..."
        lines = [shown, f"batch_size={self._meta.batch_size}", f"device={self._meta.device})"]
        return f"{type(self).__name__}(\n    " + ",\n    ".join(lines)


def _plain(item: Any) -> Any:
    """Return an element of a list as a value, without the class that writes through or `NonTensorData` around it."""
    if isinstance(item, LinkedList):
        return item.tolist()
    return item._plain_value() if isinstance(item, NonTensorDataBase) else item


containers.non_tensor = NonTensorData
containers.non_tensor_stack = NonTensorStack
