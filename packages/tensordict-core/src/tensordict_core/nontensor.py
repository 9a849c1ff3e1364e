"""Non-tensor data: values that are no tensors, carried through every operation beside the leaves.

`NonTensorData` is one value that stands for every position of a batch; `NonTensorStack` has a value of its own for each
position, kept in a NumPy array of objects, so indexing and reshaping it are NumPy's. Both are nodes without leaves:
operations on leaves pass them by, shape operations change their batch size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from . import _errors as errors
from ._base import TensorCollection
from ._meta import Meta, as_batch_size, as_device, as_names
from ._options import current as options
from ._rebuild import How, IsLeaf
from ._types import containers

if TYPE_CHECKING:
    from ._index import Index
    from ._ops.shape_ops import ShapeOp

__all__ = ["NonTensorData", "NonTensorDataBase", "NonTensorStack", "is_non_tensor"]


class NonTensorDataBase(TensorCollection):
    """What `NonTensorData` and `NonTensorStack` share: no entries, no leaves."""

    __slots__ = ("_annotations", "_holders", "_last_exit", "_locked", "_meta")

    _is_non_tensor = True
    _is_opaque = True

    def _start(self, meta: Meta) -> None:
        self._meta = meta
        self._locked = False
        self._holders = None
        self._annotations = None
        self._last_exit = None

    def _keys(self) -> Iterable[str]:
        return ()

    def _get(self, key: str) -> Any:
        return None

    def _set(self, key: str, value: Any, inplace: bool) -> None:
        raise KeyError(
            f"key {key!r} cannot be set: {type(self).__name__} holds one value and no entries; "
            "replace the value instead"
        )

    def _del(self, key: str) -> None:
        raise errors.missing_key(key, (), type(self).__name__)

    def _rename(self, old: str, new: str) -> None:
        raise errors.missing_key(old, (), type(self).__name__)

    def _collect(self, out: list[Any], is_leaf: IsLeaf | None) -> None:
        pass

    def _collect_keys(self, out: list[Any], prefix: tuple[str, ...], is_leaf: IsLeaf | None) -> None:
        pass

    def _collect_aligned(
        self, other: Any, out: list[Any], missing: Any, is_leaf: IsLeaf | None, prefix: tuple[str, ...]
    ) -> None:
        pass

    def _nodes(self) -> Iterable[TensorCollection]:
        return ()

    def _set_meta(self, meta: Meta) -> None:
        self._meta = meta

    def _set_locked(self, locked: bool) -> None:
        self._locked = locked

    @classmethod
    def _lazy(cls, items: Sequence[Any], dim: int) -> Any:
        return NonTensorStack._stack(items, dim)

    def _view_at(self, index: Index) -> Any:
        return self._index(index)

    def _solid(self) -> Any:
        return self

    def densify(self, *, layout: torch.layout = torch.jagged) -> Any:
        """Itself: there is nothing to combine."""
        return self

    def _stack_nodes(self, column: Sequence[Any], dim: int) -> Any:
        return NonTensorStack._stack(column, dim)

    def _cat_nodes(self, column: Sequence[Any], dim: int) -> Any:
        return NonTensorStack._cat(column, dim)

    def _write_plain_at(self, index: Index, value: Any) -> None:
        pass

    def is_empty(self) -> bool:
        """Never: there is a value."""
        return False

    @property
    def data(self) -> Any:
        """The value, or the nested list of values."""
        return self._entry_value()


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
        self._value = data
        self._metadata = _metadata

    @classmethod
    def _make(cls, value: Any, meta: Meta, metadata: Any = None) -> Self:
        self = object.__new__(cls)
        self._start(meta)
        self._value = value
        self._metadata = metadata
        return self

    def _entry_value(self) -> Any:
        return self._value

    def _replace_value(self, value: Any) -> None:
        self._value = value._entry_value() if isinstance(value, NonTensorDataBase) else value

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
        if type(source) is NonTensorData and _same(source._value, self._value):
            return self
        stack = NonTensorStack._full(self._value, self._meta)
        stack._index_put(index, source)
        return stack

    def _room(self, size: torch.Size, index: Index) -> Any:
        # positions that were never written have the value of the one that was: there is no zero of an arbitrary value
        return self._make(self._value, Meta(size, self._meta.device), self._metadata)

    def _reshape(self, op: ShapeOp) -> Any:
        return self._make(self._value, op.meta(self._meta), self._metadata)

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

    def __eq__(self, other: object) -> Any:
        return _compare(self, other)

    __hash__ = None  # type: ignore[assignment]


class NonTensorStack(NonTensorDataBase):
    """Values that are no tensors, one for each position of a batch.

    Args:
        *values: The values (or `NonTensorData`) along the first batch dimension; nested lists give more dimensions.
        stack_dim: Where that dimension stands in the batch size.

    >>> stack = NonTensorStack("a", "b")
    >>> stack.tolist(), stack[1].data, stack.batch_size
    (['a', 'b'], 'b', torch.Size([2]))
    """

    __slots__ = ("_values",)

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
            self._values = np.empty(0, dtype=object)
            return
        stacked = NonTensorStack._stack(items, stack_dim)
        self._start(stacked._meta)
        self._values = (
            stacked._values
            if isinstance(stacked, NonTensorStack)
            else _filled(stacked._value, stacked._meta.batch_size)
        )

    @classmethod
    def _make(cls, values: np.ndarray[Any, Any], meta: Meta) -> Self:
        self = object.__new__(cls)
        self._start(meta)
        self._values = values
        return self

    @classmethod
    def _full(cls, value: Any, meta: Meta) -> Self:
        return cls._make(_filled(value, meta.batch_size), meta)

    @classmethod
    def from_list(
        cls, values: list[Any], *, batch_size: Sequence[int] | None = None, device: torch.device | None = None
    ) -> Self:
        """A stack of the values in a nested list.

        Args:
            values: The list; lists in it are taken apart as deep as the batch size says (by default: once).
            batch_size: The batch size; by default ``[len(values)]``.
            device: The device that the surrounding tensordict has.

        Raises:
            ValueError: The list is not of that shape.

        >>> NonTensorStack.from_list([["a", "b"], ["c", "d"]], batch_size=[2, 2])[1, 0].data
        'c'
        """
        size = torch.Size([len(values)]) if batch_size is None else as_batch_size(batch_size)
        array = np.empty(tuple(size), dtype=object)
        for position in np.ndindex(*size):
            item: Any = values
            for level, i in enumerate(position):
                if not isinstance(item, list) or len(item) != size[level]:
                    raise ValueError(
                        f"the list is not of the shape {list(size)}: level {level} holds {item!r}; "
                        "give nested lists of that shape"
                    )
                item = item[i]
            array[position] = item
        return cls._make(array, Meta(size, device))

    def _entry_value(self) -> Any:
        return self._values.tolist()

    def _replace_value(self, value: Any) -> None:
        if isinstance(value, NonTensorStack) and value._values.shape == self._values.shape:
            self._values[...] = value._values
        else:
            fill = value._entry_value() if isinstance(value, NonTensorDataBase) else value
            for position in np.ndindex(*self._values.shape):
                self._values[position] = fill

    def _rebuild(self, leaves: Iterator[Any], how: How) -> Any:
        meta = how.meta(self._meta)
        if meta.batch_size == self._meta.batch_size:
            return self._make(self._values, meta)
        if meta.batch_size.numel() == self._values.size:
            return self._make(self._values.reshape(tuple(meta.batch_size)), meta)
        # a reduction left no position for each value: they stay together as one
        return NonTensorData._make(self._values.tolist(), meta)

    def _index(self, index: Index) -> Any:
        meta = index.meta(self._meta)
        values = self._values[_numpy_index(index)]
        return (
            NonTensorData._make(values.item() if isinstance(values, np.ndarray) else values, meta)
            if not meta.batch_size
            else self._make(values, meta)
        )

    def _index_put(self, index: Index, value: Any) -> None:
        idx = _numpy_index(index)
        if isinstance(value, NonTensorStack):
            self._values[idx] = value._values
            return
        fill = value._entry_value() if isinstance(value, NonTensorDataBase) else value
        target = self._values[idx]
        if not isinstance(target, np.ndarray) or not target.ndim:
            self._values[idx] = fill
        else:
            self._values[idx] = _filled(fill, target.shape)

    def _put_node(self, index: Index, source: Any) -> Any:
        self._index_put(index, source)
        return self

    def _room(self, size: torch.Size, index: Index) -> Any:
        own = self._meta.batch_size[len(index.size) :]
        return self._full(None, Meta(torch.Size((*size, *own)), self._meta.device))

    def _reshape(self, op: ShapeOp) -> Any:
        # positions of the values pass through the operation as numbers; one rule for every shape operation
        numbers = torch.arange(self._values.size).reshape(self._values.shape)
        moved = op.leaf(numbers)
        meta = op.meta(self._meta)
        return self._make(self._values.reshape(-1)[moved.numpy()], meta)

    def _unbind(self, dim: int) -> tuple[Any, ...]:
        size = self._meta.batch_size
        meta = Meta(size[:dim] + size[dim + 1 :], self._meta.device)
        parts = np.moveaxis(self._values, dim, 0)
        if not meta.batch_size:
            return tuple(NonTensorData._make(part, meta) for part in parts)
        return tuple(self._make(part, meta) for part in parts)

    @classmethod
    def _stack(cls, items: Sequence[Any], dim: int) -> Any:
        first = items[0]
        size = first._meta.batch_size
        if any(item._meta.batch_size != size for item in items):
            raise errors.not_stackable(
                "stack", f"non-tensor data have the batch sizes {[list(i._meta.batch_size) for i in items]}"
            )
        meta = Meta(torch.Size((*size[:dim], len(items), *size[dim:])), first._meta.device)
        if options.capture_non_tensor_stack and _all_same(items):
            return NonTensorData._make(first._value, meta, first._metadata)
        return cls._make(np.stack([_values_of(item) for item in items], dim), meta)

    @classmethod
    def _cat(cls, items: Sequence[Any], dim: int) -> Any:
        first = items[0]
        size = list(first._meta.batch_size)
        size[dim] = sum(item._meta.batch_size[dim] for item in items)
        meta = Meta(torch.Size(size), first._meta.device)
        if options.capture_non_tensor_stack and _all_same(items):
            return NonTensorData._make(first._value, meta, first._metadata)
        return cls._make(np.concatenate([_values_of(item) for item in items], dim), meta)

    def _clone(self, recurse: bool) -> Self:
        return self._make(self._values.copy() if recurse else self._values, self._meta)

    def tolist(self, **kwargs: Any) -> list[Any]:
        """The values as a nested list of the batch size."""
        out: list[Any] = self._values.tolist()
        return out

    def __repr__(self) -> str:
        values, meta = self._values.tolist(), self._meta
        return f"{type(self).__name__}({values}, batch_size={meta.batch_size}, device={meta.device})"

    def __eq__(self, other: object) -> Any:
        return _compare(self, other)

    __hash__ = None  # type: ignore[assignment]


def _all_same(items: Sequence[Any]) -> bool:
    """Whether nodes hold one value each, and equal ones."""
    return all(type(item) is NonTensorData for item in items) and all(
        _same(item._value, items[0]._value) for item in items[1:]
    )


def _filled(value: Any, size: Sequence[int]) -> np.ndarray[Any, Any]:
    array = np.empty(tuple(size), dtype=object)
    for position in np.ndindex(*array.shape):
        array[position] = value
    return array


def _values_of(item: Any) -> np.ndarray[Any, Any]:
    return item._values if isinstance(item, NonTensorStack) else _filled(item._value, item._meta.batch_size)


def _numpy_index(index: Index) -> Any:
    idx = tuple(part.numpy() if isinstance(part, Tensor) else part for part in index.parts)
    return idx[0] if len(idx) == 1 else idx


def _same(a: Any, b: Any) -> bool:
    """Whether two values are equal; values that cannot be compared are the same only if identical."""
    if a is b:
        return True
    try:
        return type(a) is type(b) and bool(a == b)
    except Exception:
        return False


def _compare(left: NonTensorDataBase, other: Any) -> Tensor:
    """Equality position by position, as a bool tensor of the batch size."""
    right = other if isinstance(other, NonTensorDataBase) else NonTensorData._make(other, left._meta)
    size = torch.broadcast_shapes(left._meta.batch_size, right._meta.batch_size)
    if type(left) is NonTensorData and type(right) is NonTensorData:
        return torch.full(size, _same(left._value, right._value))
    a, b = np.broadcast_to(_values_of(left), tuple(size)), np.broadcast_to(_values_of(right), tuple(size))
    flat = [_same(x, y) for x, y in zip(a.reshape(-1), b.reshape(-1), strict=True)]
    return torch.tensor(flat, dtype=torch.bool).reshape(size)


def is_non_tensor(data: Any) -> bool:
    """Whether something is non-tensor data.

    >>> is_non_tensor(NonTensorData(1)), is_non_tensor(torch.zeros(()))
    (True, False)
    """
    return getattr(type(data), "_is_non_tensor", False)


containers.non_tensor = NonTensorData
containers.non_tensor_stack = NonTensorStack
