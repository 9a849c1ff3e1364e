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
local at, place, text = 1, 1, ARGV[1]
for i = 1, #text / 24 do
  local key, first, size
  key, first, size, at = struct.unpack('<i8i8i8', text, at)
  redis.call('SETRANGE', KEYS[key], first, string.sub(ARGV[2], place, place + size - 1))
  place = place + size
end
return false
"""
_LIMIT = 1 << 23
"""Bytes above which a script would hold the server up, and copies cost more than commands."""
Ranges = Sequence[tuple[int, int]]


def gather(
    connection: Connection, wanted: Sequence[tuple[str, Ranges]], others: Sequence[Command] = ()
) -> tuple[list[Any], list[Any]]:
    """Return ranges of several values, and the results of other commands, in one request.

    Args:
        connection: The connection.
        wanted: For each value its name and its ranges: where they start, and how many bytes they have.
        others: More commands.

    Returns:
        For each value the bytes of its ranges side by side (shorter where the value ends before them, and ``None`` for
        a value that is gone); and the results of the commands.
    """
    sizes = [sum(size for _, size in ranges) for _, ranges in wanted]
    count = sum(len(ranges) for _, ranges in wanted)
    if connection.scripts and count > 1 and sum(sizes) <= _LIMIT:
        packed = _packed([ranges for _, ranges in wanted])
        command = (_GATHER, [name for name, _ in wanted], packed)
        replies = connection.run_script(command, others)
        if replies is not None and len(replies[0]) == sum(sizes):
            whole, places = memoryview(replies[0]), np.cumsum([0, *sizes]).tolist()
            return [whole[a:b] for a, b in itertools.pairwise(places)], replies[1:]
    commands = [
        ("GETRANGE", name, start, start + size - 1) if size else ("GETRANGE", name, 1, 0)
        for name, ranges in wanted
        for start, size in ranges
    ]
    exists = [("EXISTS", name) for name, _ in wanted]
    replies = connection.run([*commands, *exists, *others])
    out, used = [], 0
    for (_, ranges), found in zip(wanted, replies[count : count + len(wanted)], strict=True):
        out.append(b"".join(replies[used : used + len(ranges)]) if found else None)
        used += len(ranges)
    return out, replies[count + len(wanted) :]


def scatter(connection: Connection, parts: Sequence[tuple[str, Ranges, bytes]]) -> str | None:
    """Write ranges of several values in one atomic request, if all of them exist.

    Args:
        connection: The connection.
        parts: For each value its name, its ranges, and the bytes that go there, side by side.

    Returns:
        The name of a value that is gone, in which case nothing was written; otherwise ``None``.
    """
    names = [name for name, _, _ in parts]
    total = sum(len(content) for _, _, content in parts)
    if connection.scripts and total <= _LIMIT:
        packed = _packed([ranges for _, ranges, _ in parts])
        content = b"".join(content for _, _, content in parts)
        replies = connection.run_script((_SCATTER, names, packed, content), ())
        if replies is not None:
            return None if replies[0] is None else bytes(replies[0]).decode()
    for name, found in zip(names, connection.run([("EXISTS", name) for name in names]), strict=True):
        if not found:
            return name
    commands: list[Command] = []
    for name, ranges, content in parts:
        place = 0
        for start, size in ranges:
            if size:
                commands.append(("SETRANGE", name, start, content[place : place + size]))
            place += size
    connection.run(commands, atomic=True)
    return None


def _packed(values: Sequence[Ranges]) -> bytes:
    """Return the number of the value, the start and the size of every range, as the scripts read them.

    >>> len(_packed([[(0, 4)], [(8, 4), (16, 4)]]))
    72
    """
    rows = [(number, start, size) for number, ranges in enumerate(values, 1) for start, size in ranges]
    return np.array(rows, dtype="<i8").tobytes()
