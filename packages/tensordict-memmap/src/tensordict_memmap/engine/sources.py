"""Sources of a write: tensors, arrays and bytes, classified by their memory layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import numpy as np
import torch

from tensordict_memmap.schema.dtypes import as_bits, reach

Source = torch.Tensor | np.ndarray | bytes | memoryview
_Item = TypeVar("_Item")


@dataclass(slots=True)
class FileRange:
    """A range of a file and the source of its bytes.

    Args:
        key: The name in errors.
        source: A strided tensor of any dtype and device, a NumPy array with any strides, or bytes.
        offset: The offset of the range in the file.
        dtype: For tensors, the dtype to convert to; None keeps the dtype of the source.
    """

    key: object
    source: Source
    offset: int = 0
    dtype: torch.dtype | None = None


@dataclass(slots=True)
class Contiguous:
    """Contiguous CPU memory; ``keep`` owns it."""

    key: object
    address: int
    nbytes: int
    offset: int
    keep: object


@dataclass(slots=True)
class Run:
    """Many small contiguous CPU tensors that are consecutive in the file.

    Args:
        keys: The names in errors.
        addresses: The addresses of the tensors.
        sizes: Their sizes in bytes, none of them 0.
        offset: The offset of the first tensor in the file.
        keep: The owner of the memory.
        digits: A list to fill with the digits of their checksums, or None for no checksums (``checksums.py``).
    """

    keys: Sequence[object]
    addresses: Sequence[int]
    sizes: Sequence[int]
    offset: int
    keep: object
    digits: list[str] | None = None

    @property
    def nbytes(self) -> int:
        """The number of bytes of all tensors."""
        return sum(self.sizes)


@dataclass(slots=True)
class Strided:
    """Strided CPU memory, with strides in bytes and with all axes merged that can be merged."""

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
    """A tensor that torch has to copy: one on another device, of another dtype, or a lazy conjugate or negative."""

    key: object
    tensor: torch.Tensor
    dtype: torch.dtype
    offset: int

    @property
    def nbytes(self) -> int:
        """The bytes that it takes in the file."""
        return self.tensor.numel() * self.dtype.itemsize


@dataclass(slots=True)
class Scattered:
    """A part of a tensor whose bytes are not consecutive in the file, such as the columns that one process holds.

    Args:
        key: The name in errors.
        tensor: The part, a strided tensor.
        offset: The offset in the file of its first element.
        strides: For each of its dimensions, the bytes in the file from one index to the next.
    """

    key: object
    tensor: torch.Tensor
    offset: int
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The bytes that it takes in the file."""
        return self.tensor.numel() * self.tensor.element_size()

    def run(self) -> tuple[int, int]:
        """Return the number of leading dimensions that are not contiguous in the file, and the bytes of a run."""
        nbytes, dim = self.tensor.element_size(), self.tensor.dim()
        while dim and (self.strides[dim - 1] == nbytes or self.tensor.shape[dim - 1] == 1):
            dim -= 1
            nbytes *= self.tensor.shape[dim]
        return dim, nbytes


def classify(part: FileRange) -> Contiguous | Strided | ViaTorch:
    """Classify a source by its memory layout, without reading its values.

    Raises:
        TypeError: The source is not strided, its items are not plain numbers, or it has no memory of its own.
        ValueError: The memory of the source was freed.
    """
    source = part.source
    if isinstance(source, torch.Tensor):
        return _classify_tensor(part, source)
    if isinstance(source, (bytes, bytearray, memoryview)):
        source = np.frombuffer(source, dtype=np.uint8) if len(source) else np.empty(0, dtype=np.uint8)
    if isinstance(source, np.ndarray):
        if part.dtype is not None:
            return classify(
                FileRange(part.key, torch.from_numpy(np.ascontiguousarray(source)), part.offset, part.dtype)
            )
        if source.dtype.hasobject or source.dtype.itemsize not in (1, 2, 4, 8, 16):
            raise TypeError(
                f"{part.key!r} is an array of {source.dtype}, and only numbers of 1, 2, 4, 8 or 16 bytes can be "
                "written; convert it first"
            )
        if not source.dtype.isnative:
            source = source.astype(source.dtype.newbyteorder("="))
        return _from_memory(part, source.ctypes.data, source.shape, source.strides, source.dtype.itemsize, source)


