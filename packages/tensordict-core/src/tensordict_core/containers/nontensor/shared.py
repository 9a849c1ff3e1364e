"""Shared values: non-tensor values in shared memory, where processes see each other's writes.

The memory contains the value as a pickle, after a count of the writes, its length and its checksum. A process unpickles
it when the count differs from the one that it has seen. The memory comes from this program and its child processes, as
what `multiprocessing` sends between them.
"""

from __future__ import annotations

import pickle
import zlib
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing import reductions  # noqa: F401  # registers the pickling of tensors in shared memory

from tensordict_core.base import errors
from tensordict_core.base.predicates import is_leaf_nontensor
from tensordict_core.containers.opaque import OpaqueNode

SHARED = "shared_value"
"""The name of the annotation of non-tensor data whose value is shared."""
PART = "part_of_stored"
"""The name of the annotation of non-tensor data that were read from a stack in a file or in shared memory."""

_HEADER = 3 * 8
_ROOM = 1 << 14
"""The least memory for a pickle, in bytes; a longer value gets four times its length."""
_TRIES = 1000


class SharedValue:
    """A value in shared memory.

    Args:
        value: The value. One that cannot be pickled stays with this process until another takes its place.

    >>> cell = SharedValue(["a"])
    >>> cell.write(["b"])
    >>> cell.news(), cell.news()
    (None, None)
    """

    __slots__ = ("_header", "_memory", "_room", "_seen")

    def __init__(self, value: Any) -> None:
        try:
            data = pickle.dumps(value)
        except Exception:
            data = b""
        storage = torch.UntypedStorage._new_shared(_HEADER + max(_ROOM, 4 * len(data)), device="cpu")
        self._open(torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage))
        self._header[:] = 0
        if data:
            self._put(data)

    def _open(self, memory: Tensor) -> None:
        array: np.ndarray[Any, Any] = memory.numpy()
        self._memory = memory
        self._header = array[:_HEADER].view(np.int64)
        self._room = array[_HEADER:]
        self._seen = int(self._header[0])

    def _put(self, data: bytes) -> None:
        # a reader during a write finds another checksum, and reads again
        header = self._header
        self._room[: len(data)] = np.frombuffer(data, np.uint8)
        header[1], header[2] = len(data), zlib.crc32(data)
        header[0] += 1
        self._seen = int(header[0])

    def write(self, value: Any) -> None:
        """Replace the value.

        Raises:
            RuntimeError: The pickle of the value is too long for the memory.
        """
        data = pickle.dumps(value)
        if len(data) > len(self._room):
            raise RuntimeError(
                f"a shared non-tensor value has room for {len(self._room)} bytes, and the pickle of the new one takes "
                f"{len(data)}; share a longer value from the start, or send it to the other processes"
            )
        self._put(data)

    def news(self) -> Any:
        """Return the value if another process has written one since the last call; otherwise ``None``.

        Raises:
            RuntimeError: Two processes wrote at once.
        """
        header = self._header
        if int(header[0]) == self._seen:
            return None
        for _ in range(_TRIES):
            count, length, checksum = header.tolist()
            data = self._room[:length].tobytes()
            if zlib.crc32(data) == checksum and int(header[0]) == count:
                self._seen = count
                return pickle.loads(data)
        raise RuntimeError("a shared non-tensor value was written by two processes at once; write it again")

    def again(self) -> SharedValue:
        """Return another reader of the memory."""
        cell = _reopened(self._memory)
        cell._seen = self._seen
        return cell

    def __reduce__(self) -> Any:
        return _nothing, ()  # a copy has its own value


def _nothing() -> None:
    """Return the replacement of the shared value in a copy of non-tensor data."""
    return None


def _reopened(memory: Tensor) -> SharedValue:
    cell = object.__new__(SharedValue)
    cell._open(memory)
    cell._seen = -1  # what the other process has seen since is not known
    return cell


def _for_processes(cell: SharedValue) -> Any:
    return _reopened, (cell._memory,)


ForkingPickler.register(SharedValue, _for_processes)


class SharesValues(OpaqueNode, abstract=True):
    """Non-tensor data whose values processes may share."""

    __slots__ = ()

    if TYPE_CHECKING:

        def _payload(self) -> Any:
            """Return the values, which processes share, without metadata."""

        def _load(self, payload: Any) -> None:
            """Take the values that another process wrote."""

    def _cell(self) -> SharedValue | None:
        return None if self._annotations is None else self._annotations.get(SHARED)

    def _refresh(self) -> None:
        """Take the values that another process wrote since the last time."""
        cell = self._cell()
        payload = None if cell is None else cell.news()
        if payload is not None:
            self._load(payload)

    def _share(self) -> None:
        """Move the values into memory that processes share, if they are not there."""
        if self._cell() is None:
            self._annotations = {**(self._annotations or {}), SHARED: SharedValue(self._payload())}

    def _shared_with(self, new: Self, recurse: bool) -> Self:
        """Return a copy, which shares the values of this data with other processes if it is a shallow one."""
        cell = None if recurse else self._cell()
        if cell is not None:
            new._annotations = {SHARED: cell.again()}
        return new

    def share_memory_(self) -> Self:
        """Move the value into shared memory, where processes see each other's in-place writes, and lock it.

        >>> from tensordict_core import NonTensorData
        >>> NonTensorData("a").share_memory_().is_shared()
        True
        """
        self._share()
        return self.lock_()

    def _part(self, part: Any) -> Any:
        """Return values that were read from this stack; one that is stored refuses writes that would not reach it."""
        if self._annotations is not None:
            part._annotations = {PART: True}
        return part

    def _refuse_part(self) -> None:
        """Refuse a write to values that were read from a stored stack, as it would be lost."""
        notes = self._annotations or {}
        if PART in notes and SHARED not in notes and not self.is_memmap():
            raise errors.part_of_stored()

    def is_shared(self) -> bool:
        """Return whether the value is in shared memory."""
        return self._cell() is not None and not self.is_memmap()

    def is_memmap(self) -> bool:
        """Return whether the value belongs to a memory-mapped tensordict."""
        return self._annotations is not None and bool(self._annotations.get("mapped"))


def share_values(td: Any) -> None:
    """Move all non-tensor values of a tree into memory that processes share.

    >>> td = TensorDict({"v": "text"})
    >>> share_values(td)
    >>> td.get("v").is_shared()
    True
    """
    for leaf in td._leaves(is_leaf_nontensor):
        if isinstance(leaf, SharesValues):
            leaf._share()
