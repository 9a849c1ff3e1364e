"""Non-tensor data: values that are no tensors, carried through every operation beside the leaves.

`NonTensorData` is one value that stands for every position of a batch; `NonTensorStack` has a value of its own for each
position, kept in a flat list. Both are nodes without leaves:
operations on leaves pass them by, shape operations change their batch size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch

from tensordict_core.base import errors
from tensordict_core.base.index import Index
from tensordict_core.base.meta import Meta, as_batch_size, as_device, as_names
from tensordict_core.base.options import current as options
from tensordict_core.base.rebuild import How
from tensordict_core.base.registry import containers
from tensordict_core.base.tracing import is_compiling
from tensordict_core.containers.nontensor.base import NonTensorDataBase
from tensordict_core.containers.nontensor.positions import broadcast, nested, places, reshaped, selected
from tensordict_core.containers.nontensor.pointwise import flat_values, same
from tensordict_core.ops.io.linked_list import LinkedList, linked_values

if TYPE_CHECKING:
    from tensordict_core.base.shape_op import ShapeOp

__all__ = ["MetaData", "NonTensorData", "NonTensorDataBase", "NonTensorStack", "is_non_tensor"]


class NonTensorData(NonTensorDataBase):
    """One value that is no tensor and stands for every position of a batch.

    Args:
        data: The value.
        batch_size: The batch size; by default none.
        device: The device that the surrounding tensordict has.
        names: A name (or ``None``) for each batch dimension.

    >>> td = TensorDict({"name": NonTensorData("run", batch_size=[3])}, batch_size=[3])
    >>> td["name"], td[0]["name"]
    ('run', 'run')
    """

    __slots__ = ("_metadata", "_value")

    _value: Any

    def __init__(
        self,
        data: Any = None,
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
        self._value = data.tolist() if isinstance(data, LinkedList) else data
        self._metadata = _metadata

    @classmethod
    def _make(cls, value: Any, meta: Meta, metadata: Any = None) -> Self:
        self = object.__new__(cls)
        self._start(meta)
        self._value = value
        self._metadata = metadata
        return self

    def _entry_value(self, holder: Any = None, key: str = "") -> Any:
        return self._value

    def _replace_value(self, value: Any) -> None:
        self._value = value._plain_value() if isinstance(value, NonTensorDataBase) else value

    def _has_values_of(self, other: Any) -> bool:
        # told without a tensor, where Dynamo would stop, if it can be
        return same(self._value, other._value) if isinstance(other, NonTensorData) else super()._has_values_of(other)

    def _take(self, holder: Any, key: str, value: Any) -> None:
        if isinstance(value, NonTensorStack):  # positions part here, as when one of them is written alone
            holder._set(key, self._parted(value._clone(True)), False)
        else:
            super()._take(holder, key, value)

    def _parted(self, stack: NonTensorStack) -> NonTensorStack:
        """A stack that takes the place of this one value."""
        if self._annotations is not None:
            self._keep(stack)
            stack._annotations = self._annotations
        return stack

    def _rebuild(self, leaves: Iterator[Any], how: How) -> Any:
        return self._make(self._value, how.meta(self._meta), self._metadata)

    def _index(self, index: Index) -> Any:
        return self._make(self._value, index.meta(self._meta), self._metadata)

    def _index_put(self, index: Index, value: Any) -> None:
        raise RuntimeError(
            "NonTensorData has one value for all positions, so one of them cannot be written alone; "
            "set the entry of the tensordict that "
            "holds it (td[index] = other), which makes a NonTensorStack of it"
        )

    def _put_node(self, index: Index, source: Any) -> Any:
        if isinstance(source, NonTensorData) and same(source._value, self._value):
            return self
        if not self._meta.batch_size:
            return source._index(Index((0,) * len(source._meta.batch_size), source._meta.batch_size))
        stack = NonTensorStack._full(self._value, self._meta)
        stack._index_put(index, source)
        return self._parted(stack)

    def _room(self, size: torch.Size, index: Index) -> Any:
        # positions that were never written have the value of the one that was: there is no zero of an arbitrary value
        return self._make(self._value, Meta(size, self._meta.device), self._metadata)

    def _reshape(self, op: ShapeOp) -> Any:
        return self._make(self._value, op.meta(self._meta), self._metadata)

    def _unbind_ragged(self, dim: int, sizes: Sequence[torch.Size]) -> list[Any]:
        """The value for each element of a lazy stack whose elements have these batch sizes."""
        return [self._make(self._value, Meta(size, self._meta.device), self._metadata) for size in sizes]

    def _unbind(self, dim: int) -> tuple[Any, ...]:
        size = self._meta.batch_size
        meta = Meta(size[:dim] + size[dim + 1 :], self._meta.device)
        return tuple(self._make(self._value, meta, self._metadata) for _ in range(size[dim]))

    @classmethod
    def _stack(cls, items: Sequence[Any], dim: int) -> Any:
        return NonTensorStack._stack(items, dim)

    @classmethod
    def _cat(cls, items: Sequence[Any], dim: int) -> Any:
        return NonTensorStack._cat(items, dim)

    def _clone(self, recurse: bool) -> Self:
        return self._make(self._value, self._meta, self._metadata)

    def tolist(self, **kwargs: Any) -> Any:
        """The value, as a nested list of the batch size (the value itself without one)."""
        out: Any = self._value
        for n in reversed(self._meta.batch_size):
            out = [out] * n
        return out

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(data={self._value}, batch_size={self._meta.batch_size}, device={self._meta.device})"
        )


class MetaData(NonTensorData):
    """Non-tensor data about the whole of what is stacked: where all have one value, so has the stack.

    >>> torch.stack([TensorDict({"origin": MetaData("lab")}), TensorDict({"origin": MetaData("lab")})])["origin"]
    'lab'
    """

    __slots__ = ()


class NonTensorStack(NonTensorDataBase):
    """Values that are no tensors, one for each position of a batch.

    Args:
        *values: The values (or `NonTensorData`) along the first batch dimension; nested lists give more dimensions.
        stack_dim: Where that dimension stands in the batch size.

    >>> stack = NonTensorStack("a", "b")
    >>> stack.tolist(), stack[1].data, stack.batch_size
    (['a', 'b'], 'b', torch.Size([2]))
    """

    __slots__ = ("_flat",)

    _flat: list[Any]

    def __init__(self, *values: Any, stack_dim: int = 0) -> None:
        items = [
            v
            if isinstance(v, NonTensorDataBase)
            else NonTensorStack.from_list(v)
            if isinstance(v, list)
            else NonTensorData(v)
            for v in values
        ]
        if not items:
            self._start(Meta(torch.Size([0])))
            self._flat = []
            return
        stacked = NonTensorStack._stack(items, stack_dim)
        self._start(stacked._meta)
        self._flat = flat_values(stacked)

    @classmethod
    def _make(cls, flat: list[Any], meta: Meta) -> Self:
        """A stack of the values of each position, in order."""
        self = object.__new__(cls)
        self._start(meta)
        self._flat = flat
        return self

    @classmethod
    def _full(cls, value: Any, meta: Meta) -> Self:
        return cls._make([value] * meta.batch_size.numel(), meta)

    def _placed(self, positions: list[int] | None, meta: Meta) -> Any:
        """The values at some positions, as what their batch size asks for."""
        flat = self._flat if positions is None else [self._flat[i] for i in positions]
        return self._make(flat, meta) if meta.batch_size else NonTensorData._make(flat[0], meta)

    @classmethod
    def from_list(  # type: ignore[override]  # a stack has no dictionaries in its list
        cls, values: list[Any], *, batch_size: Sequence[int] | None = None, device: torch.device | None = None
    ) -> Self:
        """A stack of the values in a nested list.

        Args:
            values: The list; lists in it are taken apart as deep as the batch size says (by default: once).
            batch_size: The batch size; by default ``[len(values)]``. Lists stand as they are from a size of -1 on.
            device: The device that the surrounding tensordict has.

        Raises:
            ValueError: The list is not of that shape.

        >>> NonTensorStack.from_list([["a", "b"], ["c", "d"]], batch_size=[2, 2])[1, 0].data
        'c'
        """
        size = torch.Size([len(values)]) if batch_size is None else as_batch_size(batch_size)
        flat: list[Any] = [values]
        for level, n in enumerate(_known(size)):
            for item in flat:
                if not isinstance(item, list) or len(item) != n:
                    raise ValueError(
                        f"the list is not of the shape {list(size)}: level {level} holds {item!r}; "
                        "give nested lists of that shape"
                    )
            flat = [item for items in flat for item in items]
        flat = [item.tolist() if isinstance(item, LinkedList) else item for item in flat]
        return cls._make(flat, Meta(size, device))

    def _entry_value(self, holder: Any = None, key: str = "") -> Any:
        # compiled code gets lists of its own: Dynamo knows no subclass of them
        return self.tolist() if is_compiling() or not self._meta.batch_size else linked_values(self, holder, key)

    def _change_batch_size(self, size: torch.Size) -> None:
        own = self._meta.batch_size
        if size[: len(own)] != own:
            raise RuntimeError(
                f"the batch size {list(size)} does not start with {list(own)}, whose positions have a value each; "
                "reshape or index the values instead"
            )
        times = _known(size)[len(own) :].numel()
        self._flat = [value for value in self._flat for _ in range(times)]
        super()._change_batch_size(size)

    def _replace_value(self, value: Any) -> None:
        size = self._meta.batch_size
        if isinstance(value, NonTensorStack) and value._meta.batch_size == size:
            self._flat[:] = value._flat
        else:
            fill = value._plain_value() if isinstance(value, NonTensorDataBase) else value
            self._flat[:] = [fill] * len(self._flat)

    def _rebuild(self, leaves: Iterator[Any], how: How) -> Any:
        meta = how.meta(self._meta)
        if meta.batch_size.numel() == len(self._flat):
            return self._make(list(self._flat), meta)  # new leaves go with values that are written apart
        # a reduction left no position for each value: they stay together as one
        return NonTensorData._make(self.tolist(), meta)

    def _index(self, index: Index) -> Any:
        return self._placed(selected(self._meta.batch_size, index), index.meta(self._meta))

    def _index_put(self, index: Index, value: Any) -> None:
        positions = selected(self._meta.batch_size, index)
        if isinstance(value, NonTensorStack):
            new = broadcast(value._flat, value._meta.batch_size, index.meta(self._meta).batch_size)
        else:
            new = [value._plain_value() if isinstance(value, NonTensorDataBase) else value] * len(positions)
        changed = list(self._flat) if self._annotations is not None else self._flat
        for position, one in zip(positions, new, strict=True):
            changed[position] = one
        if changed is not self._flat:
            self._keep(self._make(changed, self._meta))
            self._flat[:] = changed

    def _put_node(self, index: Index, source: Any) -> Any:
        self._index_put(index, source)
        return self

    def _room(self, size: torch.Size, index: Index) -> Any:
        own = self._meta.batch_size[len(index.size) + len(size) - index.dims :]
        return self._full(None, Meta(torch.Size((*size, *own)), self._meta.device))

    def _reshape(self, op: ShapeOp) -> Any:
        return self._placed(reshaped(self._meta.batch_size, op), op.meta(self._meta))

    def _unbind(self, dim: int) -> tuple[Any, ...]:
        size = self._meta.batch_size
        meta = Meta(size[:dim] + size[dim + 1 :], self._meta.device)
        whole = [range(n) for n in size]
        return tuple(self._placed(places(size, [*whole[:dim], [i], *whole[dim + 1 :]]), meta) for i in range(size[dim]))

    @classmethod
    def _stack(cls, items: Sequence[Any], dim: int) -> Any:
        first = items[0]
        size = first._meta.batch_size
        if any(item._meta.batch_size != size for item in items):
            raise errors.not_stackable(
                "stack", f"non-tensor data have the batch sizes {[list(i._meta.batch_size) for i in items]}"
            )
        meta = Meta(torch.Size((*size[:dim], len(items), *size[dim:])), first._meta.device)
        if _one_for_all(items):
            return type(first)._make(first._value, meta, first._metadata)
        flat = [value for item in items for value in flat_values(item)]
        if not dim:
            return cls._make(flat, meta)
        # the values lie item by item, so the new dimension is the first and goes where it belongs
        order = [*range(1, dim + 1), 0, *range(dim + 1, len(size) + 1)]
        lying = (len(items), *size)
        return cls._make([flat[i] for i in places(lying, [range(n) for n in lying], order)], meta)

    @classmethod
    def _cat(cls, items: Sequence[Any], dim: int) -> Any:
        first = items[0]
        size = list(first._meta.batch_size)
        size[dim] = sum(item._meta.batch_size[dim] for item in items)
        meta = Meta(torch.Size(size), first._meta.device)
        if _one_for_all(items):
            return type(first)._make(first._value, meta, first._metadata)
        slices = [part for item in items for part in _as_stack(item)._unbind(dim)]
        return cls._make(list(flat_values(cls._stack(slices, dim))) if slices else [], meta)

    @classmethod
    def _ragged(cls, items: Sequence[Any], values: list[Any], meta: Meta) -> Any:
        """The column of a lazy stack whose elements differ in batch size, given its values as nested lists.

        It has the batch dimensions in front of those that differ, and lists stand for the others, which have no size.
        """
        size = _known(meta.batch_size)
        if _one_for_all(items):
            return type(items[0])._make(items[0]._value, Meta(size, meta.device), items[0]._metadata)
        return cls.from_list(values, batch_size=size)._placed(None, Meta(size, meta.device))

    def _unbind_ragged(self, dim: int, sizes: Sequence[torch.Size]) -> list[Any]:
        """The parts for the elements of such a lazy stack, whose batch sizes are given.

        Raises:
            ValueError: The lists are not of those lengths.
        """
        whole = self._make(self._flat, Meta(_known(self._meta.batch_size), self._meta.device))
        lists = [part.tolist() for part in whole._unbind(dim)]
        return [self.from_list(values, batch_size=size) for values, size in zip(lists, sizes, strict=True)]

    def _clone(self, recurse: bool) -> Self:
        return self._make(list(self._flat) if recurse else self._flat, self._meta)

    def _plain_value(self) -> Any:
        return self.tolist()

    def tolist(self, **kwargs: Any) -> list[Any]:
        """The values as a nested list of the batch size."""
        out: list[Any] = nested(list(self._flat), self._meta.batch_size)
        return out

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.tolist()}, batch_size={self._meta.batch_size}, device={self._meta.device})"


def _known(size: torch.Size) -> torch.Size:
    """The dimensions in front of the first whose size differs between elements (-1)."""
    return size[: size.index(-1)] if -1 in size else size


def _as_stack(item: Any) -> NonTensorStack:
    return item if isinstance(item, NonTensorStack) else NonTensorStack._full(item._value, item._meta)


def _one_for_all(items: Sequence[Any]) -> bool:
    """Whether one value stands for all items: metadata does where they agree, other values if the option says so."""
    first = items[0]
    kind = type(first)
    if not issubclass(kind, MetaData) and not (kind is NonTensorData and options.capture_non_tensor_stack):
        return False
    return all(type(item) is kind and same(item._value, first._value) for item in items)


def is_non_tensor(data: Any) -> bool:
    """Whether something is non-tensor data.

    >>> is_non_tensor(NonTensorData(1)), is_non_tensor(torch.zeros(()))
    (True, False)
    """
    return getattr(type(data), "_is_non_tensor", False)


containers.non_tensor = NonTensorData
containers.non_tensor_stack = NonTensorStack
