"""Load zip archives: maps stored members in place and decompresses compressed ones into memory."""

from __future__ import annotations

import errno
import functools
import io
import os
import struct
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from tensordict_memmap.engine import executor
from tensordict_memmap.engine.tuning import JOB_BYTES
from tensordict_memmap.formats.archive import blocks, check_description, read_index
from tensordict_memmap.formats.names import META
from tensordict_memmap.loading.leaves import LeafOpener
from tensordict_memmap.schema.node import Leaf, show
from tensordict_memmap.storage.snapshot import ListedFolder
from tensordict_memmap.storage.verify import damaged
from tensordict_memmap.tensor.mapping import Mapping
from tensordict_memmap.tensor.memmap import MemoryMappedTensor


class Archive(ListedFolder):
    """An open archive: its members, and the mapping of the whole file.

    Args:
        path: Its absolute path.
        mode: The mode of the mapping; None is ``"r"``.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is not an archive of a tensordict, or is damaged.
    """

    def __init__(self, path: str, *, mode: str | None = None) -> None:
        self.path = self.root = path
        self.mapping = Mapping.open(path, mode=mode or "r")
        self.data = bytes_of(self.mapping)
        try:
            with zipfile.ZipFile(_Reader(self.data)) as file:
                self.members = read_index(self.data, file, path)
        except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, OverflowError, struct.error) as error:
            raise ValueError(f"{path} is not a readable zip file ({error}); pass an archive that save wrote") from None
        super().__init__(self.members)

    def renamed(self, path: str) -> None:
        """Set the path of the file after it was renamed."""
        self.path = self.root = self.mapping.filename = path

    def read(self, path: str) -> bytes | None:
        """Return the content of an entry; None if it does not exist.

        Raises:
            ValueError: The entry is damaged, or is a description that is much larger than the archive.
        """
        member = self.members.get(path)
        if member is None:
            return None
        if member.stored:
            return bytes(self.data[member.offset : member.offset + member.size])
        if path.rpartition("/")[2] == META:
            check_description(member, self.path)
        return b"".join(self.blocks(path))

    def blocks(self, path: str) -> Iterator[bytes | memoryview]:
        """Yield the decompressed and verified content of an entry, a few megabytes at a time."""
        try:
            yield from blocks(self.data, self.members[path], JOB_BYTES)
        except ValueError as error:
            raise ValueError(f"the archive {self.path} is damaged at {path!r}: {error}; save it again") from None

    def verify(self) -> None:
        """Verify the CRC-32 of all entries on several threads.

        Raises:
            ValueError: A checksum differs; the error names the entries.
        """
        failed: list[str] = []

        def check(name: str) -> None:
            try:
                for _ in self.blocks(name):
                    pass
            except ValueError:
                failed.append(name)

        largest_first = sorted(self.members, key=lambda name: -self.members[name].size)
        executor.run([[functools.partial(check, name)] for name in largest_first])
        if failed:
            raise damaged(sorted(failed), self.path)


class _Reader(io.RawIOBase):
    """A file object over the mapped bytes, which stay the same if the file at the path is replaced."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.position = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: len(self.data)}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, "negative position in a file")
        self.position = base + offset
        return self.position

    def readinto(self, buffer: Any) -> int:
        part = self.data[self.position : self.position + len(buffer)]
        buffer[: len(part)] = part
        self.position += len(part)
        return len(part)


class ArchiveOpener(LeafOpener):
    """Opens the tensors of leaves in an archive: mapped in place, or decompressed into memory."""

    def __init__(self, archive: Archive, *, device: torch.device | None = None, non_blocking: bool = False) -> None:
        super().__init__(archive.path, mode=archive.mapping.mode, device=device, non_blocking=non_blocking)
        self.archive = archive

    def _map_file(self, leaf: Leaf, path: str, nbytes: int, shape: tuple[int, ...]) -> MemoryMappedTensor:
        member = self.archive.members.get(leaf.file)
        if member is None:
            raise FileNotFoundError(
                f"the entry of key {show(leaf.key)}, {leaf.file}, is missing in {self.archive.path}; save it again"
            )
        if member.size != nbytes:
            raise ValueError(
                f"key {show(leaf.key)} takes {nbytes} bytes by its shape and dtype, and {leaf.file} in "
                f"{self.archive.path} has {member.size}; save it again"
            )
        aligned = leaf.dtype.itemsize < 16 or member.offset % leaf.dtype.itemsize == 0
        if member.stored and aligned:  # the kernels of torch for wider numbers would end the process
            return MemoryMappedTensor.from_handler(self.archive.mapping, leaf.dtype, shape, offset=member.offset)
        memory = Mapping.anonymous(nbytes)
        array, start = memory.array(), 0
        for block in self.archive.blocks(leaf.file):
            array[start : start + len(block)] = np.frombuffer(block, np.uint8)
            start += len(block)
        return MemoryMappedTensor.from_handler(memory, leaf.dtype, shape)

    def _document(self, path: str, nbytes: int) -> bytes | None:
        member = self.archive.members.get(path)
        return b"" if member is not None and member.size != nbytes else self.archive.read(path)


def bytes_of(mapping: Mapping) -> memoryview:
    """Return all bytes of a mapping."""
    return memoryview(mapping.buffer).cast("B") if mapping.nbytes else memoryview(b"")
