"""Detect the format of a saved tensordict by the bytes or the name of its file."""

from __future__ import annotations

from collections.abc import Callable

from tensordict_memmap.formats import archive
from tensordict_memmap.formats.safetensors.header import ENDING, INDEX_ENDING, LONGEST_HEADER, load_header

TREE, SAFETENSORS, ARCHIVE, CONSOLIDATED = "tree", "safetensors", "archive", "consolidated"

_END_OF_ARCHIVE = b"PK\5\6"


def format_by_name(path: str) -> str:
    """Return the format that a save writes to a path, by its suffix.

    >>> format_by_name("x.safetensors"), format_by_name("x.tdz"), format_by_name("x")
    ('safetensors', 'archive', 'tree')
    """
    if path.endswith((ENDING, INDEX_ENDING)):
        return SAFETENSORS
    return ARCHIVE if path.endswith(archive.ENDING) else TREE


def format_by_content(size: int, read: Callable[[int, int], bytes]) -> str:
    """Detect the format of a file.

    Args:
        size: Its size in bytes.
        read: A function of an offset and a number of bytes that reads from the file.
    """
    head = read(0, 9)
    length = int.from_bytes(read(size - 8, 8), "little") if size > 8 else 0
    ends_described = 1 < length <= size - 8 and read(size - 8 - length, 1) + read(size - 9, 1) == b"{}"
    # first, because the length of a header may have the same bytes as the start of a zip file
    if head[8:] == b"{" and int.from_bytes(head[:8], "little") <= min(size - 8, LONGEST_HEADER):
        # the first leaf of a consolidated file may have any bytes, those of another file among them
        return CONSOLIDATED if ends_described and not _is_header(head, size, read) else SAFETENSORS
    if head[:2] == b"PK" and not (ends_described and read(size - 22, 4) != _END_OF_ARCHIVE):
        return ARCHIVE
    return CONSOLIDATED if ends_described else SAFETENSORS


def _is_header(head: bytes, size: int, read: Callable[[int, int], bytes]) -> bool:
    """Return whether a file starts with the header of a safetensors file that describes the rest of it."""
    length = int.from_bytes(head[:8], "little")
    try:
        load_header(read(8, length), size - 8 - length, "the file")
    except ValueError:
        return False
    return True
