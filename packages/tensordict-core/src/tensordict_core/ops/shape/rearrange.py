"""Rearrangement of rows: ``flip``, ``roll``, ``rot90``, ``repeat``, ``tile``, ``repeat_interleave``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.shape_op import BatchOp, normal_dim
from tensordict_core.ops.shape.reshape import Shape, as_ints, sizes_of


class Rearrangement(Shape):
    """Copies with the rows of the batch reversed, rolled, rotated or repeated."""

    __slots__ = ()

    def _batch_op(
        self,
        function: Any,
        new: Sequence[int] | None = None,
        names: Any = None,
        device: torch.device | None = None,
        stacked: bool = False,
    ) -> Self:
        size = self._meta.batch_size
        new_size = size if new is None else torch.Size(new)
        op = BatchOp(size, new_size, function, names=names, lock=True, device=device, stacked=stacked)
        return self._reshape(op)

    def flip(self, *args: Any, dims: int | Sequence[int] | None = None) -> Self:
        """Return a copy with the positions along the batch dimensions ``dims`` in reverse order.

        >>> TensorDict({"a": torch.arange(3)}, [3]).flip(0)["a"]
        tensor([2, 1, 0])
        """
        size = self._meta.batch_size
        normal = [normal_dim(d, size) for d in sizes_of("flip", args, "dims", dims)]
        return self._batch_op(lambda leaf: torch.flip(leaf, normal))

    def fliplr(self) -> Self:
        """Return a copy with the positions along the second batch dimension in reverse order.

        >>> TensorDict({"a": torch.arange(4).view(2, 2)}, [2, 2]).fliplr()["a"]
        tensor([[1, 0], [3, 2]])
        """
        return self.flip(1)

    def flipud(self) -> Self:
        """Return a copy with the positions along the first batch dimension in reverse order.

        >>> TensorDict({"a": torch.arange(3)}, [3]).flipud()["a"]
        tensor([2, 1, 0])
        """
        return self.flip(0)

    def roll(
        self, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None, *, inplace: bool = False
    ) -> Self:
        """Return the entries rolled along batch dimensions; without ``dims`` the flattened batch is rolled.

        Args:
            shifts: The number of positions, for each dimension of ``dims``.
            dims: One batch dimension or several.
            inplace: Whether the result replaces the entries of this tensordict.

        >>> TensorDict({"a": torch.arange(3)}, [3]).roll(1, 0)["a"]
        tensor([2, 0, 1])
        """
        size = self._meta.batch_size
        chosen = [] if dims is None else [dims] if isinstance(dims, int) else list(dims)
        if not chosen:  # torch flattens each leaf, of which a row would get parts of others
            rolled = self.reshape(-1).roll(shifts, 0).reshape(size)
            if rolled._meta.names != self._meta.names:
                rolled._put_names(self._meta.names)
            return self._in_place(rolled, inplace)
        normal = [normal_dim(d, size) for d in chosen]
        return self._in_place(self._batch_op(lambda leaf: leaf.roll(shifts, normal)), inplace)

    def rot90(self, k: int = 1, dims: Sequence[int] = (0, 1)) -> Self:
        """Return the plane of two batch dimensions rotated ``k`` times by 90 degrees.

        Args:
            k: The number of rotations; if it is negative, they are from the second dimension towards the first.
            dims: The two dimensions; positive rotations are from the first towards the second.

        >>> TensorDict({"a": torch.zeros(2, 3)}, [2, 3]).rot90().batch_size
        torch.Size([3, 2])
        """
        size = self._meta.batch_size
        if len(size) < 2:
            raise RuntimeError(
                f"rot90 requires at least 2 batch dimensions, and the batch size is {list(size)}; unsqueeze it first"
            )
        if isinstance(dims, int):
            raise TypeError(f"rot90 rotates the plane of two dims, got dims={dims}; give two")
        if len(dims) != 2:
            raise errors.SizeError(f"rot90 rotates the plane of two dims, got dims={dims}; give two")
        a, b = (normal_dim(d, size) for d in dims)
        new = list(size)
        order = list(range(len(new)))
        if k % 2:
            new[a], new[b] = new[b], new[a]
            order[a], order[b] = b, a
        return self._batch_op(lambda leaf: leaf.rot90(k, (a, b)), new, lambda names: tuple(names[i] for i in order))

    def repeat(self, *repeats: Any, inplace: bool = False) -> Self:
        """Return a copy with the batch repeated along each batch dimension.

        Args:
            *repeats: The number of repetitions for each batch dimension, or one sequence of them.
            inplace: Whether the result replaces the entries of this tensordict.

        Raises:
            ValueError: The number of counts differs from that of batch dimensions.

        >>> TensorDict({"a": torch.arange(2)}, [2]).repeat(2)["a"]
        tensor([0, 1, 0, 1])
        """
        counts = as_ints(repeats)
        size = self._meta.batch_size
        if len(counts) != len(size):
            raise ValueError(
                f"The number of repeat elements must match the number of dimensions of the tensordict, got "
                f"{list(counts)} for batch size {list(size)}; use expand to add dimensions"
            )
        new = [n * c for n, c in zip(size, counts, strict=True)]
        repeated = self._batch_op(
            lambda leaf: leaf.repeat(*counts, *(1,) * (leaf.ndim - len(counts))), new, stacked=True
        )
        return self._in_place(repeated, inplace)

    def tile(self, *args: Any, dims: int | Sequence[int] | None = None) -> Self:
        """Return a copy with the batch repeated, as ``repeat``; missing leading counts or sizes are 1.

        >>> TensorDict({"a": torch.arange(2)}, [2]).tile(2)["a"]
        tensor([0, 1, 0, 1])
        """
        counts = sizes_of("tile", args, "dims", dims)
        missing = len(self._meta.batch_size) - len(counts)
        td = self
        for _ in range(-missing):
            td = td.unsqueeze(0)
        return td.repeat(*(1,) * max(missing, 0), *counts)

    def repeat_interleave(
        self, repeats: Tensor | int, dim: int | None = None, *, output_size: int | None = None, inplace: bool = False
    ) -> Self:
        """Return each slice along a batch dimension repeated; without ``dim`` the batch is flattened first.

        Args:
            repeats: The number of repetitions: one number, or a tensor with one number for each slice.
            dim: The batch dimension.
            output_size: The size of the result along ``dim``, if known.
            inplace: Whether the result replaces the entries of this tensordict.

        >>> TensorDict({"a": torch.arange(2)}, [2]).repeat_interleave(2, 0)["a"]
        tensor([0, 0, 1, 1])
        """
        if dim is None:
            return self._in_place(self.reshape(-1).repeat_interleave(repeats, 0, output_size=output_size), inplace)
        if not isinstance(repeats, int | Tensor):
            raise TypeError(f"repeats is an integer or a tensor of integers, got {repeats!r}; convert it first")
        size = self._meta.batch_size
        if not size and normal_dim(dim, torch.Size([1])) == 0:  # one row, as without a dim
            return self._in_place(self.unsqueeze(0).repeat_interleave(repeats, 0, output_size=output_size), inplace)
        at = normal_dim(dim, size)
        if isinstance(repeats, int):
            total = size[at] * repeats
        else:  # torch checks the repetitions, also where there is no leaf that it could refuse
            total = len(repeats.new_empty(size[at]).repeat_interleave(repeats, 0))
        new = (*size[:at], total, *size[at + 1 :])
        device = None if isinstance(repeats, int) else repeats.device
        return self._in_place(
            self._batch_op(
                lambda leaf: leaf.repeat_interleave(repeats, at, output_size=output_size),
                new,
                device=device,
                stacked=True,
            ),
            inplace,
        )
