"""Commands: reads and writes of runs of rows of a value; each may be several commands of the Redis protocol.

A run is given by its first row and the row after its last one. A value consists of rows of equal size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tensordict_store.arrays.selection import Range

MAX_BYTES = 1 << 29
"""The most bytes of a value of Redis."""
Command = tuple[Any, ...]
"""A name of the protocol and its arguments, or `Reads`, or `Writes`."""


class Reads(NamedTuple):
    """Reads rows of a value side by side; the result is an array of bytes, or what ``into`` returns.

    The result is shorter and bytes where the value ends before them, and ``None`` where a whole value does not exist.

    Attributes:
        name: The name of the value.
        runs: The runs of rows; ``None`` for all of the value.
        row: The size of a row in bytes.
        size: The expected size of the result in bytes.
        into: Returns an array, which is filled, and the result. It is called while the server works.
    """

    name: str
    runs: Sequence[Range] | None
    row: int
    size: int
    into: Callable[[], tuple[Any, Any]] | None = None

    def sizes(self) -> list[int]:
        """Return the number of bytes of each run.

        >>> Reads("a", [(0, 1), (3, 5)], 4, 12).sizes()
        [4, 8]
        """
        row = self.row
        return [self.size] if self.runs is None else [(stop - start) * row for start, stop in self.runs]


class Writes(NamedTuple):
    """Writes rows of a value; the result is ``None``.

    Attributes:
        name: The name of the value.
        runs: The runs of rows, none of them empty.
        row: The size of a row in bytes.
        content: The bytes that go there, side by side.
    """

    name: str
    runs: Sequence[Range]
    row: int
    content: bytes | memoryview


def expand(command: Command) -> list[tuple[Any, ...]]:
    """Return the protocol commands that implement a command.

    >>> expand(Reads("a", [(0, 1), (2, 3)], 4, 8)), expand(Reads("a", None, 4, 8)), expand(("GET", "a"))
    ([('GETRANGE', 'a', 0, 3), ('GETRANGE', 'a', 8, 11)], [('GET', 'a')], [('GET', 'a')])
    >>> expand(Writes("a", [(0, 1), (8, 10)], 1, b"xyz"))
    [('SETRANGE', 'a', 0, b'x'), ('SETRANGE', 'a', 8, b'yz')]
    """
    if isinstance(command, Reads):
        if command.runs is None:
            return [("GET", command.name)]
        row = command.row
        return [("GETRANGE", command.name, start * row, stop * row - 1) for start, stop in command.runs]
    if isinstance(command, Writes):
        segments = _segments(command)
        return [("SETRANGE", command.name, run[0] * command.row, next(segments)) for run in command.runs]
    return [command]


def _segments(command: Writes) -> Iterator[bytes | memoryview]:
    ends = itertools.accumulate([(stop - start) * command.row for start, stop in command.runs], initial=0)
    return (command.content[start:stop] for start, stop in itertools.pairwise(ends))
