"""Sinks: write to one file from several threads, by system calls or through a mapping, and reserve its disk blocks.

The operating system lets one thread at a time write to a file, so a second thread copies into a mapping of the file
instead of waiting. With huge pages that takes one page fault for 2 MiB, half as fast as a write. One thread that writes
and one that copies fill a file in two thirds of the time of two that write.

A new file is a hole, which takes no space until it is written to. If its blocks are reserved first, a full disk raises
an ``OSError``; otherwise a later write through a mapping would end the process with SIGBUS.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.engine.direct import DirectFile
from tensordict_memmap.engine.mapped_range import mapped_range
from tensordict_memmap.engine.tuning import JOB_BYTES, MAPPED_COPY_MIN, are_ranges_small

Put = Callable[[Sequence[int], Sequence[int], int], None]
"""A function of ``(addresses, sizes, offset)`` that writes ranges of memory to the file, one after another."""


class Sink:
    """An open file that several threads write to.

    Args:
        file: Its descriptor, which the caller closes. A `Descriptor` stays open while a thread uses the sink.
        maps: Whether its blocks are reserved on a disk of this machine already, so that threads may copy into mappings.
        direct: The same file for direct writes, if ranges are written past the page cache.

    >>> import numpy as np
    >>> source = np.arange(4, dtype=np.uint8)
    >>> with open("x.bin", "wb") as file, Sink(file.fileno()).open_range(2, 4) as put:
    ...     put([source.ctypes.data], [4], 2)
    >>> np.fromfile("x.bin", dtype=np.uint8).tolist()
    [0, 0, 0, 1, 2, 3]
    """

    __slots__ = ("_maps", "_turn", "direct", "fd", "file")

    def __init__(self, file: int | Descriptor, *, maps: bool = False, direct: DirectFile | None = None) -> None:
        self.file = file
        self.direct = direct
        self.fd = file if isinstance(file, int) else file.fileno()
        self._maps = maps  # not until blocks are reserved: a copy into a mapping on a full disk would end the process
        self._turn = threading.Lock()

    def reserve(self, offset: int, nbytes: int) -> bool:
        """Reserve the disk blocks of a range; return False if the file system does not support it.

        Raises:
            OSError: The disk is full.
        """
        done = syscalls.reserve(self.fd, offset, nbytes)
        self._maps = done and is_mapping_fast(self.fd)
        return done

    @property
    def maps(self) -> bool:
        """Whether threads may copy into mappings of the file."""
        return self._maps

    @contextlib.contextmanager
    def open_range(self, offset: int, nbytes: int, count: int = 1) -> Iterator[Put]:
        """Yield a function that writes bytes to one range of the file, in any order.

        Args:
            offset: The offset of the range in the file.
            nbytes: Its length in bytes.
            count: The number of memory ranges that are written to it.
        """
        if self.direct is not None:
            yield self.direct.put
        elif not self._maps or nbytes < MAPPED_COPY_MIN or are_ranges_small(nbytes, count):
            yield functools.partial(syscalls.write_ranges_at, self.fd)
        elif self._turn.acquire(blocking=False):
            try:
                yield functools.partial(syscalls.write_ranges_at, self.fd)
            finally:
                self._turn.release()
        else:
            with mapped_range(self.fd, offset, nbytes) as address:
                yield functools.partial(_copy_ranges, address - offset)


def is_mapping_fast(fd: int) -> bool:
    """Return whether threads copy into mappings of a file about as fast as they write.

    They are slower on tmpfs and on network file systems, whose device number is 0.
    """
    return syscalls.LINUX and os.major(os.fstat(fd).st_dev) != 0


def _copy_ranges(base: int, addresses: Sequence[int], sizes: Sequence[int], offset: int) -> None:
    """Copy memory ranges one after another to a mapping whose offset 0 would be at ``base``."""
    target = base + offset
    for address, nbytes in zip(addresses, sizes, strict=True):
        syscalls.copy(target, address, nbytes)
        target += nbytes


def reserve_file(fd: int, nbytes: int) -> None:
    """Reserve the disk blocks for a file of ``nbytes`` bytes, and extend a shorter file to that size.

    Raises:
        OSError: The disk is full; the size of the file is unchanged.
    """
    size = os.fstat(fd).st_size
    try:
        if not syscalls.reserve(fd, 0, nbytes):  # not supported by the file system, so write zeros
            zeros = torch.zeros(min(JOB_BYTES, max(nbytes - size, 0)), dtype=torch.uint8, device="cpu")
            for start in range(size, nbytes, JOB_BYTES):
                syscalls.write_at(fd, zeros.data_ptr(), min(JOB_BYTES, nbytes - start), start)
    except OSError:
        os.ftruncate(fd, size)
        raise


def reserve_files(files: Iterable[tuple[object, str]]) -> None:
    """Reserve the disk blocks for files that have their full size; skips absent ones.

    Args:
        files: The key and path of each file.

    Raises:
        OSError: The disk is full; the error names the key.
    """
    for key, path in files:
        if os.path.exists(path):
            with error_context(key, path), Descriptor(os.open, path, os.O_RDWR | syscalls.BINARY) as file:
                reserve_file(file.fileno(), os.fstat(file.fileno()).st_size)


@contextlib.contextmanager
def error_context(key: object, path: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Add a path, and a key unless it is None, to each ``OSError`` of a block."""
    try:
        yield
    except OSError as error:
        name, what = None if path is None else os.fspath(path), "" if key is None else f" (writing {key!r})"
        raise OSError(error.errno, f"{error.strerror}{what}", name) from error
