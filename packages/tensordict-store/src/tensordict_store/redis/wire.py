"""Wire: the protocol of Redis over a socket, for requests with many rows or large values.

redis-py packs and parses each command by several calls, and joins values from reads of 64 KiB. Here the rows of a
value are packed at once, and their replies are read into the memory that a tensor takes over.
A request is sent again after a lost connection, so commands must be such that running them twice does no harm.
The protocol is RESP2: https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from tensordict_store.redis.commands import Command, Reads, Writes, expand
from tensordict_store.redis.replies import Replies, ServerError

PLAIN = frozenset(
    ("host", "port", "db", "unix_socket_path", "username", "password", "socket_timeout", "socket_connect_timeout")
)
"""The connection options that this module implements; others require redis-py."""
_TRIES = 3
_LARGE = 1 << 14
_MANY = 64
"""Runs of rows that are sent before others are packed."""
_IOV_MAX = 512
"""Buffers that one call sends; systems take at least 1,024."""


class Wire:
    """A connection to a server, made on first use and once for each process.

    Args:
        options: The options that `PLAIN` lists.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._socket: socket.socket | None = None
        self._options = options
        self._lock = threading.Lock()
        self._replies: Replies | None = None
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
        sent = [*before, ("MULTI",), *commands, ("EXEC",)] if atomic else commands
        with self._lock:
            for turn in range(_TRIES):
                try:
                    replies = self._connected()
                    for parts in _packed(sent):  # the server works on the first while the others are packed
                        self._send(parts)
                    results = replies.transaction(commands, len(before)) if atomic else replies.results(commands)
                except OSError:
                    self.close()
                    if turn == _TRIES - 1:
                        raise
                    time.sleep(0.05 * 2**turn)
                    continue
                except BaseException:
                    self.close()  # the replies of this request would be taken for those of the next one
                    raise
                for reply in results[len(before) :]:
                    if isinstance(reply, ServerError):
                        raise reply
                return results
        raise AssertionError  # the last turn returns or raises

    def _send(self, parts: Sequence[Any]) -> None:
        made = self._socket
        assert made is not None
        sent = made.sendmsg(parts[:_IOV_MAX])
        for part in parts:
            if sent < len(part):
                made.sendall(memoryview(part)[sent:] if sent else part)
            sent = max(sent - len(part), 0)

    def _connected(self) -> Replies:
        """Return the replies of the connection, which is made if there is none in this process."""
        if self._replies is not None and self._pid == os.getpid():
            return self._replies
        self.close()
        options = self._options
        made = _socket_to(options)
        self._socket, self._replies, self._pid = made, Replies(made), os.getpid()
        greeting: list[Command] = []
        if options.get("password"):
            user = options.get("username")
            greeting.append(("AUTH", *((user,) if user else ()), options["password"]))
        if options.get("db"):
            greeting.append(("SELECT", options["db"]))
        for parts in _packed(greeting):
            self._send(parts)
        for reply in self._replies.results(greeting):
            if isinstance(reply, ServerError):
                raise reply
        return self._replies

    def close(self) -> None:
        """Close the socket; a later request connects again."""
        made, self._socket, self._replies = self._socket, None, None
        if made is not None:  # (a forked process closes its copy; the connection of its parent stays)
            made.close()

    __del__ = close


def _socket_to(options: dict[str, Any]) -> socket.socket:
    """Return a socket that is connected to the server of the options."""
    timeout = options.get("socket_connect_timeout")
    path = options.get("unix_socket_path")
    if path:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.settimeout(timeout)
            made.connect(path)
        except BaseException:
            made.close()
            raise
    else:
        made = socket.create_connection((options["host"], options["port"]), timeout)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.settimeout(options.get("socket_timeout"))
    return made


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
