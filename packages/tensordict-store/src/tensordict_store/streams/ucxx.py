"""UCXX: the streams of a pipe over endpoints of ucxx, which uses RDMA and shared memory where a machine has them.

An endpoint carries messages instead of a stream. A message here is its length (8 bytes), then the bytes, at most 1 MiB;
a length of 0 ends the stream.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

import numpy as np

_MESSAGE = 1 << 20
"""The most bytes of a message."""


def _ucxx() -> ModuleType:
    try:
        return importlib.import_module("ucxx")
    except ModuleNotFoundError as error:
        raise ImportError(
            "transport='ucxx' needs ucxx: pip install ucxx-cu12, or ucxx-cu13 for CUDA 13", name="ucxx"
        ) from error


class Endpoint:
    """The reader and the writer of a pipe over an endpoint of ucxx; it has the methods of asyncio's streams.

    Args:
        endpoint: An endpoint of ucxx.
    """

    def __init__(self, endpoint: Any) -> None:
        self._endpoint = endpoint
        self._received = memoryview(b"")
        self._waiting: list[memoryview] = []
        self._receiving: asyncio.Future[None] | None = None
        self._sending: asyncio.Future[None] | None = None
        self._ended = False
        self._closed = False

    async def read(self, count: int) -> bytes | memoryview:
        """Return at most ``count`` bytes; none if the other end closed the stream."""
        if not self._received and not self._ended and not self._closed:
            if self._receiving is None or self._receiving.done():
                self._receiving = asyncio.ensure_future(self._receive())
            await asyncio.shield(self._receiving)  # a message of a call that is cancelled belongs to the next one
        data, self._received = self._received[:count], self._received[count:]
        return data

    async def readexactly(self, count: int) -> bytes:
        """Return ``count`` bytes.

        Raises:
            asyncio.IncompleteReadError: The other end closed the stream before.
        """
        read = bytearray()
        try:
            while len(read) < count:
                data = await self.read(count - len(read))
                if not data:
                    raise asyncio.IncompleteReadError(bytes(read), count)
                read += data
        except asyncio.CancelledError:  # the next call reads these bytes again
            self._received = memoryview(bytes(read + self._received))
            raise
        return bytes(read)

    async def _receive(self) -> None:
        length = np.zeros(1, dtype=np.uint64)
        try:
            await self._endpoint.recv(length)
            if length[0] > _MESSAGE:
                raise ValueError(
                    f"a message of {length[0]} bytes is announced, and at most {_MESSAGE} are read; close the pipe"
                )
            data = np.empty(int(length[0]), dtype=np.uint8)
            if data.size:
                await self._endpoint.recv(data)
        except _ucxx().exceptions.UCXError:  # the other end closed
            data = np.empty(0, dtype=np.uint8)
        self._ended = not data.size
        self._received = memoryview(bytes(self._received) + data.tobytes()) if self._received else data.data

    def write(self, data: Any) -> None:
        """Keep bytes until `drain` sends them."""
        self._waiting.append(memoryview(data).cast("B"))

    async def drain(self) -> None:
        """Send the bytes of all writes, even if the call is cancelled.

        Raises:
            ConnectionError: The other end closed the stream.
        """
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._send_all())
        await asyncio.shield(self._sending)

    async def _send_all(self) -> None:
        while self._waiting:
            data = self._waiting.pop(0)
            for start in range(0, len(data), _MESSAGE):
                await self._send(np.frombuffer(data[start : start + _MESSAGE], dtype=np.uint8))

    async def _send(self, data: np.ndarray[Any, Any]) -> None:
        if self._closed:
            raise ConnectionError("the pipe is closed at this end; connect again to send more")
        try:
            await self._endpoint.send(np.array([data.size], dtype=np.uint64))
            if data.size:
                await self._endpoint.send(data)
        except _ucxx().exceptions.UCXError as error:
            raise ConnectionError(f"the other end closed the pipe: {error}; connect again to send more") from error

    def close(self) -> None:
        """Do nothing, as `wait_closed` closes the endpoint."""

    async def wait_closed(self) -> None:
        """Send the bytes of all writes, end the stream, and close the endpoint."""
        with suppress(ConnectionError):  # the other end closed first
            await self.drain()
            await self._send(np.empty(0, dtype=np.uint8))
        self._closed = True
        with suppress(_ucxx().exceptions.UCXError):
            await self._endpoint.close()


async def connect(host: str, port: int) -> Endpoint:
    """Connect to a program that listens.

    Raises:
        ImportError: ucxx is not installed.
        ConnectionError: No program listens on the port.
    """
    ucxx = _ucxx()
    try:
        return Endpoint(await ucxx.create_endpoint(host, port))
    except (ucxx.exceptions.UCXError, TimeoutError) as error:  # ucxx waits for 5 seconds
        raise ConnectionError(
            f"no program listens on port {port} of {host!r} ({error or 'timeout'}); start it first"
        ) from error


def listen(port: int, connected: Callable[[Endpoint], Awaitable[None]]) -> Any:
    """Listen on a port (0 means any free port), and call a coroutine with each endpoint that connects.

    Returns:
        The listener of ucxx, which has ``port`` and ``close()``.

    Raises:
        ImportError: ucxx is not installed.
    """

    async def accept(endpoint: Any) -> None:  # ucxx awaits coroutine functions only
        await connected(Endpoint(endpoint))

    return _ucxx().create_listener(accept, port)
