"""Shard plan: which parts of which tensors a rank holds, as boxes of the whole tensors, in a compact form.

The thousands of tensors of a model have few different shapes and shardings. Therefore a plan is a column of names and a
column of numbers of *kinds*; a kind is a dtype, a shape and boxes. Both columns are short messages, and equal ones are
parsed once.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import orjson
import torch
from xxhash import xxh3_128_hexdigest

from tensordict_memmap.schema.dtypes import dtype_from_name

NO_NAMES = zlib.compress(b"", 1)
"""The text of the names in a message without names."""


class Box(NamedTuple):
    """A part of a tensor: where it starts and how long it is in each dimension.

    >>> Box((2, 0), (3, 4)).volume, Box((), ()).volume
    (12, 1)
    """

    offset: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def volume(self) -> int:
        """The number of elements."""
        return prod(self.size)

    def contains(self, other: Box) -> bool:
        """Return whether another box is inside.

        >>> Box((0, 0), (4, 4)).contains(Box((1, 0), (3, 4))), Box((0,), (2,)).contains(Box((1,), (2,)))
        (True, False)
        """
        return all(
            start <= first and first + count <= start + size
            for start, size, first, count in zip(self.offset, self.size, other.offset, other.size, strict=True)
        )

    def cut(self, other: Box) -> Box | None:
        """Return the part that both share; None if there is none.

        >>> Box((0, 0), (2, 4)).cut(Box((1, 2), (2, 4)))
        Box(offset=(1, 2), size=(1, 2))
        """
        offset = tuple(map(max, self.offset, other.offset))
        ends = [min(a + n, b + m) for a, n, b, m in zip(*self, *other, strict=True)]
        size = tuple(end - start for start, end in zip(offset, ends, strict=True))
        return Box(offset, size) if all(count > 0 for count in size) else None

    def with_dims(self, sizes: tuple[int, ...]) -> Box:
        """Return the box with more dimensions at the end, of which it has all.

        >>> Box((2,), (3,)).with_dims((4,))
        Box(offset=(2, 0), size=(3, 4))
        """
        return Box(self.offset + (0,) * len(sizes), self.size + sizes)

    def slices(self, start: Sequence[int] | None = None) -> tuple[slice, ...]:
        """Return the index of the box in a tensor whose first element has the position ``start`` of the whole.

        >>> Box((2, 0), (3, 4)).slices((2, 0))
        (slice(0, 3, None), slice(0, 4, None))
        """
        first = self.offset if start is None else [a - b for a, b in zip(self.offset, start, strict=True)]
        return tuple(slice(begin, begin + count) for begin, count in zip(first, self.size, strict=True))


def stand_in(dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """Return a tensor without memory, which formats describe like any other.

    >>> stand_in(torch.int64, (1 << 40,)).untyped_storage().nbytes()
    8
    """
    return torch.empty((), dtype=dtype, device="cpu").expand(shape)


def whole(shape: Sequence[int]) -> Box:
    """Return the box of a whole tensor.

    >>> whole((2, 3))
    Box(offset=(0, 0), size=(2, 3))
    """
    return Box((0,) * len(shape), tuple(shape))


class Kind(NamedTuple):
    """The dtype and the whole shape of a tensor, and the boxes of it that a rank holds."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]


class ShardPlan:
    """The parts of tensors that one rank holds.

    Attributes:
        names: The names of the tensors, each once.
        kinds: The different kinds.
        column: The number of the kind of each tensor.

    >>> plan = ShardPlan()
    >>> plan.add("a", torch.float32, (4, 3), [Box((0, 0), (2, 3))])
    >>> plan.add("b", torch.float32, (4, 3), [Box((0, 0), (2, 3))])
    >>> len(plan.kinds), ShardPlan.loads(plan.dumps()) == plan
    (1, True)
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.kinds: list[Kind] = []
        self.column: list[int] = []
        self._numbers: dict[Kind, int] = {}

    def add(self, name: str, dtype: torch.dtype, shape: Iterable[int], boxes: Iterable[Box]) -> None:
        """Add a tensor of which this rank holds the boxes; empty ones are left out."""
        kind = Kind(dtype, tuple(shape), tuple(box for box in boxes if box.volume))
        number = self._numbers.setdefault(kind, len(self.kinds))
        if number == len(self.kinds):
            self.kinds.append(kind)
        self.names.append(name)
        self.column.append(number)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardPlan):
            return NotImplemented
        return (self.names, self.kinds, self.column) == (other.names, other.kinds, other.column)

    def digest(self) -> str:
        """Return a digest of the names, by which ranks notice that they have the same.

        >>> ShardPlan().digest() == ShardPlan().digest()
        True
        """
        return xxh3_128_hexdigest(orjson.dumps(self.names))

    def dumps(self, *, names: bool = True) -> bytes:
        """Return the plan as a message, with its names or without, for a receiver that has them."""
        kinds = [(str(kind.dtype), kind.shape, [tuple(box) for box in kind.boxes]) for kind in self.kinds]
        column = np.array(self.column, dtype=np.int32).tobytes()
        return pack(orjson.dumps(kinds), orjson.dumps(self.names) if names else b"", column)

    @classmethod
    def loads(cls, message: bytes, names: dict[bytes, list[str]] | None = None) -> ShardPlan:
        """Return the plan of a message.

        Args:
            message: The message.
            names: Names by their text in messages: those that were parsed before, and under `NO_NAMES` those of a
                message without any.
        """
        kinds, text, column = unpack(message, raw=1)
        plan = cls()
        plan.kinds = [
            Kind(dtype_from_name(dtype), tuple(shape), tuple(Box(tuple(a), tuple(b)) for a, b in boxes))
            for dtype, shape, boxes in orjson.loads(kinds)
        ]
        known = {} if names is None else names
        if text not in known:
            known[text] = orjson.loads(zlib.decompress(text))
        plan.names = known[text]
        plan.column = np.frombuffer(column, dtype=np.int32).tolist()
        return plan


def pack(*parts: bytes) -> bytes:
    """Join byte strings to one message, compressed: columns of many layers repeat themselves.

    >>> unpack(pack(b"one", b""))
    [b'one', b'']
    """
    squeezed = [zlib.compress(part, 1) for part in parts]
    head = np.array([len(squeezed), *map(len, squeezed)], dtype=np.int64).tobytes()
    return b"".join([head, *squeezed])


def unpack(message: bytes, raw: int | None = None) -> list[Any]:
    """Return the byte strings of a message; the one with the number ``raw`` stays compressed."""
    count = int(np.frombuffer(message[:8], dtype=np.int64)[0])
    sizes = np.frombuffer(message[8 : 8 * (count + 1)], dtype=np.int64).tolist()
    parts, position = [], 8 * (count + 1)
    for number, size in enumerate(sizes):
        part = message[position : position + size]
        parts.append(part if number == raw else zlib.decompress(part))
        position += size
    return parts
