"""`ReshapedView`: a live view of a tensordict with another shape, which shape operations return in the legacy mode.

Under ``set_lazy_legacy(True)``, ``view``, ``permute``, ``transpose``, ``unsqueeze`` and ``squeeze`` return one. It
holds the source and the operation only: a read applies the operation to an entry of the source, and a write stores the
result of the inverse operation there. The inverse operation of a view returns the source itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_core.base.index import Index
from tensordict_core.base.node import Node
from tensordict_core.base.registry.types import containers
from tensordict_core.base.shape_op import ShapeOp, Squeeze, Unsqueeze
from tensordict_core.containers.collection import is_tensordict
from tensordict_core.containers.custom import CustomContainer
from tensordict_core.containers.delegating import Delegating
from tensordict_core.containers.view import LiveView


def _can_be_viewed(node: Any) -> bool:
    """Return whether a node is a tensordict that keeps its entries itself; parameters and tensorclasses wrap one."""
    return is_tensordict(node) and (isinstance(node, CustomContainer) or not isinstance(node, Delegating))


class ReshapedView(LiveView):
    """A live view of a tensordict with another shape; new keys and in-place writes reach the tensordict.

    >>> td = TensorDict({"a": torch.zeros(2, 3)}, [2, 3])
    >>> import warnings
    >>> from tensordict_core import set_lazy_legacy
    >>> with warnings.catch_warnings(action="ignore"), set_lazy_legacy(True):
    ...     flat = td.view(-1)
    >>> flat["new"] = torch.arange(6)
    >>> td["new"]
    tensor([[0, 1, 2],
            [3, 4, 5]])
    """

    __slots__ = ("_op",)

    def __init__(self, source: Any, op: ShapeOp) -> None:
        self._show(source, op.meta(source._meta))
        self._op = op
        if self._reads_copy:
            Node._copies_exist = True

    @classmethod
    def _of(cls, source: Any, op: ShapeOp) -> Any:
        """Return the view of a tensordict by an operation; ``None`` for containers that wrap a tensordict."""
        if not _can_be_viewed(source):
            return None
        if source._is_lazy_stack and isinstance(op, Squeeze | Unsqueeze):
            inner = op.through_stack(source.stack_dim)
            return inner and containers.lazy._make([cls(one, inner[0]) for one in source.tensordicts], inner[1])
        if type(source) is cls and source._is_undone_by(op):
            return source._parent
        return cls(source, op)

    def _is_undone_by(self, op: ShapeOp) -> bool:
        before = torch.empty(self._op.old, device="meta")
        try:
            after = op.leaf(self._op.leaf(before))
        except RuntimeError:  # no view of the strides
            return False
        return after.shape == before.shape and all(
            n == 1 or one == other for n, one, other in zip(before.shape, after.stride(), before.stride(), strict=True)
        )

    @property
    def _reads_copy(self) -> bool:
        """Whether an entry is stacked or loaded at each read, so that a write into it does not reach the source."""
        return bool(self._parent._is_lazy_stack or self._parent._reads_copy)

    # entries ---------------------------------------------------------------------------------------------------------

    def _get(self, key: str) -> Any:
        value = self._parent._get(key)
        if not isinstance(value, Node):
            return None if value is None else self._op.leaf(value)
        return ReshapedView(value, self._op) if _can_be_viewed(value) else value._reshape(self._op)

    def _nodes(self) -> Iterable[Node]:
        peek = self._parent._peek
        return [self._get(key) for key in self._parent._keys() if isinstance(peek(key), Node)]

    def _peek(self, key: str) -> Any:
        value = self._parent._peek(key)
        if value is None or isinstance(value, Node) or not self._reads_copy:
            return self._get(key)
        return torch.empty(self._shape_of(key), dtype=value.dtype, device="meta")

    def _shape_of(self, key: str) -> torch.Size:
        shape: torch.Size = self._parent._shape_of(key)
        return self._op.new + shape[len(self._op.old) :]

    def _set(self, key: str, value: Tensor | Node) -> None:
        self._parent._set(key, self._op.back(value, None))

    def _write(self, key: str, index: Index | None, value: Tensor) -> None:
        if index is not None:
            whole = self._get(key).clone()
            whole[index.idx] = value
            value = whole
        self._parent.set_(key, self._op.back(value, None))

    # state -----------------------------------------------------------------------------------------------------------

    def _set_locked(self, locked: bool) -> None:
        if locked != self._locked:
            self._parent.lock_() if locked else self._parent.unlock_()

    def is_memmap(self) -> bool:
        """Return whether the entries of the source are memory-mapped."""
        return bool(self._parent.is_memmap())

    def is_shared(self) -> bool:
        """Return whether the entries of the source are in shared memory."""
        return bool(self._parent.is_shared())

    def detach_(self) -> Self:
        """Detach the entries of the source in place, and return the view."""
        self._parent.detach_()
        return self

    def memmap_(self, *args: Any, **kwargs: Any) -> Any:
        """Memory-map the entries of the source, and return the view."""
        self._parent.memmap_(*args, **kwargs)
        return self

    def share_memory_(self) -> Self:
        """Move the entries of the source to shared memory, and return the view."""
        self._parent.share_memory_()
        return self


containers.reshaped = ReshapedView
