"""Ways: the one place that chooses, by what was measured, how bytes move: kernel or library, file or mapping."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable
from types import ModuleType

import torch

from tensordict_memmap.engine import syscalls

JOB = 4 << 20
"""The most bytes a job moves: large enough to hide its start, small enough to balance."""

FILE_WORTH_OPENING = 1 << 20
"""Bytes of a tensor whose pages are not in memory from which it is written to its file and not through its mapping."""

WORTH_A_MAPPING = 1 << 20
"""Bytes from which a thread that would wait for another to write the same file copies into a mapping of its own."""

WORTH_A_COPY = 16 << 10
"""Bytes on average from which pieces are copied into a mapping one by one; shorter ones are left to a system call."""

CROWDED = 16 << 20
"""The most bytes a job moves that are made of such short pieces: they go out by system calls alone, in which threads
that write one file wait for each other."""

COPIED = 512 << 10
"""The most bytes of a copy that a library makes in memory before it is written; every thread may hold several."""

SMALL = 256 << 10
"""Pieces below this many bytes share a job, and files below it are not reserved first."""

HASHED = 2 << 20
"""Bytes that are hashed before they are written: fewer at a time go into smaller pages of the cache of files, which can
take twice the time of the write, and more are not in the cache of the processor any more."""

STAGING = 4 << 20
"""Bytes in which a kernel packs strided memory. Half of them are written at once, which is a large page of the page
cache: writing fewer is a little faster, but every fourth save then took several times as long, and reading smaller
pages takes up to four times as long."""

KERNEL_WORTH_A_CALL = 64 << 10
"""Strided bytes from which a kernel beats torch, once it is loaded."""

KERNEL_WORTH_A_LOAD = 12 << 20
"""Strided bytes in one call from which it pays to load kernels that were compiled earlier (40 ms)."""

KERNEL_WORTH_COMPILING = 96 << 20
"""Strided bytes in one call from which it pays to compile what every later process loads (some seconds)."""

WAITING = 8
"""Threads that wait for the disk where files are to be on it."""

ROWS_WORTH_A_CALL = 16 << 10
"""Bytes of rows from which taking them as runs beats general indexing."""

WORTH_STREAMING = 32 << 20
"""Bytes in one call from which copies from memory to memory go past the caches, which could not hold them."""

STREAMED_PER_PACKED = 64
"""Bytes to copy that gain as much by a kernel as one strided byte does."""

REMOVED_AT_ONCE = 32 << 20
"""Bytes of a replaced save up to which it is removed before a save returns; a file counts as 256 KiB more."""


WORTH_SCATTERING = 32
"""Files of a save from which on it pays to make them away from others that were removed in the last minutes."""


def is_crowded(nbytes: int, pieces: int) -> bool:
    """Whether pieces of memory are too short, on average, to be copied into a mapping one by one.

    >>> is_crowded(1 << 20, 4), is_crowded(1 << 20, 1000)
    (False, True)
    """
    return nbytes < pieces * WORTH_A_COPY


def is_long_removal(nbytes: int, files: int = 1) -> bool:
    """Whether removing files takes long enough to leave it to the background.

    >>> is_long_removal(1000, 3), is_long_removal(1 << 30)
    (False, True)
    """
    return nbytes + files * SMALL > REMOVED_AT_ONCE


def is_unfilled(dst: torch.Tensor, src: torch.Tensor) -> bool:
    """Whether writing to the file of ``dst`` beats copying into its memory: its pages are not there yet."""
    if dst.nbytes < FILE_WORTH_OPENING or getattr(dst, "handler", None) is None:
        return False
    if torch.is_grad_enabled() and (dst.requires_grad or src.requires_grad):
        return False  # what autograd must see
    if not dst.is_contiguous() or dst.is_conj() or dst.is_neg() or src.layout is not torch.strided:
        return False
    if src.device == dst.device and src.untyped_storage().data_ptr() == dst.untyped_storage().data_ptr():
        return False  # they may overlap, which torch handles
    samples = min(1 + (dst.nbytes >> 21), 16)  # each costs as much as copying 20 KiB
    return syscalls.resident(dst.data_ptr(), dst.nbytes, samples) <= 0.5


def is_cold(src: torch.Tensor, rows: torch.Tensor) -> bool:
    """Whether most of the rows to read are still on the disk, where many threads that wait beat a few that copy."""
    if src.device.type != "cpu" or not syscalls.LINUX:
        return False
    row, first = src.stride(0) * src.element_size(), src.data_ptr()
    if syscalls.resident(first + int(rows[0]) * row, 1, 1):  # each look costs as much as some rows in memory
        return False
    sample = rows[:: max(rows.numel() // 4, 1)].tolist()
    return sum(syscalls.resident(first + k * row, 1, 1) for k in sample) < len(sample) / 2


_kernels_lock = threading.RLock()
_kernels_module: ModuleType | None = None
_kernels_broken = False


def load_kernels(nbytes: int, widths: Iterable[int]) -> ModuleType | None:
    """The module of kernels where moving so many bytes is worth it, else None; compiles them if need be.

    Args:
        nbytes: strided ones, in one call.
        widths: of the items; 0 is for rows of bytes.
    """
    global _kernels_module, _kernels_broken
    if nbytes < KERNEL_WORTH_A_CALL or _kernels_broken or not syscalls.POSIX:
        return None
    if _kernels_module is None and nbytes < KERNEL_WORTH_A_LOAD:
        return None
    with _kernels_lock:
        if _kernels_broken:
            return None
        try:
            from tensordict_memmap.engine.kernels import loader  # imports LLVM

            for width in widths:
                if nbytes < KERNEL_WORTH_COMPILING and not loader.is_cached(width):
                    return None
                loader.functions(width)
            _kernels_module = loader
        except Exception as error:  # whatever stops a compiler: other copies are slower and just as right
            _kernels_broken = True
            warnings.warn(
                f"strided tensors are copied without kernels, slower, because Numba cannot compile here: {error!r}",
                RuntimeWarning,
                stacklevel=3,
            )
            return None
    return _kernels_module


_streamable = 0


def load_stream(nbytes: int) -> ModuleType | None:
    """The module of kernels where copying so many bytes by them is worth it, else None.

    What a kernel gains in one copy is less than what loading it takes, so it is loaded when a process has copied as
    much as would have paid for that.
    """
    global _streamable
    if nbytes < WORTH_STREAMING:
        return None
    _streamable += nbytes
    return load_kernels(_streamable // STREAMED_PER_PACKED, [0])


def _new_lock_after_fork() -> None:
    global _kernels_lock
    _kernels_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    # A fork waits for who is loading: a module that a thread is importing would stay locked in the child for good.
    os.register_at_fork(
        before=lambda: _kernels_lock.acquire(),
        after_in_parent=lambda: _kernels_lock.release(),
        after_in_child=_new_lock_after_fork,
    )
