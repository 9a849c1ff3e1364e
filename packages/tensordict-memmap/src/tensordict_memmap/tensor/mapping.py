"""`Mapping`: a mapped file, or anonymous shared memory, whose bytes several tensors can share.

The bytes are unmapped when the last array or tensor over them is freed. A mapping of a file keeps no descriptor open,
so the limit of open files does not apply to it. It records the device and inode of the file, so that unpickling a
tensor detects that the file was replaced. Anonymous shared memory keeps its descriptor, the only handle to it.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import os
import stat
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Self

import numpy as np
import torch

from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.engine.mapped_range import MappedRange

MODES = {"r": False, "c": False, "r+": True}
"""The modes, and whether writes reach the file; with ``r`` and ``c``, pages are copied on write."""


def check_mode(mode: str | None) -> None:
    """Refuse an unknown mode.

    Raises:
        ValueError: The mode is unknown.
    """
    if mode is not None and mode not in MODES:
        raise ValueError(
            f"unknown mode {mode!r}; the modes of a mapping are {', '.join(map(repr, MODES))}, and 'r+' writes to the "
            "file"
        )


def open_file(path: str, mode: str | None, *, flags: int = 0) -> tuple[Descriptor, str]:
    """Open an existing file; return its descriptor, and ``"r+"`` or ``"r"``, the mode that it can be mapped with.

    Args:
        path: The path.
        mode: The mode; None is ``"r+"`` if the file may be written to, else ``"r"``.
        flags: More flags for ``os.open``.

    Raises:
        OSError: The file cannot be opened.
    """
    flags |= syscalls.BINARY | syscalls.NO_WAIT
    if mode is None or MODES[mode]:
        try:
            return Descriptor(os.open, path, os.O_RDWR | flags), "r+"
        except OSError as error:
            if mode is not None or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
    return Descriptor(os.open, path, os.O_RDONLY | flags), "r"


class MappedPages(MappedRange):
    """A mapped range of a file, or of anonymous shared memory. Arrays and tensors over it keep it alive.

    Attributes:
        address: The address of the first byte.
        nbytes: The number of bytes.
        filename: The path of the file; empty for anonymous shared memory.
        offset: The offset of the first byte in the file.
        identity: The device and inode of the file.
        changed: The ranges of addresses, in order, whose bytes are no longer those of the file (`note_changes`).
    """

    __slots__ = ("__array_interface__", "changed", "filename", "identity", "nbytes", "offset")

    __array_interface__: dict[str, Any]
    nbytes: int
    filename: str
    offset: int
    identity: tuple[int, int]
    changed: list[tuple[int, int]]

    def __new__(
        cls, fd: int, nbytes: int, offset: int, shared: bool, filename: str | None, identity: tuple[int, int]
    ) -> Self:
        """Map bytes of a file, which need not start at a page."""
        skipped = offset % syscalls.PAGE
        self = MappedRange.__new__(cls, fd, nbytes + skipped, offset - skipped, shared)
        self.nbytes, self.offset = nbytes + skipped, offset - skipped
        self.filename, self.identity, self.changed = filename or "", identity, []
        # a ctypes array type would do the same, but takes ten times as long to create
        self.__array_interface__ = _bytes_at(self.address + skipped, nbytes)
        _live.add(weakref.ref(self, _live.discard))
        return self

    def in_file(self, tensor: torch.Tensor) -> int | None:
        """Return the offset in the file of a contiguous tensor in this range; None if the file has other bytes."""
        start = tensor.data_ptr()
        before = bisect.bisect_left(self.changed, (start + tensor.nbytes,)) - 1
        is_changed = before >= 0 and self.changed[before][1] > start
        return None if is_changed or not self.filename else self.offset + start - self.address


_live: set[weakref.ref[MappedPages]] = set()
"""The mapped ranges. ``set.discard`` is written in C; signals interrupt the callbacks of a ``weakref.WeakSet``."""


def places_of(tensors: Iterable[torch.Tensor]) -> Iterator[MappedPages | None]:
    """Yield for each tensor the mapped range that holds its memory; None for memory that is not mapped.

    Fake tensors, nested tensors and wrappers have no address, and tensors without elements no memory.

    >>> list(places_of([torch.zeros(2)]))
    [None]
    """
    places: dict[int, MappedPages] | None = None
    starts: list[int] = []
    for tensor in tensors:
        try:
            address = tensor.data_ptr() if tensor.numel() else None
        except RuntimeError:
            address = None
        place = None
        if address is not None:
            if places is None:
                found = [pages() for pages in list(_live)]
                places = {pages.address: pages for pages in found if pages is not None and pages.is_mapped}
                starts = sorted(places)
            at = bisect.bisect_right(starts, address) - 1
            place = places[starts[at]] if at >= 0 else None
        yield place if place is not None and address is not None and address < place.address + place.nbytes else None


def note_changes(tensors: Iterable[torch.Tensor]) -> None:
    """Record that contiguous tensors in private mappings were written to, so that no load reads them from their file.

    >>> tensor = torch.frombuffer(Mapping.anonymous(8).buffer, dtype=torch.int32)
    >>> note_changes([tensor])
    >>> [place.changed == [(tensor.data_ptr(), tensor.data_ptr() + 8)] for place in places_of([tensor])]
    [True]
    """
    tensors = list(tensors)
    for tensor, place in zip(tensors, places_of(tensors), strict=True):
        if place is not None:
            bisect.insort(place.changed, (tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes))


def are_mapped(tensors: Iterable[torch.Tensor]) -> bool:
    """Return whether the memory of every tensor is in a mapping of this module; tensors without elements have none.

    >>> are_mapped([torch.zeros(2)]), are_mapped([torch.frombuffer(Mapping.anonymous(8).buffer, dtype=torch.int32)[1:]])
    (False, True)
    """
    tensors = list(tensors)
    for tensor, place in zip(tensors, places_of(tensors), strict=True):
        if place is None and (tensor.is_nested or tensor.numel()):
            return False
    return True


class _Foreign:
    """Owner of memory that torch has mapped."""

    __slots__ = ("__array_interface__", "storage")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage
        self.__array_interface__ = _bytes_at(storage.data_ptr(), storage.nbytes())


def _bytes_at(address: int, nbytes: int) -> dict[str, Any]:
    """Return NumPy's array interface for memory at an address."""
    return {"data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}


class Mapping:
    """Bytes of a file, or of anonymous shared memory, mapped into this process.

    Attributes:
        filename: The absolute path, or None for anonymous shared memory.
        mode: ``"r+"`` if writes reach the file, ``"r"`` if they stay in this process.
        offset: The offset of the first byte in the file.
        nbytes: The number of bytes.
        identity: The device and inode of the file.
        buffer: The array of bytes over the memory, for ``torch.frombuffer``.

    >>> shared = Mapping.anonymous(8)
    >>> shared.array()[:3] = 7
    >>> shared.array().tolist()
    [7, 7, 7, 0, 0, 0, 0, 0]
    """

    __slots__ = ("__weakref__", "buffer", "descriptor", "filename", "identity", "mode", "nbytes", "offset")

    def __init__(
        self,
        fd: int,
        filename: str | None,
        nbytes: int,
        *,
        offset: int = 0,
        mode: str = "r+",
        info: os.stat_result | None = None,
    ) -> None:
        info = info or os.fstat(fd)
        if info.st_size < offset + nbytes:
            raise ValueError(
                f"{filename or 'shared memory'} has {info.st_size} bytes where its tensor needs {offset + nbytes}; "
                "pass the shape and dtype that it was written with"
            )
        self.filename = filename
        self.mode = mode
        self.offset = offset
        self.nbytes = nbytes
        self.identity = (info.st_dev, info.st_ino)
        self.descriptor: Descriptor | None = None
        self.buffer: Any
        if nbytes == 0:
            self.buffer = np.empty(0, np.uint8)
        elif syscalls.POSIX:
            self.buffer = np.asarray(MappedPages(fd, nbytes, offset, MODES[mode], filename, self.identity))
        else:
            with os.fdopen(os.dup(fd), "r+b" if MODES[mode] else "rb") as file:
                self.buffer = np.memmap(file, np.uint8, "r+" if MODES[mode] else "c", offset, (nbytes,))

    @classmethod
    def open(cls, filename: str, nbytes: int | None = None, *, offset: int = 0, mode: str | None = None) -> Mapping:
        """Map a range of an existing file, without changing it.

        Args:
            filename: The path.
            nbytes: The number of bytes; None maps all bytes of the file from ``offset`` on.
            offset: The offset of the first byte.
            mode: ``"r+"``, ``"r"`` or ``"c"``; None is ``"r+"`` if the file may be written to, else ``"r"``.

        Raises:
            ValueError: The file is shorter, or the mode is unknown.
            OSError: The file cannot be opened.
        """
        check_mode(mode)
        file, mode = open_file(filename, mode)
        with file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise ValueError(f"{filename} is a pipe, a device or a folder, and a mapping needs a file; pass a file")
            if nbytes is None:
                nbytes = max(info.st_size - offset, 0)
            return cls(file.fileno(), os.path.abspath(filename), nbytes, offset=offset, mode=mode, info=info)

    @classmethod
    def anonymous(cls, nbytes: int) -> Mapping:
        """Make anonymous shared memory of zeros, which is freed with its last mapping in any process."""
        if hasattr(os, "memfd_create"):
            file = Descriptor(os.memfd_create, "tensordict-memmap")
        else:
            number, name = tempfile.mkstemp(prefix="tensordict-memmap-")
            file = Descriptor(int, number)
            if os.name == "posix":
                os.unlink(name)
        if nbytes == 0:
            return cls.nothing()
        os.ftruncate(file.fileno(), nbytes)
        return cls._over_descriptor(file, nbytes)

    @classmethod
    def from_descriptor(cls, fd: int, nbytes: int) -> Mapping:
        """Map anonymous shared memory given by its descriptor, and take ownership of the descriptor."""
        return cls._over_descriptor(Descriptor(int, fd), nbytes)

    @classmethod
    def _over_descriptor(cls, file: Descriptor, nbytes: int) -> Mapping:
        mapping = cls(file.fileno(), None, nbytes)
        mapping.descriptor = file
        return mapping

    @classmethod
    def over(cls, storage: torch.UntypedStorage, filename: str | None) -> Mapping:
        """Wrap memory that torch has mapped already."""
        mapping = cls.nothing(filename)
        mapping.nbytes = storage.nbytes()
        if filename is not None:
            info = os.stat(filename)
            mapping.identity = (info.st_dev, info.st_ino)
        if mapping.nbytes:
            mapping.buffer = np.asarray(_Foreign(storage))
        return mapping

    @classmethod
    def nothing(cls, filename: str | None = None, mode: str = "r+") -> Mapping:
        """Make an empty mapping, which needs no file."""
        mapping = cls.__new__(cls)
        mapping.filename, mapping.mode, mapping.offset, mapping.nbytes = filename, mode, 0, 0
        mapping.identity, mapping.descriptor, mapping.buffer = (0, 0), None, np.empty(0, np.uint8)
        return mapping

    @property
    def address(self) -> int:
        """The address of the first byte in this process."""
        return int(self.buffer.ctypes.data)

    def array(self) -> np.memmap[Any, np.dtype[np.uint8]]:
        """Return the bytes as a ``numpy.memmap``, for NumPy and Numba."""
        if isinstance(self.buffer, np.memmap):
            return self.buffer
        array = np.ndarray.__new__(np.memmap, (self.nbytes,), np.uint8, self.buffer)
        array.filename, array.offset, array.mode = self.filename, self.offset, self.mode
        return array

    def flush(self) -> None:
        """Sync bytes written through the mapping to disk."""
        if self.filename is not None and self.mode == "r+" and self.nbytes:
            syscalls.sync_mapping(self.address, self.nbytes)

    def open_descriptor(self) -> Descriptor | None:
        """Open the same file for writing; None if the mapping is read-only or the file was replaced."""
        if self.mode != "r+":
            return None
        if self.descriptor is not None:
            return Descriptor(os.dup, self.descriptor.fileno())
        assert self.filename is not None
        with contextlib.suppress(OSError):
            file = Descriptor(os.open, self.filename, os.O_RDWR | syscalls.BINARY)
            info = os.fstat(file.fileno())
            if (info.st_dev, info.st_ino) == self.identity:
                return file
        return None
