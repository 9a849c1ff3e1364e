"""`CustomContainer`: base class of containers that store their entries in their own way.

A subclass lists, reads, stores and removes entries. All operations follow, and their results are plain tensordicts.
Where reads copy, from a file or a server, indexing reads the selected rows only, an operation reads each entry once,
and what an in-place operation changes is written back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tensordict_core.base.index import Index
from tensordict_core.base.node import Node, Place
from tensordict_core.base.rebuild import How, IsLeaf
from tensordict_core.base.registry.types import containers
from tensordict_core.base.shape_op import ShapeOp
from tensordict_core.containers.delegating import Delegating, delegate
from tensordict_core.ops.io.format import describe


class CustomContainer(Delegating, abstract=True):
    """A container that stores its entries in its own way; results of operations are plain tensordicts.

    A subclass calls ``_start`` and defines ``_keys``, ``_get``, ``_set`` and ``_del``. If reads copy, it sets
    ``_reads_copy`` and defines ``_peek``, ``_read`` and ``_write`` too. If it defines ``_clone``, copies have its type.

    >>> from tensordict_core.extension import Meta
    >>> class Logged(CustomContainer):
    ...     def __init__(self, batch_size):
    ...         self._start(Meta(torch.Size(batch_size)))
    ...         self.table = {}
    ...     def _keys(self):
    ...         return self.table.keys()
    ...     def _get(self, key):
    ...         return self.table.get(key)
    ...     def _set(self, key, value):
    ...         print("set", key)
    ...         self.table[key] = value
    ...     def _del(self, key):
    ...         del self.table[key]
    >>> td = Logged([2])
    >>> td["a"] = torch.tensor([1.0, 2.0])
    set a
    >>> (td + 1)["a"], type(td[0]).__name__
    (tensor([2., 3.]), 'TensorDict')
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__dict__.get("_reads_copy") is True:
            Node._copies_exist = True

    def _now(self) -> Any:
        """Return a plain tensordict of the same entries; of copies of them where reads copy."""
        entries = {key: value._now() if isinstance(value, CustomContainer) else value for key, value in self._items()}
        return containers.dense._make(entries, self._meta)

    def _frame(self) -> Any:
        """Return a plain tensordict of the same structure; its tensors are stand-ins where reads copy."""
        if not self._reads_copy:
            return self._now()
        entries = {
            key: value._frame() if isinstance(value, CustomContainer) else value for key, value in self._peek_items()
        }
        return containers.dense._make(entries, self._meta)

    _collect = delegate("_collect")
    _solid = delegate("_solid")
    _clone = delegate("_clone")

    def _collect_places(self, out: list[Place], prefix: tuple[str, ...], is_leaf: IsLeaf | None) -> None:
        self._frame()._collect_places(out, prefix, is_leaf)

    def _rebuild(self, leaves: Iterator[Any], how: How) -> Any:
        result = self._frame()._rebuild(leaves, how)
        return result.lock_() if how.lock and self._locked and result is not None else result

    def _reshape(self, op: ShapeOp) -> Any:
        result = self._now()._reshape(op)
        return result.lock_() if op.lock and self._locked else result

    def _index(self, index: Index) -> Any:
        entries = {}
        for key in self._keys():
            entry = self._peek(key)
            entries[key] = entry._index(index) if isinstance(entry, Node) else self._read(key, index)
        return containers.dense._make(entries, index.meta(self._meta))

    # copies and in-place operations -----------------------------------------------------------------------------------

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self._clone(True)

    def __reduce__(self) -> Any:
        return unpickled, (self._now(), self._locked)

    def is_shared(self) -> bool:
        """Return whether the entries are in shared memory; copies never are."""
        return not self._reads_copy and super().is_shared()

    def _describe(self, key: str) -> str:
        entry = self._peek(key)
        if not self._reads_copy or isinstance(entry, Node):
            return super()._describe(key)
        return describe(torch.empty((), dtype=entry.dtype, device=self._meta.device).expand(self._shape_of(key)))


def unpickled(td: Any, locked: bool = False) -> Any:
    """Return the result of unpickling: a plain tensordict, locked if the container was."""
    return td.lock_() if locked else td
