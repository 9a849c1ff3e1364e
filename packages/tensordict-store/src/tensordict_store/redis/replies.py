"""Replies: rows of values go from the socket to their memory in few calls; other replies are parsed.

The length of a reply to `Reads` is known before it comes. So the system scatters the replies of a request: what the
protocol puts before each value to a few bytes that are compared with what they should be, and the values to memory
that tensors take over. If the server sends something else (an error, a value that is shorter), what came is parsed.
The protocol is RESP2: https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from __future__ import annotations

import bisect
import io
import itertools
import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tensordict_store.redis.commands import MAX_BYTES, Command, Reads, Writes

_SMALL = 4096
_BUFFERS = 128
"""Buffers that one call fills: each takes time in every call, whether bytes come for it or not."""
_QUEUED = b"+QUEUED\r\n"


class ServerError(Exception):
    """The server refused a command."""


class Replies:
    """The replies that a socket receives.

    Args:
        made: The socket.
    """

    def __init__(self, made: socket.socket) -> None:
        self._socket = made
        self._stream = _Stream(made)
        self._reader = io.BufferedReader(self._stream, 1 << 14)

    def results(self, commands: Sequence[Command]) -> list[Any]:
        """Return the results of commands; that of a command which the server refuses is a `ServerError`.

        Raises:
            OSError: The server closed the connection, or does not use the protocol.
        """
        first = next((i for i, command in enumerate(commands) if type(command) is not Reads), len(commands))
        found = self._scattered(commands[:first]) if first else []
        return found + [self._result(command) for command in commands[len(found) :]]

    def transaction(self, commands: Sequence[Command], before: int) -> list[Any]:
        """Return the results of commands before a transaction and of those in it; errors are those of `results`.

        Args:
            commands: The commands in the transaction.
            before: The number of those before it.

        Returns:
            The results; in place of those of a transaction that did not take place, ``None`` or a `ServerError`.
        """
        first = [self._reply() for _ in range(before)]
        count = 1 + sum(len(command.runs) if type(command) is Writes else 1 for command in commands)  # MULTI too
        lines = [self._reader.readline() for _ in range(count)]
        line = self._line()
        if line[:1] == b"*" and line != b"*-1\r\n":
            return first + [self._result(command) for command in commands]
        outcome = self._reply(line)  # why the transaction did not take place is in the line of the command at fault
        refused = next((self._reply(wrong) for wrong in lines[1:] if wrong != _QUEUED), outcome)
        return [*first, refused]

    # rows -------------------------------------------------------------------------------------------------------------

    def _scattered(self, reads: Sequence[Any]) -> list[Any]:
        """Return the results of reads, which tensors may take over; none if the server sends something else."""
        out: list[Any] = []
        heads: list[bytes] = []
        parts: list[Any] = []  # in turn, what comes before a value and the value
        sizes: list[int] = []
        for read in reads:
            if read.size > MAX_BYTES:
                return []
            array, result = (np.empty(read.size, np.uint8),) * 2 if read.into is None else read.into()
            out.append(result)
            lengths = read.sizes()
            texts = [b"\r\n$%d\r\n" % length for length in lengths]
            values = [array] if len(lengths) == 1 else _cut(array, lengths)
            heads += texts
            parts += _in_turn(map(bytearray, map(len, texts)), values)
            sizes += _in_turn(map(len, texts), lengths)
        if parts:
            heads[0] = heads[0][2:]  # (the end of the line before it)
            parts[0] = bytearray(len(heads[0]))
            sizes[0] = len(heads[0])
            if not self._received([*parts, bytearray(2)], [*sizes, 2], [*heads, b"\r\n"]):
                return []
        return out

    def _received(self, parts: list[Any], sizes: list[int], heads: list[bytes]) -> bool:
        """Fill buffers, every other one of which should be as given; otherwise keep the bytes, to be parsed."""
        ends = list(itertools.accumulate(sizes))
        done = come = inside = 0
        while done < len(parts):
            waiting = parts[done : done + _BUFFERS]
            if inside:
                waiting[0] = np.frombuffer(parts[done], np.uint8)[inside:]
            count = self._socket.recvmsg_into(waiting)[0]
            if not count:
                raise ConnectionResetError("the server closed the connection")
            first = done + done % 2
            come += count
            done = bisect.bisect_right(ends, come, done)
            inside = come - ends[done - 1] if done else come
            same = parts[first:done:2] == heads[first // 2 : (done + 1) // 2]
            if not same or (inside and not done % 2 and not heads[done // 2].startswith(parts[done][:inside])):
                begun: list[Any] = [np.frombuffer(parts[done], np.uint8)[:inside]] if inside else []
                self._stream.left = b"".join([*parts[:done], *begun])
                return False
        return True

    def _result(self, command: Command) -> Any:
        if type(command) is Reads:
            replies = [self._reply() for _ in command.sizes()]
            wrong = next((reply for reply in replies if not isinstance(reply, bytes | bytearray)), b"")
            return b"".join(replies) if isinstance(wrong, bytes) else wrong  # an error, or a deleted value
        if type(command) is Writes:
            lines = [self._reader.readline() for _ in command.runs]
            wrong = next((line for line in lines if line[:1] != b":"), None)
            return None if wrong is None else self._reply(wrong)
        return self._reply()

    # single replies ---------------------------------------------------------------------------------------------------

    def _line(self) -> bytes:
        line: bytes = self._reader.readline()
        if line[-2:] != b"\r\n":
            raise ConnectionResetError("the server closed the connection")
        return line

    def _reply(self, line: bytes | None = None, depth: int = 0) -> Any:
        """Return the next reply, of which the first line may be read already."""
        line = self._line() if line is None else line
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            return ServerError(rest.decode(errors="replace"))
        if line[-2:] != b"\r\n":
            raise ConnectionResetError("the server closed the connection")
        number = int(rest) if rest.removeprefix(b"-").isdigit() else None
        if kind == b":" and number is not None:
            return number
        if kind == b"$" and number is not None and number <= MAX_BYTES:
            return self._bulk(number)
        if kind == b"*" and number is not None and depth < 8:
            return None if number < 0 else [self._reply(None, depth + 1) for _ in range(number)]
        raise ConnectionAbortedError(
            f"the server does not use the protocol of Redis, it sent {line[:40]!r}; pass the address of a Redis server"
        )

    def _bulk(self, size: int) -> bytes | bytearray | None:
        if size < 0:
            return None
        if size < _SMALL:
            found: bytes = self._reader.read(size + 2)
            if len(found) != size + 2:
                raise ConnectionResetError("the server closed the connection")
            return found[:size]
        out = bytearray(size)
        if self._reader.readinto(out) != size or len(self._reader.read(2)) != 2:
            raise ConnectionResetError("the server closed the connection")
        return out


class _Stream(io.RawIOBase):
    """The bytes that a socket receives, after those that were read already."""

    def __init__(self, made: socket.socket) -> None:
        self._socket = made
        self.left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self.left:
            return self._socket.recv_into(buffer)
        count = min(len(buffer), len(self.left))
        buffer[:count], self.left = self.left[:count], self.left[count:]
        return count


def _in_turn(*columns: Iterable[Any]) -> Iterator[Any]:
    """Return the first items of columns, then the second ones, and so on."""
    return itertools.chain.from_iterable(zip(*columns, strict=True))


def _cut(array: Any, sizes: Sequence[int]) -> list[memoryview]:
    """Return the bytes of an array in parts.

    >>> [part.tolist() for part in _cut(np.arange(4, dtype=np.uint8), [1, 3])]
    [[0], [1, 2, 3]]
    """
    view = array.reshape(-1).view(np.uint8).data
    return [view[stop - size : stop] for size, stop in zip(sizes, itertools.accumulate(sizes), strict=True)]
