"""The protocol of Redis: replies that end early, lie about their length, or are none, from servers made of a script."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tensordict_store.redis.commands import Reads, Writes
from tensordict_store.redis.replies import Replies, ServerError
from tensordict_store.redis.wire import Wire

Serve = Callable[..., Wire]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server whose n-th connection gets the n-th reply to its first request, and is closed then."""
    listeners: list[socket.socket] = []

    def start(*replies: bytes) -> Wire:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def answer() -> None:
            for reply in replies:
                made, _ = listener.accept()
                with made:
                    made.recv(1 << 16)
                    made.sendall(reply)
            listener.close()

        threading.Thread(target=answer, daemon=True).start()
        return Wire({"host": "127.0.0.1", "port": listener.getsockname()[1], "socket_timeout": 5})

    yield start
    for listener in listeners:
        listener.close()


def test_replies_of_every_kind_are_read(serve: Serve) -> None:
    wire = serve(b"+OK\r\n:12\r\n$3\r\nabc\r\n$-1\r\n*2\r\n:1\r\n*-1\r\n$5000\r\n" + b"x" * 5000 + b"\r\n")
    assert wire.run([("PING",)] * 6, False) == [b"OK", 12, b"abc", None, [1, None], b"x" * 5000]


class Parts:
    """A socket whose peer sent parts, of which one call receives one at most."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = [part for part in parts if part]

    def recvmsg_into(self, buffers: list[Any]) -> tuple[int]:
        content, room = self.parts.pop(0), [memoryview(np.frombuffer(one, np.uint8)) for one in buffers if len(one)]
        taken = 0
        for one in room:
            count = min(len(one), len(content) - taken)
            one[:count] = content[taken : taken + count]
            taken += count
        if taken < len(content):
            self.parts.insert(0, content[taken:])
        return (taken,)

    def recv_into(self, buffer: Any) -> int:
        return self.recvmsg_into([buffer])[0] if self.parts else 0


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (b"$4\r\nabcd\r\n$2\r\nef\r\n$8\r\nijklmnop\r\n:7\r\n", [b"abcdef", b"ijklmnop", 7]),
        (b"$4\r\nabcd\r\n$0\r\n\r\n$8\r\nijklmnop\r\n:7\r\n", [b"abcd", b"ijklmnop", 7]),
        (b"$4\r\nabcd\r\n$2\r\nef\r\n$-1\r\n:7\r\n", [b"abcdef", None, 7]),
        (b"$4\r\nabcd\r\n$2\r\nef\r\n$80\r\n" + b"x" * 80 + b"\r\n:7\r\n", [b"abcdef", b"x" * 80, 7]),
    ],
)
def test_replies_that_arrive_in_parts_are_joined(reply: bytes, expected: list[Any]) -> None:
    commands = [Reads("a", [(0, 2), (5, 6)], 2, 6), Reads("b", None, 4, 8), ("INCR", "c")]
    for cut in range(len(reply)):
        for end in (cut + 1, len(reply)):
            parts: Any = Parts(reply[:cut], reply[cut:end], reply[end:])
            found = Replies(parts).results(commands)
            assert [bytes(one) if hasattr(one, "__len__") else one for one in found] == expected


def test_rows_are_read_into_one_array(serve: Serve) -> None:
    rows = Reads("a", [(0, 2), (5, 6)], 2, 6)
    assert bytes(serve(b"$4\r\nabcd\r\n$2\r\nef\r\n").run([rows], False)[0]) == b"abcdef"
    assert serve(b"$4\r\nabcd\r\n$0\r\n\r\n").run([rows], False) == [b"abcd"]  # the value is shorter
    assert serve(b"$0\r\n\r\n$0\r\n\r\n").run([rows], False) == [b""]
    assert serve(b"$-1\r\n").run([Reads("a", None, 2, 6)], False) == [None]


@pytest.mark.parametrize(
    "reply",
    [
        *(b"", b"$", b"$4\r\nab", b"$4\r\nabcd", b":1", b"*2\r\n:1\r\n", b"HTTP/1.1 400 Bad Request\r\n", b"$x\r\n"),
        *(b":one\r\n", b"*\r\n", b"$99999999999999\r\n", b"*1\r\n" * 2000, b"$4\r\nabcd\r\n$2\r\n"),
    ],
)
def test_a_reply_that_ends_early_or_is_none_of_redis_is_an_error(serve: Serve, reply: bytes) -> None:
    for commands, atomic in [
        ([Reads("a", [(0, 2), (5, 6)], 2, 6)], False),
        ([("GET", "a"), ("GET", "b")], False),
        ([Writes("a", [(0, 2)], 2, b"abcd"), ("GET", "b")], True),
    ]:
        with pytest.raises(OSError, match=r"closed the connection|does not use|reset|refused"):
            serve(*[reply] * 3).run(commands, atomic)


def test_a_request_is_sent_again_after_a_connection_that_broke(serve: Serve) -> None:
    wire = serve(b"$4\r\nab", b"", b"$4\r\nabcd\r\n")
    assert bytes(wire.run([Reads("a", [(0, 2)], 2, 4)], False)[0]) == b"abcd"


def test_a_refused_transaction_names_the_command_at_fault(serve: Serve) -> None:
    writes: list[Any] = [("EXISTS", "a"), Writes("a", [(0, 1), (4, 5)], 2, b"abcd")]
    wire = serve(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n-OOM no memory\r\n-EXECABORT discarded\r\n")
    with pytest.raises(ServerError, match="OOM no memory"):
        wire.run(writes, True)
    wire = serve(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n:1\r\n:10\r\n-WRONGTYPE no string\r\n")
    with pytest.raises(ServerError, match="WRONGTYPE"):
        wire.run(writes, True)
    wire = serve(b"+OK\r\n$-1\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*-1\r\n")
    assert wire.run(writes, True, [("WATCH", "g"), ("EVAL", "", 0)]) == [b"OK", None, None]


def test_a_socket_that_cannot_connect_is_closed(tmp_path):
    """Sockets that are collected while they are open are warnings, which are errors of these tests."""
    with pytest.raises(FileNotFoundError):
        Wire({"unix_socket_path": str(tmp_path / "absent")}).run([("GET", "a")], False)
    gc.collect()
