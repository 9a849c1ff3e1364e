"""Checksums in the header of a safetensors file: writes, drops and verifies those of the tensors and of the header.

They are one value of the file's metadata, which other tools ignore: ``xxh3_64/4194304:``, then 16 hexadecimal digits
for the header, then 16 for each tensor that is not empty, in the order of their bytes. The checksum of the header is
computed with hyphens in place of all digits. A dropped checksum is replaced by hyphens too.
"""

from __future__ import annotations

import os

from tensordict_memmap.engine.checksums import BLOCK, DIGITS, checksum_of
from tensordict_memmap.formats.safetensors.header import Header, Slot
from tensordict_memmap.storage.verify import Range, damaged, verify_ranges, without_checksum

CHECKSUMS = "tensordict_checksums"
"""The key of the checksums in the metadata of a file."""

_START = f"xxh3_64/{BLOCK}:"


def reserve_checksums(count: int) -> str:
    """Return a placeholder for the checksums of ``count`` tensors."""
    return _START + "-" * (DIGITS * (count + 1))


def write_checksums(path: str, header: bytes, digits: str, *, durable: bool = False) -> None:
    """Write checksums over their placeholder.

    Args:
        path: The file.
        header: The bytes from the start of the file to the end of its header.
        digits: The digits of the checksums of its tensors, in their order.
        durable: Whether to sync the file to disk.
    """
    placeholder, start = reserve_checksums(len(digits) // DIGITS).encode(), _START.encode()
    place = header.index(start)  # a search for the whole placeholder takes as long as hashing a megabyte
    while not header.startswith(placeholder, place):
        place = header.index(start, place + 1)
    _overwrite(path, place + len(start), checksum_of(header)[-DIGITS:] + digits, durable)


def drop_packed_checksums(fd: int, metadata: dict[str, str], header: bytes) -> None:
    """Drop the checksums of all tensors of a file before it is opened for writing, and sync it to disk.

    Args:
        fd: The file, open for reading and writing.
        metadata: Its metadata.
        header: The bytes from the start of the file to the end of its header.
    """
    text = metadata.get(CHECKSUMS, "")
    dropped = len(text) - len(_START) - DIGITS
    if text.startswith(_START) and dropped > 0 and set(text[-dropped:]) != {"-"}:
        place = header.index(text.encode()) + len(_START) + DIGITS
        _overwrite(fd, place, "-" * dropped, durable=True)


def recorded_checksums(header: Header) -> dict[str, str] | None:
    """Return the checksum of each tensor of a file by name, empty without bytes; None if one of them is missing.

    Args:
        header: Its parsed header.
    """
    filled, digits = _recorded(header)
    if digits is None or "-" in "".join(digits):
        return None
    found = {slot.name: _START + one for slot, one in zip(filled, digits[1:], strict=True)}
    return {name: found.get(name, "") for name in header.names}


def verify_packed(fd: int, header: Header, start: bytes, path: str) -> None:
    """Verify the checksums of the header and of all tensors of a file.

    Args:
        fd: The file, open for reading.
        header: Its parsed header.
        start: The bytes from the start of the file to the end of its header.
        path: Its path, for errors.

    Raises:
        ValueError: A checksum differs or is missing; the error names the tensors.
    """
    filled, found = _recorded(header)
    if found is None:
        raise without_checksum(["any tensor"], path)
    own, *parts = found
    blank = start.replace(header.metadata[CHECKSUMS].encode(), reserve_checksums(len(filled)).encode(), 1)
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


def _recorded(header: Header) -> tuple[list[Slot], list[str] | None]:
    """Return the tensors that have bytes, and the digits of the header and of each of them, if the file has them."""
    filled = [slot for slot in header.slots() if slot.begin != slot.end]
    text = header.metadata.get(CHECKSUMS, "")
    if not text.startswith(_START) or len(text) != len(reserve_checksums(len(filled))):
        return filled, None
    return filled, [text[place : place + DIGITS] for place in range(len(_START), len(text), DIGITS)]


def _name(slot: Slot) -> str:
    return f"tensor {slot.name!r}"


def _overwrite(where: str | int, place: int, digits: str, durable: bool) -> None:
    with open(where, "r+b", closefd=isinstance(where, str)) as file:
        file.seek(place)
        file.write(digits.encode())
        if durable:
            file.flush()
            os.fsync(file.fileno())
