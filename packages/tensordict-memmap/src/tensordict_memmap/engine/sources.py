"""Sources of a write: tensors, arrays and bytes, classified by how they lie in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import numpy as np
import torch

from tensordict_memmap.schema.dtypes import as_bits

Source = torch.Tensor | np.ndarray | bytes | memoryview


@dataclass(slots=True)
class FileRange:
    """A range of a file and the source of its bytes.

    Args:
        key: the name that errors give.
        source: a tensor of any layout, dtype and device, a NumPy array with any strides, or bytes.
        offset: where the range starts in the file.
        dtype: for tensors, the dtype to convert to; None keeps the dtype of the source.
    """

    key: object
    source: Source
    offset: int = 0
    dtype: torch.dtype | None = None


@dataclass(slots=True)
class Contiguous:
    """Contiguous memory of this machine; ``keep`` owns it."""

    key: object
    address: int
    nbytes: int
    offset: int
    keep: object


@dataclass(slots=True)
class Run:
    """Many small contiguous tensors in this machine's memory that follow one another in the file.

    Args:
        keys: the names that errors give.
        addresses: the addresses of the tensors.
        sizes: the bytes of each, none of them 0.
        offset: where the first tensor starts in the file.
        keep: the owner of the memory.
        digits: a list that takes the digits of the checksum of each, or None for no checksums (``checksums.py``).
    """

    keys: Sequence[object]
    addresses: Sequence[int]
    sizes: Sequence[int]
    offset: int
    keep: object
    digits: list[str] | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return sum(self.sizes)


@dataclass(slots=True)
class Strided:
    """Strided memory of this machine, with strides in bytes and without axes that could be merged or left out."""

    key: object
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    width: int
    offset: int
    keep: torch.Tensor | np.ndarray

    @property
    def nbytes(self) -> int:
        """The bytes that it takes in the file."""
        return prod(self.shape) * self.width


@dataclass(slots=True)
class ViaTorch:
    """A tensor that torch must read: of another device or dtype, or a lazy conjugate or negative."""

    key: object
    tensor: torch.Tensor
    dtype: torch.dtype
    offset: int

    @property
    def nbytes(self) -> int:
        """The bytes that it takes in the file."""
        return self.tensor.numel() * self.dtype.itemsize


def classify(part: FileRange) -> Contiguous | Strided | ViaTorch:
    """Finds out how a source lies in memory, without reading its values.

    Raises:
        TypeError: The source is not strided memory, or not made of plain numbers.
    """
    source = part.source
    if isinstance(source, (bytes, bytearray, memoryview)):
        source = np.frombuffer(source, dtype=np.uint8) if len(source) else np.empty(0, dtype=np.uint8)
    if isinstance(source, np.ndarray):
        if part.dtype is not None:
            return classify(
                FileRange(part.key, torch.from_numpy(np.ascontiguousarray(source)), part.offset, part.dtype)
            )
        if source.dtype.hasobject or source.dtype.itemsize not in (1, 2, 4, 8, 16):
            raise TypeError(
                f"{part.key!r} is an array of {source.dtype}, and only plain numbers of 1, 2, 4, 8 or 16 bytes can be "
                "written; convert it first"
            )
        if not source.dtype.isnative:
            source = source.astype(source.dtype.newbyteorder("="))
        return _from_memory(part, source.ctypes.data, source.shape, source.strides, source.dtype.itemsize, source)
    if source.layout is not torch.strided or source.is_nested or source.device.type == "meta" or source.is_quantized:
        raise TypeError(
            f"{part.key!r} is a {source.layout} tensor on {source.device}, and only strided memory can be written; "
            "make it dense first"
        )
    dtype = part.dtype or source.dtype
    if source.device.type != "cpu" or source.dtype != dtype or source.is_conj() or source.is_neg():
        return ViaTorch(part.key, source.detach().as_subclass(torch.Tensor), dtype, part.offset)
    width = source.element_size()
    if source.is_contiguous():
        return Contiguous(part.key, source.data_ptr(), source.numel() * width, part.offset, source)
    strides = tuple(stride * width for stride in source.stride())
    return _from_memory(part, source.data_ptr(), tuple(source.shape), strides, width, source)


def _from_memory(
    part: FileRange,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    width: int,
    keep: torch.Tensor | np.ndarray,
) -> Contiguous | Strided:
    shape, strides = collapse(shape, strides)
    if not shape or strides == (width,):
        return Contiguous(part.key, address, prod(shape) * width, part.offset, keep)
    return Strided(part.key, address, shape, strides, width, part.offset, keep)


def collapse(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Leaves out axes of size 1 and merges axes that step through memory as one; ``(0,)`` for an empty array."""
    if 0 in shape:
        return (0,), (strides[-1],)
    sizes: list[int] = []
    steps: list[int] = []
    for size, step in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if sizes and steps[-1] == size * step:
            sizes[-1] *= size
            steps[-1] = step
        else:
            sizes.append(size)
            steps.append(step)
    return tuple(sizes), tuple(steps)


def as_array(part: Strided) -> np.ndarray:
    """A strided source as an array of numbers of its width, for NumPy to pack."""
    if isinstance(part.keep, torch.Tensor):
        array: np.ndarray = as_bits(part.keep.detach().as_subclass(torch.Tensor)).numpy()
        return array
    return part.keep


_Array = TypeVar("_Array", torch.Tensor, np.ndarray)


def detached(source: Any) -> Any:
    """A source to read later: ``p.data = ...`` gives a tensor other memory, but not the detached tensor."""
    return source.detach() if isinstance(source, torch.Tensor) else source


def chunks(whole: _Array, width: int, most: int) -> Iterator[tuple[_Array, int]]:
    """Yields parts of at most ``most`` bytes that are consecutive in C order, each with the index of its first item."""
    stack = [(whole, 0)]
    while stack:
        part, start = stack.pop()
        total = prod(part.shape)
        if total * width <= most:
            yield part, start
            continue
        axis = next(axis for axis, size in enumerate(part.shape) if size > 1)
        row = total // part.shape[axis]
        count = max(most // (row * width), 1)
        before: tuple[slice, ...] = (slice(None),) * axis
        stack.extend(
            (part[(*before, slice(first, first + count))], start + first * row)
            for first in range(0, part.shape[axis], count)
        )


def dense_axis(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """The axis along which the source is densest; the last one where reading the others in tiles does not pay."""
    last = len(shape) - 1
    axis = min((axis for axis in range(len(shape)) if strides[axis]), key=lambda axis: abs(strides[axis]), default=last)
    return last if strides[-1] == 0 or abs(strides[axis]) == abs(strides[-1]) else axis
