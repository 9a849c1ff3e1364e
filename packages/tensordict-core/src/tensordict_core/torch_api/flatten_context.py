"""Flatten context of a tensordict in ``torch.utils._pytree``: everything but its leaves, and how it is serialized.

The context keeps the number of batch dimensions of each node and the shape of each leaf, so the *event rank* of a leaf
(its dimensions behind the batch dimensions) is known when the tree is unflattened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tensordict_core.base.meta import Meta, as_batch_size, as_device
from tensordict_core.containers.tensor_spec import TensorAttrs

Strides = tuple[int, tuple[int, ...]]
"""The stride of the dimension that ``vmap`` maps, and those of the others."""


class FlattenContext:
    """The context of a pytree node.

    Two contexts are equal if their trees can be exchanged. Batch sizes, their number of dimensions and names are not
    compared: leaves have their own, and ``jacfwd`` and ``jacrev`` compare a tree with one whose leaves have a dimension
    more.

    Args:
        kind: The name of the type of the node; ``"elements"`` for a lazy stack that is flattened into its elements.
        keys: The keys of the node.
        meta: The metadata of the node.
        extra: Further data of the type: the values of non-tensor data, the stack dimension of a lazy stack.
        below: The nodes that are flattened together with this one, by the position of their key.
        shapes: For each leaf of the whole tree its shape, the batch size of a node that is a pytree node of its own, or
            ``None`` where there is neither. Nodes in ``below`` have none of their own.
        level: The ``torch.func`` level at which the tree was flattened.
        strides: Inside ``vmap``, the strides of the leaves that have a dimension of the mapped size, by their position:
            sizes alone do not determine where ``out_dims`` puts the mapped dimension among others of its size.
    """

    __slots__ = ("below", "extra", "keys", "kind", "level", "locked", "meta", "shapes", "strides")

    def __init__(
        self,
        kind: str,
        keys: tuple[str, ...],
        meta: Meta,
        extra: Any = None,
        below: dict[int, FlattenContext] | None = None,
        shapes: Sequence[torch.Size | None] = (),
        level: int | None = None,
        strides: Mapping[int, Strides | None] | None = None,
    ) -> None:
        self.kind = kind
        self.keys = keys
        self.meta = meta
        self.extra = extra
        self.below = below
        self.shapes = shapes
        self.level = level
        self.strides = strides
        self.locked = False  # whether the tree is an input of vmap that is locked, inside too

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FlattenContext):
            return False
        if (self.kind, self.keys, self.meta.device) != (other.kind, other.keys, other.meta.device):
            return False
        return self.below == other.below and _same_extra(self.extra, other.extra)

    def __hash__(self) -> int:
        return hash((self.kind, self.keys, self.meta.device))

    def __deepcopy__(self, memo: Any) -> FlattenContext:
        """Return the context itself: it is immutable, and symbolic sizes of a trace cannot be copied."""
        return self

    def __repr__(self) -> str:
        return f"{self.kind}(keys={list(self.keys)}, batch_dims={len(self.meta.batch_size)})"

    def dump(self) -> Any:
        """Return the context as plain data, for exported programs that are saved."""
        meta, extra = self.meta, self.extra
        below = None if self.below is None else [[i, node.dump()] for i, node in self.below.items()]
        if self.kind == "TensorDict":
            extra, below = below, None
        elif self.kind in ("LazyStackedTensorDict", "elements"):
            extra = extra[0]
        elif self.kind == "TensorAttrs":
            value = extra[0]
            extra = [
                None if value.tgt_device is None else str(value.tgt_device),
                None if value.tgt_dtype is None else str(value.tgt_dtype).removeprefix("torch."),
                None if value.tgt_shape is None else list(value.tgt_shape),
            ]
        device = None if meta.device is None else str(meta.device)
        # symbolic sizes of a trace cannot be saved; unflattening reads sizes off the leaves
        size = [n if type(n) is int else 0 for n in meta.batch_size]
        return [self.kind, list(self.keys), size, device, meta.names, extra, *([] if below is None else [below])]

    @classmethod
    def parse(cls, data: Any) -> FlattenContext:
        """Return the context of a result of ``dump``."""
        kind, keys, size, device, names, extra, *rest = data
        below = rest[0] if rest else None
        meta = Meta(as_batch_size(size), as_device(device), None if names is None else tuple(names))
        if kind == "TensorDict":
            extra, below = None, extra
        elif kind in ("LazyStackedTensorDict", "elements"):
            extra = (extra, None, None, ())
        elif kind == "TensorAttrs":
            device_name, dtype, shape = extra
            extra = (TensorAttrs(device_name, None if dtype is None else getattr(torch, dtype), shape)._value, None)
        elif kind in ("NonTensorData", "MetaData"):
            extra = tuple(extra)
        nodes = None if below is None else {position: cls.parse(node) for position, node in below}
        return cls(kind, tuple(keys), meta, extra, nodes)


def _same_extra(a: Any, b: Any) -> bool:
    try:
        return a is b or bool(a == b)
    except (RuntimeError, ValueError, TypeError):  # values that cannot be compared, such as arrays in a list
        return False
