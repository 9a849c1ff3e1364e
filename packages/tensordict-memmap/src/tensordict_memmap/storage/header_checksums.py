"""Checksums in the header of a safetensors file: one of each tensor and one of the header itself.

They are one value of the file's metadata, so any tool reads the file: ``xxh3_64/4194304:`` and then 16 hexadecimal
digits for the header and for each tensor that is not empty, in the order of their bytes. The checksum of the header is
that of the header with hyphens in place of all digits. Hyphens also stand for a dropped checksum.
"""

from __future__ import annotations

import os

from tensordict_memmap.engine.checksums import BLOCK, DIGITS, checksum_of
from tensordict_memmap.formats.safetensors.header import Header, Slot
from tensordict_memmap.storage.verify import Range, damaged, verify_ranges, without_checksum

__all__ = ["CHECKSUMS", "drop_packed_checksums", "reserve_checksums", "verify_packed", "write_checksums"]

CHECKSUMS = "tensordict_checksums"
"""The name of the checksums in the metadata of a file."""

_START = f"xxh3_64/{BLOCK}:"


def reserve_checksums(count: int) -> str:
    """A placeholder for the checksums of so many tensors."""
    return _START + "-" * (DIGITS * (count + 1))


def write_checksums(path: str, header: bytes, digits: str, *, durable: bool = False) -> None:
    """Writes checksums over their placeholder.

    Args:
        path: the file.
        header: its header, which starts the file.
        digits: the digits of the checksums of its tensors, in their order.
        durable: whether they survive a power failure.
    """
    placeholder, start = reserve_checksums(len(digits) // DIGITS).encode(), _START.encode()
    place = header.index(start)  # a search for all of it takes as long as hashing a megabyte
    while not header.startswith(placeholder, place):
        place = header.index(start, place + 1)
    _overwrite(path, place + len(start), checksum_of(header)[-DIGITS:] + digits, durable)


def drop_packed_checksums(fd: int, metadata: dict[str, str], header: bytes) -> None:
    """Drops, durably, the checksums of the tensors of a file that may be written to.

    Args:
        fd: the file, opened to read and write.
        metadata: its metadata.
        header: its header, which starts the file.
    """
    text = metadata.get(CHECKSUMS, "")
    dropped = len(text) - len(_START) - DIGITS
    if text.startswith(_START) and dropped > 0 and set(text[-dropped:]) != {"-"}:
        place = header.index(text.encode()) + len(_START) + DIGITS
        _overwrite(fd, place, "-" * dropped, durable=True)


def verify_packed(fd: int, header: Header, start: bytes, path: str) -> None:
    """Compares the header and all tensors of a file with their checksums.

    Args:
        fd: the file, opened.
        header: its parsed header.
        start: the bytes of its header.
        path: its path, for errors.

    Raises:
        ValueError: They differ, or have none; the error names the tensors.
    """
    filled = [slot for slot in header.slots() if slot.begin != slot.end]
    text = header.metadata.get(CHECKSUMS)
    if text is None or not text.startswith(_START) or len(text) != len(reserve_checksums(len(filled))):
        raise without_checksum(["any tensor"], path)
    own, *parts = [text[place : place + DIGITS] for place in range(len(_START), len(text), DIGITS)]
    blank = start.replace(text.encode(), reserve_checksums(len(filled)).encode(), 1)
    if checksum_of(blank)[-DIGITS:] != own:
        raise damaged(["the header"], path)
    missing = [_name(slot) for slot, digits in zip(filled, parts, strict=True) if "-" in digits]
    if missing:
        raise without_checksum(missing, path)
    verify_ranges(
        (
            Range(_name(slot), fd, len(start) + slot.begin, slot.end - slot.begin, _START + digits)
            for slot, digits in zip(filled, parts, strict=True)
        ),
        path,
    )


def _name(slot: Slot) -> str:
    return f"tensor {slot.name!r}"


def _overwrite(where: str | int, place: int, digits: str, durable: bool) -> None:
    with open(where, "r+b", closefd=isinstance(where, str)) as file:
        file.seek(place)
        file.write(digits.encode())
        if durable:
            file.flush()
            os.fsync(file.fileno())
