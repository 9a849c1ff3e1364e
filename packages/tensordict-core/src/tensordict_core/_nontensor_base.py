"""What values that are no tensors share, one or many: they are nodes without entries and without leaves.

Operations on leaves pass such a node by; what is done to its batch size, each kind says itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from . import _errors as errors
from ._base import TensorCollection
from ._index import Index
from ._opaque import OpaqueNode
from ._rebuild import IsLeaf
from ._types import containers
from ._values import non_tensor_entry
from ._writing import Writes

__all__ = ["NonTensorDataBase"]


class NonTensorDataBase(OpaqueNode):
    """What `NonTensorData` and `NonTensorStack` share: no entries, no leaves."""

    __slots__ = ()

    _is_non_tensor = True

    def _set(self, key: str, value: Any, inplace: bool) -> None:
        raise KeyError(
            f"key {key!r} cannot be set: {type(self).__name__} holds one value and no entries; "
            "replace the value instead"
        )

    def _collect(self, out: list[Any], is_leaf: IsLeaf | None) -> None:
        pass

    def _collect_keys(self, out: list[Any], prefix: tuple[str, ...], is_leaf: IsLeaf | None) -> None:
        pass

    def _collect_aligned(
        self, other: Any, out: list[Any], missing: Any, is_leaf: IsLeaf | None, prefix: tuple[str, ...]
    ) -> None:
        pass

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
        writes.then(lambda: self._take(holder, key, value))

    def _as_values(self, holder: Any, value: Any) -> NonTensorDataBase:
        """A plain value as an entry; a list of this batch size, or of the holder's, has one for each position."""
        try:
            return non_tensor_entry(self._meta, value)
        except ValueError:
            return non_tensor_entry(holder._meta, value)

    if TYPE_CHECKING:

        def _replace_value(self, value: Any) -> None: ...

    def _take(self, holder: Any, key: str, value: Any) -> None:
        self._replace_value(value)

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

    def is_empty(self) -> bool:
        """Never: there is a value."""
        return False

    @property  # type: ignore[misc]  # read-only here, where tensordicts have a setter
    def data(self) -> Any:
        """The value, or the nested list of values."""
        return self._entry_value()
