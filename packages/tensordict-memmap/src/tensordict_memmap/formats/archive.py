"""Archive format: headers and index of a zip file whose entries are the files of a tree, aligned for mapping.

A stored payload starts at a multiple of 64 bytes, by padding in its local header (PKWARE's APPNOTE, sections 4.3 and
4.5). The index of a file is not trusted: entries that exceed the file, overlap or lead out of the folder raise an
error.
"""

from __future__ import annotations

import bz2
import itertools
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tensordict_memmap.formats.names import MANIFEST, META, check_path

ENDING = ".tdz"
METHODS = {
    "stored": zipfile.ZIP_STORED,
    "deflate": zipfile.ZIP_DEFLATED,
    "deflated": zipfile.ZIP_DEFLATED,
    "bzip2": zipfile.ZIP_BZIP2,
    "lzma": zipfile.ZIP_LZMA,
}
"""The compression methods of payloads."""

ALIGNMENT = 64

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_PADDING = 0x6474
"""The id of the extra field for padding: "td"."""

_INPUT = 1 << 20
"""Compressed bytes that a decoder gets at a time."""

_LZMA_RATIO = 1 << 14
"""More bytes than LZMA can make of one; those of zeros take about seven thousand times less."""

_LONGEST_DESCRIPTION = 1 << 20
_MOST_COMPRESSED = 64
"""A compressed ``meta.json`` may have so many bytes, and so many more for each byte that it takes in the archive."""

_ENCRYPTED = 0x1


@dataclass(slots=True)
class Member:
    """One entry of an archive.

    Args:
        name: Its path.
        size: Its size in bytes, uncompressed.
        header: The offset of its local header.
        offset: The offset of its payload.
        crc: The CRC-32 of the payload.
        method: Its compression, a constant of `zipfile`.
        packed: The size in bytes of the payload, compressed.
        central: The offset of its record in the central directory.
    """

    name: str
    size: int
    header: int = 0
    offset: int = 0
    crc: int = 0
    method: int = zipfile.ZIP_STORED
    central: int = 0
    packed: int = 0

    @property
    def stored(self) -> bool:
        """Whether the payload is stored without compression."""
        return self.method == zipfile.ZIP_STORED

    def info(self) -> zipfile.ZipInfo:
        """Return the record of a stored member; its date is the earliest one, since archives do not record any."""
        made = zipfile.ZipInfo(self.name)
        made.create_system = 0  # of files without permissions
        made.header_offset, made.CRC = self.header, self.crc
        made.file_size = made.compress_size = self.size
        return made


def local_header(member: Member, position: int, *, align: bool) -> bytes:
    """Return the local header of a stored member at ``position``; set ``member.header`` and ``member.offset``."""
    member.header = position
    info = member.info()
    header = info.FileHeader()
    if align:
        padding = -(position + len(header) + 4) % ALIGNMENT
        info.extra = struct.pack("<2H", _PADDING, padding) + bytes(padding)
        header = info.FileHeader()
    member.offset = position + len(header)
    return header


def read_index(data: memoryview, file: zipfile.ZipFile, where: str) -> dict[str, Member]:
    """Return the members of an archive by name, without folders.

    Args:
        data: All bytes of the archive.
        file: The archive, opened with `zipfile`.
        where: The name of the archive in errors.

    Raises:
        ValueError: The archive is damaged or not one of a tensordict; the error names the entry.
    """
    members: dict[str, Member] = {}
    ranges = []
    central = file.start_dir
    for info in file.infolist():
        here, central = central, _after(data, central, where)
        name = info.orig_filename
        # is_dir() fails for an empty name; a manifest describes the folder that was packed
        if name.endswith("/") or name.rpartition("/")[2] == MANIFEST:
            continue
        try:
            check_path(name)
            if name in members or info.flag_bits & _ENCRYPTED or info.compress_type not in METHODS.values():
                raise ValueError(f"{name[:200]!r} occurs twice, is encrypted or has an unknown compression")
            fixed = _LOCAL.unpack_from(data, info.header_offset)
            offset = info.header_offset + _LOCAL.size + fixed[9] + fixed[10]
            stored = info.compress_type == zipfile.ZIP_STORED
            if fixed[0] != b"PK\3\4" or offset + info.compress_size > file.start_dir:
                raise ValueError(f"{name[:200]!r} is outside the file")
            if stored and info.file_size != info.compress_size:
                raise ValueError(f"{name[:200]!r} has two sizes")
        except (ValueError, struct.error) as error:
            raise ValueError(f"the archive {where} is damaged: {error}; save it again") from None
        ranges.append((info.header_offset, offset + info.compress_size, name))
        numbers = info.file_size, info.header_offset, offset, info.CRC, info.compress_type, here, info.compress_size
        members[name] = Member(name, *numbers)
    ranges.sort()
    for (_, end, _), (start, _, name) in itertools.pairwise(ranges):
        if start < end:
            raise ValueError(f"the archive {where} is damaged: {name!r} overlaps another entry; save it again")
    if META not in members:
        raise ValueError(f"{where} has no {META}, so it is not an archive of a tensordict; pass one that save wrote")
    return members


