"""Checksums of files and tensors, which a save with ``checksum=True`` records to detect corruption.

The algorithm is XXH3 with 64 bits (https://github.com/Cyan4973/xxHash), which is faster than writing the bytes. Bytes
are split into blocks, each block is hashed, and the checksum is the hash of those hashes, eight little-endian bytes
each. So threads can hash blocks in any order, while these are in the cache. The text form starts with the block size:
``xxh3_64/4194304:0f2c..``. A checksum detects corruption; it is not a signature.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from xxhash import xxh3_64, xxh3_64_digest, xxh3_64_hexdigest, xxh3_64_intdigest

from tensordict_memmap.engine import syscalls

BLOCK = 4 << 20
"""The default block size in bytes."""

DIGITS = 16
"""The number of hexadecimal digits at the end of a checksum."""

_HOT = 256 << 10
"""Number of bytes to read at once, so that they are hashed while they are in the cache."""

_FORM = re.compile(r"xxh3_64/([1-9][0-9]{0,8}):([0-9a-f]{16})")
_SMALLEST, _LARGEST = 1 << 20, 64 << 20


class Extent:
    """A range of a file that gets a checksum; collects the hashes of its blocks while they are written.

    Args:
        offset: The offset of its first byte in the file.
        nbytes: Its length in bytes.
        block: The block size in bytes.
    """

    __slots__ = ("_hashes", "block", "nbytes", "offset")

    def __init__(self, offset: int, nbytes: int, block: int = BLOCK) -> None:
        self.offset = offset
        self.nbytes = nbytes
        self.block = block
        self._hashes: list[int | None] = [None] * -(-nbytes // block)

    def put(self, start: int, value: int) -> None:
        """Record the hash of the block that starts at ``start``, relative to the range."""
        self._hashes[start // self.block] = value

    def missing(self) -> Iterator[tuple[int, int]]:
        """Yield the start and size of each block without a hash."""
        for number, value in enumerate(self._hashes):
            if value is None:
                start = number * self.block
                yield start, min(self.block, self.nbytes - start)

    def read_back(self, fd: int, start: int, nbytes: int) -> None:
        """Read the block that starts at ``start`` from the file and record its hash."""
        self.put(start, hash_of_file(fd, self.offset + start, nbytes))

    def checksum(self) -> str:
        """Return the checksum, once every block has a hash."""
        return _joined(self.block, [value for value in self._hashes if value is not None])


def checksum_of(data: bytes | memoryview) -> str:
    """Return the checksum of bytes.

    >>> checksum_of(b"abc")
    'xxh3_64/4194304:f267cda02014e7eb'
    """
    view = memoryview(data).cast("B")
    return _joined(BLOCK, [hash_bytes(view[start : start + BLOCK]) for start in range(0, len(view), BLOCK)])


def hash_bytes(data: bytes | memoryview) -> int:
    """Return the hash of the bytes of one block."""
    return xxh3_64_intdigest(data)


def hash_of_file(fd: int, offset: int, nbytes: int) -> int:
    """Return the hash of one block of an open file."""
    state = xxh3_64()
    for position in range(offset, offset + nbytes, _HOT):
        state.update(syscalls.read_at(fd, min(_HOT, offset + nbytes - position), position))
    return state.intdigest()


def join_hashes(block: int, hashes: bytes) -> str:
    """Return the checksum of blocks.

    Args:
        block: The block size in bytes.
        hashes: The hashes of the blocks, little-endian, eight bytes each.

    >>> join_hashes(BLOCK, hash_bytes(b"abc").to_bytes(8, "little")) == checksum_of(b"abc")
    True
    """
    return f"xxh3_64/{block}:{xxh3_64_intdigest(hashes):016x}"


def digits_of_ranges(addresses: Sequence[int], sizes: Sequence[int]) -> list[str]:
    """Return the digits of the checksums of many ranges of memory, each of at most one block.

    Args:
        addresses: The addresses of the ranges.
        sizes: Their sizes in bytes.

    >>> import ctypes
    >>> data = ctypes.create_string_buffer(b"abc-abc")
    >>> address = ctypes.addressof(data)
    >>> digits_of_ranges([address, address + 4], [3, 3]) == [checksum_of(b"abc")[-DIGITS:]] * 2
    True
    """
    if not addresses:
        return []
    first = min(addresses)
    # Slicing one view takes a fifth of the time of creating many; bytes between the ranges are never read.
    span = syscalls.view(first, max(addresses) - first + max(sizes))
    # A digest is big-endian, and the checksum hashes little-endian digests.
    return [
        xxh3_64_hexdigest(xxh3_64_digest(span[(start := address - first) : start + nbytes])[::-1])
        for address, nbytes in zip(addresses, sizes, strict=True)
    ]


def read_checksum(text: str) -> int | None:
    """Return the block size of a checksum; None if its algorithm is unknown.

    >>> read_checksum("xxh3_64/4194304:f267cda02014e7eb"), read_checksum("md5:0")
    (4194304, None)
    """
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    block = int(found[1])
    return block if _SMALLEST <= block <= _LARGEST else None


def _joined(block: int, hashes: Sequence[int]) -> str:
    return join_hashes(block, b"".join(value.to_bytes(8, "little") for value in hashes))
