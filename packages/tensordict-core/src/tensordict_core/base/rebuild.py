"""What becomes of a tree when its leaves are replaced: one record that every container's ``_rebuild`` reads.

An operation on leaves is ``self._rebuild(map(fn, self._leaves()), how)``. The record ``how`` says what happens to batch
sizes, names and device of each node, whether the result of a locked tree is locked, and which nodes count as leaves.
Containers decide the type of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import torch

from tensordict_core.base.meta import Meta, Names

__all__ = ["KEEP", "NO_DEFAULT", "SAME", "SHAPE_KEEPING", "UNLOCKED", "How", "IsLeaf"]

IsLeaf = Callable[[type[Any]], bool]


class Keep(Enum):
    """Stands for "as it is", or "not given", where ``None`` is a value; an enum, because tracers know those."""

    KEEP = "KEEP"

    def __repr__(self) -> str:
        return self.value


KEEP: Final = Keep.KEEP


class Strict(Enum):
    """Stands for no default at all."""

    NO_DEFAULT = "NO_DEFAULT"


NO_DEFAULT: Final = Strict.NO_DEFAULT
"""The default of ``get`` and ``pop`` that asks for a ``KeyError`` where there is no entry, whatever the options say."""


class How:
    """How a container puts new leaves into the structure of its old ones.

    Args:
        size: Maps the batch size of each node to its new one; ``None`` keeps it.
        names: Maps the dim names of each node to its new ones (called with ``None`` where none are named); ``None``
            keeps them if ``size`` is ``None`` and drops them otherwise.
        device: The device of every node of the result, or ``KEEP``.
        lock: Whether the result of a locked tree is locked: true for results that stand for the same tree (views,
            casts).
        is_leaf: Node types that count as leaves; ``None`` means tensors only.
        prune: Whether a node whose leaves were all dropped is dropped too.
        check: Whether the new leaves are values as users set them, to be checked and converted by the node that
            takes them; results of operations are known to be valid.

    >>> How(size=lambda size: size[1:]).meta(Meta(torch.Size([2, 3]))).batch_size
    torch.Size([3])
    """

    __slots__ = ("check", "device", "is_leaf", "keeps_meta", "lock", "names", "prune", "size")

    def __init__(
        self,
        *,
        size: Callable[[torch.Size], torch.Size] | None = None,
        names: Callable[[Names], Names] | None = None,
        device: torch.device | Keep | None = KEEP,
        lock: bool = False,
        is_leaf: IsLeaf | None = None,
        prune: bool = False,
        check: bool = False,
    ) -> None:
        self.size = size
        self.names = names
        self.device = device
        self.lock = lock
        self.is_leaf = is_leaf
        self.prune = prune
        self.check = check
        self.keeps_meta = size is None and names is None and device is KEEP

    def meta(self, meta: Meta) -> Meta:
        """The metadata of a node of the result, from that of the node it stands for."""
        if self.keeps_meta:
            return meta
        size = meta.batch_size if self.size is None else self.size(meta.batch_size)
        if self.names is None:
            names = meta.names if self.size is None else None
        else:
            names = self.names(meta.names)
        return Meta(size, meta.device if self.device is KEEP else self.device, names)


SAME: Final = How(lock=True)
"""Other values for the same tree: pointwise operations, detach."""

UNLOCKED: Final = How()
"""The same structure as a new, unlocked tree: comparisons, clones."""

SHAPE_KEEPING: Final[set[Any]] = set()
"""Functions of torch that give a tensor of the shape and device of theirs: their results fit where the leaf did."""
