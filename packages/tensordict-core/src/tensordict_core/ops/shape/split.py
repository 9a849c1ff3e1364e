"""Splitting along a batch dimension: ``unbind``, ``narrow``, ``split``, ``chunk``, ``tensor_split``."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.index import Index
from tensordict_core.base.node import Node
from tensordict_core.base.shape_op import normal_dim


def _whole(value: Any, rule: str, given: Any) -> int:
    """Return an integer, or a tensor that holds one, as an ``int``; raise an error with the rule otherwise."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{rule}, got {given!r}; pass integers") from None


class Splitting(Node):
    """Methods that split a tensordict along a batch dimension."""

    __slots__ = ()

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """Return the slices along a batch dimension, as views.

        Raises:
            IndexError: There is no such dimension.

        >>> [td["a"].item() for td in TensorDict({"a": torch.arange(2)}, [2]).unbind(0)]
        [0, 1]
        """
        size = self._meta.batch_size
        if not size:
            raise errors.no_batch_dim("unbind")
        parts = self._unbind(normal_dim(dim, size))
        if self._locked and (self._in_shared_memory() or self.is_memmap()):  # as rows, see Indexing
            for part in parts:
                part.lock_()
        return parts

    def narrow(self, dim: int, start: int | Tensor, length: int) -> Self:
        """Return a view of ``length`` slices along a batch dimension, beginning at ``start``.

        >>> TensorDict({"a": torch.arange(4)}, [4]).narrow(0, 1, 2)["a"]
        tensor([1, 2])
        """
        size = self._meta.batch_size
        at = normal_dim(dim, size)
        begin, count = (
            n if isinstance(n, int) else _whole(n, f"narrow(): argument '{name}' must be an int", n)
            for name, n in (("start", start), ("length", length))
        )
        first = begin + (size[at] if begin < 0 else 0)
        if not 0 <= first <= first + count <= size[at]:
            raise RuntimeError(
                f"narrow: start ({begin}) + length ({count}) exceeds dimension size ({size[at]}) of dimension "
                f"{at}; pass a smaller start or length"
            )
        part = self._index(Index((*(slice(None),) * at, slice(first, first + count)), size))
        return part.lock_() if self._locked else part

    def split(self, split_size: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Return pieces of ``split_size`` slices (the last may be smaller), or of the given sizes, as views.

        Raises:
            RuntimeError: The sizes do not add up to the size of the dimension.

        >>> [td.batch_size[0] for td in TensorDict({"a": torch.arange(5)}, [5]).split(2)]
        [2, 2, 1]
        """
        size = self._meta.batch_size
        if not size:
            raise errors.no_batch_dim("split")
        at = normal_dim(dim, size)
        total = size[at]
        if isinstance(split_size, int):
            if split_size < 0 or (split_size == 0 and total):
                raise errors.SizeError(
                    f"TensorDict.split: split_size must be positive, got {split_size}; use chunk for a number of pieces"
                )
            sizes = [min(split_size, total - start) for start in range(0, total, split_size or 1)] or [0]
        else:
            given: Any = split_size
            parts: list[Any] = list(given) if isinstance(given, Iterable) else [given]
            rule = "split(): argument 'split_size' must be int or list of ints"
            whole: list[Any] = [n if isinstance(n, int | torch.SymInt) else _whole(n, rule, given) for n in parts]
            sizes = whole
            if sum(sizes) != total or any(n < 0 for n in sizes):
                raise errors.bad_split_sizes(sizes, total, at)
        return self._pieces(sizes, at)

    def _pieces(self, sizes: list[int], dim: int) -> tuple[Self, ...]:
        pieces: tuple[Self, ...] = tuple(self._split(sizes, dim))
        if self._locked:
            for piece in pieces:
                piece.lock_()
        return pieces

    def _split(self, sizes: list[int], dim: int) -> Sequence[Any]:
        """Return consecutive pieces of these sizes along ``dim``; containers with a faster way override it."""
        pieces, start = [], 0
        for n in sizes:
            pieces.append(self._index(Index((slice(None),) * dim + (slice(start, start + n),), self._meta.batch_size)))
            start += n
        return pieces

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Self, ...]:
        """Return at most ``chunks`` pieces of equal size (the last may be smaller) along a batch dimension, as views.

        >>> len(TensorDict({"a": torch.arange(5)}, [5]).chunk(2))
        2
        """
        if chunks < 1:
            raise ValueError(
                f"chunks must be a strictly positive integer, got {chunks}; use split for pieces of a size"
            )
        size = self._meta.batch_size
        total = size[normal_dim(dim, size)] if size else 0
        if not total:
            return self.split(
                [0] * chunks if size else 1, dim
            )  # an empty dimension has as many empty chunks as requested, as in torch
        return self.split(-(-total // chunks), dim)

    def tensor_split(self, indices_or_sections: Any, dim: int = 0) -> tuple[Self, ...]:
        """Return pieces along a batch dimension: a number of pieces of nearly equal size, or pieces cut at indices.

        Raises:
            ValueError: There are fewer than 1 pieces, or a tensor is not one of indices; it is a `RuntimeError` too.

        >>> [td.batch_size[0] for td in TensorDict({"a": torch.arange(5)}, [5]).tensor_split(2)]
        [3, 2]
        """
        size = self._meta.batch_size
        if not size:
            raise errors.no_batch_dim("tensor_split")
        at = normal_dim(dim, size)
        if not isinstance(indices_or_sections, (int, Tensor, Iterable)):
            raise TypeError(
                "indices_or_sections is a number of pieces or a sequence of indices, got "
                f"{indices_or_sections!r}; pass an integer or a list of integers"
            )
        given = indices_or_sections if isinstance(indices_or_sections, int | Tensor) else tuple(indices_or_sections)
        try:
            pieces = torch.empty(size[at], device="meta").tensor_split(given)
        except RuntimeError as error:
            raise errors.SizeError(f"tensor_split: {str(error).removeprefix('tensor_split ')}") from None
        sizes = [len(piece) for piece in pieces]
        return self._pieces(sizes, at) if sum(sizes) == size[at] else self._cut_at(indices_or_sections, at)

    def _cut_at(self, indices: Any, dim: int) -> tuple[Self, ...]:
        cuts = [0, *[int(i) for i in indices], self._meta.batch_size[dim]]
        indices = [(slice(None),) * dim + (slice(a, b),) for a, b in zip([0, *cuts[1:-1]], cuts[1:], strict=True)]
        return tuple(self._index(Index(index, self._meta.batch_size)) for index in indices)
