"""Collectives: ``broadcast``, ``scatter``, ``all_gather``, ``reduce``, ``all_reduce``.

Reductions expect the same structure in all processes and reduce leaves in place; small leaves of one dtype are joined.
Other collectives first send the pickled structure, so processes must trust each other, and then all leaves as one
buffer of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_core.base.node import Node
from tensordict_core.ops.parallel.distributed.messages import (
    BLOCK,
    SMALL,
    Block,
    Transfer,
    blocks,
    process_group,
    sorted_leaves,
    values,
)
from tensordict_core.ops.parallel.packing import pack, unpack


def buffer_device(dist: Any, group: Any, device: torch.device) -> torch.device:
    """Return the device on which a group needs a buffer: NCCL sends from CUDA devices only."""
    if dist.get_backend(group) == "nccl" and device.type == "cpu":
        return torch.device("cuda", torch.cuda.current_device())
    return device


def result_device(device: Any, sender: torch.device) -> torch.device:
    """Return the device of received leaves: the given one, or the receiver's device of the sender's type."""
    if device is not None:
        return torch.device(device)
    return sender if sender.type == "cpu" else torch.device(sender.type, torch.accelerator.current_device_index())


def placed(skeleton: Any, buffer: Tensor, device: torch.device) -> Any:
    """Return the tree of a skeleton on a device."""
    td = unpack(skeleton, buffer if buffer.device == device else buffer.to(device))
    return td if td._meta.device is None or td._meta.device == device else td.to(device)


def _padded(buffer: Tensor, size: int, device: torch.device) -> Tensor:
    out = torch.empty(size, dtype=torch.uint8, device=device)
    out[: buffer.numel()].copy_(buffer)
    return out


def _buckets(td: Any, bucket_bytes: int | None) -> list[Block]:
    """Return the blocks of leaves that are reduced, of the default size or of the given size."""
    if bucket_bytes is None:
        return blocks(sorted_leaves(td), limit=BLOCK, alone=SMALL)
    return blocks(sorted_leaves(td), limit=bucket_bytes, alone=bucket_bytes)


def _reduced(
    td: Any, reduce: Callable[[Tensor], Any], bucket_bytes: int | None, async_op: bool, keeps: bool = False
) -> list[Transfer]:
    """Reduce the leaves of a tree block by block.

    Args:
        td: The tree.
        reduce: Reduces a block of memory; returns the handle if ``async_op``.
        bucket_bytes: The size of a block.
        async_op: Whether the blocks are started at once.
        keeps: Whether the leaves of this process do not change.

    Returns:
        The transfers if ``async_op``; else nothing, and the results are in the leaves.
    """
    transfers = []
    for block in _buckets(td, bucket_bytes):
        # backends may overwrite the memory that they send
        memory = block.memory.clone() if keeps and not block.joined else block.memory
        work = reduce(memory)
        if async_op:
            transfers.append(Transfer(work, None if keeps else block.read, memory))
        elif not keeps:
            block.read()
    return transfers


class Collectives(Node):
    """Operations of a whole process group."""

    __slots__ = ()

    # one to all and all to one ---------------------------------------------------------------------------------------

    def broadcast(
        self, src: int, *, group: Any = None, device: Any = None, _tensorclass_type: str | None = None
    ) -> Self:
        """Return the tensordict of one process on every process of a group; all must call it.

        Receivers need not know the structure and may call it on an empty tensordict, which does not change: use the
        returned one. Structures are pickled, so use it only between processes that trust each other.

        Args:
            src: The global rank of the process that has the tensordict.
            group: The process group; by default the global one.
            device: The device of the result; by default the receiver's device of the sender's type.
            _tensorclass_type: Accepted for compatibility; the class is part of the structure.

        Returns:
            This tensordict on ``src`` (moved to ``device`` if given); a new one on the other processes.

        Raises:
            RuntimeError: No process group was started.

        >>> TensorDict({"a": 1}).broadcast(0)  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        ...
        NoGroupError: no process group was started; call torch.distributed.init_process_group first
        """
        dist = process_group()
        if dist.get_rank() == src:
            skeleton, buffer = pack(self)
            dist.broadcast_object_list([skeleton, buffer.numel(), buffer.device], src, group=group)
            dist.broadcast(buffer.to(buffer_device(dist, group, buffer.device)), src, group=group)
            return self if device is None else self.to(device)
        box: list[Any] = [None, None, None]
        dist.broadcast_object_list(box, src, group=group)
        skeleton, size, sender = box
        target = result_device(device, sender)
        buffer = torch.empty(size, dtype=torch.uint8, device=buffer_device(dist, group, target))
        dist.broadcast(buffer, src, group=group)
        received: Self = placed(skeleton, buffer, target)
        return received

    def scatter(
        self, src: int, tensordicts: Sequence[Any] | None = None, *, group: Any = None, device: Any = None
    ) -> Self:
        """Send one tensordict from one process to each process of a group; all must call it.

        Receivers may call it on an empty tensordict, which does not change: use the returned one. Structures are
        pickled, so use it only between processes that trust each other.

        Args:
            src: The global rank of the process that has the tensordicts.
            tensordicts: The tensordicts in the order of the ranks of the group, on ``src``; of any structures. By
                default the slices of this tensordict along its first dimension.
            group: The process group; by default the global one.
            device: The device of the result; by default the receiver's device of the sender's type.

        Returns:
            The tensordict of this process.

        Raises:
            ValueError: The number of tensordicts differs from the number of processes.

        >>> TensorDict({"a": 1}).scatter(0)  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        ...
        NoGroupError: no process group was started; call torch.distributed.init_process_group first
        """
        dist = process_group()
        mine: list[Any] = [None]
        if dist.get_rank() == src:
            items = self._unbind(0) if tensordicts is None and self._meta.batch_size else tensordicts or ()
            world = dist.get_world_size(group)
            if len(items) != world:
                raise ValueError(
                    f"scatter sends one tensordict to each of {world} processes, got {len(items)}; pass as many"
                )
            packed = [pack(item) for item in items]
            size = max(buffer.numel() for _, buffer in packed)
            news = [(skeleton, buffer.numel(), size, buffer.device) for skeleton, buffer in packed]
            dist.scatter_object_list(mine, news, src, group=group)
            skeleton, own, size, sender = mine[0]
            place = buffer_device(dist, group, sender)
            buffer = torch.empty(size, dtype=torch.uint8, device=place)
            dist.scatter(buffer, [_padded(part, size, place) for _, part in packed], src, group=group)
        else:
            dist.scatter_object_list(mine, None, src, group=group)
            skeleton, own, size, sender = mine[0]
            buffer = torch.empty(
                size, dtype=torch.uint8, device=buffer_device(dist, group, result_device(device, sender))
            )
            dist.scatter(buffer, None, src, group=group)
        received: Self = placed(skeleton, buffer[:own], result_device(device, sender))
        return received

    def gather_and_stack(self, dst: int, group: Any = None) -> Self | None:
        """Write the tensordicts of the other processes of a group into the rows of one; all must call it.

        Args:
            dst: The global rank of the process that gathers. Its tensordict has one row for each other process, in
                the order of their ranks and with the structure of their tensordicts.
            group: The process group; by default the global one.

        Returns:
            This tensordict on ``dst``, ``None`` on the other processes.

        Raises:
            RuntimeError: The tensordict of ``dst`` has another number of rows.

        >>> TensorDict({"a": 1}).gather_and_stack(0)  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        ...
        NoGroupError: no process group was started; call torch.distributed.init_process_group first
        """
        dist = process_group()
        if dist.get_rank() != dst:
            self.send(dst, group=group)
            return None
        ranks = range(dist.get_world_size()) if group is None else dist.get_process_group_ranks(group)
        others = [rank for rank in ranks if rank != dst]
        size = self._meta.batch_size
        if not size or size[0] != len(others):
            raise RuntimeError(
                f"gather_and_stack needs one row for each of the {len(others)} other processes, and the tensordict has "
                f"batch size {list(size)}; use one of batch size {[len(others), *size[1:]]}"
            )
        rows = self.detach()._unbind(0)
        under_way = [
            (i, row, row.irecv(rank, group=group, return_premature=True))
            for i, (row, rank) in enumerate(zip(rows, others, strict=True))
        ]
        for i, row, transfers in under_way:
            for transfer in transfers:
                transfer.wait()
            if values(row) or not _shares(self, row):
                with torch.no_grad():
                    self[i] = row
        return self

    # all to all ------------------------------------------------------------------------------------------------------

    def all_gather(self, *, group: Any = None) -> list[Any]:
        """Return the tensordicts of all processes of a group, on each of them; all must call it.

        The structures may differ. They are pickled, so use it only between processes that trust each other.

        Args:
            group: The process group; by default the global one.

        Returns:
            New tensordicts in the order of the ranks.

        >>> TensorDict({"a": 1}).all_gather()  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        ...
        NoGroupError: no process group was started; call torch.distributed.init_process_group first
        """
        dist = process_group()
        skeleton, buffer = pack(self)
        news: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(news, (skeleton, buffer.numel(), buffer.device), group=group)
        size = max(own for _, own, _ in news)
        place = buffer_device(dist, group, buffer.device)
        buffers = [torch.empty(size, dtype=torch.uint8, device=place) for _ in news]
        dist.all_gather(buffers, _padded(buffer, size, place), group=group)
        return [
            placed(structure, part[:own], result_device(None, sender))
            for (structure, own, sender), part in zip(news, buffers, strict=True)
        ]

    def reduce(
        self,
        dst: int,
        op: Any = None,
        async_op: bool = False,
        return_premature: bool = False,
        group: Any = None,
        *,
        bucket_bytes: int | None = None,
    ) -> Any:
        """Reduce the leaves of all processes of a group into those of one process, in place; all must call it.

        Args:
            dst: The global rank of the process that gets the result; the leaves of the others do not change.
            op: A ``torch.distributed.ReduceOp``; by default the sum.
            async_op: Whether all messages are started at once.
            return_premature: With ``async_op``, whether the call does not wait; call ``wait()`` of each transfer that
                is returned.
            group: The process group; by default the global one.
            bucket_bytes: The largest message in bytes that small leaves of one dtype share; 0 sends each leaf alone.

        Returns:
            The transfers if ``async_op`` and ``return_premature``; else ``None``.

        >>> TensorDict({"a": 1}).reduce(0)  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        ...
        NoGroupError: no process group was started; call torch.distributed.init_process_group first
        """
        dist = process_group()
        op = dist.ReduceOp.SUM if op is None else op

        def reduce(memory: Tensor) -> Any:
            return dist.reduce(memory, dst, op=op, group=group, async_op=async_op)

        transfers = _reduced(self, reduce, bucket_bytes, async_op, keeps=dist.get_rank() != dst)
        if return_premature and async_op:
            return transfers
        for transfer in transfers:
            transfer.wait()
        return None

    def all_reduce(
        self, op: Any = None, *, group: Any = None, async_op: bool = False, bucket_bytes: int | None = None
    ) -> Any:
        """Reduce the leaves of all processes of a group, in place on each; all must call it.

        Args:
            op: A ``torch.distributed.ReduceOp``; by default the sum.
            group: The process group; by default the global one.
            async_op: Whether the call does not wait; call ``wait()`` of each transfer that is returned.
            bucket_bytes: The largest message in bytes that small leaves of one dtype share; 0 sends each leaf alone.

        Returns:
            The transfers if ``async_op``; else ``None``.

        >>> TensorDict({"a": 1}).all_reduce()  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        ...
        NoGroupError: no process group was started; call torch.distributed.init_process_group first
        """
        dist = process_group()
        op = dist.ReduceOp.SUM if op is None else op

        def reduce(memory: Tensor) -> Any:
            return dist.all_reduce(memory, op=op, group=group, async_op=async_op)

        transfers = _reduced(self, reduce, bucket_bytes, async_op)
        return transfers if async_op else None


def _shares(td: Any, row: Any) -> bool:
    """Return whether a row shares the memory of the tensordict."""
    whole = {leaf.untyped_storage().data_ptr() for leaf in td._leaves()}
    return all(leaf.untyped_storage().data_ptr() in whole for leaf in row._leaves())
