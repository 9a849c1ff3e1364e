"""Scripts: many ranges of values in one command, which the server cuts and joins itself.

A command of its own for each range costs the client more than the server takes to find the range. Where a server does
not allow scripts, ranges are commands of one pipeline.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensordict_store.redis.connection import Command, Connection

__all__ = ["Ranges", "gather", "scatter"]

_GATHER = """
local out, at, text = {}, 1, ARGV[1]
for i = 1, #text / 24 do
  local key, first, size
  key, first, size, at = struct.unpack('<i8i8i8', text, at)
  out[i] = redis.call('GETRANGE', KEYS[key], first, first + size - 1)
end
return table.concat(out)
"""
_SCATTER = """
for _, key in ipairs(KEYS) do
  if redis.call('EXISTS', key) == 0 then return key end
end
local at, text, place, last = 1, ARGV[1], 1, 0
for i = 1, #text / 24 do
  local key, first, size
  key, first, size, at = struct.unpack('<i8i8i8', text, at)
  if key ~= last then place, last = 1, key end
  redis.call('SETRANGE', KEYS[key], first, string.sub(ARGV[key + 1], place, place + size - 1))
  place = place + size
end
return false
"""
_FEW = 16
"""Ranges that commands of their own ask for as fast."""
_SMALL = 1024
"""Bytes of a range, on average, above which the server spends more time in the script than commands take."""
_LIMIT = 1 << 16
"""Bytes that are written above which the copies of a script cost more than a request that asks for the values first."""
Ranges = Sequence[tuple[int, int]]
Content = bytes | memoryview


def gather(
    connection: Connection, wanted: Sequence[tuple[str, Ranges | None]], others: Sequence[Command] = ()
) -> tuple[list[Any], list[Any]]:
    """Return ranges of several values, and the results of other commands, in one request.

    Args:
        connection: The connection.
        wanted: For each value its name and its ranges: where they start, and how many bytes they have; ``None`` for all
            of it.
        others: More commands.

    Returns:
        For each value the bytes of its ranges side by side (shorter where the value ends before them, and ``None`` for
        a value that is gone); and the results of the commands.
    """
    parts = [(name, ranges) for name, ranges in wanted if ranges is not None]
    sizes = [sum(size for _, size in ranges) for _, ranges in parts]
    count = sum(len(ranges) for _, ranges in parts)
    gets: list[Command] = [("GET", name) for name, ranges in wanted if ranges is None]
    found: list[Any] | None = None
    rest: list[Any] = []
    if connection.scripts and count > _FEW and sum(sizes) <= count * _SMALL:
        packed = _packed([ranges for _, ranges in parts])
        replies = connection.run_script((_GATHER, [name for name, _ in parts], packed), [*gets, *others])
        if replies is not None and len(replies[0]) == sum(sizes):
            whole, places = memoryview(replies[0]), np.cumsum([0, *sizes]).tolist()
            found, rest = [whole[a:b] for a, b in itertools.pairwise(places)], replies[1:]
    if found is None:
        commands = [("GETRANGE", name, a, a + size - 1) for name, ranges in parts for a, size in ranges]
        replies = connection.run([*commands, *gets, *others])
        found, rest, used = [], replies[count:], 0
        for _, ranges in parts:
            own, used = replies[used : used + len(ranges)], used + len(ranges)
            found.append(own[0] if len(own) == 1 else b"".join(own))
        # a value that is gone has no bytes, as one has that is empty
        short = [i for i, (got, size) in enumerate(zip(found, sizes, strict=True)) if size and not len(got)]
        known = connection.run([("EXISTS", parts[i][0]) for i in short]) if short else []
        for i, exists in zip(short, known, strict=True):
            found[i] = found[i] if exists else None
    ranged, complete = iter(found), iter(rest[: len(gets)])
    return [next(complete if ranges is None else ranged) for _, ranges in wanted], rest[len(gets) :]


def scatter(connection: Connection, parts: Sequence[tuple[str, Ranges, Content]]) -> str | None:
    """Write ranges of several values in one atomic request, if all of them exist; much is written after a question.

    Args:
        connection: The connection.
        parts: For each value its name, its ranges, and the bytes that go there, side by side.

    Returns:
        The name of a value that is gone, in which case nothing was written; otherwise ``None``.

    Raises:
        KeyError: A value was deleted after it was asked for; the others are written.
    """
    names = [name for name, _, _ in parts]
    total = sum(len(content) for _, _, content in parts)
    count = sum(len(ranges) for _, ranges, _ in parts)
    if connection.scripts and (total <= _LIMIT or (count > _FEW * len(parts) and total <= count * _SMALL)):
        packed = _packed([[(start, size) for start, size in ranges if size] for _, ranges, _ in parts])
        replies = connection.run_script((_SCATTER, names, packed, *(content for _, _, content in parts)), ())
        if replies is not None:
            return None if replies[0] is None else bytes(replies[0]).decode()
    exist: list[Command] = [("EXISTS", name) for name in names]
    for name, found in zip(names, connection.run(exist), strict=True):
        if not found:
            return name
    commands = list(exist)
    for name, ranges, content in parts:
        starts = [start for start, size in ranges if size]
        pieces = _cut(ranges, content)
        commands += [("SETRANGE", name, start, piece) for start, piece in zip(starts, pieces, strict=True)]
    replies = connection.run(commands, atomic=True)
    gone = [name for name, found in zip(names, replies, strict=False) if not found]
    if gone:  # SETRANGE has made values that lack their other rows
        connection.run([("UNLINK", *gone)])
        raise KeyError(
            f"the entry {gone[0]!r} was deleted from the server while it was written, or its time to live ended then; "
            "the other entries are written, store this one again"
        )
    return None


def _cut(ranges: Ranges, content: Content) -> list[Content]:
    """Return what goes into each range that is not empty.

    >>> _cut([(0, 1), (5, 0), (8, 2)], b"abc")
    [b'a', b'bc']
    """
    sizes = [size for _, size in ranges if size]
    if len(sizes) == 1:
        return [content]
    return [content[a:b] for a, b in itertools.pairwise(itertools.accumulate(sizes, initial=0))]


def _packed(values: Sequence[Ranges]) -> bytes:
    """Return the number of the value, the start and the size of every range, as the scripts read them.

    >>> len(_packed([[(0, 4)], [(8, 4), (16, 4)]]))
    72
    """
    rows = [(number, start, size) for number, ranges in enumerate(values, 1) for start, size in ranges]
    return np.array(rows, dtype="<i8").tobytes()
