"""Cold start: a process sends a tensordict, its structure included, to processes that have no part of it."""

from __future__ import annotations

from typing import Any, Self

import torch

from tensordict_core.base.node import Node
from tensordict_core.base.registry.types import containers
from tensordict_core.ops.parallel.distributed.collectives import buffer_device, placed, result_device
from tensordict_core.ops.parallel.distributed.messages import process_group
from tensordict_core.ops.parallel.packing import pack


class RemoteInit(Node):
    """``init_remote`` and ``from_remote_init``."""

    __slots__ = ()

    def init_remote(
        self,
        dst: int | None = None,
        group: Any = None,
        device: Any = None,
        use_broadcast: bool = False,
        _tensorclass_type: str | None = None,
    ) -> None:
        """Send structure and values to a process that calls ``from_remote_init``.

        Later values of the same structure are sent with ``send`` and received with ``recv`` into the result. The
        structure is pickled, so use it only between processes that trust each other.

        Args:
            dst: The global rank of the receiver.
            group: The process group; by default the global one.
            device: The device that the structure passes through, as for `torch.distributed.send_object_list`.
            use_broadcast: Whether all processes of the group receive it, instead of ``dst``.
            _tensorclass_type: Accepted for compatibility; the class is part of the structure.

        Raises:
            RuntimeError: No process group was started.
            ValueError: Neither ``dst`` nor ``use_broadcast`` is given.

        >>> TensorDict({"a": 1}).init_remote(1)  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        ...
        NoGroupError: no process group was started; call torch.distributed.init_process_group first
        """
        dist = process_group()
        if use_broadcast:
            self.broadcast(dist.get_rank(), group=group, device=device)
            return
        if dst is None:
            raise ValueError("init_remote() has no receiver; pass dst, or use_broadcast=True for the whole group")
        skeleton, buffer = pack(self)
        dist.send_object_list([skeleton, buffer.numel(), buffer.device], dst, group=group, device=device)
        dist.send(buffer.to(buffer_device(dist, group, buffer.device)), dst, group=group)

    @classmethod
    def from_remote_init(cls, src: int, group: Any = None, device: Any = None, use_broadcast: bool = False) -> Self:
        """Return the tensordict that a process sends with ``init_remote``.

        Args:
            src: The global rank of the sender.
            group: The process group; by default the global one.
            device: The device of the result; by default the CPU, or with ``use_broadcast`` the device of the sender.
            use_broadcast: Whether the sender broadcasts; the same as there.

        Raises:
            RuntimeError: No process group was started.

        >>> TensorDict.from_remote_init(0)  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        ...
        NoGroupError: no process group was started; call torch.distributed.init_process_group first
        """
        dist = process_group()
        if use_broadcast:
            received: Self = containers.dense().broadcast(src, group=group, device=device)
            return received
        box: list[Any] = [None, None, None]
        dist.recv_object_list(box, src, group=group, device=device)
        skeleton, size, _ = box
        target = result_device("cpu" if device is None else device, torch.device("cpu"))
        buffer = torch.empty(size, dtype=torch.uint8, device=buffer_device(dist, group, target))
        dist.recv(buffer, src, group=group)
        made: Self = placed(skeleton, buffer, target)
        return made
