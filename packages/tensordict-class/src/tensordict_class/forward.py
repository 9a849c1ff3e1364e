"""Forwarding: a container around another one. It implements core's primitives by asking the one that it wraps.

Every operation comes from core's families, which end in the primitives; what a primitive gives is wrapped in the same
class again (`_wrap`), so results keep the class whatever the operation and whatever is wrapped: a dense tensordict, a
lazy stack, a memory-mapped one, a view.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_core.extension import How, Index, IsLeaf, Meta, ShapeOp, TensorCollection

from . import errors

__all__ = ["Forwarding"]


class Forwarding(TensorCollection):
    """The primitives of a container that wraps another one."""

    __slots__ = ("_tensordict",)

    _tensordict: Any
    """The container that is wrapped."""

    @classmethod
    def _wrap(cls, tensordict: Any) -> Self:
        """An instance around a container whose entries are known to fit."""
        self = object.__new__(cls)
        object.__setattr__(self, "_tensordict", tensordict)
        return self

    @classmethod
    def _shell(cls, tensordict: Any) -> Self:
        """As ``_wrap``, for containers that have no entries yet."""
        return cls._wrap(tensordict)

    @classmethod
    def _check_key(cls, key: str) -> None:
        """Raise where an entry of that name cannot be."""

    @classmethod
    def _unwrapped(cls, items: Sequence[Any], what: str) -> list[Any]:
        """What instances of this very class wrap."""
        for item in items:
            if type(item) is not cls:
                raise errors.other_class(what, cls, type(item))
        return [item._tensordict for item in items]

    # state -----------------------------------------------------------------------------------------------------------

    @property
    def _meta(self) -> Meta:  # type: ignore[override]
        meta: Meta = self._tensordict._meta
        return meta

    @property
    def _locked(self) -> bool:  # type: ignore[override]
        locked: bool = self._tensordict._locked
        return locked

    @property
    def _holders(self) -> Any:
        return self._tensordict._holders

    @_holders.setter
    def _holders(self, value: Any) -> None:
        self._tensordict._holders = value

    @property
    def _annotations(self) -> Any:
        return self._tensordict._annotations

    @_annotations.setter
    def _annotations(self, value: Any) -> None:
        self._tensordict._annotations = value

    @property
    def _last_exit(self) -> Any:
        return self._tensordict._last_exit

    @_last_exit.setter
    def _last_exit(self, value: Any) -> None:
        self._tensordict._last_exit = value

    @property
    def _holds_slices(self) -> bool:  # type: ignore[override]
        holds: bool = self._tensordict._holds_slices
        return holds

    @property
    def _entries(self) -> Mapping[str, Any]:
        entries: Mapping[str, Any] = self._tensordict._entries
        return entries

    # entries ---------------------------------------------------------------------------------------------------------

    def _keys(self) -> Iterable[str]:
        return self._tensordict._keys()  # type: ignore[no-any-return]

    def _get(self, key: str) -> Any:
        return self._tensordict._get(key)

    def _peek(self, key: str) -> Any:
        return self._tensordict._peek(key)

    def _items(self) -> Iterable[tuple[str, Any]]:
        return self._tensordict._items()  # type: ignore[no-any-return]

    def _peek_items(self) -> Iterable[tuple[str, Any]]:
        return self._tensordict._peek_items()  # type: ignore[no-any-return]

    def _get_ragged(self, key: str, default: Any = None, **options: Any) -> Any:
        return self._tensordict._get_ragged(key, default, **options)

    def _set(self, key: str, value: Any, inplace: bool) -> None:
        self._check_key(key)
        self._tensordict._set(key, value, inplace)

    def _del(self, key: str) -> None:
        self._tensordict._del(key)

    def _rename(self, old: str, new: str) -> None:
        self._check_key(new)
        self._tensordict._rename(old, new)

    # leaves ----------------------------------------------------------------------------------------------------------

    def _collect(self, out: list[Any], is_leaf: IsLeaf | None) -> None:
        self._tensordict._collect(out, is_leaf)

    def _collect_keys(self, out: list[Any], prefix: tuple[str, ...], is_leaf: IsLeaf | None) -> None:
        self._tensordict._collect_keys(out, prefix, is_leaf)

    def _collect_aligned(
        self, other: Any, out: list[Any], missing: Any, is_leaf: IsLeaf | None, prefix: tuple[str, ...]
    ) -> None:
        self._tensordict._collect_aligned(other, out, missing, is_leaf, prefix)

    def _collect_sizes(self, out: list[torch.Size], is_leaf: IsLeaf | None) -> None:
        self._tensordict._collect_sizes(out, is_leaf)

    def _line_up(self, operand: Tensor, dims: int, out: list[Tensor]) -> None:
        self._tensordict._line_up(operand, dims, out)

    def _write_leaves(self, values: Sequence[Any], is_leaf: IsLeaf | None = None) -> None:
        self._tensordict._write_leaves(values, is_leaf)

    def _rebuild(self, leaves: Iterator[Any], how: How) -> Any:
        result = self._tensordict._rebuild(leaves, how)
        return None if result is None else self._wrap(result)

    def _solid(self) -> Any:
        solid = self._tensordict._solid()
        return self if solid is self._tensordict else self._wrap(solid)

    # shape -----------------------------------------------------------------------------------------------------------

    def _index(self, index: Index) -> Any:
        return self._wrap(self._tensordict._index(index))

    def _index_put(self, index: Index, value: Any) -> None:
        self._tensordict._index_put(index, value)

    def _view_at(self, index: Index) -> Any:
        return self._wrap(self._tensordict._view_at(index))

    def _room(self, size: torch.Size, index: Index) -> Any:
        return self._shell(self._tensordict._room(size, index))

    def _reshape(self, op: ShapeOp) -> Any:
        return self._wrap(self._tensordict._reshape(op))

    @classmethod
    def _stack(cls, items: Sequence[Any], dim: int) -> Any:
        inner = cls._unwrapped(items, "stack")
        return cls._wrap(_container(inner)._stack(inner, dim))

    @classmethod
    def _cat(cls, items: Sequence[Any], dim: int) -> Any:
        inner = cls._unwrapped(items, "cat")
        return cls._wrap(_container(inner)._cat(inner, dim))

    @classmethod
    def _lazy(cls, items: Sequence[Any], dim: int) -> Any:
        inner = cls._unwrapped(items, "lazy_stack")
        return cls._wrap(_container(inner)._lazy(inner, dim))

    def _unbind(self, dim: int) -> tuple[Any, ...]:
        return tuple(map(self._wrap, self._tensordict._unbind(dim)))

    # life ------------------------------------------------------------------------------------------------------------

    def _clone(self, recurse: bool) -> Self:
        return self._wrap(self._tensordict._clone(recurse))

    def _nodes(self) -> Iterable[Any]:
        return self._tensordict._nodes()  # type: ignore[no-any-return]

    def _set_meta(self, meta: Meta) -> None:
        self._tensordict._set_meta(meta)

    def _set_locked(self, locked: bool) -> None:
        self._tensordict._set_locked(locked)

    # on disk ---------------------------------------------------------------------------------------------------------

    def _disk_form(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        return {}, {"_tensordict": self._tensordict}

    @classmethod
    def _from_disk_form(cls, facts: dict[str, Any], parts: dict[str, Any]) -> Any:
        return cls._wrap(parts["_tensordict"])


def _container(inner: list[Any]) -> Any:
    """The type that combines these containers: the first's, unless another takes columns with others in them."""
    for node in inner:
        if node._combines_others:
            return type(node)
    return type(inner[0])
