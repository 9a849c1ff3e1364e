"""Shared memory and pinned memory: ``share_memory_``, ``pin_memory``."""

from __future__ import annotations

from typing import Any, Self

import torch

from tensordict_core.base import errors
from tensordict_core.base.node import Node
from tensordict_core.base.predicates import is_leaf_nontensor
from tensordict_core.base.rebuild import SAME
from tensordict_core.ops.cast import pinned


def annotate_empty(root: Any, name: str) -> None:
    """Set an annotation of the tensordicts without tensors, ``root`` included: no tensor tells that they are shared.

    >>> from tensordict_core.extension import annotation
    >>> td = TensorDict({"a": 1, "empty": {}})
    >>> annotate_empty(td, "origin")
    >>> annotation(td["empty"], "origin"), annotation(td, "origin")
    (True, None)
    """
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if not node._leaves():
            node._annotations = {**(node._annotations or {}), name: True}
        waiting += [child for child in node._nodes() if not (child._is_non_tensor or child._is_opaque)]


class SharedMemory(Node):
    """``share_memory_``, ``pin_memory`` and ``pin_memory_``."""

    __slots__ = ()

    def share_memory_(self) -> Self:
        """Move every leaf into shared memory, which other processes access without a copy, and lock the tensordict.

        In-place writes of one process are visible to all, those of non-tensor values too. Leaves on accelerators are
        shared without a move.

        Raises:
            RuntimeError: The tensordict is locked in mapped files, or entries are in a file or on a server, and reads
                copy them.

        >>> td = TensorDict({"a": torch.zeros(3)}).share_memory_()
        >>> td.is_shared(), td.is_locked
        (True, True)
        """
        if Node._copies_exist and self._copies_below():
            raise errors.not_in_memory("share_memory_", self)
        if self._locked and self.is_memmap():
            raise errors.mapped_and_shared("share_memory_", "mapped onto files")
        for leaf in self._leaves(is_leaf_nontensor):
            if getattr(leaf, "_is_non_tensor", False):
                leaf._share()
            else:
                leaf.share_memory_()
        annotate_empty(self, "shared")
        return self.lock_()

    def pin_memory(self, num_threads: int | None = None, inplace: bool = False) -> Self:
        """Return a tensordict with the leaves in pinned (page-locked) memory, from which copies may be asynchronous.

        Args:
            num_threads: The number of threads that copy; by default one.
            inplace: Whether the leaves of this tensordict are replaced instead.

        Raises:
            RuntimeError: There are leaves and no accelerator, or the tensordict is locked and ``inplace``.

        >>> td = TensorDict({"a": torch.zeros(3)})
        >>> td.pin_memory()["a"].is_pinned() if torch.cuda.is_available() else True
        True
        """
        if inplace and self._locked:
            raise errors.locked("pin_memory(inplace=True)")
        leaves = self._leaves()
        if leaves and not torch.accelerator.is_available():
            raise RuntimeError(
                "pin_memory needs an accelerator that copies from pinned memory, and this machine has none; leave out "
                "pin_memory"
            )
        return self._in_place(self._rebuild(iter(pinned(leaves, num_threads)), SAME), inplace)

    def pin_memory_(self, num_threads: int = 0) -> Self:
        """Replace the leaves by copies in pinned memory, as ``pin_memory`` with ``inplace=True``.

        Args:
            num_threads: The number of threads that copy.

        Raises:
            RuntimeError: There is no accelerator, or the tensordict is locked.

        >>> td = TensorDict({"a": torch.zeros(3)})
        >>> td.pin_memory_() is td if torch.cuda.is_available() else True
        True
        """
        return self.pin_memory(num_threads, inplace=True)
