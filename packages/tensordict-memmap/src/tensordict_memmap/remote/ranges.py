"""Range requests: reads only the required bytes of remote files into memory.

`RangeReader` reserves address space of the size of each remote file, which takes no memory until it is written to. A
tensordict is built over these buffers as over mapped files. Once the selected tensors and rows are known, only their
bytes are requested, many ranges at once. So each format and each partial load has one implementation for local and
remote files.
"""

from __future__ import annotations

import bisect
import ctypes
import itertools
import math
import mmap
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from tensordict_memmap.engine.sources import collapse, merged
from tensordict_memmap.remote.store import Store
from tensordict_memmap.schema.dtypes import reach

_MOST_REQUEST_BYTES = 1 << 23

_MOST_BATCH_REQUESTS = 128

_MAX_GAP = 1 << 18
"""Ranges at most this many bytes apart are read with one request: the bytes between cost less than a round trip."""

_MOST_SPANS = 4096
"""Tensors of more separate spans than this are read as one span."""


class RangeReader:
    """Memory for the files of a store, filled by range requests.

    Args:
        store: The store of the files.

    >>> store = Store("memory://store")
    >>> store.write("x", bytes(range(100)))
    >>> reader = RangeReader(store)
    >>> whole = torch.frombuffer(reader.reserve("x", 100), dtype=torch.uint8)
    >>> reader.read([whole[50:52]])
    >>> whole[48:54].tolist()
    [0, 0, 50, 51, 0, 0]
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._starts: list[int] = []
        # The buffers are kept alive: a later buffer could reuse the addresses of one that is gone.
        self._files: list[tuple[str, int, int, Any]] = []

    def reserve(self, path: str, nbytes: int, offset: int = 0) -> Any:
        """Return an array of zeros for the bytes of a file from an offset on; read nothing yet."""
        if not nbytes:
            return np.empty(0, np.uint8)
        if hasattr(mmap, "MAP_ANONYMOUS"):
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
            memory = mmap.mmap(-1, nbytes, flags=flags)
        else:
            memory = mmap.mmap(-1, nbytes)
        buffer = np.frombuffer(memory, np.uint8)
        address = int(buffer.ctypes.data)
        place = bisect.bisect(self._starts, address)
        self._starts.insert(place, address)
        self._files.insert(place, (path, nbytes, offset, buffer))
        return buffer

    def read(self, tensors: Iterable[torch.Tensor]) -> None:
        """Read the bytes of tensors over reserved memory; other tensors stay unchanged.

        Raises:
            FileNotFoundError: A file was removed.
            ValueError: A file was truncated.
        """
        self.read_spans(span for tensor in tensors for span in _spans(tensor))

    def read_spans(self, spans: Iterable[tuple[int, int]]) -> None:
        """Read spans of addresses, each within the buffer of one file."""
        by_file: dict[int, list[tuple[int, int]]] = {}
        for start, end in spans:
            place = bisect.bisect(self._starts, start) - 1
            if place >= 0 and start < self._starts[place] + self._files[place][1]:
                by_file.setdefault(place, []).append((start, end))
        addresses: list[int] = []
        ranges: list[tuple[str, int, int]] = []
        for place, found in by_file.items():
            path, _, offset, _ = self._files[place]
            shift = offset - self._starts[place]
            for start, end in _requests(found):
                addresses.append(start)
                ranges.append((path, start + shift, end + shift))
        for address, data in zip(addresses, self.store.read_in_batches(ranges, _MOST_BATCH_REQUESTS), strict=True):
            ctypes.memmove(address, data, len(data))


def _spans(tensor: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Yield the spans of addresses that hold a tensor."""
    if not tensor.numel():
        return
    start, width = tensor.data_ptr(), tensor.element_size()
    shape, strides = collapse(tuple(tensor.shape), tuple(stride * width for stride in tensor.stride()))
    length = width
    if shape and strides[-1] == width:
        length, shape, strides = shape[-1] * width, shape[:-1], strides[:-1]
    if math.prod(shape) > _MOST_SPANS:
        yield start, start + reach(shape, strides) - 1 + length
        return
    for place in itertools.product(*map(range, shape)):
        first = start + sum(number * step for number, step in zip(place, strides, strict=True))
        yield first, first + length


def _requests(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the spans to request: join those that overlap or are close together, and split long ones.

    fsspec has no ``cat_ranges(max_gap=...)`` yet, and its ``merge_offset_ranges`` handles spans that contain others
    only since 2026 (fsspec#1982, fsspec#2091).
    """
    for start, end in merged(sorted(spans), _MAX_GAP):
        for first in range(start, end, _MOST_REQUEST_BYTES):
            yield first, min(first + _MOST_REQUEST_BYTES, end)
