"""Tuning constants and choices between ways to move bytes (kernel or library, file or mapping), from measurements.

A constant whose name ends in ``_MIN`` is the number of bytes from which a method is faster than the simpler one.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable
from types import ModuleType

import torch

from tensordict_memmap.engine import syscalls

JOB_BYTES = 4 << 20
"""The maximum number of bytes of a job: large enough to hide its overhead, small enough to balance threads."""

FILE_WRITE_MIN = 1 << 20
"""Bytes of a tensor from which it is written to its file instead of its mapping, if its pages are not in memory."""

MAPPED_COPY_MIN = 1 << 20
"""Bytes from which a thread copies into a mapping of a file, instead of waiting for another thread that writes it."""

MAPPED_RANGE_MIN = 16 << 10
"""Average bytes of memory ranges from which they are copied into a mapping; shorter ones go out by system calls."""

RUN_WRITE_MIN = 2 << 10
"""A run of at least this many bytes is written by its own system call; a shorter one is copied into a mapping."""

SMALL_RANGES_BYTES = 16 << 20
"""The maximum number of bytes of a job of such short ranges. Threads that write one file by system calls wait for each
other, so more jobs would not help."""

COPY_BYTES = 512 << 10
"""The maximum number of bytes that NumPy or torch copies before they are written; a thread may hold several copies."""

SMALL_FILE = 256 << 10
"""Tensors below this many bytes share a job, and blocks of files below it are not reserved first."""

HASH_BYTES = 2 << 20
"""Bytes that are hashed before they are written. Fewer would use smaller pages of the page cache, which can double the
time of the write; more do not fit in the cache of the processor."""

STAGING_BYTES = 4 << 20
"""The size of the staging block into which a kernel packs strided memory. Half of it is written at once, which is one
large page of the page cache: smaller writes were a little faster, but every fourth save took several times as long, and
reading from smaller pages takes up to four times as long."""

KERNEL_CALL_MIN = 64 << 10
"""Strided bytes from which a loaded kernel is faster than torch."""

KERNEL_LOAD_MIN = 12 << 20
"""Strided bytes in one call from which kernels are loaded from the cache (30 ms)."""

KERNEL_COMPILE_MIN = 96 << 20
"""Strided bytes in one call from which kernels are compiled and cached for later processes (some seconds)."""

DIRECT_MIN = 512 << 10
"""Bytes of a range from which a durable save writes it past the page cache."""

DIRECT_FILE_MIN = 32 << 20
"""Bytes of a file from which a durable save writes to it past the page cache."""

DISK_THREADS = 8
"""The number of threads of a durable save, which wait for the disk."""

ROW_COPY_MIN = 16 << 10
"""Bytes of rows from which copying them as runs of bytes is faster than general indexing."""

ROW_WRITE_MIN = 32 << 10
"""Elements of rows from which writing them as runs of bytes is faster; general indexing takes time for each element."""

THREADED_COPY_MIN = 32 << 20
"""Bytes in one call from which copies within memory run on several threads."""

READ_AHEAD_MIN = 64 << 10
"""Bytes of rows from which it is worth asking whether their pages are in memory."""

FOREGROUND_REMOVAL_MAX = 8 << 20
"""Bytes of a replaced save up to which it is removed before a save returns; each file adds 256 KiB."""

SCATTER_MIN_FILES = 32
"""The number of files from which a save avoids the block group of recently removed files (see `syscalls.scatter`)."""


def are_ranges_small(nbytes: int, count: int) -> bool:
    """Return whether memory ranges are too short, on average, to be copied into a mapping one by one.

    >>> are_ranges_small(1 << 20, 4), are_ranges_small(1 << 20, 1000)
    (False, True)
    """
    return nbytes < count * MAPPED_RANGE_MIN


def is_long_removal(nbytes: int, files: int = 1) -> bool:
    """Return whether removing files takes so long that it should run in the background.

    >>> is_long_removal(1000, 3), is_long_removal(1 << 30)
    (False, True)
    """
    return nbytes + files * SMALL_FILE > FOREGROUND_REMOVAL_MAX


def is_unfilled(dst: torch.Tensor, src: torch.Tensor) -> bool:
    """Return whether most pages of ``dst`` are not in memory: writing to its file is faster than to its mapping."""
    if dst.nbytes < FILE_WRITE_MIN or getattr(dst, "handler", None) is None:
        return False
    if torch.is_grad_enabled() and (dst.requires_grad or src.requires_grad):
        return False  # autograd must see the copy
    if not dst.is_contiguous() or dst.is_conj() or dst.is_neg() or src.layout is not torch.strided:
        return False
    if src.device == dst.device and src.untyped_storage().data_ptr() == dst.untyped_storage().data_ptr():
        return False  # they may overlap, which only torch handles
    samples = min(1 + (dst.nbytes >> 21), 16)  # a sample takes as long as copying 20 KiB
    return syscalls.resident(dst.data_ptr(), dst.nbytes, samples) <= 0.5


def is_cold(src: torch.Tensor, rows: torch.Tensor) -> bool:
    """Return whether most of the rows to read are not in memory, so that reading them with many threads is faster."""
    if src.device.type != "cpu" or not syscalls.LINUX:
        return False
    row, first = src.stride(0) * src.element_size(), src.data_ptr()
    if syscalls.resident(first + int(rows[0]) * row, 1, 1):  # a check takes as long as copying some rows
        return False
    sample = rows[:: max(rows.numel() // 4, 1)].tolist()
    return sum(syscalls.resident(first + k * row, 1, 1) for k in sample) < len(sample) / 2


_kernels_lock = threading.RLock()
_kernels_module: ModuleType | None = None
_kernels_broken = False


def load_kernels(nbytes: int, widths: Iterable[int]) -> ModuleType | None:
    """Return the module of kernels if they save more time than loading or compiling them takes; else None.

    Args:
        nbytes: The number of strided bytes that one call moves.
        widths: The widths of the items in bytes.
    """
    global _kernels_module, _kernels_broken
    if nbytes < KERNEL_CALL_MIN or _kernels_broken or not syscalls.POSIX:
        return None
    if _kernels_module is None and nbytes < KERNEL_LOAD_MIN:
        return None
    with _kernels_lock:
        if _kernels_broken:
            return None
        try:
            from tensordict_memmap.engine.kernels import loader  # imports LLVM

            for width in widths:
                if nbytes < KERNEL_COMPILE_MIN and not loader.is_cached(width):
                    return None
                loader.functions(width)
            _kernels_module = loader
        except Exception as error:  # a compiler can fail in many ways, and slower copies produce the same bytes
            _kernels_broken = True
            warnings.warn(
                f"Numba failed to compile kernels, so strided tensors are copied without them, slower: {error!r}",
                RuntimeWarning,
                stacklevel=3,
            )
            return None
    return _kernels_module


def _new_lock_after_fork() -> None:
    global _kernels_lock
    _kernels_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    # A fork waits while a thread loads kernels, since the import lock of the module would stay locked in the child.
    os.register_at_fork(
        before=lambda: _kernels_lock.acquire(),
        after_in_parent=lambda: _kernels_lock.release(),
        after_in_child=_new_lock_after_fork,
    )
