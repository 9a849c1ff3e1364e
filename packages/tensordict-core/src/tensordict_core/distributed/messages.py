"""Messages: the leaves of a tree as few blocks of bytes, in an order that both ends agree on without a word.

Both ends have the same keys, shapes and dtypes, so each can say by itself which leaves travel together. Small leaves
are copied into one block; a large one is sent from where it is. Leaves are put in order of their keys, so the order in
which entries were made does not matter.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import _errors as errors
from .._packing import Slot, copy_into, packed_size, slots_of, view
from .._primitives import Primitives
from .._types import containers

__all__ = [
    "BLOCK",
    "SMALL",
    "Block",
    "Transfer",
    "blocks",
    "process_group",
    "reduced",
    "sorted_leaves",
    "tags",
    "values",
]

SMALL = 1 << 18
"""Leaves of fewer bytes are packed: below this, a message of its own costs more than the copy."""
BLOCK = 1 << 22
"""The bytes that a block of small leaves grows to."""


def process_group() -> Any:
    """``torch.distributed``, once a process group stands.

    Raises:
        RuntimeError: It is not available, or no group was started.
    """
    import torch.distributed as dist

    if not dist.is_available():
        raise RuntimeError("this build of PyTorch has no torch.distributed; install one that has")
    if not dist.is_initialized():
        raise RuntimeError("no process group was started; call torch.distributed.init_process_group first")
    return dist


def tags(first: int, pseudo_rand: bool) -> Iterator[int]:
    """The tags of one message after the other.

    >>> numbers = tags(3, False)
    >>> next(numbers), next(numbers)
    (3, 4)
    """
    if not pseudo_rand:
        number = first
        while True:
            yield number
            number += 1
    drawn = random.Random(first)
    while True:
        yield drawn.randrange(1 << 24)


@dataclass
class Block:
    """What one message carries: leaves and, for small ones, their places in a buffer.

    Attributes:
        leaves: The leaves, detached.
        buffer: The bytes that travel; those of the leaf itself where it is alone and contiguous.
        slots: The places of the leaves in the buffer, unless it is the leaf.
    """

    leaves: list[Tensor]
    buffer: Tensor
    slots: list[Slot] | None

    def write(self) -> None:
        """Copy the leaves into the buffer."""
        if self.slots is not None:
            copy_into(self.buffer, self.slots, self.leaves)

    def read(self) -> None:
        """Copy the buffer into the leaves."""
        if self.slots is not None:
            for slot, leaf in zip(self.slots, self.leaves, strict=True):
                leaf.copy_(view(self.buffer, slot))


def _is_block(leaf: Tensor) -> bool:
    """Whether the memory of a leaf is its values, one after the other."""
    return type(leaf) is Tensor and leaf.is_contiguous() and not leaf.is_conj() and not leaf.is_neg()


def _block(leaves: list[Tensor]) -> Block:
    leaf = leaves[0]
    if len(leaves) == 1 and _is_block(leaf):
        return Block(leaves, leaf.reshape(-1).view(torch.uint8), None)
    slots = slots_of(leaves)
    return Block(leaves, torch.empty(packed_size(slots), dtype=torch.uint8, device=leaf.device), slots)


def sorted_leaves(td: Any) -> list[Tensor]:
    """The leaves that hold anything, detached, in the order of their keys.

    Raises:
        TypeError: A leaf is no block of memory (sparse, quantized).
    """
    pairs = sorted(zip(td._leaf_keys(), td._leaves(), strict=True), key=lambda pair: pair[0])
    out = []
    for path, leaf in pairs:
        if leaf.layout is not torch.strided or leaf.is_quantized:
            raise errors.not_sendable(path, leaf)
        if leaf.numel():
            out.append(leaf.detach())
    return out


def blocks(td: Any, whole: bool = False) -> list[Block]:
    """The blocks of a tree; one block a device if ``whole``.

    Raises:
        TypeError: A leaf is no block of memory (sparse, quantized).

    >>> [len(block.leaves) for block in blocks(TensorDict({"a": 1, "b": 2.0, "c": torch.zeros(1 << 20)}))]
    [2, 1]
    """
    out: list[Block] = []
    small: dict[torch.device, tuple[list[Tensor], int]] = {}
    for leaf in sorted_leaves(td):
        if leaf.nbytes >= SMALL and not whole:
            out.append(_block([leaf]))
            continue
        pending, size = small.get(leaf.device, ([], 0))
        if pending and size + leaf.nbytes > BLOCK and not whole:
            out.append(_block(pending))
            pending, size = [], 0
        pending.append(leaf)
        small[leaf.device] = pending, size + leaf.nbytes
    # the rest goes first, so that it is under way while large ones are sent
    return [*(_block(pending) for pending, _ in small.values()), *out]


class Transfer:
    """A message under way; ``wait`` ends it.

    Args:
        work: What ``torch.distributed`` gave for it.
        finish: What remains to be done when it is there.
        holds: What must live until then.
    """

    def __init__(self, work: Any, finish: Callable[[], None] | None = None, holds: Any = None) -> None:
        self.work = work
        self.finish = finish
        self.holds = holds

    def wait(self) -> bool:
        """Wait until the message arrived and its values are in their leaves."""
        if self.work is not None:
            self.work.wait()
            self.work = None
            if self.finish is not None:
                self.finish()
            self.holds = None
        return True

    def is_completed(self) -> bool:
        """Whether ``wait`` would not wait."""
        return self.work is None or bool(self.work.is_completed())


def values(td: Any) -> list[Any]:
    """The non-tensor nodes of a tree, in the order of their keys."""
    found: list[tuple[tuple[str, ...], Any]] = []

    def walk(node: Any, prefix: tuple[str, ...]) -> None:
        if isinstance(node, containers.lazy):
            for td in node.tensordicts:
                walk(td, prefix)
            return
        for key, value in node._items():
            if isinstance(value, Primitives):
                if value._is_non_tensor:
                    found.append(((*prefix, key), value))
                elif not value._is_opaque:
                    walk(value, (*prefix, key))

    walk(td, ())
    return [node for _, node in sorted(found, key=lambda pair: pair[0])]


def reduced(leaves: Sequence[Tensor], bucket_bytes: int | None) -> Iterator[tuple[Tensor, Callable[[], None] | None]]:
    """The leaves as tensors to reduce: small ones of one dtype joined, with what copies the result back.

    Args:
        leaves: The leaves, as `sorted_leaves` gives them.
        bucket_bytes: The bytes that joined leaves grow to; 0 joins none.
    """
    limit = BLOCK if bucket_bytes is None else bucket_bytes
    groups: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], int]] = {}
    for leaf in leaves:
        if leaf.nbytes >= min(limit, SMALL if bucket_bytes is None else limit):
            yield _joined([leaf])
            continue
        pending, size = groups.get((leaf.dtype, leaf.device), ([], 0))
        if pending and size + leaf.nbytes > limit:
            yield _joined(pending)
            pending, size = [], 0
        pending.append(leaf)
        groups[leaf.dtype, leaf.device] = pending, size + leaf.nbytes
    for pending, _ in groups.values():
        yield _joined(pending)


def _joined(leaves: list[Tensor]) -> tuple[Tensor, Callable[[], None] | None]:
    if len(leaves) == 1 and _is_block(leaves[0]):
        return leaves[0], None
    buffer = torch.cat([leaf.reshape(-1).as_subclass(Tensor) for leaf in leaves])

    def back() -> None:
        for leaf, part in zip(leaves, torch.split(buffer, [leaf.numel() for leaf in leaves]), strict=True):
            leaf.copy_(part.view(leaf.shape))

    return buffer, back
