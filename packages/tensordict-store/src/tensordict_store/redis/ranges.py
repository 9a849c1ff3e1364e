"""Ranges: the bytes of a value that an index needs, as a command, and the tensor that the reply makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_store.arrays.dtypes import as_array
from tensordict_store.arrays.selection import Selector
from tensordict_store.redis.commands import Reads
from tensordict_store.redis.layout import Record, gone

__all__ = ["Request", "as_bytes", "tensor_of"]

_GAP = 1024
"""A gap of at most this many bytes between two ranges is read with them, which costs no more than a second command."""


class Request:
    """The rows of a tensor that an index needs.

    Attributes:
        reads: The command that reads them.
    """

    __slots__ = ("_count", "_index", "_key", "_record", "_selection", "reads")

    def __init__(self, key: str, name: str, record: Record, rows: Selector) -> None:
        shape, row = record.shape, record.row
        assert shape is not None
        index = rows.index
        if index is not None and shape[: index.dims] != index.batch_size:
            raise ValueError(
                f"the shape {list(shape)} of {key!r} on the server does not start with the batch size "
                f"{list(index.batch_size)}; store the entry again"
            )
        selection = rows.select(shape, _GAP // row if row else 0)
        self._key, self._record, self._index, self._selection = key, record, index, selection
        if selection.dim:  # runs of positions in rows, of which whole rows are read
            runs = selection.box[:1]
            count = runs[0][1] - runs[0][0]
        else:
            runs, count = selection.runs, selection.count
        size = row * count
        self._count = count
        self.reads = Reads(name, None if size == record.nbytes else runs if size else [], row, size)

    @property
    def start(self) -> int:
        """The first row that is read."""
        return self._selection.box[0][0]

    def rows(self, content: Any) -> Tensor:
        """Return the rows that are read, one behind the other.

        Raises:
            KeyError: The value does not exist on the server.
            ValueError: The length of the value does not match its shape.
        """
        record = self._record
        assert record.shape is not None and record.dtype is not None
        flat = tensor_of(self._key, content, self.reads.size, record.dtype)
        return flat.view(self._count, *record.shape[1:])

    def result(self, content: Any) -> Tensor:
        """Return what the index selects; errors are those of `rows`."""
        selection, record, index = self._selection, self._record, self._index
        shape = record.shape
        assert shape is not None and record.dtype is not None
        if selection.ordered and selection.whole_rows:
            flat = tensor_of(self._key, content, self.reads.size, record.dtype)
            return flat.view(shape if index is None else index.part_of(shape))
        rows = self.rows(content)
        for dim, (start, stop) in enumerate(selection.box):
            if dim and dim != selection.dim and (start, stop) != (0, shape[dim]):
                rows = rows.narrow(dim, start, stop - start)
        if selection.dim:
            parts = [rows.narrow(selection.dim, start, stop - start) for start, stop in selection.runs]
            rows = torch.cat(parts, selection.dim) if len(parts) > 1 else parts[0]
        return selection.part(rows)


def tensor_of(key: str, content: Any, size: int, dtype: torch.dtype) -> Tensor:
    """Return a flat tensor of bytes, whose number is checked first.

    Raises:
        KeyError: The value does not exist on the server.
        ValueError: The length of the value does not match its shape.
    """
    if content is None:
        raise gone(key)
    if len(content) != size:
        raise ValueError(
            f"the value of {key!r} on the server has {len(content)} bytes, but its shape requires {size}; "
            "store the entry again"
        )
    if not size:
        return torch.empty(0, dtype=dtype, device="cpu")
    # the tensor takes the memory over
    return torch.frombuffer(bytearray(content) if isinstance(content, bytes) else content, dtype=dtype)


def as_bytes(value: Tensor) -> memoryview:
    r"""Return the bytes of a tensor, as they lie in memory; they are copied only if the tensor is not contiguous.

    >>> bytes(as_bytes(torch.tensor([1, 2], dtype=torch.int16)))
    b'\x01\x00\x02\x00'
    """
    return as_array(value).reshape(-1).view(np.uint8).data
