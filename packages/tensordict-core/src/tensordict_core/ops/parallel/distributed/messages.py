"""Message plan: the leaves of a tree as few blocks of memory, in an order that sender and receiver share.

Both ends have the same keys, shapes and dtypes, so each computes the same plan. Small leaves of one dtype are joined to
one block; a large leaf is sent from its own memory. Leaves are sorted by key, so the insertion order does not matter.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, _utils

from tensordict_core.base import errors
from tensordict_core.base.node import Node

# torch does not type these
_flatten: Any = _utils._flatten_dense_tensors
_unflatten: Any = _utils._unflatten_dense_tensors

SMALL = 1 << 18
"""Leaves of fewer bytes are joined, because a separate message would cost more than the copy."""
BLOCK = 1 << 22
"""The size in bytes up to which small leaves are joined to one block."""


def process_group() -> Any:
    """Return the module ``torch.distributed``, after a check that a process group was started.

    Raises:
        RuntimeError: The module is not available, or no group was started.
    """
    import torch.distributed as dist

    if not dist.is_available():
        raise RuntimeError("this build of PyTorch has no torch.distributed; install one that has")
    if not dist.is_initialized():
        raise errors.NoGroupError("no process group was started; call torch.distributed.init_process_group first")
    return dist


def tags(first: int, pseudo_rand: bool) -> Iterator[int]:
    """Yield the tags of consecutive messages.

    >>> numbers = tags(3, False)
    >>> next(numbers), next(numbers)
    (3, 4)
    """
    if not pseudo_rand:
        yield from itertools.count(first)
    drawn = random.Random(first)
    while True:
        yield drawn.randrange(1 << 24)


@dataclass
class Block:
    """The contents of one message: leaves of one dtype, and the block of memory that is sent.

    Attributes:
        leaves: The leaves, detached.
        memory: The concatenated values of the leaves; a single contiguous leaf is its own memory.
        joined: Whether the memory is a copy.
    """

    leaves: list[Tensor]
    memory: Tensor
    joined: bool

    @property
    def bytes(self) -> Tensor:
        """The memory as bytes, which every backend can send whatever the dtype."""
        return self.memory.reshape(-1).view(torch.uint8)

    def read(self) -> None:
        """Copy the memory into the leaves."""
        if self.joined:
            with torch.no_grad():
                torch._foreach_copy_(self.leaves, _unflatten(self.memory, self.leaves))


def _is_block(leaf: Tensor) -> bool:
    """Return whether the memory of a leaf holds its values in order."""
    return type(leaf) is Tensor and leaf.is_contiguous() and not leaf.is_conj() and not leaf.is_neg()


def _block(leaves: list[Tensor], empty: bool) -> Block:
    first = leaves[0]
    if len(leaves) == 1 and _is_block(first):
        return Block(leaves, first, False)
    if empty:
        size = sum(leaf.numel() for leaf in leaves)
        return Block(leaves, torch.empty(size, dtype=first.dtype, device=first.device), True)
    if first.dtype.is_complex or any(type(leaf) is not Tensor for leaf in leaves):
        plain = [leaf.as_subclass(Tensor).resolve_conj().resolve_neg() for leaf in leaves]
    else:
        plain = leaves
    return Block(leaves, _flatten(plain), True)


def sorted_leaves(td: Any) -> list[Tensor]:
    """Return the leaves with elements, detached, in the order of their keys.

    Raises:
        TypeError: A leaf is not a dense block of memory (sparse, quantized).
    """
    paths, leaves = td._leaf_keys(), td._leaves()
    out = []
    for i in sorted(range(len(leaves)), key=paths.__getitem__):
        leaf = leaves[i]
        if leaf.layout is not torch.strided or leaf.is_quantized:
            raise errors.not_sendable(paths[i], leaf)
        if leaf.numel():
            out.append(leaf.detach() if leaf.requires_grad else leaf)
    return out


def blocks(leaves: Sequence[Tensor], *, limit: int = BLOCK, alone: int = SMALL, empty: bool = False) -> list[Block]:
    """Return the blocks of leaves that `sorted_leaves` returned.

    Args:
        leaves: The leaves.
        limit: The largest size in bytes of a block of joined leaves.
        alone: The size in bytes from which a leaf is not joined with others.
        empty: Whether the memory of joined leaves stays uninitialized, because it will be received.

    >>> [len(block.leaves) for block in blocks([torch.zeros(1), torch.ones(2), torch.zeros(1, dtype=torch.int64)])]
    [2, 1]
    """
    out: list[Block] = []
    pending: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], int]] = {}
    for leaf in leaves:
        size = leaf.nbytes
        if size >= alone:
            out.append(_block([leaf], empty))
            continue
        kind = leaf.dtype, leaf.device
        group, total = pending.get(kind, ([], 0))
        if group and total + size > limit:
            out.append(_block(group, empty))
            group, total = [], 0
        group.append(leaf)
        pending[kind] = group, total + size
    # the last joined leaves are sent first, while large leaves follow
    return [*(_block(group, empty) for group, _ in pending.values()), *out]


class Transfer:
    """A started message; ``wait`` completes it.

    Args:
        work: The handle from ``torch.distributed``.
        finish: A function that is called once the message arrived.
        holds: An object that is kept alive until then.
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
        """Return whether the message arrived."""
        return self.work is None or bool(self.work.is_completed())


def values(td: Any) -> list[Any]:
    """Return the non-tensor nodes of a tree, in the order of their keys."""
    return [node for _, node in sorted(_values(td, ()), key=lambda pair: pair[0])]


def _values(node: Any, prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    stack = node._lazy_stack
    if stack is not None:
        for td in stack.tensordicts:
            yield from _values(td, prefix)
        return
    for key, value in node._items():
        if isinstance(value, Node):
            if value._is_non_tensor:
                yield (*prefix, key), value
            elif not value._is_opaque:
                yield from _values(value, (*prefix, key))
