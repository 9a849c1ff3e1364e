"""Wire: the protocol of Redis over a socket, for requests with many rows or large values.

redis-py packs and parses each command by several calls, and joins values of pieces of 64 KiB. Here the rows of a
value are packed at once, and their replies are read into the memory that a tensor takes over.
A request is sent again after a lost connection, so commands must be such that running them twice does no harm.
The protocol is RESP2: https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tensordict_store.redis.commands import Command, Reads, Writes, expand

__all__ = ["PLAIN", "ServerError", "Wire"]

PLAIN = frozenset(
    ("host", "port", "db", "unix_socket_path", "username", "password", "socket_timeout", "socket_connect_timeout")
)
"""The connection options that this module implements; others require redis-py."""
_TRIES = 3
_SMALL = 4096
_LARGE = 1 << 14
_MANY = 64
"""Runs of rows that are sent before others are packed."""
_IOV_MAX = 512
"""Buffers that one call sends; systems take at least 1,024."""
_LIMIT = 1 << 29
"""Bytes that a value of Redis may have."""
_QUEUED = b"+QUEUED\r\n"


class ServerError(Exception):
    """The server refused a command."""


class Wire:
    """A connection to a server, made on first use and once for each process.

    Args:
        options: Those of `PLAIN`.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._socket: socket.socket | None = None
        self._options = options
        self._lock = threading.Lock()
        self._reader: Any = None
        self._pid = 0

    def run(self, commands: Sequence[Command], atomic: bool, before: Sequence[Command] = ()) -> list[Any]:
        """Send commands in one request, and return their results.

        Args:
            commands: The commands.
            atomic: Whether they are a transaction.
            before: Commands before the transaction, whose results come first, and may be a `ServerError`.

        Returns:
            The results; ``None`` in place of those of a transaction that did not take place.

        Raises:
            OSError: The server does not answer.
            ServerError: The server refused a command.
        """
        if not atomic:
            results = self._exchange(commands, lambda: [self._result(command) for command in commands])
        else:
            sent = [*before, ("MULTI",), *commands, ("EXEC",)]
            results = self._exchange(sent, lambda: self._transaction(commands, before))
        for reply in results[len(before) :]:
            if isinstance(reply, ServerError):
                raise reply
        return results

    def _exchange(self, commands: Sequence[Command], read: Callable[[], list[Any]]) -> list[Any]:
        with self._lock:
            for turn in range(_TRIES):
                try:
                    self._connect()
                    for parts in _packed(commands):  # the server works on the first while the others are packed
                        self._send(parts)
                    return read()
                except ServerError:
                    self.close()
                    raise
                except OSError:
                    self.close()
                    if turn == _TRIES - 1:
                        raise
                    time.sleep(0.05 * 2**turn)
                except BaseException:
                    self.close()  # the replies of this request would be taken for those of the next one
                    raise
        raise AssertionError  # the last turn returns or raises

    def _send(self, parts: Sequence[Any]) -> None:
        made = self._socket
        assert made is not None
        sent = made.sendmsg(parts[:_IOV_MAX])
        for part in parts:
            if sent < len(part):
                made.sendall(memoryview(part)[sent:] if sent else part)
            sent = max(sent - len(part), 0)

    def _connect(self) -> None:
        if self._socket is not None and self._pid == os.getpid():
            return
        self.close()
        options = self._options
        timeout = options.get("socket_connect_timeout")
        if options.get("unix_socket_path"):
            made = socket.socket(socket.AF_UNIX)
            made.settimeout(timeout)
            made.connect(options["unix_socket_path"])
        else:
            made = socket.create_connection((options["host"], options["port"]), timeout)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.settimeout(options.get("socket_timeout"))
        self._socket, self._reader, self._pid = made, made.makefile("rb", 1 << 14), os.getpid()
        greeting: list[Command] = []
        if options.get("password"):
            user = options.get("username")
            greeting.append(("AUTH", *((user,) if user else ()), options["password"]))
        if options.get("db"):
            greeting.append(("SELECT", options["db"]))
        for parts in _packed(greeting):
            self._send(parts)
        for reply in [self._reply() for _ in greeting]:
            if isinstance(reply, ServerError):
                raise reply

    # replies ----------------------------------------------------------------------------------------------------------

    def _transaction(self, commands: Sequence[Command], before: Sequence[Command]) -> list[Any]:
        first = [self._reply() for _ in before]
        count = 1 + sum(len(command.runs) if type(command) is Writes else 1 for command in commands)  # MULTI too
        lines = [self._reader.readline() for _ in range(count)]
        line = self._line()
        if line[:1] == b"*" and line != b"*-1\r\n":
            return first + [self._result(command) for command in commands]
        outcome = self._reply(line)  # why the transaction did not take place is in the line of the command at fault
        refused = next((self._reply(wrong) for wrong in lines[1:] if wrong != _QUEUED), outcome)
        return [*first, refused]

    def _result(self, command: Command) -> Any:
        if type(command) is Reads:
            return self._rows(command)
        if type(command) is Writes:
            lines = [self._reader.readline() for _ in command.runs]
            wrong = next((line for line in lines if line[:1] != b":"), None)
            return None if wrong is None else self._reply(wrong)
        return self._reply()

    def _rows(self, command: Reads) -> Any:
        """Return the bytes of rows: an array that a tensor may take over, unless the server sends another number."""
        sizes = command.sizes()
        readline, readinto = self._reader.readline, self._reader.readinto
        out, place, last, head = None, 0, -1, b""
        view = memoryview(b"")
        for number, size in enumerate(sizes, 1):
            if size != last:
                last, head = size, b"$%d\r\n" % size
            line = readline()
            if line != head:
                replies = [self._reply(line), *(self._reply() for _ in sizes[number:])]
                for reply in replies:
                    if not isinstance(reply, bytes | bytearray):  # an error, or a value that is gone
                        return reply
                return b"".join([bytes(view[:place]), *replies])
            if out is None:  # (not before the server says so: the size is what the metadata of the entry say)
                out = np.empty(command.size + 2, np.uint8)
                view = out.data
            if readinto(view[place : place + size + 2]) != size + 2:  # the next rows lie where the end of line is
                raise ConnectionResetError("the server closed the connection")
            place += size
        return b"" if out is None else out[:-2]

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
        if kind == b"$" and number is not None and number <= _LIMIT:
            return self._bulk(number)
        if kind == b"*" and number is not None and depth < 8:
            return None if number < 0 else [self._reply(None, depth + 1) for _ in range(number)]
        raise ConnectionAbortedError(
            f"the server does not speak the protocol of Redis, it sent {line[:40]!r}; pass the address of one that does"
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
        self._read_into(memoryview(out))
        return out

    def _read_into(self, view: memoryview) -> None:
        if self._reader.readinto(view) != len(view) or len(self._reader.read(2)) != 2:
            raise ConnectionResetError("the server closed the connection")

    def close(self) -> None:
        """Close the socket; a later request connects again."""
        made, self._socket = self._socket, None
        if made is not None:  # (a forked process closes its copy; the connection of its parent stays)
            self._reader.close()
            made.close()

    __del__ = close


def _packed(commands: Sequence[Command]) -> Iterator[list[Any]]:
    r"""Yield commands as the protocol writes them: buffers to send at once, of which large values are not copied.

    >>> list(_packed([("GET", "a"), ("GET", 1), Reads("b", None, 1, 4)]))
    [[b'*2\r\n$3\r\nGET\r\n$1\r\na\r\n*2\r\n$3\r\nGET\r\n$1\r\n1\r\n*2\r\n$3\r\nGET\r\n$1\r\nb\r\n']]
    """
    out: list[Any] = []
    small: list[Any] = []
    count = 0
    for command in commands:
        if type(command) is Reads:
            small.append(_packed_reads(command))
            count += 1 if command.runs is None else len(command.runs)
        elif type(command) is Writes and len(command.runs) > 1:
            _pack_writes(command, small)
            count += len(command.runs)
        else:
            plain = command if type(command) is not Writes else expand(command)[0]
            small.append(b"*%d\r\n" % len(plain))
            for part in plain:
                if type(part) is str:
                    small.append(_bulk(part))
                elif isinstance(part, bytes | bytearray | memoryview):
                    small += (b"$%d\r\n" % len(part), part, b"\r\n")
                    if len(part) > _LARGE:
                        out += (b"".join(small[:-2]), part)
                        small = [b"\r\n"]
                else:
                    text = b"%d" % part
                    small.append(b"$%d\r\n%b\r\n" % (len(text), text))
        if count > _MANY:
            yield [*out, b"".join(small)]
            out, small, count = [], [], 0
    if small or out:
        yield [*out, b"".join(small)]


def _packed_reads(command: Reads) -> bytes:
    name = _bulk(command.name)
    if command.runs is None:
        return b"*2\r\n$3\r\nGET\r\n" + name
    head = f"*4\r\n$8\r\nGETRANGE\r\n{name.decode()}$"
    row = command.row
    out = []
    for start, stop in command.runs:
        first, last = str(start * row), str(stop * row - 1)
        out.append(f"{head}{len(first)}\r\n{first}\r\n${len(last)}\r\n{last}\r\n")
    return "".join(out).encode()


def _pack_writes(command: Writes, out: list[Any]) -> None:
    head = b"*4\r\n$8\r\nSETRANGE\r\n" + _bulk(command.name)
    content, row, place = bytes(command.content), command.row, 0
    for start, stop in command.runs:
        text, size = b"%d" % (start * row), (stop - start) * row
        out += (b"%b$%d\r\n%b\r\n$%d\r\n" % (head, len(text), text, size), content[place : place + size], b"\r\n")
        place += size


@lru_cache(maxsize=4096)
def _bulk(text: str) -> bytes:
    """Return a string as the protocol writes it; most are names, and come again with the next request."""
    content = text.encode()
    return b"$%d\r\n%b\r\n" % (len(content), content)
