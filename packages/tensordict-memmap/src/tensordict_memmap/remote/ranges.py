"""Fetching: memory that stands for files elsewhere, and takes in only the bytes that are asked for.

A file elsewhere gets a range of fresh address space of its size, which takes no memory until something is written to
it. A tensordict is built over such ranges as it is over mapped files. Once it is known which tensors, and which rows of
them, are wanted, exactly their bytes are requested, many at once. So every format and every kind of partial load is
written once, for files here and elsewhere.
"""

from __future__ import annotations

import bisect
import ctypes
import functools
import itertools
import mmap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from tensordict_memmap.engine import executor as pool
from tensordict_memmap.engine.sources import collapse

__all__ = ["Pending", "Store", "in_groups"]

_PART = 1 << 23
"""The most bytes of one request."""

_BATCH = 1 << 25
"""The most bytes of requests that go out at once, for they are in memory beside the tensors for a moment."""

_AT_ONCE = 128
"""The most requests that go out at once."""

_GROUP = 1 << 26
"""The most bytes of files that are sent or taken as one group, unless one file alone has more."""

_TELLING = ("size", "ETag", "etag", "LastModified", "last_modified", "mtime", "created", "generation", "md5Hash")
"""What stores call what changes with a file."""

_THREADS = 8

_GAP = 1 << 18
"""Bytes that are cheaper to read along than to ask for apart."""

_MOST_RUNS = 4096


