"""Rebuild options: how a container makes a tree with new leaves from an existing one.

An operation on leaves is ``self._rebuild(map(fn, self._leaves()), how)``. The `How` object defines the batch size,
names and device of each new node, whether the result of a locked tree is locked, and which nodes count as leaves. The
container chooses the type of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import torch

from tensordict_core.base.meta import Meta, Names

IsLeaf = Callable[[type[Any]], bool]


class Keep(Enum):
    """A default that means "unchanged" or "not given" where ``None`` is a value; Dynamo supports enums."""

    KEEP = "KEEP"

    def __repr__(self) -> str:
        return self.value


KEEP: Final = Keep.KEEP


class Strict(Enum):
    """The type of `NO_DEFAULT`."""

    NO_DEFAULT = "NO_DEFAULT"


NO_DEFAULT: Final = Strict.NO_DEFAULT
"""The default of ``get`` and ``pop`` that raises a ``KeyError`` for a missing entry, regardless of the options."""


class How:
    """The rule by which a container makes a node with new leaves.

    Args:
        size: Maps the batch size of each node to its new one; ``None`` keeps it.
        names: Maps the dimension names of each node (``None`` if no dimension is named) to its new ones; ``None`` keeps
            them if ``size`` is ``None`` and drops them otherwise.
        device: The device of every node of the result, or ``KEEP``.
        lock: Whether the result of a locked tree is locked, as for views and casts.
        is_leaf: Node types that count as leaves; ``None`` means tensors only.
        prune: Whether a node whose leaves were all dropped is dropped too.
        prune_empty: With ``prune``, whether a node that had no entries is dropped too.
        check: Whether each node checks and converts the new leaves like values that users set; results of operations
            are valid.

    >>> How(size=lambda size: size[1:]).meta(Meta(torch.Size([2, 3]))).batch_size
    torch.Size([3])
    """

    __slots__ = ("check", "device", "is_leaf", "keeps_meta", "lock", "names", "prune", "prune_empty", "size")

    def __init__(
        self,
        *,
        size: Callable[[torch.Size], torch.Size] | None = None,
        names: Callable[[Names], Names] | None = None,
        device: torch.device | Keep | None = KEEP,
        lock: bool = False,
        is_leaf: IsLeaf | None = None,
        prune: bool = False,
        prune_empty: bool = False,
        check: bool = False,
    ) -> None:
        self.size = size
        self.names = names
        self.device = device
        self.lock = lock
        self.is_leaf = is_leaf
        self.prune = prune
        self.prune_empty = prune_empty
        self.check = check
        self.keeps_meta = size is None and names is None and device is KEEP

    def meta(self, meta: Meta) -> Meta:
        """Return the metadata of a new node from that of the old one."""
        if self.keeps_meta:
            return meta
        size = meta.batch_size if self.size is None else self.size(meta.batch_size)
        if self.names is None:
            names = meta.names if self.size is None else None
        else:
            names = self.names(meta.names)
        return Meta(size, meta.device if self.device is KEEP else self.device, names)


SAME: Final = How(lock=True)
"""Keeps the structure, metadata and lock: for pointwise operations and ``detach``."""

UNLOCKED: Final = How()
"""Keeps the structure and metadata, unlocked: for comparisons and clones."""

SHAPE_KEEPING: Final[set[Any]] = set()
"""Functions of torch that keep shape and device, so their results need no check."""
