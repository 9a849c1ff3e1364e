"""The formats of saved tensordicts, and how the bytes or the name of a file tell them apart."""

from __future__ import annotations

from collections.abc import Callable

from tensordict_memmap.formats import archive
from tensordict_memmap.formats.safetensors.header import ENDING, INDEX_ENDING, LONGEST_HEADER

__all__ = ["ARCHIVE", "CONSOLIDATED", "SAFETENSORS", "TREE", "format_by_name", "kind_of_bytes"]

TREE, SAFETENSORS, ARCHIVE, CONSOLIDATED = "tree", "safetensors", "archive", "consolidated"


def format_by_name(path: str) -> str:
    """The format that a save writes to a path, by its ending.

    >>> format_by_name("x.safetensors"), format_by_name("x.tdz"), format_by_name("x")
    ('safetensors', 'archive', 'tree')
    """
    if path.endswith((ENDING, INDEX_ENDING)):
        return SAFETENSORS
    return ARCHIVE if path.endswith(archive.ENDING) else TREE


def kind_of_bytes(size: int, read: Callable[[int, int], bytes]) -> str:
    """The format of a file.

    Args:
        size: its bytes.
        read: reads so many bytes from an offset.
    """
    head = read(0, 9)
    # first, because the length of a header may start as an archive does
    if head[8:] == b"{" and int.from_bytes(head[:8], "little") <= min(size - 8, LONGEST_HEADER):
        return SAFETENSORS
    if head[:2] == b"PK":
        return ARCHIVE
    length = int.from_bytes(read(size - 8, 8), "little") if size > 8 else 0
    if 0 < length <= size - 8 and read(size - 8 - length, 1) == b"{":
        return CONSOLIDATED
    return SAFETENSORS
