"""Locks: a node knows who holds it, so unlocking a child of a locked parent can be refused at once.

Locking a tree marks each node and tells it its parent; a node can be held by several trees. Holders are weak
references, so a parent that is gone holds nothing. Locked nodes refuse new, replaced and removed entries; in-place
writes go through.
"""

from __future__ import annotations

import weakref
from typing import Any, Self

from tensordict_core.base import errors
from tensordict_core.base.node import Node
from tensordict_core.base.tracing import is_compiling

__all__ = ["Locking"]


def _holders(node: Any) -> list[Any]:
    """The locked parents of a node that are still alive."""
    return [holder for ref in node._holders or () if (holder := ref()) is not None and holder._locked]


def _children(node: Any) -> list[Any]:
    """The nodes right below one; of a wrapper the node that it wraps, which lives as long as the tree."""
    return [child._inmost() for child in node._nodes()]


def _lock(root: Any) -> None:
    root._set_locked(True)
    # Dynamo cannot trace weak references; a tree locked while traced is unlocked as a whole or not at all
    held = not is_compiling()
    nodes = [root]
    while nodes:
        node = nodes.pop()
        children = _children(node)
        if children and held:
            holder = weakref.ref(node)
            for child in children:
                if child._holders is None:
                    child._holders = [holder]
                else:
                    child._holders.append(holder)
        for child in children:
            if not child._locked:
                child._set_locked(True)
                nodes.append(child)


def _hold(node: Any) -> None:
    """Tell the nodes right below a locked one who holds them."""
    holder = weakref.ref(node)
    for child in _children(node):
        child._holders = [*(child._holders or ()), holder]


def _unlock(root: Any) -> None:
    held = not is_compiling()
    tree: list[Any] = []
    waiting = [(root, None)]
    while waiting:
        node, above = waiting.pop()
        tree.append(node)
        if held and node._holders is not None and any(holder is not above for holder in _holders(node)):
            raise errors.locked_graph()  # nothing was changed by then
        waiting += [(child, node) for child in _children(node)]
    for node in tree:
        node._set_locked(False)
        node._holders = None


def _nothing(td: Any) -> None:
    """What ends a block whose start changed nothing."""


def _unlock_after(td: Any) -> None:
    td.unlock_()


def _lock_after(td: Any) -> None:
    td.lock_()


class Locking(Node):
    """``lock_``, ``unlock_`` and what they mean."""

    __slots__ = ()

    @property
    def is_locked(self) -> bool:
        """Whether entries may not be added, replaced or removed; settable.

        >>> TensorDict({"a": 1}, lock=True).is_locked
        True
        """
        return self._locked or self._are_elements_locked()

    @is_locked.setter
    def is_locked(self, value: bool) -> None:
        if value:
            self.lock_()
        else:
            self.unlock_()

    def _are_elements_locked(self) -> bool:
        """Whether there are elements side by side, and all of them are locked."""
        return False

    def lock_(self) -> Self:
        """Lock this tensordict and all below it. As a context manager it unlocks again at the end.

        >>> td = TensorDict({"a": {"b": 1}}).lock_()
        >>> td["a"].is_locked
        True
        """
        if self._locked:
            self._set_exit(_nothing)
        else:
            _lock(self)
            self._set_exit(_unlock_after)
        return self

    def unlock_(self) -> Self:
        """Unlock this tensordict and all below it. As a context manager it locks again at the end.

        Raises:
            RuntimeError: It, or something below it, is part of another locked tensordict.

        >>> td = TensorDict({"a": 1}, lock=True)
        >>> with td.unlock_():
        ...     td["b"] = 2
        >>> td.is_locked
        True
        """
        if self.is_locked:
            _unlock(self)
            self._set_exit(_lock_after)
        else:
            self._set_exit(_nothing)
        return self
