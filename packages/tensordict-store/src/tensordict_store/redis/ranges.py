"""Ranges: the bytes of a value that a selection needs, as commands, and the tensor that the replies make."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_core.extension import Index
from tensordict_store.arrays.dtypes import as_array
from tensordict_store.arrays.selection import Selection, select
from tensordict_store.redis.layout import Record

__all__ = ["Request", "as_bytes", "request", "tensor_of"]

_GAP = 4096
"""Bytes between two ranges that are read with them: a command of its own costs as much."""


class Request:
    """The rows of a tensor that an index needs.

    Attributes:
        data: The name of the value.
        ranges: Where the rows start in the value, and how many bytes they have.
        whole: Whether they are all of the value.
    """

    __slots__ = ("data", "key", "ranges", "record", "runs", "selection", "whole")

    def __init__(self, key: str, data: str, record: Record, selection: Selection) -> None:
        self.key, self.data, self.record, self.selection = key, data, record, selection
        shape, dtype = record.shape, record.dtype
        assert shape is not None and dtype is not None
        self.runs = [(0, 1)] if not shape else selection.runs if not selection.dim else selection.box[:1]
        row = shape[1:].numel() * dtype.itemsize
        self.ranges = [(start * row, (stop - start) * row) for start, stop in self.runs if start < stop and row]
        self.whole = self.ranges == [(0, record.nbytes)]

    @property
    def wanted(self) -> tuple[str, list[tuple[int, int]] | None]:
        """What `gather` takes: the name of the value and its ranges; ``None`` for all of it."""
        return self.data, None if self.whole else self.ranges

    def result(self, content: Any) -> Tensor:
        """Return what the index selects.

        Raises:
            KeyError: The value is gone from the server.
            ValueError: The value is shorter or longer than its shape says.
        """
        selection, shape, dtype = self.selection, self.record.shape, self.record.dtype
        assert shape is not None and dtype is not None
        rows = tensor_of(self.key, content, sum(size for _, size in self.ranges), dtype)
        if not shape:
            return rows.reshape(())
        rows = rows.reshape(sum(stop - start for start, stop in self.runs), *shape[1:])
        for dim, (start, stop) in enumerate(selection.box):
            if dim and dim != selection.dim and (start, stop) != (0, shape[dim]):
                rows = rows.narrow(dim, start, stop - start)
        if selection.dim:
            parts = [rows.narrow(selection.dim, start, stop - start) for start, stop in selection.runs]
            rows = torch.cat(parts, selection.dim) if len(parts) > 1 else parts[0]
        return selection.part(rows)


def request(key: str, data: str, record: Record, index: Index | None) -> Request:
    """Return the request of the part of a tensor that an index selects.

    >>> one = request("x", "d:x", Record(torch.float32, torch.Size([10, 4])), Index(slice(3, 5), torch.Size([10])))
    >>> one.data, one.ranges
    ('d:x', [(48, 32)])
    """
    shape, dtype = record.shape, record.dtype
    assert shape is not None and dtype is not None
    row = max(shape[1:].numel() * dtype.itemsize, 1)
    return Request(key, data, record, select(index, shape, _GAP // row))


def tensor_of(key: str, content: Any, size: int, dtype: torch.dtype) -> Tensor:
    """Return a flat tensor of bytes, whose number is checked first.

    Raises:
        KeyError: The value is gone from the server.
        ValueError: The value has another length than its shape says.
    """
    if content is None:
        raise KeyError(f"the entry {key!r} is gone from the server: it was deleted, or its time to live is over")
    if len(content) != size:
        raise ValueError(
            f"the value of {key!r} on the server has {len(content)} bytes where its shape asks for {size}; "
            "store the entry again"
        )
    if not size:
        return torch.empty(0, dtype=dtype)
    own = content if isinstance(content, bytearray) else bytearray(content)  # the tensor takes the memory over
    return torch.frombuffer(own, dtype=torch.uint8).view(dtype)


def as_bytes(value: Tensor) -> memoryview:
    r"""Return the bytes of a tensor, as they lie in memory; they are copied only if the tensor is not contiguous.

    >>> bytes(as_bytes(torch.tensor([1, 2], dtype=torch.int16)))
    b'\x01\x00\x02\x00'
    """
    return as_array(value).reshape(-1).view(np.uint8).data
