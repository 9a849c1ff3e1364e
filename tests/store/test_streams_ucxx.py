"""Pipes over UCXX, with a module that has the documented interface of ucxx: endpoints that carry messages."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tensordict_core import TensorDict
from tensordict_store import TensorDictPipe, TensorDictServer


class UCXXError(Exception): ...


class Endpoint:
    """One end of two queues; a receive needs the size of what was sent, as tagged messages do."""

    def __init__(self, out: asyncio.Queue[bytes | None], into: asyncio.Queue[bytes | None]) -> None:
        self.out, self.into, self.closed = out, into, False

    async def send(self, buffer: np.ndarray[Any, Any]) -> None:
        if self.closed or self.other.closed:
            raise UCXXError("endpoint is closed")
        await self.out.put(bytes(memoryview(buffer).cast("B")))

    async def recv(self, buffer: np.ndarray[Any, Any]) -> None:
        data = await self.into.get()
        if data is None:
            raise UCXXError("connection reset by remote peer")
        if len(data) != buffer.nbytes:
            raise AssertionError(f"received {len(data)} bytes into {buffer.nbytes}")
        memoryview(buffer).cast("B")[:] = data

    async def close(self) -> None:
        self.closed = True
        await self.out.put(None)


def fake() -> Any:
    listeners: dict[int, Callable[[Endpoint], Any]] = {}
    tasks = []

    def create_listener(callback: Callable[[Endpoint], Any], port: int = 0) -> Any:
        port = port or 13337 + len(listeners)
        listeners[port] = callback
        return types.SimpleNamespace(port=port, close=lambda: listeners.pop(port))

    async def create_endpoint(host: str, port: int) -> Endpoint:
        if port not in listeners:
            raise UCXXError("Endpoint error: Destination is unreachable")
        one, two = asyncio.Queue[bytes | None](), asyncio.Queue[bytes | None]()
        a, b = Endpoint(one, two), Endpoint(two, one)
        a.other, b.other = b, a
        tasks.append(asyncio.ensure_future(listeners[port](b)))
        return a

    exceptions = types.SimpleNamespace(UCXXError=UCXXError)
    return types.SimpleNamespace(
        create_listener=create_listener, create_endpoint=create_endpoint, exceptions=exceptions
    )


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "ucxx", fake())


async def ends() -> tuple[TensorDictServer, TensorDictPipe, TensorDictPipe]:
    server = await TensorDictServer.start(0, transport="ucxx")
    one = await TensorDictPipe.connect("host", server.port, transport="ucxx")
    return server, one, await server.accept()


def test_tensordicts_of_every_size_go_both_ways_and_the_end_is_told():
    async def exchange():
        server, one, other = await ends()
        large = torch.arange(1 << 20)  # 8 MiB, in several messages
        sent = TensorDict({"a": large, "n": {"b": torch.ones(1 << 20, 0)}, "s": "text"}, [1 << 20])
        await one.asend(sent)
        assert (await other.arecv() == sent).all()
        await one.asend(sent.clone().mul_(2))
        assert (await other.arecv())["a"].equal(large * 2)
        await other.asend(TensorDict({"back": 1}))
        assert (await one.arecv())["back"] == 1
        await one.aclose()
        assert [td async for td in other] == []
        with pytest.raises(ConnectionError, match="closed the pipe"):
            await other.asend(TensorDict({"late": 1}))
        await other.aclose()
        await server.aclose()

    asyncio.run(exchange())


def test_an_end_that_dies_in_the_middle_of_a_message_is_an_error():
    async def exchange():
        _, one, other = await ends()
        await one._writer._send(np.ones(3, dtype=np.uint8))
        await one._writer._endpoint.close()
        with pytest.raises(EOFError, match="middle of a message"):
            await other.arecv()

    asyncio.run(exchange())


def test_a_length_that_lies_takes_no_memory():
    async def exchange():
        _, one, other = await ends()
        await one._writer._endpoint.send(np.array([1 << 60], dtype=np.uint64))
        with pytest.raises(ValueError, match="at most 1048576 are read"):
            await other.arecv()

    asyncio.run(exchange())


def test_options_that_do_not_fit_are_refused(monkeypatch):
    async def refused(kind, match, **options):
        with pytest.raises(kind, match=match):
            await TensorDictPipe.connect("host", 1, **options)

    asyncio.run(refused(ValueError, "unknown", transport="udp"))
    asyncio.run(refused(ValueError, "encrypts TCP", transport="ucxx", ssl=True))
    asyncio.run(refused(ConnectionError, "no program listens", transport="ucxx"))
    monkeypatch.setitem(sys.modules, "ucxx", None)
    asyncio.run(refused(ImportError, "pip install ucxx-cu12", transport="ucxx"))
