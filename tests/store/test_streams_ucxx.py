"""Pipes over UCXX: the library where it is installed, and a module with its interface, on which messages are queued."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tensordict_core import TensorDict
from tensordict_store import TensorDictPipe, TensorDictServer
from tensordict_store.streams.wire import describe


class UCXError(Exception): ...


class Endpoint:
    """One end of two queues; a receive needs the size of what was sent, as tagged messages do."""

    def __init__(self, out: asyncio.Queue[bytes | None], into: asyncio.Queue[bytes | None]) -> None:
        self.out, self.into, self.closed = out, into, False

    async def send(self, buffer: np.ndarray[Any, Any]) -> None:
        assert not self.closed, "ucxx has no endpoint any more"
        if self.other.closed:
            raise UCXError("connection reset by remote peer")
        await self.out.put(bytes(memoryview(buffer).cast("B")))

    async def recv(self, buffer: np.ndarray[Any, Any]) -> None:
        data = await self.into.get()
        assert not self.closed, "ucxx has no endpoint any more"
        if data is None:
            raise UCXError("connection reset by remote peer")
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
            raise UCXError("Endpoint error: Destination is unreachable")
        one, two = asyncio.Queue[bytes | None](), asyncio.Queue[bytes | None]()
        a, b = Endpoint(one, two), Endpoint(two, one)
        a.other, b.other = b, a
        called = listeners[port](b)
        if inspect.iscoroutinefunction(listeners[port]):  # of others, ucxx drops what they return
            tasks.append(asyncio.ensure_future(called))
        return a

    exceptions = types.SimpleNamespace(UCXError=UCXError)
    return types.SimpleNamespace(
        create_listener=create_listener, create_endpoint=create_endpoint, exceptions=exceptions
    )


@pytest.fixture(autouse=True, params=["ucxx", "interface"])
def _installed(request, monkeypatch):
    if request.param == "interface":
        monkeypatch.setitem(sys.modules, "ucxx", fake())
    elif importlib.util.find_spec("ucxx") is None:
        pytest.skip("ucxx is not installed")


async def ends() -> tuple[TensorDictServer, TensorDictPipe, TensorDictPipe]:
    server = await TensorDictServer.start(0, transport="ucxx")
    one = await TensorDictPipe.connect("127.0.0.1", server.port, transport="ucxx")
    return server, one, await server.accept()


async def passed(sender: TensorDictPipe, receiver: TensorDictPipe, td: TensorDict) -> Any:
    return (await asyncio.gather(sender.asend(td), receiver.arecv()))[1]


async def all_of(pipe: TensorDictPipe) -> list[Any]:
    return [td.clone() async for td in pipe]


def test_tensordicts_of_every_size_are_sent_both_ways_and_the_end_is_noticed():
    async def exchange():
        server, one, other = await ends()
        large = torch.arange(1 << 20)  # 8 MiB, in several messages
        sent = TensorDict({"a": large, "n": {"b": torch.ones(1 << 20, 0)}, "s": "text"}, [1 << 20])
        assert (await passed(one, other, sent) == sent).all()
        assert (await passed(one, other, sent.clone().mul_(2)))["a"].equal(large * 2)
        assert (await passed(other, one, TensorDict({"back": 1})))["back"] == 1
        _, rest = await asyncio.gather(one.aclose(), all_of(other))
        assert rest == []
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


def test_a_closed_end_raises_an_error_and_closes_once():
    async def exchange():
        server, one, other = await ends()
        await one.aclose()
        await one.aclose()
        with pytest.raises(ConnectionError, match="closed at this end"):
            await one.asend(TensorDict({"a": 1}))
        with pytest.raises(EOFError, match="is closed"):
            await one.arecv()
        await other.aclose()
        await server.aclose()

    asyncio.run(exchange())


def test_a_receive_that_is_cancelled_loses_no_message():
    async def exchange():
        server, one, other = await ends()
        waiting = asyncio.ensure_future(one.arecv())
        await asyncio.sleep(0.1)
        waiting.cancel()
        assert (await passed(other, one, TensorDict({"a": 7})))["a"] == 7
        assert (await passed(other, one, TensorDict({"a": 8})))["a"] == 8
        await asyncio.gather(one.aclose(), other.aclose())
        await server.aclose()

    asyncio.run(exchange())


def test_calls_that_are_cancelled_in_a_message_leave_no_half_of_it():
    async def exchange():
        server, one, other = await ends()
        header, [leaf] = describe(TensorDict({"a": torch.arange(1 << 18)}))
        content = len(header).to_bytes(8, "little") + header + leaf.numpy().tobytes()
        for part in (content[:3], content[3:8], content[8:20], content[20:-5]):
            one._writer.write(part)
            await one._writer.drain()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(other.arecv(), 0.1)
        one._writer.write(content[-5:])
        await one._writer.drain()
        assert (await other.arecv())["a"].equal(leaf)

        sending = asyncio.ensure_future(one.asend(TensorDict({"b": torch.arange(1 << 18), "c": torch.ones(3)})))
        for _ in range(4):  # some of its parts are sent then
            await asyncio.sleep(0)
        sending.cancel()
        await passed(one, other, TensorDict({"d": 1}))
        assert (await other.arecv())["d"] == 1
        await asyncio.gather(one.aclose(), other.aclose())
        await server.aclose()

    asyncio.run(exchange())


def test_a_wrong_length_allocates_no_memory():
    async def exchange():
        _, one, other = await ends()
        await one._writer._endpoint.send(np.array([1 << 60], dtype=np.uint64))
        with pytest.raises(ValueError, match="at most 1048576 are read"):
            await other.arecv()

    asyncio.run(exchange())


def test_options_that_do_not_fit_are_refused(monkeypatch):
    async def refused(kind, match, **options):
        with pytest.raises(kind, match=match):
            await TensorDictPipe.connect("127.0.0.1", 1, **options)

    asyncio.run(refused(ValueError, "unknown", transport="udp"))
    asyncio.run(refused(ValueError, "encrypts TCP", transport="ucxx", ssl=True))
    asyncio.run(refused(ConnectionError, "no program listens", transport="ucxx"))
    monkeypatch.setitem(sys.modules, "ucxx", None)
    asyncio.run(refused(ImportError, "pip install ucxx-cu12", transport="ucxx"))
