"""`UnbatchedTensor`: an entry without batch dimensions, such as a lookup table.

Its batch size is that of the tensordict that stores it, whatever the shape of its tensor is. Operations on leaves
(arithmetic, casts, ``apply``) run on the tensor; operations on the batch (indexing, reshaping, stacking) change
only the batch size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.entry import as_tensor
from tensordict_core.base.meta import Meta, as_batch_size
from tensordict_core.base.rebuild import KEEP, How, IsLeaf
from tensordict_core.base.registry import containers
from tensordict_core.base.write_plan import WritePlan
from tensordict_core.containers.opaque import OpaqueNode

if TYPE_CHECKING:
    from tensordict_core.base.index import Index
    from tensordict_core.base.shape_op import ShapeOp

__all__ = ["UnbatchedTensor"]


class UnbatchedTensor(OpaqueNode):
    """A tensor that shape operations do not change.

    Args:
        data: The tensor, or numeric data to convert to one.
        batch_size: The batch size; replaced by that of a tensordict that stores the object.

    Raises:
        TypeError: ``data`` is neither a tensor nor numeric.

    >>> td = TensorDict({"a": torch.zeros(3), "table": UnbatchedTensor(torch.arange(5))}, [3])
    >>> td[0]["table"], td.get("table").batch_size
    (tensor([0, 1, 2, 3, 4]), torch.Size([3]))
    """

    __slots__ = ("_tensor",)

    _tensor: Tensor

    def __init__(
        self, data: Tensor | np.ndarray[Any, Any] | Sequence[Any] | float | UnbatchedTensor, batch_size: Any = None
    ) -> None:
        tensor = data._tensor if isinstance(data, UnbatchedTensor) else as_tensor(data)
        if tensor is None:
            raise TypeError(
                f"UnbatchedTensor takes a tensor or numeric data, got {type(data).__name__}; use NonTensorData"
            )
        self._start(Meta(as_batch_size(batch_size)))
        self._tensor = tensor

    @classmethod
    def _make(cls, tensor: Tensor, meta: Meta) -> Self:
        self = object.__new__(cls)
        self._start(meta)
        self._tensor = tensor
        return self

    @property  # type: ignore[misc]  # read-only here, where tensordicts have a setter
    def data(self) -> Tensor:  # type: ignore[override]  # a tensor, where tensordicts return a tensordict
        """The detached tensor, like ``Tensor.data``."""
        return self._tensor.data

    @property
    def tensor(self) -> Tensor:
        """The tensor.

        >>> UnbatchedTensor(torch.arange(2)).tensor
        tensor([0, 1])
        """
        return self._tensor

    @property
    def shape(self) -> torch.Size:
        """The shape of the tensor (not the batch size)."""
        return self._tensor.shape

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the tensor."""
        return self._tensor.dtype

    @property  # type: ignore[misc]  # read-only here, where tensordicts have a setter
    def device(self) -> torch.device:
        """The device of the tensor."""
        return self._tensor.device

    # reads and writes ------------------------------------------------------------------------------------------------

    def _entry_value(self, holder: Any = None, key: str = "") -> Any:
        return self._tensor

    def _plan_value(
        self, holder: Any, key: str, index: Index | None, value: Any, plan: WritePlan, prefix: tuple[str, ...]
    ) -> None:
        """Add a write of a value to the plan; a write at an index takes only unbatched tensors."""
        path = (*prefix, key) if prefix else key
        if index is not None and not isinstance(value, UnbatchedTensor):
            raise errors.not_a_node(path, value)
        tensor = value._tensor if isinstance(value, UnbatchedTensor) else as_tensor(value)
        if tensor is None:
            raise TypeError(
                f"an unbatched tensor takes a tensor or numeric data, got {type(value).__name__}; use set()"
            )
        plan.add(path, self._tensor, tensor)

    def _replace_value(self, value: Any) -> None:
        plan = WritePlan()
        self._plan_value(None, "of the unbatched tensor", None, value, plan, ())
        plan.run()

    def _set(self, key: str, value: Any) -> None:
        raise errors.not_a_node(key, self._tensor)

    # one leaf --------------------------------------------------------------------------------------------------------

    def _collect(self, out: list[Any], is_leaf: IsLeaf | None) -> None:
        out.append(self._tensor)

    def _collect_keys(self, out: list[Any], prefix: tuple[str, ...], is_leaf: IsLeaf | None) -> None:
        out.append(prefix)

    def _collect_aligned(
        self, other: Any, out: list[Any], missing: Any, is_leaf: IsLeaf | None, prefix: tuple[str, ...]
    ) -> None:
        if other is None and missing is KEEP:
            raise errors.unmatched_key(prefix, None)
        out.append(missing if other is None else other._tensor if isinstance(other, UnbatchedTensor) else other)

    def _collect_sizes(self, out: list[torch.Size], is_leaf: IsLeaf | None) -> None:
        out.append(torch.Size(()))

    def _line_up(self, operand: Tensor, dims: int, out: list[Tensor]) -> None:
        raise RuntimeError(
            f"an operand of shape {list(operand.shape)} has batch dimensions, and an unbatched tensor has none; use a "
            "number, or exclude the unbatched entries first"
        )

    def _rebuild(self, leaves: Iterator[Any], how: How) -> Any:
        new = next(leaves)
        if new is None:
            return None
        meta = how.meta(self._meta)
        if how.check:
            new = as_tensor(type(self)(new)._tensor, meta.device)
        if how.size is not None and meta.batch_size != self._meta.batch_size:
            return self._make(self._tensor, meta)
        return self._make(new, meta)

    def _solid(self) -> Any:
        return self

    def densify(self, *, layout: torch.layout = torch.jagged) -> Any:
        """Return this object, which contains no lazy stack."""
        return self

    # shape operations change only the batch size ---------------------------------------------------------------------

    def _index(self, index: Index) -> Any:
        return self._make(self._tensor, index.meta(self._meta))

    def _index_put(self, index: Index, value: Any) -> None:
        if isinstance(value, UnbatchedTensor):
            self._replace_value(value)

    def _put_node(self, index: Index, source: Any) -> Any:
        self._index_put(index, source)
        return self

    def _room(self, size: torch.Size, index: Index) -> Any:
        own = self._meta.batch_size[len(index.size) + len(size) - index.dims :]
        return self._make(torch.zeros_like(self._tensor), Meta(torch.Size((*size, *own))))

    def _view_at(self, index: Index) -> Any:
        return self._index(index)

    def _reshape(self, op: ShapeOp) -> Any:
        return self._make(self._tensor, op.meta(self._meta))

    def _split(self, sizes: list[int], dim: int) -> Sequence[Any]:
        size = self._meta.batch_size
        return [self._make(self._tensor, Meta(torch.Size((*size[:dim], n, *size[dim + 1 :])))) for n in sizes]

    def _unbind(self, dim: int) -> tuple[Any, ...]:
        size = self._meta.batch_size
        meta = Meta(size[:dim] + size[dim + 1 :])
        return tuple(self._make(self._tensor, meta) for _ in range(size[dim]))

    @classmethod
    def _stack(cls, items: Sequence[Any], dim: int) -> Any:
        # the tensor has no batch dimension, so the result has that of the first item
        size = items[0]._meta.batch_size
        return cls._make(items[0]._tensor, Meta(torch.Size((*size[:dim], len(items), *size[dim:]))))

    @classmethod
    def _lazy(cls, items: Sequence[Any], dim: int) -> Any:
        return cls._stack(items, dim)

    @classmethod
    def _cat(cls, items: Sequence[Any], dim: int) -> Any:
        size = list(items[0]._meta.batch_size)
        size[dim] = sum(item._meta.batch_size[dim] for item in items)
        return cls._make(items[0]._tensor, Meta(torch.Size(size)))

    # life ------------------------------------------------------------------------------------------------------------

    def _clone(self, recurse: bool) -> Self:
        return self._make(self._tensor.clone() if recurse else self._tensor, self._meta)

    def is_empty(self) -> bool:
        """Return ``False``, because there is a tensor."""
        return False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._tensor!r}, batch_size={self._meta.batch_size})"


containers.unbatched = UnbatchedTensor
