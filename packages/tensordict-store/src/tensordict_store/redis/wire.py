"""Wire: the protocol of Redis over a socket, for requests with large values.

redis-py reads values in pieces of 64 KiB and joins them; here a value is read into the memory that a tensor takes over.
A request is sent again after a lost connection, so commands must be such that running them twice does no harm.
The protocol is RESP2: https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

__all__ = ["PLAIN", "ServerError", "Wire"]

PLAIN = frozenset(
    ("host", "port", "db", "unix_socket_path", "username", "password", "socket_timeout", "socket_connect_timeout")
)
"""The options of a connection that this module knows; others need redis-py."""
_TRIES = 3
_SMALL = 4096
_LARGE = 1 << 16


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

    def run(self, commands: Sequence[tuple[Any, ...]], atomic: bool) -> list[Any]:
        """Send commands in one request, and return their results.

        Raises:
            OSError: The server does not answer.
            ServerError: The server refused a command.
        """
        sent = [("MULTI",), *commands, ("EXEC",)] if atomic and len(commands) > 1 else commands
        request = _joined(sent)
        with self._lock:
            replies = self._replies(request, len(sent))
        if sent is not commands:
            refused = next((reply for reply in replies if isinstance(reply, ServerError)), None)
            if refused is not None:
                raise refused
            replies = replies[-1]
        for reply in replies:
            if isinstance(reply, ServerError):
                raise reply
        return replies

    def _replies(self, request: Sequence[Any], count: int) -> list[Any]:
        for turn in range(_TRIES):
            try:
                self._connect()
                assert self._socket is not None
                for part in request:
                    self._socket.sendall(part)
                return [self._reply() for _ in range(count)]
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
        self._socket, self._reader, self._pid = made, made.makefile("rb", 1 << 18), os.getpid()
        greeting: list[tuple[Any, ...]] = []
        if options.get("password"):
            user = options.get("username")
            greeting.append(("AUTH", *((user,) if user else ()), options["password"]))
        if options.get("db"):
            greeting.append(("SELECT", options["db"]))
        made.sendall(b"".join(_joined(greeting)))
        for reply in [self._reply() for _ in greeting]:
            if isinstance(reply, ServerError):
                raise reply

    def _reply(self) -> Any:
        line = self._reader.readline()
        if line[-2:] != b"\r\n":
            raise ConnectionResetError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return self._bulk(int(rest))
        if kind == b":":
            return int(rest)
        if kind == b"*":
            return None if rest == b"-1" else [self._reply() for _ in range(int(rest))]
        if kind == b"-":
            return ServerError(rest.decode(errors="replace"))
        if kind == b"+":
            return rest
        raise ConnectionAbortedError(f"the server does not speak the protocol of Redis, it sent {line[:40]!r}")

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

    def close(self) -> None:
        """Close the socket; a later request connects again."""
        made, self._socket = self._socket, None
        if made is not None:  # (a forked process closes its copy; the connection of its parent stays)
            self._reader.close()
            made.close()

    __del__ = close


def _joined(commands: Sequence[Sequence[Any]]) -> list[Any]:
    r"""Return commands as the protocol writes them, in one piece but for large values, which are not copied.

    >>> _joined([("GET", "a"), ("GET", 1)])
    [b'*2\r\n$3\r\nGET\r\n$1\r\na\r\n*2\r\n$3\r\nGET\r\n$1\r\n1\r\n']
    """
    out: list[Any] = []
    small: list[Any] = []
    known: dict[str, bytes] = {}  # names and commands, each of which is in many commands
    for command in commands:
        small.append(b"*%d\r\n" % len(command))
        for part in command:
            if isinstance(part, bytes | bytearray | memoryview):
                small += (b"$%d\r\n" % len(part), part, b"\r\n")
                if len(part) > _LARGE:
                    out += (b"".join(small[:-2]), part)
                    small = [b"\r\n"]
            elif type(part) is str:
                encoded = known.get(part)
                if encoded is None:
                    content = part.encode()
                    encoded = known[part] = b"$%d\r\n%b\r\n" % (len(content), content)
                small.append(encoded)
            else:
                content = str(part).encode()
                small.append(b"$%d\r\n%b\r\n" % (len(content), content))
    out.append(b"".join(small))
    return out
