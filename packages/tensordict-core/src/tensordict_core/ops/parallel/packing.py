"""Packing: a tree as a skeleton and one buffer of bytes, so that many leaves are sent as one message.

The skeleton is the tree with a `Slot` (dtype, shape, offset in the buffer) for each packed leaf; it is small and can be
pickled. Leaves that are not plain blocks of memory (subclasses, sparse and nested tensors) stay in the skeleton and are
pickled with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tensordict_core.base.rebuild import UNLOCKED, How

_ALIGNMENT = 64
"""The alignment of leaves in the buffer in bytes, which suits views of any dtype."""


class Slot(NamedTuple):
    """The place of a leaf in a buffer."""

    dtype: torch.dtype
    shape: torch.Size
    start: int
    requires_grad: bool

    @property
    def nbytes(self) -> int:
        """The size of the leaf in bytes."""
        return self.shape.numel() * self.dtype.itemsize


def _is_slot(kind: type[Any]) -> bool:
    return kind is Slot


_SLOTS = How(is_leaf=_is_slot)


def is_plain(leaf: Tensor) -> bool:
    """Return whether a leaf is a plain block of memory: no subclass, dense, not quantized."""
    return type(leaf) is Tensor and leaf.layout is torch.strided and not leaf.is_quantized and not leaf.is_meta


def slots_of(leaves: Sequence[Tensor]) -> list[Slot]:
    """Return the slots of leaves that follow each other in a buffer."""
    slots, start = [], 0
    for leaf in leaves:
        slots.append(Slot(leaf.dtype, leaf.shape, start, leaf.requires_grad and leaf.is_leaf))
        start += -(-slots[-1].nbytes // _ALIGNMENT) * _ALIGNMENT
    return slots


def packed_size(slots: Sequence[Slot]) -> int:
    """Return the size in bytes of a buffer for all slots."""
    return max((slot.start + slot.nbytes for slot in slots), default=0)


def view(buffer: Tensor, slot: Slot) -> Tensor:
    """Return the leaf in the buffer, sharing its memory."""
    return torch.reshape(buffer[slot.start : slot.start + slot.nbytes].view(slot.dtype), slot.shape)


def copy_into(buffer: Tensor, slots: Sequence[Slot], leaves: Sequence[Tensor]) -> None:
    """Write each leaf to its slot."""
    with torch.no_grad():
        for slot, leaf in zip(slots, leaves, strict=True):
            view(buffer, slot).copy_(leaf)


def pack(td: Any, device: torch.device | str | None = None) -> tuple[Any, Tensor]:
    """Return a skeleton of a tree and a buffer with its leaves.

    Args:
        td: The tree.
        device: The device of the buffer; by default that of the first leaf.

    >>> td = TensorDict({"a": torch.ones(3), "b": {"c": torch.zeros(2, dtype=torch.int64), "s": "text"}})
    >>> skeleton, buffer = pack(td)
    >>> buffer.dtype, unpack(skeleton, buffer)["b", "s"]
    (torch.uint8, 'text')
    """
    leaves = td._leaves()
    plain = [leaf for leaf in leaves if is_plain(leaf)]
    slots = slots_of(plain)
    if device is None:
        device = plain[0].device if plain else "cpu"
    buffer = torch.empty(packed_size(slots), dtype=torch.uint8, device=device)
    copy_into(buffer, slots, plain)
    places = iter(slots)
    return td._rebuild(iter([next(places) if is_plain(leaf) else leaf for leaf in leaves]), UNLOCKED), buffer


def skeleton_over(td: Any, buffer: Tensor) -> Any:
    """Return the skeleton of a tree whose leaves are views of a buffer, or ``None`` if one is not.

    Args:
        td: The tree.
        buffer: The bytes that `consolidate` copied the leaves into.

    >>> skeleton, buffer = pack(TensorDict({"a": torch.ones(3)}))
    >>> skeleton_over(unpack(skeleton, buffer), buffer)._leaves(lambda kind: kind is Slot)[0].start
    0
    >>> skeleton_over(TensorDict({"a": torch.ones(3)}), buffer) is None
    True
    """
    if type(buffer) is not Tensor or buffer.dtype is not torch.uint8:
        return None
    first, slots = buffer.data_ptr(), []
    for leaf in td._leaves():
        start = -1
        if is_plain(leaf) and leaf.is_contiguous():
            start = leaf.data_ptr() - first if leaf.numel() else 0
        if start < 0 or start + leaf.nbytes > buffer.nbytes or leaf.device != buffer.device:
            return None
        slots.append(Slot(leaf.dtype, leaf.shape, start, leaf.requires_grad and leaf.is_leaf))
    return td._rebuild(iter(slots), UNLOCKED)


def unpack(skeleton: Any, buffer: Tensor) -> Any:
    """Return the tree of a skeleton, whose leaves are views of the buffer."""
    leaves = [
        view(buffer, leaf).requires_grad_(leaf.requires_grad) if type(leaf) is Slot else leaf
        for leaf in skeleton._leaves(_is_slot)
    ]
    return skeleton._rebuild(iter(leaves), _SLOTS)
