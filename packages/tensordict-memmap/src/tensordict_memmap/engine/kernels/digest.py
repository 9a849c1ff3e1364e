"""Digests: the hash of what a kernel writes, XXH3 with 64 bits, in memory that kernels can work in.

The algorithm (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md) has eight sums, into which every 64 bytes
go, a stripe, keyed with a part of a secret; after each 16 stripes the sums are scrambled. Kernels do that to what they
have just packed (``hash_add`` in ``kernels.py``). Here is the memory, and what makes one number of the sums. What is
written without a kernel is hashed by the library, to the same numbers (``checksums.py``).
"""

from __future__ import annotations

import ctypes
import struct

from xxhash import xxh3_64_intdigest

__all__ = [
    "BLOCK",
    "HELD",
    "LAST_KEY",
    "SCRAMBLE_KEY",
    "SCRAMBLE_PRIME",
    "SECRET",
    "STRIPE",
    "STRIPES",
    "SUMS",
    "Digest",
]

STRIPE, STRIPES = 64, 16
"""Bytes that go into the sums at once, and after how many such the sums are scrambled."""

BLOCK = STRIPE * STRIPES
"""Bytes between one scrambling and the next."""

SUMS, SECRET, HELD = 8, 72, 328
"""Where the parts of a digest start: behind the number of bytes that it has taken come the sums, the secret, and the
last 1 to `BLOCK` bytes, with the `STRIPE` before them in front."""

SCRAMBLE_KEY, LAST_KEY = 128, 121
"""Where in the secret the keys are that scramble, and that the last 64 bytes go with."""

SCRAMBLE_PRIME = 0x9E3779B1
"""What sums are multiplied with then."""

_MERGE_KEY = 11
_PRIMES = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_FIRST_SUMS = 0xC2B2AE3D, *_PRIMES[:4], 0x85EBCA77, _PRIMES[4], SCRAMBLE_PRIME
_MIX = 0x165667919E3779F9
_LONG = (1 << 64) - 1

_KEYS = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_START = struct.pack("=q8Q", 0, *_FIRST_SUMS) + _KEYS


class Digest:
    """The hash of what one call of a kernel writes.

    >>> Digest().value() == xxh3_64_intdigest(b"")
    True
    """

    __slots__ = ("_memory", "address")

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(_START, HELD + BLOCK)
        self.address = ctypes.addressof(self._memory)

    def value(self) -> int:
        """The hash, once a kernel has ended it."""
        total, *sums = struct.unpack_from("=q8Q", self._memory)
        if total <= BLOCK:
            return xxh3_64_intdigest(self._memory.raw[HELD : HELD + total])
        value: int = total * _PRIMES[0]
        for number, key in enumerate(struct.unpack_from("<8Q", _KEYS, _MERGE_KEY)):
            sums[number] ^= key
        for one, other in zip(sums[::2], sums[1::2], strict=True):
            product = one * other
            value += (product & _LONG) ^ (product >> 64)
        value &= _LONG
        value = (value ^ (value >> 37)) * _MIX & _LONG
        return value ^ (value >> 32)