class Store:
    """Files under an address, through fsspec.

    Args:
        url: an address with a scheme; the last part names a file or a folder.

    Raises:
        ImportError: fsspec, or what it needs for the scheme, is not installed.

    >>> store = Store("memory://store/things")
    >>> store.write("a.txt", b"hello")
    >>> store.read("a.txt"), store.read("b.txt"), store.sizes()
    (b'hello', None, {'a.txt': 5})
    """

    def __init__(self, url: str) -> None:
        try:
            import fsspec.core
        except ImportError:
            raise ImportError(
                f"addresses with a scheme are read and written through fsspec, which {url!r} needs and which is not "
                'installed: pip install "tensordict-memmap[remote]"'
            ) from None
        self.url = url
        self.fs, root = fsspec.core.url_to_fs(url)
        self.root = str(root).rstrip("/")

    def at(self, path: str) -> str:
        """The file system's own name of a path under the address; of ``""`` that of the address itself."""
        return f"{self.root}/{path}" if path else self.root

    def is_file(self) -> bool:
        """Whether the address is that of one file."""
        self.fs.invalidate_cache()
        return bool(self.fs.isfile(self.root))

    def size(self, path: str = "") -> int:
        """The bytes of a file."""
        return int(self.fs.size(self.at(path)))

    def version(self) -> tuple[Any, ...] | None:
        """What tells the file at the address from one that took its place, as far as the store says; None for none."""
        self.fs.invalidate_cache()
        try:
            info = self.fs.info(self.root)
        except FileNotFoundError:
            return None
        return tuple(info.get(name) for name in _TELLING)

    def sizes(self) -> dict[str, int]:
        """The bytes of every file below the address, by path."""
        self.fs.invalidate_cache()
        found = self.fs.find(self.root, detail=True)
        cut = len(self.root.lstrip("/")) + 1
        return {name.lstrip("/")[cut:]: int(info["size"]) for name, info in found.items()}

    def read(self, path: str) -> bytes | None:
        """The content of a file; None where there is none."""
        try:
            return bytes(self.fs.cat_file(self.at(path)))
        except (FileNotFoundError, IsADirectoryError):
            return None

    def write(self, path: str, data: bytes) -> None:
        """Makes a file of some bytes, as one object."""
        self.fs.pipe_file(self.at(path), data)

    def ranges(self, wanted: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Reads parts of files at once; each is a path, a start and an end."""
        if getattr(self.fs, "async_impl", False):
            paths, starts, ends = zip(*wanted, strict=True)
            return list(self.fs.cat_ranges([self.at(path) for path in paths], starts, ends, on_error="raise"))
        found: dict[int, bytes] = {}

        def one(number: int, path: str, start: int, end: int) -> None:
            found[number] = self.fs.cat_file(self.at(path), start=start, end=end)

        pool.run([[functools.partial(one, number, *part)] for number, part in enumerate(wanted)], threads=_THREADS)
        return [found[number] for number in range(len(wanted))]


def in_groups(files: dict[str, int]) -> Iterator[list[str]]:
    """Files, by path with their sizes, to send or to take at once: as many as make some ten megabytes.

    >>> list(in_groups({"small": 1, "huge": 1 << 30, "tiny": 0}))
    [['huge'], ['small', 'tiny']]
    """
    group: list[str] = []
    room = _GROUP
    for name, size in sorted(files.items(), key=lambda item: -item[1]):
        if group and (size > room or len(group) >= 1000):
            yield group
            group, room = [], _GROUP
        group.append(name)
        room -= size
    if group:
        yield group


class Pending:
    """Memory that stands for files of a store.

    Args:
        store: where they lie.

    >>> store = Store("memory://store")
    >>> store.write("x", bytes(range(100)))
    >>> pending = Pending(store)
    >>> whole = torch.frombuffer(pending.reserve("x", 100), dtype=torch.uint8)
    >>> pending.fetch([whole[50:52]])
    >>> whole[48:54].tolist()
    [0, 0, 50, 51, 0, 0]
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._starts: list[int] = []
        # the buffers are held, or a later range could take in the addresses of one that is gone
        self._files: list[tuple[str, int, int, Any]] = []

    def reserve(self, path: str, nbytes: int, offset: int = 0) -> Any:
        """An array of zeros for bytes of a file from an offset on; nothing is read yet."""
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

    def fetch(self, tensors: Iterable[torch.Tensor]) -> None:
        """Reads the bytes of tensors over reserved memory; other tensors are left alone.

        Raises:
            FileNotFoundError: A file is gone.
            ValueError: A file is shorter than it was.
        """
        self.fetch_ranges(run for tensor in tensors for run in _runs(tensor))

    def fetch_ranges(self, runs: Iterable[tuple[int, int]]) -> None:
        """Reads ranges of addresses, each of them within one file."""
        by_file: dict[int, list[tuple[int, int]]] = {}
        for start, end in runs:
            place = bisect.bisect(self._starts, start) - 1
            if place >= 0 and start < self._starts[place] + self._files[place][1]:
                by_file.setdefault(place, []).append((start, end))
        batch: list[tuple[int, str, int, int]] = []
        room = _BATCH
        for place, found in by_file.items():
            path, _, offset, _ = self._files[place]
            shift = offset - self._starts[place]
            for start, end in _merged(found):
                for first in range(start, end, _PART):
                    last = min(first + _PART, end)
                    if batch and (last - first > room or len(batch) == _AT_ONCE):
                        self._read(batch)
                        batch, room = [], _BATCH
                    batch.append((first, path, first + shift, last + shift))
                    room -= last - first
        if batch:
            self._read(batch)

    def _read(self, batch: Sequence[tuple[int, str, int, int]]) -> None:
        for (address, path, start, end), data in zip(
            batch, self.store.ranges([part[1:] for part in batch]), strict=True
        ):
            if len(data) != end - start:
                raise ValueError(
                    f"a file elsewhere keeps its bytes while it is read, and {path or self.store.url} gave {len(data)} "
                    f"of {end - start} from {start} on; it was cut off or replaced: load again"
                )
            ctypes.memmove(address, data, len(data))


def _runs(tensor: torch.Tensor) -> Iterator[tuple[int, int]]:
    """The ranges of addresses that a tensor lies in."""
    if not tensor.numel():
        return
    start, width = tensor.data_ptr(), tensor.element_size()
    shape, strides = collapse(tuple(tensor.shape), tuple(stride * width for stride in tensor.stride()))
    run = width
    if shape and strides[-1] == width:
        run, shape, strides = shape[-1] * width, shape[:-1], strides[:-1]
    count = 1
    for size in shape:
        count *= size
    if count > _MOST_RUNS:
        yield start, start + run + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
        return
    for place in itertools.product(*map(range, shape)):
        first = start + sum(number * step for number, step in zip(place, strides, strict=True))
        yield first, first + run


def _merged(runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ranges in order, those that overlap or nearly meet as one."""
    ordered = sorted(runs)
    if not ordered:
        return
    start, end = ordered[0]
    for first, last in ordered[1:]:
        if first <= end + _GAP:
            end = max(end, last)
        else:
            yield start, end
            start, end = first, last
    yield start, end
