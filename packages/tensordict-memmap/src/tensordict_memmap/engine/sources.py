"""What is written: any tensor, array or bytes, reduced to one of three kinds that know how they lie in memory."""

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
    """What to put where in a file.

    Args:
        key: the name that errors use.
        source: a tensor of any layout, dtype and device, a NumPy array with any strides, or bytes.
        offset: where it starts in the file.
        dtype: for tensors, the dtype to convert to on the way; None keeps the source's.
    """

    key: object
    source: Source
    offset: int = 0
    dtype: torch.dtype | None = None


@dataclass(slots=True)
class Contiguous:
    """A piece that lies contiguous in this machine's memory; ``keep`` owns it."""

    key: object
    address: int
    nbytes: int
    offset: int
    keep: object


@dataclass(slots=True)
class Run:
    """Many small contiguous pieces of this machine's memory that follow one another in the file; ``keep`` owns them.

    Args:
        keys: their names, for errors.
        addresses: where they are.
        sizes: how many bytes each takes, none of them 0.
        offset: where the first starts in the file.
        keep: what owns them.
        digits: takes the digits of the checksum of each, where those are wanted (``checksums.py``).
    """

    keys: Sequence[object]
    addresses: Sequence[int]
    sizes: Sequence[int]
    offset: int
    keep: object
    digits: list[str] | None = None

    @property
    def nbytes(self) -> int:
        """How many bytes of the file they take."""
        return sum(self.sizes)


@dataclass(slots=True)
class Strided:
    """A piece in this machine's memory with strides in bytes, and no axis that could be merged or left out."""

    key: object
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    width: int
    offset: int
    keep: torch.Tensor | np.ndarray

    @property
    def nbytes(self) -> int:
        """How many bytes of the file it takes."""
        return prod(self.shape) * self.width


@dataclass(slots=True)
class ViaTorch:
    """A piece that torch must read: another device, a lazy conjugate or negative, another dtype than the file's."""

    key: object
    tensor: torch.Tensor
    dtype: torch.dtype
    offset: int

    @property
    def nbytes(self) -> int:
        """How many bytes of the file it takes."""
        return self.tensor.numel() * self.dtype.itemsize


def classify(piece: FileRange) -> Contiguous | Strided | ViaTorch:
    """Finds out how a piece lies in memory, without touching its values.

    Raises:
        TypeError: if it is not strided memory, or not made of plain numbers.
    """
    source = piece.source
    if isinstance(source, (bytes, bytearray, memoryview)):
        source = np.frombuffer(source, dtype=np.uint8) if len(source) else np.empty(0, dtype=np.uint8)
    if isinstance(source, np.ndarray):
        if piece.dtype is not None:
            return classify(
                FileRange(piece.key, torch.from_numpy(np.ascontiguousarray(source)), piece.offset, piece.dtype)
            )
        if source.dtype.hasobject or source.dtype.itemsize not in (1, 2, 4, 8, 16):
            raise TypeError(
                f"what is written must be plain numbers of 1, 2, 4, 8 or 16 bytes, and {piece.key!r} is an array of "
                f"{source.dtype}; convert it first"
            )
        if not source.dtype.isnative:
            source = source.astype(source.dtype.newbyteorder("="))
        return _from_memory(piece, source.ctypes.data, source.shape, source.strides, source.dtype.itemsize, source)
    if source.layout is not torch.strided or source.is_nested or source.device.type == "meta" or source.is_quantized:
        raise TypeError(
            f"what is written must be strided memory, and {piece.key!r} is a {source.layout} tensor on "
            f"{source.device}; make it dense first"
        )
    dtype = piece.dtype or source.dtype
    if source.device.type != "cpu" or source.dtype != dtype or source.is_conj() or source.is_neg():
        return ViaTorch(piece.key, source.detach().as_subclass(torch.Tensor), dtype, piece.offset)
    width = source.element_size()
    if source.is_contiguous():
        return Contiguous(piece.key, source.data_ptr(), source.numel() * width, piece.offset, source)
    strides = tuple(stride * width for stride in source.stride())
    return _from_memory(piece, source.data_ptr(), tuple(source.shape), strides, width, source)


def _from_memory(
    piece: FileRange,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    width: int,
    keep: torch.Tensor | np.ndarray,
) -> Contiguous | Strided:
    shape, strides = collapse(shape, strides)
    if not shape or strides == (width,):
        return Contiguous(piece.key, address, prod(shape) * width, piece.offset, keep)
    return Strided(piece.key, address, shape, strides, width, piece.offset, keep)


def collapse(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Leaves out axes of size 1 and merges neighbours that step through memory as one; ``(0,)`` if there is nothing."""
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
    """A strided piece as an array of numbers of its width, for NumPy to pack."""
    if isinstance(part.keep, torch.Tensor):
        array: np.ndarray = as_bits(part.keep.detach().as_subclass(torch.Tensor)).numpy()
        return array
    return part.keep


_Array = TypeVar("_Array", torch.Tensor, np.ndarray)


def detached(source: Any) -> Any:
    """A source that is read later: a tensor may be given other memory until then (``p.data = ...``), this one not."""
    return source.detach() if isinstance(source, torch.Tensor) else source


def chunks(whole: _Array, width: int, most: int) -> Iterator[tuple[_Array, int]]:
    """Cuts into parts of at most ``most`` bytes that are one run each in C order, with their first item's index."""
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
