"""Pipes: two programs exchange tensordicts over a TCP connection, or over UCXX, with asyncio."""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_store.streams import ucxx
from tensordict_store.streams.wire import ALIGNMENT, MAX_HEADER, Structure, describe, parse

_CHUNK = 1 << 20
"""The number of bytes that are read at once."""


class _Closed(EOFError):
    """The other end closed the pipe between two messages."""


class TensorDictPipe:
    """One end of a connection between two programs that send each other tensordicts.

    Create it with `connect` or `listen`. The first message contains keys, dtypes, shapes and values; later messages
    with the same structure contain only the values. Nothing is pickled, and sizes are checked before memory is
    allocated. The other end is authenticated only if ``ssl`` does it.

    Args:
        reader: The stream of the connection that is read.
        writer: The stream that is written.
        consolidated: Whether a message with the same structure as the previous one is written into the same tensordict,
            which is returned again; ``clone()`` it to keep the values. Otherwise each message is a new tensordict.
        listener: A server that is closed with the pipe.
        max_bytes: The maximum size of a received message in bytes.

    >>> import asyncio
    >>> async def exchange():
    ...     async with await TensorDictServer.start(0) as server:
    ...         async with await TensorDictPipe.connect("127.0.0.1", server.port) as one:
    ...             async with await server.accept() as other:
    ...                 await one.asend(TensorDict({"a": torch.arange(3), "s": "text"}, [3]))
    ...                 td = await other.arecv()
    ...                 return td["a"], td["s"]
    >>> asyncio.run(exchange())
    (tensor([0, 1, 2]), 'text')
    """

    def __init__(
        self,
        reader: asyncio.StreamReader | ucxx.Endpoint,
        writer: asyncio.StreamWriter | ucxx.Endpoint,
        *,
        consolidated: bool = True,
        listener: Any = None,
        max_bytes: int = 1 << 36,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._listener = listener
        self._consolidated = consolidated
        self._max_bytes = max_bytes
        self._sent: bytes | None = None
        self._length: int | None = None  # of the header of a message that is being received
        self._structure: Structure | None = None
        self._buffer: Tensor | None = None
        self._filled = 0  # bytes of the buffer that are received
        self._received: Any = None
        if isinstance(writer, asyncio.StreamWriter):  # else drain() returns while a part of a tensor is not sent yet
            writer.transport.set_write_buffer_limits(0)

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        consolidated: bool = True,
        ssl: tls.SSLContext | None = None,
        transport: str = "tcp",
    ) -> Self:
        """Connect to a program that listens, and return the pipe.

        Args:
            host: The name or the address of the machine on which it listens.
            port: The port.
            consolidated: Whether messages with the same structure are received into the same tensordict.
            ssl: The context of an encrypted connection.
            transport: ``"tcp"`` or ``"ucxx"``, which both ends must use.

        Raises:
            OSError: No program listens on the port.
            ImportError: ucxx is not installed.
            ValueError: ``transport`` is unknown, or ``ssl`` is given for another one than TCP.

        >>> import asyncio
        >>> async def exchange():
        ...     async with await TensorDictServer.start(0) as server:
        ...         async with await TensorDictPipe.connect("127.0.0.1", server.port) as a, await server.accept() as b:
        ...             await b.asend(TensorDict({"a": 1}))
        ...             return (await a.arecv())["a"]
        >>> asyncio.run(exchange())
        tensor(1)
        """
        if _is_ucxx(transport, ssl):
            endpoint = await ucxx.connect(host, port)
            return cls(endpoint, endpoint, consolidated=consolidated)
        return cls(*await asyncio.open_connection(host, port, ssl=ssl), consolidated=consolidated)

    @classmethod
    async def listen(
        cls,
        port: int,
        *,
        host: str = "127.0.0.1",
        consolidated: bool = True,
        ssl: tls.SSLContext | None = None,
        transport: str = "tcp",
    ) -> Self:
        """Wait for a program that connects to a port, and return the pipe to it.

        Args:
            port: The port.
            host: The address to listen on; by default only programs on this machine can connect.
            consolidated: Whether messages with the same structure are received into the same tensordict.
            ssl: The context of an encrypted connection.
            transport: ``"tcp"`` or ``"ucxx"``, which listens on all addresses.

        Raises:
            OSError: The port is in use.
            ImportError: ucxx is not installed.

        >>> import asyncio, socket
        >>> with socket.socket() as free:
        ...     free.bind(("127.0.0.1", 0))
        ...     port = free.getsockname()[1]
        >>> async def send():
        ...     while True:
        ...         try:
        ...             async with await TensorDictPipe.connect("127.0.0.1", port) as pipe:
        ...                 return await pipe.asend(TensorDict({"a": 1}))
        ...         except ConnectionRefusedError:  # nothing listens yet
        ...             await asyncio.sleep(0.01)
        >>> async def receive():
        ...     async with await TensorDictPipe.listen(port) as pipe:
        ...         return (await pipe.arecv())["a"]
        >>> async def exchange():
        ...     return await asyncio.gather(receive(), send())
        >>> asyncio.run(exchange())
        [tensor(1), None]
        """
        server = await TensorDictServer.start(port, host=host, consolidated=consolidated, ssl=ssl, transport=transport)
        try:
            pipe = await server.accept()
        except BaseException:  # a call that is cancelled frees the port
            await server.aclose()
            raise
        return cls(pipe._reader, pipe._writer, consolidated=consolidated, listener=server)

    async def asend(self, td: Any) -> None:
        """Send a tensordict; a message that was begun is sent completely, even if the call is cancelled.

        Args:
            td: A tensordict, lazy stack of equal elements, or tensorclass, which arrives as a tensordict.

        Raises:
            TypeError: An entry cannot be sent; the error names its key, and nothing is sent.
            ConnectionError: The other end closed the connection.

        >>> import asyncio
        >>> async def exchange():
        ...     async with await TensorDictServer.start(0) as server:
        ...         async with await TensorDictPipe.connect("127.0.0.1", server.port) as a, await server.accept() as b:
        ...             await a.asend(TensorDict({"a": torch.arange(3)}, [3]))
        ...             return (await b.arecv())["a"]
        >>> asyncio.run(exchange())
        tensor([0, 1, 2])
        """
        header, leaves = describe(td)
        parts = self._parts(header, leaves)
        try:
            for part in parts:
                self._writer.write(part)
                await self._writer.drain()
        except asyncio.CancelledError:  # the other end would take the next message for the rest of this one
            for part in parts:
                self._writer.write(bytes(part))
            raise

    def _parts(self, header: bytes, leaves: Sequence[Tensor]) -> Iterator[bytes | memoryview]:
        """Yield the bytes of a message: the header, if it is a new one, and the leaves."""
        same, self._sent = header == self._sent, header
        yield bytes(8) if same else len(header).to_bytes(8, "little") + header
        padding = 0
        for leaf in leaves:
            if padding:
                yield bytes(padding)
            if leaf.numel():
                yield leaf.reshape(-1).view(torch.uint8).numpy().data
            padding = -leaf.nbytes % ALIGNMENT

    async def arecv(self, td: Any = None, *, device: torch.device | str | int | None = None) -> Any:
        """Receive a tensordict; a call after one that was cancelled receives the rest of the same message.

        Args:
            td: A tensordict that is updated in place with the values, and returned.
            device: The device of the result; by default the CPU, or that of ``td``.

        Raises:
            EOFError: The other end closed the pipe.
            ValueError: The message is not of this format, or larger than ``max_bytes``.

        >>> import asyncio
        >>> async def exchange():
        ...     async with await TensorDictServer.start(0) as server:
        ...         async with await TensorDictPipe.connect("127.0.0.1", server.port) as a, await server.accept() as b:
        ...             await a.asend(TensorDict({"a": torch.arange(3)}, [3]))
        ...             return await b.arecv(TensorDict({"a": torch.zeros(3)}, [3]))
        >>> asyncio.run(exchange())["a"]
        tensor([0., 1., 2.])
        """
        try:
            structure, buffer = await self._receive()
        except asyncio.IncompleteReadError:
            raise EOFError("the pipe was closed in the middle of a message; receive from a new one") from None
        received = structure.build(buffer) if self._received is None else self._received
        if self._consolidated:
            self._received = received
        else:
            self._buffer = None
        if td is not None:
            received = td.update_(received)
        return received if device is None else received.to(device)

    async def _receive(self) -> tuple[Structure, Tensor]:
        """Return the structure of the next message and the bytes of its leaves; attributes keep the progress."""
        if self._length is None:
            self._length = await self._next_length()
        if self._length:
            structure = parse(await self._reader.readexactly(self._length))
            if structure.nbytes() > self._max_bytes:
                raise ValueError(
                    f"a message of {structure.nbytes()} bytes is announced, and at most {self._max_bytes} are read; "
                    "pass a larger max_bytes"
                )
            self._length, self._structure, self._buffer, self._received = 0, structure, None, None
        if self._structure is None:
            raise ValueError("the first message has no header; connect two ends of the same version")
        if self._buffer is None:
            self._buffer = torch.empty(self._structure.nbytes(), dtype=torch.uint8, device="cpu")
        memory = self._buffer.numpy().data
        while self._filled < len(memory):
            data = await self._reader.read(min(_CHUNK, len(memory) - self._filled))
            if not data:
                raise asyncio.IncompleteReadError(b"", len(memory) - self._filled)
            memory[self._filled : self._filled + len(data)] = data
            self._filled += len(data)
        self._length, self._filled = None, 0
        return self._structure, self._buffer

    async def _next_length(self) -> int:
        """Return the length of the header of the next message; 0 if it has that of the previous one."""
        try:
            length = int.from_bytes(await self._reader.readexactly(8), "little")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise
            raise _Closed("the pipe is closed; connect again to receive more") from None
        if length > MAX_HEADER:
            raise ValueError(
                f"a header of {length} bytes is announced, and at most {MAX_HEADER} are read; close the pipe"
            )
        return length

    async def aclose(self) -> None:
        """Send all buffered data, and close the connection.

        >>> import asyncio
        >>> async def exchange():
        ...     async with await TensorDictServer.start(0) as server:
        ...         async with await TensorDictPipe.connect("127.0.0.1", server.port) as a, await server.accept() as b:
        ...             await a.aclose()
        ...             return [td async for td in b]
        >>> asyncio.run(exchange())
        []
        """
        self._writer.close()
        with suppress(ConnectionError):  # the other end closed first
            await self._writer.wait_closed()
        if self._listener is not None:
            await self._listener.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._each()

    async def _each(self) -> AsyncIterator[Any]:
        while True:
            try:
                yield await self.arecv()
            except _Closed:
                return


