"""Sinks: the files that bytes go to, their blocks on the disk, and the two ways to fill a file from several threads.

The kernel lets one thread at a time write to a file, so a second one would wait. It copies into a mapping of the file
instead: with huge pages that is one page fault for 2 MiB, half as fast as a write. A writer and a copier together fill
a file in two thirds of the time of two writers; a copier alone is slower than a writer.

A new file is a hole, which takes no space until it is written to. Reserving its blocks first makes a full disk an
``OSError`` now, where a later write through a mapping would end the process with SIGBUS.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.tuning import JOB_BYTES, MAPPED_COPY_MIN, are_ranges_small

__all__ = ["Put", "Sink", "error_context", "reserve_file", "reserve_files"]

Put = Callable[[Sequence[int], Sequence[int], int], None]
"""Takes ``(addresses, sizes, offset)``: ranges of memory, which go to the file one after another from an offset on."""


class Sink:
    """A file that is being filled, by its descriptor.

    Args:
        fd: the descriptor, which the caller closes.

    >>> import numpy as np
    >>> source = np.arange(4, dtype=np.uint8)
    >>> with open("x.bin", "wb") as file, Sink(file.fileno()).open_range(2, 4) as put:
    ...     put([source.ctypes.data], [4], 2)
    >>> np.fromfile("x.bin", dtype=np.uint8).tolist()
    [0, 0, 0, 1, 2, 3]
    """

    __slots__ = ("_maps", "_turn", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._maps = False  # a copy into a mapping that finds the disk full would end the process
        self._turn = threading.Lock()

    def reserve(self, offset: int, nbytes: int) -> bool:
        """Reserves the blocks of a range; False where the file system cannot.

        Raises:
            OSError: There is no room for it.
        """
        done = syscalls.reserve(self.fd, offset, nbytes)
        # The pages of files in memory or on a network are no cache of a device: mapping those is slower.
        self._maps = done and syscalls.LINUX and os.major(os.fstat(self.fd).st_dev) != 0
        return done

    @contextlib.contextmanager
    def open_range(self, offset: int, nbytes: int, count: int = 1) -> Iterator[Put]:
        """Gives the function that puts bytes into one range of the file, in any order.

        Args:
            offset: where the range starts.
            nbytes: how long it is.
            count: the number of ranges of memory that it is made of.
        """
        if not self._maps or nbytes < MAPPED_COPY_MIN or are_ranges_small(nbytes, count):
            yield functools.partial(syscalls.write_ranges_at, self.fd)
        elif self._turn.acquire(blocking=False):
            try:
                yield functools.partial(syscalls.write_ranges_at, self.fd)
            finally:
                self._turn.release()
        else:
            with syscalls.mapped_range(self.fd, offset, nbytes) as address:
                yield functools.partial(_copy_ranges, address - offset)


def _copy_ranges(base: int, addresses: Sequence[int], sizes: Sequence[int], offset: int) -> None:
    """Copies ranges of memory one after another to a mapping whose offset 0 would be at ``base``."""
    target = base + offset
    for address, nbytes in zip(addresses, sizes, strict=True):
        syscalls.copy(target, address, nbytes)
        target += nbytes


def reserve_file(fd: int, nbytes: int) -> None:
    """Reserves the blocks for a file of that size, and extends it to the size where it is shorter.

    Raises:
        OSError: There is no room; the file is as long as it was.
    """
    size = os.fstat(fd).st_size
    try:
        if not syscalls.reserve(fd, 0, nbytes):  # a file system that cannot: bytes that are written are there
            zeros = torch.zeros(min(JOB_BYTES, max(nbytes - size, 0)), dtype=torch.uint8)
            for start in range(size, nbytes, JOB_BYTES):
                syscalls.write_at(fd, zeros.data_ptr(), min(JOB_BYTES, nbytes - start), start)
    except OSError:
        os.ftruncate(fd, size)
        raise


def reserve_files(files: Iterable[tuple[object, str]]) -> None:
    """Reserves the blocks for files, each by its key and path, that have their full length; skips absent ones.

    Raises:
        OSError: There is no room; the error names the key.
    """
    for key, path in files:
        if os.path.exists(path):
            with error_context(key, path):
                fd = os.open(path, os.O_RDWR | syscalls.BINARY)
                try:
                    reserve_file(fd, os.fstat(fd).st_size)
                finally:
                    os.close(fd)


@contextlib.contextmanager
def error_context(key: object, path: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Adds a key, unless it is None, and a file to errors of the system."""
    try:
        yield
    except OSError as error:
        name, what = None if path is None else os.fspath(path), "" if key is None else f" (writing {key!r})"
        raise OSError(error.errno, f"{error.strerror}{what}", name) from error
