"""Constructors of constant memory-mapped tensors: ``empty``, ``zeros``, ``ones``, ``full`` and their ``_like`` forms.

A file of zeros takes no space on the disk until it is written to, so ``empty`` and ``zeros`` are the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

import torch

from tensordict_core.extension import as_dtype, with_options
from tensordict_memmap.schema.nested import count_of, shape_of


class LikeOptions(TypedDict, total=False):
    """The options of ``empty_like`` and its siblings, which are those of :meth:`Filled.empty`."""

    filename: str | os.PathLike[str] | None
    dtype: torch.dtype | None
    device: torch.device | str | None
    existsok: bool


_DEFAULTS = {"filename": None, "dtype": None, "device": None, "existsok": False}


class Filled:
    """Mixin with the constructors of constant tensors; the class that inherits it defines ``_make``."""

    __slots__ = ()

    if TYPE_CHECKING:

        @classmethod
        def _make(
            cls,
            shape: Sequence[int] | torch.Tensor,
            dtype: torch.dtype,
            filename: str | os.PathLike[str] | None,
            existsok: bool,
            source: torch.Tensor | None,
        ) -> Self: ...

    @classmethod
    def empty(
        cls,
        *size: Any,
        shape: Sequence[int] | torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        filename: str | os.PathLike[str] | None = None,
        existsok: bool = False,
    ) -> Self:
        """Make a tensor of zeros; its file takes no space until it is written to.

        Args:
            *size: The shape, as integers or as one sequence. For a nested tensor, a 2D integer tensor with the shape of
                one component in each row.
            shape: The shape, instead of ``size``.
            dtype: The dtype; torch's default if None.
            device: Must be the CPU or None.
            filename: The file to create; None uses shared memory.
            existsok: Whether an existing file may be replaced.

        >>> from tensordict_memmap import MemoryMappedTensor
        >>> MemoryMappedTensor.empty(2, 3, dtype=torch.int8).shape
        torch.Size([2, 3])
        """
        check_device(device)
        return cls._make(_size(size, shape), as_dtype(dtype or torch.get_default_dtype()), filename, existsok, None)

    @classmethod
    def zeros(cls, *size: Any, **options: Any) -> Self:
        """Make a tensor of zeros; the arguments are those of :meth:`empty`.

        >>> from tensordict_memmap import MemoryMappedTensor
        >>> MemoryMappedTensor.zeros((2,), dtype=torch.int8).tolist()
        [0, 0]
        """
        return cls.empty(*size, **options)

    @classmethod
    def ones(cls, *size: Any, dtype: torch.dtype | None = None, **options: Any) -> Self:
        """Make a tensor of ones; the arguments are those of :meth:`empty`.

        >>> from tensordict_memmap import MemoryMappedTensor
        >>> MemoryMappedTensor.ones(2, dtype=torch.int8).tolist()
        [1, 1]
        """
        return cls.full(*size, fill_value=1, dtype=dtype or torch.get_default_dtype(), **options)

    @classmethod
    def full(
        cls,
        *size: Any,
        fill_value: Any = None,
        shape: Sequence[int] | torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        filename: str | os.PathLike[str] | None = None,
        existsok: bool = False,
    ) -> Self:
        """Make a tensor filled with one value; the other arguments are those of :meth:`empty`.

        Args:
            *size: The shape, as integers or as one sequence; the value may follow it, as in ``torch.full``.
            fill_value: The value.
            shape: The shape, instead of ``size``.
            dtype: The dtype; torch's default if None.
            device: Must be the CPU or None.
            filename: The file to create; None uses shared memory.
            existsok: Whether an existing file may be replaced.

        >>> from tensordict_memmap import MemoryMappedTensor
        >>> MemoryMappedTensor.full((2,), 3.5).tolist()
        [3.5, 3.5]
        """
        check_device(device)
        if fill_value is None:
            if not size:
                raise TypeError("full() is missing the value to fill with; pass fill_value")
            *size_list, fill_value = size
            size = tuple(size_list)
        value = torch.full((), fill_value, dtype=dtype or torch.get_default_dtype(), device="cpu")
        target = _size(size, shape)
        filled = value.expand(target if isinstance(target, torch.Size) else (count_of(target),))
        return cls._make(target, value.dtype, filename, existsok, filled)

    @classmethod
    @with_options(LikeOptions, _DEFAULTS)
    def empty_like(cls, input: torch.Tensor, **options: Unpack[LikeOptions]) -> Self:
        """Like :meth:`empty`, with the shape and dtype of a tensor.

        >>> from tensordict_memmap import MemoryMappedTensor
        >>> MemoryMappedTensor.empty_like(torch.ones(2, 3)).shape
        torch.Size([2, 3])
        """
        return cls.empty(shape=shape_of(input), **_as(input, options))

    @classmethod
    @with_options(LikeOptions, _DEFAULTS)
    def zeros_like(cls, input: torch.Tensor, **options: Unpack[LikeOptions]) -> Self:
        """Like :meth:`zeros`, with the shape and dtype of a tensor.

        >>> from tensordict_memmap import MemoryMappedTensor
        >>> MemoryMappedTensor.zeros_like(torch.ones(2))
        MemoryMappedTensor([0., 0.])
        """
        return cls.empty_like(input, **options)

    @classmethod
    @with_options(LikeOptions, _DEFAULTS)
    def ones_like(cls, input: torch.Tensor, **options: Unpack[LikeOptions]) -> Self:
        """Like :meth:`ones`, with the shape and dtype of a tensor.

        >>> from tensordict_memmap import MemoryMappedTensor
        >>> MemoryMappedTensor.ones_like(torch.zeros(2))
        MemoryMappedTensor([1., 1.])
        """
        return cls.full_like(input, 1, **options)

    @classmethod
    @with_options(LikeOptions, _DEFAULTS)
    def full_like(cls, input: torch.Tensor, fill_value: Any, **options: Unpack[LikeOptions]) -> Self:
        """Like :meth:`full`, with the shape and dtype of a tensor.

        >>> from tensordict_memmap import MemoryMappedTensor
        >>> MemoryMappedTensor.full_like(torch.zeros(2), 5)
        MemoryMappedTensor([5., 5.])
        """
        return cls.full(shape=shape_of(input), fill_value=fill_value, **_as(input, options))


def _as(input: torch.Tensor, options: LikeOptions) -> LikeOptions:
    """Return the options with the dtype of a tensor if they give none."""
    return {**options, "dtype": options.get("dtype") or input.dtype}


def check_device(device: torch.device | str | None) -> None:
    """Refuse a device other than the CPU, since only CPU memory can map files.

    Raises:
        RuntimeError: The device is not the CPU.
    """
    if device is not None and torch.device(device).type != "cpu":
        raise RuntimeError(
            f"Only CPU tensors are supported, got device {device}; call .to(device) on the mapped tensor"
        )


def _size(size: tuple[Any, ...], shape: Sequence[int] | torch.Tensor | None) -> torch.Size | torch.Tensor:
    if len(size) == 1 and shape is None:
        shape = size[0] if isinstance(size[0], torch.Tensor) else None
    if isinstance(shape, torch.Tensor) and shape.ndim == 2:
        return shape
    if shape is not None:
        return torch.Size(shape)
    if not size:
        raise TypeError("Could not find the shape argument in the arguments; pass integers, or one sequence of them")
    return torch.Size(size[0]) if len(size) == 1 and not isinstance(size[0], int) else torch.Size(size)
