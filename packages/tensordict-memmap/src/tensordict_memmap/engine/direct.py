"""Direct writes: a durable save writes large ranges of a file to the disk past the page cache.

A durable save waits for the disk in any case. With the page cache, each byte is first copied into a new page, and
allocating these pages can take longer than the disk, especially while the pages of the earlier save are still in use.
After a direct write the file is not in memory, so this is used for files that the process does not map immediately.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Sequence

import numpy as np

from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.engine.tuning import DIRECT_MIN, STAGING_BYTES

_BLOCK = max(4096, mmap.PAGESIZE)
"""The alignment of direct writes, in the file and in memory: that of disks, and no page of the cache has bytes of both
kinds of writes."""

_local = threading.local()


class DirectFile:
    """A file for direct writes by several threads.

    Args:
        path: The file, which exists.
        fd: The same file, open for other writes: the bytes at the ends of a range that fill no block are written there.

    Raises:
        OSError: The file system has no direct writes.

    >>> source = np.arange(8, dtype=np.uint8)
    >>> with open("x.bin", "wb") as file:
    ...     direct = DirectFile("x.bin", file.fileno())
    ...     direct.put([source.ctypes.data], [8], 2)
    ...     direct.close()
    >>> np.fromfile("x.bin", dtype=np.uint8).tolist()
    [0, 0, 0, 1, 2, 3, 4, 5, 6, 7]
    """

    __slots__ = ("_fd", "_file", "_is_refused")

    def __init__(self, path: str | os.PathLike[str], fd: int) -> None:
        flag = getattr(os, "O_DIRECT", 0)
        if not flag:
            raise OSError(errno.EINVAL, "direct writes are not supported", os.fspath(path))
        self._file = Descriptor(os.open, path, os.O_WRONLY | flag | syscalls.NO_LINK)
        self._fd = fd
        self._is_refused = False

    def put(self, addresses: Sequence[int], sizes: Sequence[int], offset: int) -> None:
        """Write ranges of memory one after another to ``offset`` of the file."""
        end = offset + sum(sizes)
        low, high = -(-offset // _BLOCK) * _BLOCK, end // _BLOCK * _BLOCK
        if high - low < DIRECT_MIN or self._is_refused:
            syscalls.write_ranges_at(self._fd, addresses, sizes, offset)
            return
        staging, staged = staging_block(), 0
        for address, nbytes in zip(addresses, sizes, strict=True):
            stop = address + nbytes
            while address < stop:
                if offset < low or offset >= high:
                    count = min(stop - address, low - offset) if offset < low else stop - address
                    syscalls.write_at(self._fd, address, count, offset)
                else:
                    count = min(stop - address, high - offset, STAGING_BYTES - staged)
                    syscalls.copy(staging + staged, address, count)
                    staged += count
                    if staged == STAGING_BYTES or offset + count == high:
                        self._write(staging, staged, offset + count - staged)
                        staged = 0
                address, offset = address + count, offset + count

    def _write(self, address: int, nbytes: int, offset: int) -> None:
        if not self._is_refused:
            try:
                syscalls.write_at(self._file.fileno(), address, nbytes, offset)
                return
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._is_refused = True  # the file system opens files so, but has no such writes, or larger blocks
        syscalls.write_at(self._fd, address, nbytes, offset)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def staging_block() -> int:
    """Return the address of this thread's aligned block of `STAGING_BYTES`."""
    block = getattr(_local, "block", None)
    if block is None:
        block = _local.block = np.empty(STAGING_BYTES + _BLOCK, dtype=np.uint8)
    address = int(block.ctypes.data)
    return address + -address % _BLOCK