def blocks(data: memoryview, member: Member, most: int) -> Iterator[bytes | memoryview]:
    """Yield the content of a member, decompressed and verified, at most ``most`` bytes at a time.

    Raises:
        ValueError: The payload is damaged: it has another size or checksum, or does not decompress.
    """
    payload = data[member.offset : member.offset + member.packed]
    crc, left = 0, member.size
    try:
        for block in _decompressed(payload, member, most):
            crc, left = zlib.crc32(block, crc), left - len(block)
            if left < 0:
                break
            yield block
    except (zlib.error, lzma.LZMAError, EOFError, OSError, struct.error) as error:
        raise ValueError(f"it does not decompress ({error})") from None
    if left or crc != member.crc:
        raise ValueError("its content has another size" if left else "its content has another checksum")


def _decompressed(payload: memoryview, member: Member, most: int) -> Iterator[bytes | memoryview]:
    if member.stored:
        yield from (payload[start : start + most] for start in range(0, len(payload), most))
        return
    decoder: Any
    if member.method == zipfile.ZIP_DEFLATED:
        decoder = zlib.decompressobj(-zlib.MAX_WBITS)
    elif member.method == zipfile.ZIP_BZIP2:
        decoder = bz2.BZ2Decompressor()
    else:
        decoder, payload = _lzma(payload, member.size)
    for start in range(0, len(payload), _INPUT):
        part: Any = payload[start : start + _INPUT]
        while not decoder.eof:
            block = decoder.decompress(part, most)
            part = getattr(decoder, "unconsumed_tail", b"")  # bz2 and lzma keep what they have not used
            if block:
                yield block
            elif not part:
                break


def _lzma(payload: memoryview, size: int) -> tuple[lzma.LZMADecompressor, memoryview]:
    """Return the decoder of LZMA in a zip file (APPNOTE, section 5.8), and the bytes behind its properties."""
    _, length, numbers, dictionary = struct.unpack_from("<2HBI", payload)
    numbers, lc = divmod(numbers, 9)
    pb, lp = divmod(numbers, 5)
    # a decoder allocates the dictionary that the file names; one of the size of the content holds all of it, and what
    # LZMA makes of so many bytes is shorter than the last bound
    dictionary = min(dictionary, max(size, 4096), 4096 + len(payload) * _LZMA_RATIO)
    options = {"id": lzma.FILTER_LZMA1, "dict_size": dictionary, "lc": lc, "lp": lp, "pb": pb}
    try:
        return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[options]), payload[4 + length :]
    except ValueError as error:
        raise lzma.LZMAError(str(error)) from None


def check_description(member: Member, where: str) -> None:
    """Refuse a description that would take much more memory than the archive takes on the disk.

    Raises:
        ValueError: The description is too large for its compressed size.
    """
    most = _LONGEST_DESCRIPTION + _MOST_COMPRESSED * member.packed
    if not member.stored and member.size > most:
        raise ValueError(
            f"{member.name[:200]!r} in {where} has {member.size} bytes for {member.packed} compressed ones, and a "
            f"description of that size has at most {most}; unzip the archive if you trust it, and load the folder"
        )


def _after(data: memoryview, position: int, where: str) -> int:
    try:
        fixed = _CENTRAL.unpack_from(data, position)
    except struct.error as error:
        raise ValueError(f"the archive {where} is damaged: {error}; save it again") from None
    return position + _CENTRAL.size + int(fixed[10]) + int(fixed[11]) + int(fixed[12])
