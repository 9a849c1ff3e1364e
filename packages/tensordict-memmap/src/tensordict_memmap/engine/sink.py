"""Sinks: the two ways for bytes into a file that several threads fill at once.

The kernel lets one thread at a time write to a file, so a second one would wait. It copies into a mapping of the file
instead, which nothing keeps it from: where file systems use huge pages that is a fault for 2 MiB, and half as fast as
writing. A writer and a copier fill one file in two thirds of the time of two writers; a copier alone is slower.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.tuning import WORTH_A_MAPPING, is_crowded

__all__ = ["Put", "Sink"]

Put = Callable[[Sequence[int], Sequence[int], int], None]
"""Takes ``(addresses, sizes, offset)``: pieces of memory, and where in the file they go, one behind the other."""


class Sink:
    """A file that is being filled, by its descriptor.

    Args:
        fd: the descriptor, which stays the caller's.

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
        """Takes the blocks of all that is going to be put; False where the file system cannot.

        Raises:
            OSError: There is no room for it.
        """
        done = syscalls.reserve(self.fd, offset, nbytes)
        self._maps = done and syscalls.LINUX and _is_on_a_device(self.fd)
        return done

    @contextmanager
    def open_range(self, offset: int, nbytes: int, pieces: int = 1) -> Iterator[Put]:
        """What puts bytes into one range of the file, in parts and in any order.

        Args:
            offset: where the range starts.
            nbytes: how long it is.
            pieces: of how many pieces of memory it is made.
        """
        if not self._maps or nbytes < WORTH_A_MAPPING or is_crowded(nbytes, pieces):
            yield functools.partial(syscalls.write_pieces_at, self.fd)
        elif self._turn.acquire(blocking=False):
            try:
                yield functools.partial(syscalls.write_pieces_at, self.fd)
            finally:
                self._turn.release()
        else:
            with syscalls.mapped_range(self.fd, offset, nbytes) as address:
                yield functools.partial(_copy_pieces, address - offset)


def _copy_pieces(base: int, addresses: Sequence[int], sizes: Sequence[int], offset: int) -> None:
    """Copies pieces into memory that starts, as it were, at offset 0 of a file."""
    target = base + offset
    for address, nbytes in zip(addresses, sizes, strict=True):
        syscalls.copy(target, address, nbytes)
        target += nbytes


def _is_on_a_device(fd: int) -> bool:
    """Whether a file's pages are a cache of a disk: in memory, or over a network, mapping them is the slower way."""
    return os.major(os.fstat(fd).st_dev) != 0
