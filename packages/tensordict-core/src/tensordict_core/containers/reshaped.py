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

from tensordict_core.base import errors
from tensordict_core.base.index import Index
from tensordict_core.base.node import Node
from tensordict_core.base.registry.types import containers
from tensordict_core.base.shape_op import ShapeOp, Squeeze, Unsqueeze
from tensordict_core.containers.collection import TensorDictBase
from tensordict_core.containers.custom import CustomContainer
from tensordict_core.containers.delegating import Delegating


def _can_be_viewed(node: Any) -> bool:
    """Return whether a node is a tensordict that keeps its entries itself; parameters and tensorclasses wrap one."""
    return isinstance(node, TensorDictBase) and (isinstance(node, CustomContainer) or not isinstance(node, Delegating))


class ReshapedView(CustomContainer):
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

    __slots__ = ("_annotations", "_holders", "_last_exit", "_meta", "_op", "_source")

    def __init__(self, source: Any, op: ShapeOp) -> None:
        self._source = source
        self._op = op
        self._meta = op.meta(source._meta)
        self._holders = None
        self._annotations = None
        self._last_exit = None
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
            return source._source
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
        return bool(self._source._is_lazy_stack or self._source._reads_copy)

    # entries ---------------------------------------------------------------------------------------------------------

    def _keys(self) -> Iterable[str]:
        keys: Iterable[str] = self._source._keys()
        return keys

    def _get(self, key: str) -> Any:
        value = self._source._get(key)
        if not isinstance(value, Node):
            return None if value is None else self._op.leaf(value)
        return ReshapedView(value, self._op) if _can_be_viewed(value) else value._reshape(self._op)

    def _nodes(self) -> Iterable[Node]:
        peek = self._source._peek
        return [self._get(key) for key in self._source._keys() if isinstance(peek(key), Node)]

    def _peek(self, key: str) -> Any:
        value = self._source._peek(key)
        if value is None or isinstance(value, Node) or not self._reads_copy:
            return self._get(key)
        return torch.empty(self._shape_of(key), dtype=value.dtype, device="meta")

    def _shape_of(self, key: str) -> torch.Size:
        shape: torch.Size = self._source._shape_of(key)
        return self._op.new + shape[len(self._op.old) :]

    def _set(self, key: str, value: Tensor | Node) -> None:
        self._source._set(key, self._op.back(value, None))

    def _write(self, key: str, index: Index | None, value: Tensor) -> None:
        if index is not None:
            whole = self._get(key).clone()
            whole[index.idx] = value
            value = whole
        self._source.set_(key, self._op.back(value, None))

    def _del(self, key: str) -> None:
        self._source._del(key)

    def _rename(self, old: str, new: str) -> None:
        self._source._rename(old, new)

    # state -----------------------------------------------------------------------------------------------------------

    def _change_batch_size(self, size: torch.Size) -> None:
        if size != self._meta.batch_size:
            remedy = "clone() the view to have a tensordict of its own"
            raise errors.fixed_batch_size(size, self._meta.batch_size, remedy)

    @property
    def _locked(self) -> bool:  # type: ignore[override]  # a slot elsewhere; a view is locked with its source
        return bool(self._source._locked)

    def _set_locked(self, locked: bool) -> None:
        if locked != self._locked:
            self._source.lock_() if locked else self._source.unlock_()

    def is_memmap(self) -> bool:
        """Return whether the entries of the source are memory-mapped."""
        return bool(self._source.is_memmap())

    def is_shared(self) -> bool:
        """Return whether the entries of the source are in shared memory."""
        return bool(self._source.is_shared())

    def detach_(self) -> Self:
        """Detach the entries of the source in place, and return the view."""
        self._source.detach_()
        return self

    def memmap_(self, *args: Any, **kwargs: Any) -> Any:
        """Memory-map the entries of the source, and return the view."""
        self._source.memmap_(*args, **kwargs)
        return self

    def share_memory_(self) -> Self:
        """Move the entries of the source to shared memory, and return the view."""
        self._source.share_memory_()
        return self


containers.reshaped = ReshapedView
