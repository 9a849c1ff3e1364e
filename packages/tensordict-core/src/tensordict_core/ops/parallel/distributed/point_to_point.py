"""Point-to-point communication: ``send``, ``recv`` and their asynchronous forms.

Both ends use tensordicts of the same structure; the receiver's leaves are written in place. `messages` plans the
messages: many small leaves are sent as one. Non-tensor values follow in a separate message, pickled.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_core.base.node import Node
from tensordict_core.base.registry.types import containers
from tensordict_core.ops.parallel.distributed.messages import (
    Block,
    Transfer,
    blocks,
    process_group,
    sorted_leaves,
    tags,
    values,
)


class _Peer:
    """The other process, addressed by its global rank or its rank within a group."""

    def __init__(self, name: str, rank: int | None, group: Any, group_rank: int | None) -> None:
        if (rank is None) == (group_rank is None):
            raise ValueError(
                f"{name} and group_{name} both name the other process, so exactly one of them is needed; got "
                f"{name}={rank} and group_{name}={group_rank}"
            )
        if group_rank is not None and group is None:
            raise ValueError(f"group_{name} is a rank within a group; pass group too, or {name} for a global rank")
        if rank is not None and not isinstance(rank, int):
            raise TypeError(
                f"{name} must be a rank or a pipe (an object with the methods send, recv, asend and arecv), got "
                f"{type(rank).__name__}"
            )
        self.rank = rank
        self.group = group
        self.group_rank = group_rank

    def send(self, buffer: Tensor, tag: int) -> Any:
        if self.group_rank is not None:
            # calls the group directly, which need not be registered with torch.distributed
            return self.group.send([buffer], self.group_rank, tag)
        return process_group().isend(buffer, self.rank, group=self.group, tag=tag)

    def recv(self, buffer: Tensor, tag: int) -> Any:
        if self.group_rank is not None:
            return self.group.recv([buffer], self.group_rank, tag)
        return process_group().irecv(buffer, self.rank, group=self.group, tag=tag)


def _plan(td: Any, whole: bool, empty: bool = False) -> list[Block]:
    """Return the blocks of a tree, of the default size or with all leaves of a dtype in one."""
    if whole:
        return blocks(sorted_leaves(td), limit=sys.maxsize, alone=sys.maxsize, empty=empty)
    return blocks(sorted_leaves(td), empty=empty)


def _send(td: Any, peer: _Peer, numbers: Iterator[int], whole: bool) -> Iterator[tuple[int, Transfer]]:
    """Start to send every message, and yield its tag and transfer."""
    device = torch.device("cpu")
    for block in _plan(td, whole):
        device = block.memory.device
        tag = next(numbers)
        yield tag, Transfer(peer.send(block.bytes, tag), holds=block)
    nodes = values(td)
    if nodes:
        data = pickle.dumps([node._entry_value() for node in nodes])
        for part in (torch.tensor([len(data)], device="cpu"), torch.frombuffer(bytearray(data), dtype=torch.uint8)):
            tag = next(numbers)
            moved = part.to(device)
            yield tag, Transfer(peer.send(moved, tag), holds=moved)


def _recv(td: Any, peer: _Peer, numbers: Iterator[int], whole: bool) -> Iterator[tuple[int, Transfer]]:
    """Start to receive every message, and yield its tag and transfer."""
    device = torch.device("cpu")
    for block in _plan(td, whole, empty=True):
        device = block.memory.device
        tag = next(numbers)
        yield tag, Transfer(peer.recv(block.bytes, tag), block.read, block)
    nodes = values(td)
    if nodes:
        size = torch.zeros(1, dtype=torch.int64, device=device)
        tag, data_tag = next(numbers), next(numbers)

        def take() -> None:
            data = torch.empty(int(size.item()), dtype=torch.uint8, device=device)
            peer.recv(data, data_tag).wait()
            for node, value in zip(nodes, pickle.loads(data.cpu().numpy().tobytes()), strict=True):
                _put_value(node, value)

        yield data_tag, Transfer(peer.recv(size, tag), take, size)


def _wait(started: list[tuple[int, Transfer]], init_tag: int, consolidated: bool) -> int | None:
    """Wait for all messages, and return the tag of the last one; ``None`` if there is one for each dtype."""
    for _, transfer in started:
        transfer.wait()
    return None if consolidated else started[-1][0] if started else init_tag - 1


def _put_value(node: Any, value: Any) -> None:
    if node._holds_values and isinstance(value, list):
        value = containers.non_tensor_stack.from_list(value, batch_size=node._meta.batch_size)
    node._replace_value(value)


class PointToPoint(Node):
    """``send``, ``recv``, ``isend``, ``irecv``."""

    __slots__ = ()

    def send(
        self,
        dst: Any = None,
        *,
        group: Any = None,
        group_dst: int | None = None,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        consolidated: bool = False,
    ) -> None:
        """Send every leaf and non-tensor value to another process, and wait until all are sent.

        Small leaves share a message. The receiver calls ``recv`` or ``irecv`` on a tensordict of the same keys, shapes
        and dtypes, with the same ``init_tag``, ``pseudo_rand`` and ``consolidated``.

        Args:
            dst: The global rank of the receiver; or a pipe, whose ``send`` is called with the tensordict.
            group: The process group; by default the global one.
            group_dst: The receiver's rank within ``group``, instead of ``dst``.
            init_tag: The tag of the first message; following messages have the following numbers.
            pseudo_rand: Whether tags are drawn at random instead, seeded with ``init_tag``.
            consolidated: Whether all leaves of one dtype are sent as one message of any size.

        Raises:
            ValueError: Both or none of ``dst`` and ``group_dst`` are given, or ``group_dst`` without a group.
            RuntimeError: No process group was started.

        >>> TensorDict({"a": torch.zeros(3)}).send()
        Traceback (most recent call last):
        ...
        ValueError: dst and group_dst both name the other process, so exactly one of them is needed; ...
        """
        if _is_pipe(dst):
            dst.send(self)
            return
        self.isend(
            dst, group=group, group_dst=group_dst, init_tag=init_tag, pseudo_rand=pseudo_rand, consolidated=consolidated
        )

    def isend(
        self,
        dst: int | None = None,
        *,
        group: Any = None,
        group_dst: int | None = None,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        return_early: bool = False,
        consolidated: bool = False,
    ) -> Any:
        """Start all messages of ``send`` at once.

        Args:
            dst: The global rank of the receiver.
            group: The process group; by default the global one.
            group_dst: The receiver's rank within ``group``, instead of ``dst``.
            init_tag: The tag of the first message.
            pseudo_rand: Whether tags are drawn at random instead.
            return_early: Whether the call does not wait; change the tensordict only after ``wait()`` of each transfer
                that is returned.
            consolidated: Whether all leaves of one dtype are sent as one message.

        Returns:
            The transfers if ``return_early``; else the tag of the last message (``init_tag - 1`` without any, ``None``
            if ``consolidated``).

        Raises:
            ValueError: Both or none of ``dst`` and ``group_dst`` are given, or ``group_dst`` without a group.

        >>> TensorDict({"a": torch.zeros(3)}).isend(0, group_dst=1)
        Traceback (most recent call last):
        ...
        ValueError: dst and group_dst both name the other process, so exactly one of them is needed; ...
        """
        started = list(_send(self, _Peer("dst", dst, group, group_dst), tags(init_tag, pseudo_rand), consolidated))
        return [transfer for _, transfer in started] if return_early else _wait(started, init_tag, consolidated)

    def recv(
        self,
        src: Any = None,
        *,
        group: Any = None,
        group_src: int | None = None,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        consolidated: bool = False,
    ) -> Any:
        """Receive the values that another process sends into the leaves, in place; locked tensordicts allow it.

        Args:
            src: The global rank of the sender; or a pipe, whose ``recv`` is called with the tensordict.
            group: The process group; by default the global one.
            group_src: The sender's rank within ``group``, instead of ``src``.
            init_tag: The ``init_tag`` of the sender.
            pseudo_rand: The ``pseudo_rand`` of the sender.
            consolidated: The ``consolidated`` of the sender.

        Returns:
            The tag of the last message (``None`` if ``consolidated``); for a pipe, its result.

        Raises:
            ValueError: Both or none of ``src`` and ``group_src`` are given, or ``group_src`` without a group.

        >>> TensorDict({"a": torch.zeros(3)}).recv(group_src=1)
        Traceback (most recent call last):
        ...
        ValueError: group_src is a rank within a group; pass group too, or src for a global rank
        """
        if _is_pipe(src):
            return src.recv(self)
        started = list(_recv(self, _Peer("src", src, group, group_src), tags(init_tag, pseudo_rand), consolidated))
        return _wait(started, init_tag, consolidated)

    def irecv(
        self,
        src: int | None = None,
        *,
        group: Any = None,
        group_src: int | None = None,
        return_premature: bool = False,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        consolidated: bool = False,
    ) -> Any:
        """Start to receive all messages of ``recv`` at once.

        Args:
            src: The global rank of the sender.
            group: The process group; by default the global one.
            group_src: The sender's rank within ``group``, instead of ``src``.
            return_premature: Whether the call does not wait; read the tensordict only after ``wait()`` of each transfer
                that is returned, in their order.
            init_tag: The ``init_tag`` of the sender.
            pseudo_rand: The ``pseudo_rand`` of the sender.
            consolidated: The ``consolidated`` of the sender.

        Returns:
            The transfers if ``return_premature``; else ``None``.

        Raises:
            ValueError: Both or none of ``src`` and ``group_src`` are given, or ``group_src`` without a group.

        >>> TensorDict({"a": torch.zeros(3)}).irecv()
        Traceback (most recent call last):
        ...
        ValueError: src and group_src both name the other process, so exactly one of them is needed; ...
        """
        started = list(_recv(self, _Peer("src", src, group, group_src), tags(init_tag, pseudo_rand), consolidated))
        if return_premature:
            return [transfer for _, transfer in started]
        return _wait(started, init_tag, True)

    async def asend(self, dst: Any, **options: Any) -> None:
        """Send the tensordict as a coroutine.

        Args:
            dst: The global rank of the receiver; or a pipe, whose ``asend`` is called with the tensordict.
            **options: The options of ``send``.

        >>> import asyncio
        >>> class Pipe:
        ...     async def asend(self, td): print("sent", td["a"])
        >>> asyncio.run(TensorDict({"a": 1}).asend(Pipe()))
        sent tensor(1)
        """
        if _is_pipe(dst, "asend"):
            await dst.asend(self)
        else:
            await asyncio.to_thread(self.send, dst, **options)

    async def arecv(self, src: Any, *, device: Any = None, **options: Any) -> Self:
        """Receive the tensordict as a coroutine.

        Args:
            src: The global rank of the sender; or a pipe, whose ``arecv`` is called with the tensordict.
            device: The device of the result; by default that of this tensordict.
            **options: The options of ``recv``.

        Returns:
            The tensordict itself, or a copy on ``device`` if it is another; for a pipe, its result.

        >>> import asyncio
        >>> class Pipe:
        ...     async def arecv(self, td, device=None): return td.update({"a": 2})
        >>> asyncio.run(TensorDict({"a": 1}).arecv(Pipe()))["a"]
        tensor(2)
        """
        if _is_pipe(src, "arecv"):
            received: Self = await src.arecv(self, device=device)
            return received
        await asyncio.to_thread(self.recv, src, **options)
        return self if device is None else self.to(device)


def _is_pipe(end: Any, method: str = "send") -> bool:
    """Return whether one end of an exchange is an object that moves tensordicts itself."""
    return not isinstance(end, int) and callable(getattr(end, method, None))
