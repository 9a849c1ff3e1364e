"""Row indexing of memory-mapped tensors: gathers and scatters rows of the first dimension as contiguous bytes."""

from __future__ import annotations

import contextlib
import functools
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import torch
from torch.autograd.graph import increment_version

from tensordict_memmap.engine import executor, syscalls
from tensordict_memmap.engine.tuning import READ_AHEAD_MIN, ROW_COPY_MIN, is_cold
from tensordict_memmap.schema.dtypes import as_bits, reach

_ROW_DTYPES = frozenset((torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64))
"""The dtypes of row numbers: uint8 is that of masks too."""


def rows_to_copy(tensor: torch.Tensor, index: Any, least: int = ROW_COPY_MIN) -> torch.Tensor | None:
    """Return an index as row numbers if copying contiguous rows is faster than general indexing; else None.

    Args:
        tensor: The tensor.
        index: The index.
        least: The bytes of rows from which copying is faster.

    >>> rows_to_copy(torch.zeros(1000, 1000), [3, 1, 2, 5, 8])
    tensor([3, 1, 2, 5, 8])
    >>> rows_to_copy(torch.zeros(10), [3, 1]) is None
    True
    """
    rows: torch.Tensor
    if isinstance(index, torch.Tensor):
        rows = index
    elif type(index) is list and index and all(type(row) is int for row in index):
        rows = torch.tensor(index, device="cpu")
    else:
        return None
    if rows.dtype not in _ROW_DTYPES:
        return None
    if tensor.ndim == 0 or tensor.requires_grad or rows.numel() * tensor.stride(0) * tensor.itemsize < least:
        return None
    return rows


