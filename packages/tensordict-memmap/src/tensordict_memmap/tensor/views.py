"""Views of memory-mapped tensors that stay memory-mapped: parts, nested tensors and ``detach``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch

from tensordict_memmap.schema.nested import nested_of
from tensordict_memmap.tensor.mapping import Mapping


class Views(torch.Tensor):
    """A tensor with a reference to the mapping of its memory, which views of it have too."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # a method

    _mapping: Mapping
    _index: Any
    _parent_shape: torch.Size
    _by_value = False
    """Whether pickles hold the values: those of detached tensors, which are in the state dicts of modules, do."""

    def _view(self, plain: torch.Tensor, index: Any) -> Self:
        view = plain.as_subclass(type(self))
        view._mapping = self._mapping
        view._index = index
        try:
            view._parent_shape = self.shape
        except RuntimeError:  # strided nested tensors have none
            view._parent_shape = self._parent_shape
        if self._by_value:
            view._by_value = True
        return view

    def _nested(self, rows: torch.Tensor) -> Self:
        """Return the nested tensor over these values whose components have the shapes in the rows of a tensor."""
        made = self._view(nested_of(self.as_subclass(torch.Tensor), rows.tolist(), jagged=False), None)
        made._parent_shape = torch.Size([len(rows)])
        return made

    def unbind(self, dim: int = 0) -> tuple[torch.Tensor, ...]:
        """Like ``torch.unbind``; each part stays memory-mapped.

        >>> from tensordict_memmap import MemoryMappedTensor
        >>> [type(part).__name__ for part in MemoryMappedTensor.ones(2, 3).unbind(0)]
        ['MemoryMappedTensor', 'MemoryMappedTensor']
        """
        before = (slice(None),) * (dim % max(self.ndim, 1))
        return tuple(
            self._view(part, (*before, number) if before else number) for number, part in enumerate(super().unbind(dim))
        )

    def split(self, split_size: Any, dim: int = 0) -> tuple[torch.Tensor, ...]:
        """Like ``torch.split``; each part stays memory-mapped."""
        return self._parts(super().split(split_size, dim), dim)  # type: ignore[no-untyped-call]  # torch's

    def chunk(self, chunks: int, dim: int = 0) -> tuple[torch.Tensor, ...]:
        """Like ``torch.chunk``; each part stays memory-mapped."""
        return self._parts(super().chunk(chunks, dim), dim)

    def _parts(self, parts: Sequence[torch.Tensor], dim: int) -> tuple[torch.Tensor, ...]:
        before = (slice(None),) * (dim % max(self.ndim, 1))
        first, views = 0, []
        for part in parts:
            here = slice(first, first + part.size(dim))
            views.append(self._view(part, (*before, here) if before else here))
            first = here.stop
        return tuple(views)

    def __iter__(self) -> Any:
        return iter(self.unbind(0))

    def detach(self) -> Self:
        """Return a memory-mapped view without gradients, whose pickle holds the values.

        State dicts of modules and tensordicts have detached tensors, so that ``torch.save`` of them writes values that
        later changes of the file do not reach. ``multiprocessing`` still sends the place of the file.

        >>> import pickle
        >>> from tensordict_memmap import MemoryMappedTensor
        >>> x = MemoryMappedTensor.zeros(2, filename="detached.memmap")
        >>> stored = pickle.dumps(x.detach())
        >>> _ = x.add_(1)
        >>> pickle.loads(stored)
        tensor([0., 0.])
        """
        view = self._again()
        view._by_value = True
        return view

    def _again(self) -> Self:
        """Return a memory-mapped view of all of this tensor, without gradients."""
        view = self._view(super().detach(), self._index)
        view._parent_shape = self._parent_shape
        return view