class TensorDictServer:
    """Accepts the pipes of several programs on one port.

    Create it with `start`.

    Args:
        server: The server of asyncio, or the listener of ucxx.
        pipes: The queue of the pipes that connected.

    >>> async def exchange():
    ...     server = await TensorDictServer.start(0)
    ...     sender = await TensorDictPipe.connect("127.0.0.1", server.port)
    ...     receiver = await server.accept()
    ...     await sender.asend(TensorDict({"a": torch.arange(3)}, [3]))
    ...     received = await receiver.arecv()
    ...     for one in (sender, receiver, server):
    ...         await one.aclose()
    ...     return received["a"]
    >>> asyncio.run(exchange())
    tensor([0, 1, 2])
    """

    def __init__(self, server: Any, pipes: asyncio.Queue[TensorDictPipe]) -> None:
        self._server = server
        self._pipes = pipes

    @classmethod
    async def start(
        cls,
        port: int,
        *,
        host: str = "127.0.0.1",
        consolidated: bool = True,
        ssl: tls.SSLContext | None = None,
        transport: str = "tcp",
    ) -> Self:
        """Listen on a port (0 means any free port), and return the server; arguments are those of `TensorDictPipe`.

        Raises:
            OSError: The port is in use.

        >>> async def open_and_close():
        ...     async with await TensorDictServer.start(0) as server:
        ...         return server.port > 0
        >>> asyncio.run(open_and_close())
        True
        """
        pipes: asyncio.Queue[TensorDictPipe] = asyncio.Queue()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            pipes.put_nowait(TensorDictPipe(reader, writer, consolidated=consolidated))

        async def connected_by_ucxx(endpoint: ucxx.Endpoint) -> None:
            pipes.put_nowait(TensorDictPipe(endpoint, endpoint, consolidated=consolidated))

        if _is_ucxx(transport, ssl):
            return cls(ucxx.listen(port, connected_by_ucxx), pipes)
        return cls(await asyncio.start_server(connected, host, port, ssl=ssl), pipes)

    @property
    def port(self) -> int:
        """The port that it listens on.

        >>> async def open_and_close():
        ...     async with await TensorDictServer.start(0) as server:
        ...         return 0 < server.port < 1 << 16
        >>> asyncio.run(open_and_close())
        True
        """
        if isinstance(self._server, asyncio.Server):
            return int(self._server.sockets[0].getsockname()[1])
        return int(self._server.port)

    async def accept(self) -> TensorDictPipe:
        """Return the pipe to the next program that connects.

        >>> async def exchange():
        ...     async with await TensorDictServer.start(0) as server:
        ...         async with await TensorDictPipe.connect("127.0.0.1", server.port) as a, await server.accept() as b:
        ...             return type(b).__name__
        >>> asyncio.run(exchange())
        'TensorDictPipe'
        """
        return await self._pipes.get()

    async def serve(self, handle: Callable[[TensorDictPipe], Awaitable[None]]) -> None:
        """Run a coroutine for each program that connects, until it is cancelled.

        An error of the coroutine goes to the exception handler of the event loop, which logs it, and other programs are
        served as before.

        Args:
            handle: A function that is called with the pipe, which is closed when it returns.

        >>> async def double(pipe):
        ...     async for td in pipe:
        ...         await pipe.asend(td * 2)
        >>> async def exchange():
        ...     async with await TensorDictServer.start(0) as server:
        ...         serving = asyncio.create_task(server.serve(double))
        ...         async with await TensorDictPipe.connect("127.0.0.1", server.port) as pipe:
        ...             await pipe.asend(TensorDict({"a": torch.arange(3)}, [3]))
        ...             received = await pipe.arecv()
        ...         serving.cancel()
        ...         return received["a"]
        >>> asyncio.run(exchange())
        tensor([0, 2, 4])
        """
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(_handled(handle, await self.accept()))

    async def aclose(self) -> None:
        """Stop listening; open pipes stay open.

        >>> async def open_and_close():
        ...     server = await TensorDictServer.start(0)
        ...     port = server.port
        ...     await server.aclose()
        ...     try:
        ...         await TensorDictPipe.connect("127.0.0.1", port)
        ...     except OSError:
        ...         return "refused"
        >>> asyncio.run(open_and_close())
        'refused'
        """
        self._server.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _is_ucxx(transport: str, ssl: tls.SSLContext | None) -> bool:
    if transport not in ("tcp", "ucxx"):
        raise ValueError(f"transport={transport!r} is unknown; pass 'tcp' or 'ucxx'")
    if transport == "ucxx" and ssl is not None:
        raise ValueError("ssl= encrypts TCP connections, and transport='ucxx' has none; leave one of them out")
    return transport == "ucxx"


async def _handled(handle: Callable[[TensorDictPipe], Awaitable[None]], pipe: TensorDictPipe) -> None:
    try:
        async with pipe:
            await handle(pipe)
    except Exception as error:
        report = {"message": "the coroutine that serves a TensorDictPipe failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(report)
