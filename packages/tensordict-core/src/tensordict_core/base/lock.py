"""Locks: ``lock_`` and ``unlock_`` of a tree, and the references that keep nodes of a locked tree locked.

Locking a tree marks every node and adds to each child a weak reference to its parent, its *holder*. A node with a
living holder outside the unlocked tree cannot be unlocked; a node can have several holders. A locked node refuses to
add, replace and remove entries, and allows in-place writes.
"""

from __future__ import annotations

import weakref
from typing import Any, Self

from tensordict_core.base import errors
from tensordict_core.base.node import Node
from tensordict_core.base.tracing import is_compiling


def _holders(node: Any) -> list[Any]:
    """Return the locked parents of a node that still exist."""
    return [holder for ref in node._holders or () if (holder := ref()) is not None and holder._locked]


def _children(node: Any) -> list[Any]:
    """Return the child nodes; for a wrapper the wrapped node, because the wrapper may be temporary."""
    return [child._inmost() for child in node._nodes()]


def _add_holder(child: Any, holder: Any) -> None:
    """Add a reference to a locked parent; references to deleted parents are dropped now and then."""
    known = child._holders
    if known is None:
        child._holders = [holder]
        return
    count = len(known)
    if count >= _MANY and not count & (count - 1):  # a power of two, so that the cost per call stays constant
        known[:] = [ref for ref in known if ref() is not None]
    known.append(holder)


_MANY = 8
"""The number of references from which those to deleted parents are searched."""


def _lock(root: Any) -> None:
    root._set_locked(True)
    # Dynamo cannot trace weak references, so a tree that is locked in a trace has no holders
    held = not is_compiling()
    nodes, locked = [root], [root]
    while nodes:
        node = nodes.pop()
        children = _children(node)
        for child in children:
            if child._locks_with_parent and not child._locked:
                _undo(locked)
                raise errors.lock_of_a_view(True)
        if held:
            _hold(node, children)
        for child in children:
            if not child._locked:
                child._set_locked(True)
                nodes.append(child)
                locked.append(child)


def _undo(nodes: list[Any]) -> None:
    """Take back the lock of nodes, and the references to them."""
    for node in nodes:
        node._set_locked(False)
        for child in _children(node):
            if not child._locks_with_parent and child._holders is not None:
                child._holders = [ref for ref in child._holders if ref() is not node] or None


def _hold(node: Any, children: list[Any]) -> None:
    """Record a locked node as a holder of its child nodes."""
    holder = weakref.ref(node)
    for child in children:
        if not child._locks_with_parent:
            _add_holder(child, holder)


def _unlock(root: Any) -> None:
    held = not is_compiling()
    tree: list[Any] = []
    waiting = [(root, None)]
    while waiting:
        node, above = waiting.pop()
        tree.append(node)
        if held and node._holders is not None and any(holder is not above for holder in _holders(node)):
            raise errors.locked_graph()  # before any change
        # a view stays locked as long as the tensordict that it shows
        waiting += [(child, node) for child in _children(node) if not child._locks_with_parent]
    for node in tree:
        node._set_locked(False)
        node._holders = None


def _unlock_after(td: Any) -> None:
    td.unlock_()


def _lock_after(td: Any) -> None:
    td.lock_()


class Locking(Node):
    """``lock_``, ``unlock_`` and ``is_locked``."""

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
        """Return whether this node is a lazy stack of locked elements."""
        return False

    def lock_(self) -> Self:
        """Lock this tensordict and all nested ones; as a context manager, unlock them at the end of the block.

        >>> td = TensorDict({"a": {"b": 1}}).lock_()
        >>> td["a"].is_locked
        True
        """
        if self._locked:
            self._set_exit(None)  # a with block over it changes nothing
        else:
            _lock(self)
            self._set_exit(_unlock_after)
        return self

    def unlock_(self) -> Self:
        """Unlock this tensordict and all nested ones; as a context manager, lock them at the end of the block.

        Raises:
            RuntimeError: The tensordict or a nested one is part of another locked tensordict.

        >>> td = TensorDict({"a": 1}, lock=True)
        >>> with td.unlock_():
        ...     td["b"] = 2
        >>> td.is_locked
        True
        """
        was_locked = self.is_locked
        _unlock(self)  # nested tensordicts can be locked without this one
        self._set_exit(_lock_after if was_locked else None)
        return self
