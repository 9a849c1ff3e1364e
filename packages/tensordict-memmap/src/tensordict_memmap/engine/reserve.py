"""Space on the disk that is taken before it is needed, so that a full disk is an error now and no signal later.

A new file is a hole: it takes no space until it is written to. Where that happens through a mapping and the disk is
full by then, the process ends with SIGBUS; what was taken before cannot run out.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.tuning import JOB
from tensordict_memmap.schema.node import Leaf

__all__ = ["error_context", "reserve_file", "reserve_leaves"]


def reserve_file(fd: int, nbytes: int) -> None:
    """Takes the blocks for a file of that size, and makes it as long where it is shorter.

    Raises:
        OSError: if there is no room; the file is as long as it was.
    """
    size = os.fstat(fd).st_size
    try:
        if not syscalls.reserve(fd, 0, nbytes):  # a file system that cannot: bytes that are written are there
            zeros = torch.zeros(min(JOB, max(nbytes - size, 0)), dtype=torch.uint8)
            for start in range(size, nbytes, JOB):
                syscalls.write_at(fd, zeros.data_ptr(), min(JOB, nbytes - start), start)
    except OSError:
        os.ftruncate(fd, size)
        raise


def reserve_leaves(folder: str, leaves: Iterable[Leaf]) -> None:
    """Takes the blocks for the files of leaves, each of which has its full length.

    Raises:
        OSError: if there is no room; the error names the key.
    """
    for leaf in leaves:
        path = f"{folder}/{leaf.file}"
        if os.path.exists(path):
            with error_context(leaf.key[0] if len(leaf.key) == 1 else leaf.key, path):
                fd = os.open(path, os.O_RDWR | syscalls.BINARY)
                try:
                    reserve_file(fd, os.fstat(fd).st_size)
                finally:
                    os.close(fd)


@contextlib.contextmanager
def error_context(key: Any, path: str | None = None) -> Iterator[None]:
    """Adds the key and the file to errors of the system."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} (writing {key!r})", path) from error
