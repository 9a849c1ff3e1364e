"""The context of a pytree node: what is kept of a container while its leaves are apart.

It holds the number of batch dimensions rather than their sizes, and what tells which dimension ``vmap`` took from the
leaves or added to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from tensordict_core.base.meta import Meta, Names

__all__ = ["GAINED", "LOST", "TENSORS", "Change", "Layout", "Mapped"]


TENSORS = (torch.Tensor, torch.nn.Parameter)
"""The types of nearly all leaves; asking for a type costs less than ``isinstance``, which runs a metaclass."""


class Change(NamedTuple):
    """A batch dimension that ``vmap`` took (``gained`` false) or added."""

    dim: int
    gained: bool
    unsure: bool = False
    """Whether equal sizes leave open which of several dimensions it is."""

    def size(self, size: torch.Size, count: int | None) -> torch.Size:
        """The batch size after the change; ``count`` is the size of a dimension that was added."""
        if not self.gained:
            return torch.Size((*size[: self.dim], *size[self.dim + 1 :]))
        return torch.Size((*size[: self.dim], count, *size[self.dim :]))  # type: ignore[arg-type]  # a dimension that was added always comes with its size

    def names(self, names: Names) -> Names:
        """The names after the change; none where they might stand at the wrong dimension."""
        if names is None or self.unsure:
            return None
        rest = (None, *names[self.dim :]) if self.gained else names[self.dim + 1 :]
        new = (*names[: self.dim], *rest)
        return new if any(name is not None for name in new) else None


LOST = tuple(Change(dim, gained=False) for dim in range(4))  # made once: every node of a tree that vmap maps asks
GAINED = Change(0, gained=True)


class Mapped(list[Any]):
    """Non-tensor values along a dimension that ``vmap`` took: a function inside sees all; they come out again."""


class Layout:
    """The context of a node: everything but its children.

    Two layouts are equal where their trees can be exchanged. Sizes are not compared, nor how many dimensions the batch
    has and their names: leaves have their own, and ``jacfwd`` and ``jacrev`` compare a tree with one whose leaves had a
    dimension more.
    """

    __slots__ = ("extra", "keys", "kind", "level", "meta", "shapes", "strides")

    def __init__(
        self,
        kind: str,
        keys: tuple[str, ...],
        meta: Meta,
        extra: Any = None,
        shapes: tuple[torch.Size | None, ...] = (),
        level: int | None = None,
        strides: Sequence[tuple[int, tuple[int, ...]] | None] | None = None,
    ) -> None:
        self.kind = kind
        self.keys = keys
        self.meta = meta
        self.extra = extra
        self.shapes = shapes
        self.level = level
        self.strides = strides

    def _compared(self) -> tuple[Any, ...]:
        return (self.kind, self.keys, self.meta.device)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout) or self._compared() != other._compared():
            return False
        return _same_extra(self.extra, other.extra)

    def __hash__(self) -> int:
        return hash(self._compared())

    def __deepcopy__(self, memo: Any) -> Layout:
        """Itself: it is never changed, and sizes of a trace cannot be copied."""
        return self

    def __repr__(self) -> str:
        return f"{self.kind}(keys={list(self.keys)}, batch_dims={len(self.meta.batch_size)})"


def _same_extra(a: Any, b: Any) -> bool:
    try:
        return a is b or bool(a == b)
    except (RuntimeError, ValueError, TypeError):  # values that cannot be compared, such as arrays in a list
        return False
