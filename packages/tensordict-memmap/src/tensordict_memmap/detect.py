"""Which format is at a path, told by its first and last bytes, whatever its name."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from tensordict_memmap.archive import is_archive_path
from tensordict_memmap.formats.safetensors import LONGEST_HEADER
from tensordict_memmap.packed import is_packed

__all__ = ["ARCHIVE", "CONSOLIDATED", "SAFETENSORS", "TREE", "kind_of", "kind_of_bytes"]

TREE, SAFETENSORS, ARCHIVE, CONSOLIDATED = "tree", "safetensors", "archive", "consolidated"


def kind_of(path: str | os.PathLike[str]) -> str:
    """The format of what is at a path; where nothing is, that of what a save would write there.

    >>> _ = TensorDict({"a": torch.zeros(3)}).consolidate("any.name")
    >>> kind_of("any.name"), kind_of("nothing.tdz"), kind_of("nothing")
    ('consolidated', 'archive', 'tree')
    """
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError):
        return SAFETENSORS if is_packed(path) else ARCHIVE if is_archive_path(path, None) else TREE
    try:
        info = os.fstat(fd)
        if stat.S_ISDIR(info.st_mode):
            return SAFETENSORS if is_packed(path) else TREE
        if not stat.S_ISREG(info.st_mode):
            return SAFETENSORS  # whose reader refuses pipes and devices

        def read(offset: int, nbytes: int) -> bytes:
            os.lseek(fd, offset, os.SEEK_SET)
            return os.read(fd, nbytes)

        return kind_of_bytes(info.st_size, read)
    finally:
        os.close(fd)


def kind_of_bytes(size: int, read: Callable[[int, int], bytes]) -> str:
    """The format of a file.

    Args:
        size: its bytes.
        read: reads so many bytes from an offset.
    """
    head = read(0, 9)
    if head[:2] == b"PK":
        return ARCHIVE
    if head[8:] == b"{" and int.from_bytes(head[:8], "little") <= min(size - 8, LONGEST_HEADER):
        return SAFETENSORS
    length = int.from_bytes(read(size - 8, 8), "little") if size > 8 else 0
    if 0 < length <= size - 8 and read(size - 8 - length, 1) == b"{":
        return CONSOLIDATED
    return SAFETENSORS