def _classify_tensor(part: FileRange, source: torch.Tensor) -> Contiguous | Strided | ViaTorch:
    if source.layout is not torch.strided or source.is_nested or source.is_meta or source.is_quantized:
        raise TypeError(
            f"{part.key!r} is a {source.layout} tensor on {source.device}, and only strided memory can be written; "
            "make it dense first"
        )
    check_memory(part.key, source)
    converts = part.dtype is not None and part.dtype is not source.dtype
    if converts or not source.is_cpu or source.is_conj() or source.is_neg():
        plain = source.detach().as_subclass(torch.Tensor)
        return ViaTorch(part.key, plain, part.dtype or source.dtype, part.offset)
    if source.is_contiguous():
        return Contiguous(part.key, source.data_ptr(), source.nbytes, part.offset, source)
    width = source.element_size()
    strides = tuple(stride * width for stride in source.stride())
    return _from_memory(part, source.data_ptr(), tuple(source.shape), strides, width, source)


def check_memory(key: object, tensor: torch.Tensor) -> None:
    """Refuse a tensor whose memory is elsewhere or was freed, before anything reads from its address.

    Raises:
        TypeError: It is of a class that wraps other tensors, such as ``DTensor``.
        ValueError: Its storage was freed or has become too short.

    >>> tensor = torch.ones(3)
    >>> check_memory("weight", tensor)
    >>> _ = tensor.untyped_storage().resize_(0)
    >>> check_memory("weight", tensor)
    Traceback (most recent call last):
        ...
    ValueError: the memory of 'weight' was freed: its storage has 0 bytes where the tensor needs 12; gather or ...
    """
    try:
        address, has = tensor.data_ptr(), tensor.untyped_storage().nbytes()
        if address and has >= tensor.nbytes and tensor.is_contiguous() and not tensor.storage_offset():
            return
    except (RuntimeError, NotImplementedError):
        address = has = 0
    if not tensor.numel():
        return
    if type(tensor).__torch_dispatch__ is not _PLAIN_DISPATCH and not address:
        raise TypeError(
            f"{key!r} is a {type(tensor).__name__}, which wraps other tensors and has no memory to write; convert it "
            "to a plain tensor first, a DTensor by full_tensor()"
        )
    needed = (tensor.storage_offset() + reach(tensor.shape, tensor.stride())) * tensor.element_size()
    if not address or has < needed:
        raise ValueError(
            f"the memory of {key!r} was freed: its storage has {has} bytes where the tensor needs {needed}; gather or "
            "restore it first, FSDP parameters by summon_full_params or a state dict"
        )


_PLAIN_DISPATCH: Any = torch.Tensor.__torch_dispatch__


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


def merged(spans: Iterable[tuple[int, int]], gap: int = 0) -> list[tuple[int, int]]:
    """Join spans in ascending order that overlap, touch, or have at most a gap between them.

    >>> merged([(0, 2), (2, 4), (5, 6)]), merged([(0, 2), (2, 4), (5, 6)], gap=1)
    ([(0, 4), (5, 6)], [(0, 6)])
    """
    found: list[tuple[int, int]] = []
    for start, end in spans:
        if found and start <= found[-1][1] + gap:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def batches(
    items: Iterable[_Item], nbytes: Callable[[_Item], int], *, most_bytes: int, most: int | None = None
) -> Iterator[list[_Item]]:
    """Split items into batches, as many in each as fit; an item of more than ``most_bytes`` is a batch of its own.

    Args:
        items: The items, in order.
        nbytes: The size of an item in bytes.
        most_bytes: The maximum number of bytes of a batch.
        most: The maximum number of items of a batch; by default any.

    >>> list(batches([1, 9, 2, 2], lambda item: item, most_bytes=4))
    [[1], [9], [2, 2]]
    """
    batch: list[_Item] = []
    left = most_bytes
    for item in items:
        size = nbytes(item)
        if batch and (size > left or len(batch) == most):
            yield batch
            batch, left = [], most_bytes
        batch.append(item)
        left -= size
    if batch:
        yield batch


def collapse(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Drop axes of size 1 and merges adjacent axes where possible; the shape of an empty array is ``(0,)``."""
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
    """Return a strided source as a NumPy array with items of the same width."""
    if isinstance(part.keep, torch.Tensor):
        array: np.ndarray = as_bits(part.keep.detach().as_subclass(torch.Tensor)).numpy()
        return array
    return part.keep


_Array = TypeVar("_Array", torch.Tensor, np.ndarray)


def detached(source: Any) -> Any:
    """Detache a source that is read later, so that ``p.data = ...`` on the original does not change it."""
    return source.detach() if isinstance(source, torch.Tensor) else source


def chunks(whole: _Array, width: int, most: int) -> Iterator[tuple[_Array, int]]:
    """Yield parts of at most ``most`` bytes that are consecutive in C order, each with the index of its first item."""
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
    """Return the axis with the smallest stride, or the last axis if packing in tiles would not be faster."""
    last = len(shape) - 1
    axis = min((axis for axis in range(len(shape)) if strides[axis]), key=lambda axis: abs(strides[axis]), default=last)
    return last if strides[-1] == 0 or abs(strides[axis]) == abs(strides[-1]) else axis
