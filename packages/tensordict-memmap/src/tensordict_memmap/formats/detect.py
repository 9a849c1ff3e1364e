"""Detect the format of a saved tensordict by the bytes or the name of its file."""

from __future__ import annotations

from collections.abc import Callable

from tensordict_memmap.formats import archive
from tensordict_memmap.formats.safetensors.header import ENDING, INDEX_ENDING, LONGEST_HEADER

__all__ = ["ARCHIVE", "CONSOLIDATED", "SAFETENSORS", "TREE", "format_by_name", "kind_of_bytes"]

TREE, SAFETENSORS, ARCHIVE, CONSOLIDATED = "tree", "safetensors", "archive", "consolidated"


def format_by_name(path: str) -> str:
    """Returns the format that a save writes to a path, by its suffix.

    >>> format_by_name("x.safetensors"), format_by_name("x.tdz"), format_by_name("x")
    ('safetensors', 'archive', 'tree')
    """
    if path.endswith((ENDING, INDEX_ENDING)):
        return SAFETENSORS
    return ARCHIVE if path.endswith(archive.ENDING) else TREE


def kind_of_bytes(size: int, read: Callable[[int, int], bytes]) -> str:
    """Detects the format of a file.

    Args:
        size: its size in bytes.
        read: a function of an offset and a number of bytes that reads from the file.
    """
    head = read(0, 9)
    # first, because the length of a header may have the same bytes as the start of a zip file
    if head[8:] == b"{" and int.from_bytes(head[:8], "little") <= min(size - 8, LONGEST_HEADER):
        return SAFETENSORS
    if head[:2] == b"PK":
        return ARCHIVE
    length = int.from_bytes(read(size - 8, 8), "little") if size > 8 else 0
    if 0 < length <= size - 8 and read(size - 8 - length, 1) == b"{":
        return CONSOLIDATED
    return SAFETENSORS