def gather_rows(src: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return ``src[index]`` for rows of the first dimension, several times faster than indexing a mapped tensor.

    Args:
        src: A tensor of at least one dimension, in memory or mapped.
        index: An integer tensor of any shape; negative values count from the end.

    Returns:
        A plain tensor of shape ``index.shape + src.shape[1:]``.

    Raises:
        IndexError: An index is out of range, or ``index`` is not an integer tensor.

    >>> gather_rows(torch.tensor([[1, 2], [3, 4]]), torch.tensor([-1, 0]))
    tensor([[3, 4],
            [1, 2]])
    """
    plain = src.as_subclass(torch.Tensor).detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    if index.ndim == 1 and index.dtype is torch.int64 and plain.is_cpu and index.is_cpu:
        nbytes = index.numel() * plain.stride(0) * plain.element_size()
        if nbytes < READ_AHEAD_MIN or not is_cold(plain, index):
            with contextlib.suppress(IndexError):  # negative and invalid indices are handled below
                return torch.index_select(plain, 0, index)
    rows = _checked_rows(index, plain.shape[0])
    shape = (*index.shape, *plain.shape[1:])
    out = torch.empty(shape, dtype=plain.dtype, device=plain.device)
    flat = out.view(rows.numel(), *shape[index.ndim :])
    if flat.numel() == 0:
        return out
    if _rows_are_runs(plain) and flat.nbytes >= READ_AHEAD_MIN and is_cold(plain, rows):
        _read_ahead(plain, rows)
        if plain.is_contiguous():
            numbers, source, target = rows.cpu().numpy(), _items(plain), _items(flat)

            def gather(first: int, last: int) -> None:
                np.take(source, numbers[first:last], out=target[first:last], mode="clip")  # "raise" would buffer

            count = 4 * executor.default_threads()  # threads wait for the disk, not for processors
            bounds = np.linspace(0, rows.numel(), min(count, rows.numel()) + 1).astype(np.int64).tolist()
            executor.run([[functools.partial(gather, *part)] for part in pairwise(bounds)], threads=count)
            return out
    torch.index_select(as_bits(plain), 0, rows.to(plain.device), out=as_bits(flat.detach()))
    return out


def scatter_rows(dst: torch.Tensor, index: torch.Tensor, src: torch.Tensor) -> None:
    """Set ``dst[index] = src`` for rows of the first dimension; if an index occurs twice, the last row is written.

    Args:
        dst: A tensor of at least one dimension, in memory or mapped, changed in place.
        index: An integer tensor of any shape; negative values count from the end.
        src: A tensor that broadcasts to ``index.shape + dst.shape[1:]``, converted to the dtype of ``dst``.

    Raises:
        IndexError: An index is out of range, or ``index`` is not an integer tensor.

    >>> dst = torch.zeros(3, 2)
    >>> scatter_rows(dst, torch.tensor([2, 0]), torch.tensor([[1.0], [5.0]]))
    >>> dst
    tensor([[5., 5.],
            [0., 0.],
            [1., 1.]])
    """
    plain = dst.as_subclass(torch.Tensor).detach()  # a call on a subclass takes twice as long
    rows = _checked_rows(index, plain.shape[0])
    if rows.numel() == 0 or plain.numel() == 0:
        return
    shape = plain.shape[1:]
    source = src.detach().to(plain.device, plain.dtype).expand(index.shape + shape).reshape(rows.shape + shape)
    if plain.is_conj() or plain.is_neg() or not _rows_are_runs(plain):
        # torch does not define the order of writes to the same row, so only the last source of each row is passed.
        ordered, places = torch.sort(rows, stable=True)
        last = torch.ones_like(ordered, dtype=torch.bool)
        torch.ne(ordered[1:], ordered[:-1], out=last[:-1])
        kept = places[last].to(source.device)
        if plain.is_conj() or plain.is_neg():
            plain.index_copy_(0, ordered[last].to(plain.device), source[kept])
        else:
            source = source.resolve_conj().resolve_neg()
            as_bits(plain).index_copy_(0, ordered[last].to(plain.device), as_bits(source)[kept])
        return
    source = source.resolve_conj().resolve_neg().contiguous()
    if _overlap(source, plain) or _overlap(rows, plain):
        source, rows = source.clone(), rows.clone()
    if source.nbytes >= READ_AHEAD_MIN and is_cold(plain, rows):
        _read_ahead(plain, rows)
    _items(plain)[rows.cpu().numpy()] = _items(source)  # in the order of the index; torch takes ten times as long
    increment_version(plain)


def _items(tensor: torch.Tensor) -> np.ndarray:
    """Return the rows of a tensor, each of them contiguous, as a one-dimensional array of opaque items."""
    size = prod(tensor.shape[1:]) * tensor.element_size()
    return syscalls.items(tensor.data_ptr(), tensor.shape[0], size, tensor.stride(0) * tensor.element_size())


def _read_ahead(tensor: torch.Tensor, rows: torch.Tensor) -> None:
    """Start reading rows of a mapping: a page fault would read ten times as much, and block."""
    step, size, first = tensor.stride(0) * tensor.element_size(), tensor[0].nbytes, tensor.data_ptr()
    for row in rows.tolist():
        syscalls.read_ahead(first + row * step, size)


def _overlap(dense: torch.Tensor, target: torch.Tensor) -> bool:
    """Return whether a dense tensor is in the memory of a target."""
    start, first = target.data_ptr(), dense.data_ptr()
    end = start + reach(target.shape, target.stride()) * target.element_size()
    return first < end and start < first + dense.nbytes


def _rows_are_runs(tensor: torch.Tensor) -> bool:
    """Return whether every row is contiguous in CPU memory."""
    return tensor.is_cpu and tensor.numel() > 0 and (tensor.is_contiguous() or tensor[0].is_contiguous())


def _checked_rows(index: torch.Tensor, size: int) -> torch.Tensor:
    if index.dtype == torch.bool or index.dtype.is_floating_point or index.dtype.is_complex:
        raise IndexError(
            f"an index of {index.dtype} does not select rows, only integers do; call nonzero() on a mask first"
        )
    rows = index.reshape(-1).to(torch.int64)
    if rows.numel():
        low, high = map(int, torch.aminmax(rows))
        if low < -size or high >= size:
            worst = high if high >= size else low
            raise IndexError(f"row {worst} is not in [-{size}, {size}); check the index")
        if low < 0:
            rows = torch.where(rows < 0, rows + size, rows)
    return rows.contiguous()
