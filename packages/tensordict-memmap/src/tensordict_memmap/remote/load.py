"""Loads from elsewhere: folders and files under addresses such as ``s3://bucket/run``, through fsspec.

The manifest at the address names the folder that holds the files of the save that counts (``generations.py``); a folder
that was copied there by other means loads as it is. A load asks for descriptions first, and then for exactly the bytes
of the leaves and rows that are wanted (``fetching.py``).
"""

from __future__ import annotations

import contextlib
import os
import struct
import zipfile
from collections.abc import Iterator
from typing import Any

import torch

from tensordict_memmap.formats.archive import read_index
from tensordict_memmap.formats.detect import ARCHIVE, SAFETENSORS, TREE, kind_of_bytes
from tensordict_memmap.formats.names import META
from tensordict_memmap.formats.safetensors.header import LONGEST_HEADER, load_header
from tensordict_memmap.formats.safetensors.parse import needed_at_once, unpack, wanted
from tensordict_memmap.formats.tree import Leaf, show
from tensordict_memmap.loading.leaves import LeafOpener
from tensordict_memmap.loading.safetensors import INDEX_NAME, SINGLE_NAME, open_shards, views
from tensordict_memmap.remote.ranges import Pending, Store, in_groups
from tensordict_memmap.remote.snapshots import published
from tensordict_memmap.schema.prune import Choice
from tensordict_memmap.storage.listing import ListedFolder
from tensordict_memmap.storage.manifest import NAME
from tensordict_memmap.storage.staging import temporary_folder
from tensordict_memmap.tensor.mapping import Mapping

__all__ = [
    "RemoteFolder",
    "RemoteOpener",
    "RemoteSave",
    "load_remote_packed",
]

_FIRST_READ = 1 << 16


class RemoteSave:
    """What is at an address: its format, and what reads it.

    Args:
        url: the address.

    Attributes:
        kind: the format.
        pending: the memory that its bytes are fetched into.

    Raises:
        FileNotFoundError: There is nothing.
        ValueError: It is damaged.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = Store(url)
        self.pending = Pending(self.store)
        self.generation = ""
        self.aliases: dict[str, str] = {}
        self.version: tuple[Any, ...] | None = None
        if self.store.is_file():
            self.version = self.store.version()
            self.files = {"": self.store.size()}
            self.kind = kind_of_bytes(self.files[""], self._read_range)
            return
        found = published(self.store)
        if found is None or not found.generation:
            self.files = self.store.sizes()
            self.files.pop(NAME, None)
            self.aliases = {} if found is None else found.manifest.aliases
        else:
            self.generation, manifest, _ = found
            self.aliases = manifest.aliases
            self.files = {name: entry.size for name, entry in manifest.files.items()}
        if not self.files:
            raise FileNotFoundError(f"there is no saved tensordict at {url}; give the address that it was saved to")
        packed = META not in self.files and (INDEX_NAME in self.files or SINGLE_NAME in self.files)
        self.kind = SAFETENSORS if packed else TREE

    def at(self, path: str) -> str:
        """The path under the address of a file of the save."""
        return f"{self.generation}/{path}" if self.generation and path else path

    def was_replaced(self) -> bool:
        """Whether another save took its place since it was opened."""
        if "" in self.files:
            return self.store.version() != self.version
        found = published(self.store)
        return found is not None and found.generation != self.generation

    def folder(self) -> RemoteFolder | None:
        """The files of a tree or of an archive, as parsing reads them; None of a compressed one."""
        if self.kind == ARCHIVE:
            members = self._members()
            return None if members is None else RemoteFolder(self, members)
        return RemoteFolder(self, {name: (self.at(name), 0, size) for name, size in self.files.items()})

    @contextlib.contextmanager
    def copied(self) -> Iterator[str]:
        """A copy of everything here, for as long as this is open."""
        with temporary_folder() as place:
            name = self.store.root.rpartition("/")[2] or "save"
            yield self.download(os.path.join(place, name))

    def download(self, path: str) -> str:
        """Copies everything to a path that is not there yet, in the local layout."""
        if self.store.is_file():
            self.store.fs.get_file(self.store.root, path)
            return path
        os.makedirs(path)
        for group in in_groups(self.files):
            targets = [os.path.join(path, *name.split("/")) for name in group]
            for target in targets:
                if os.path.commonpath([path, os.path.realpath(target)]) != os.path.realpath(path):
                    raise ValueError(
                        f"files of a save lie in its folder, and one of {self.url} does not; it is damaged"
                    )
                os.makedirs(os.path.dirname(target), exist_ok=True)
            self.store.fs.get([self.store.at(self.at(name)) for name in group], targets)
        own = self.store.read(self.at(NAME))
        if own is not None:
            with open(os.path.join(path, NAME), "wb") as file:
                file.write(own)
        return path

    def _read_range(self, offset: int, nbytes: int) -> bytes:
        end = min(offset + nbytes, self.files[""])
        return self.store.ranges([("", offset, end)])[0] if end > offset else b""

    def _members(self) -> dict[str, tuple[str, int, int]] | None:
        """Where in an archive each of its files lies; None where they are compressed."""
        size = self.files[""]
        buffer = self.pending.reserve("", size)
        data = memoryview(buffer).cast("B")
        try:
            with self.store.fs.open(self.store.root, "rb") as opened, zipfile.ZipFile(opened) as file:
                starts = [info.header_offset for info in file.infolist()]
                base = Mapping.nothing()
                base.buffer = buffer
                runs = [(start, min(start + 30, size)) for start in starts if 0 <= start < size]
                self.pending.fetch_ranges(
                    (base.address + start, base.address + end) for start, end in [*runs, (file.start_dir, size)]
                )
                members = read_index(data, file, self.url)
        except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, OverflowError, struct.error) as error:
            raise ValueError(
                f"an archive is a zip file, and {self.url} is not one that can be read ({error})"
            ) from None
        if not all(member.stored for member in members.values()):
            return None
        return {name: ("", member.offset, member.size) for name, member in members.items()}


class RemoteFolder(ListedFolder):
    """The files of a save elsewhere.

    Args:
        save: what is at the address.
        files: for each path, the file that holds its content, where in it that starts, and its size.
    """

    def __init__(self, save: RemoteSave, files: dict[str, tuple[str, int, int]]) -> None:
        super().__init__(files)
        self.root = save.url
        self.save = save
        self.files = files
        self._read: dict[str, bytes] = {}

    def prefetch(self) -> None:
        """Reads all descriptions at once: asking for one after the other takes a round trip each."""
        wanted = [name for name in self.files if name.rpartition("/")[2] == META]
        parts = [(name, *self.files[name]) for name in wanted]
        contents = self.save.store.ranges([(path, start, start + size) for _, path, start, size in parts])
        self._read.update(zip(wanted, contents, strict=True))

    def read(self, path: str) -> bytes | None:
        """The content of a file; None where there is none."""
        if path not in self._read:
            place = self.files.get(path)
            if place is None:
                return None
            file, start, size = place
            self._read[path] = self.save.store.ranges([(file, start, start + size)])[0] if size else b""
        return self._read[path]


class RemoteOpener(LeafOpener):
    """Gives the tensor of a leaf elsewhere, over memory whose bytes are still to be fetched."""

    def __init__(self, folder: RemoteFolder, *, device: torch.device | None = None) -> None:
        super().__init__(folder.root, device=device)
        self.folder = folder

    def _map(self, leaf: Leaf) -> torch.Tensor:
        return self._map_file(leaf, leaf.file, leaf.nbytes, leaf.shape)

    def _map_file(self, leaf: Leaf, path: str, nbytes: int, shape: tuple[int, ...]) -> torch.Tensor:
        if not nbytes:
            return torch.empty(shape, dtype=leaf.dtype)
        place = self.folder.files.get(leaf.file)
        if place is None:
            raise FileNotFoundError(
                f"every leaf has its file, and that of key {show(leaf.key)}, {leaf.file}, is missing from "
                f"{self.folder.root}; save again"
            )
        file, start, size = place
        if size != nbytes:
            raise ValueError(
                f"key {show(leaf.key)} takes {nbytes} bytes by its shape and dtype, and its file {leaf.file} in "
                f"{self.folder.root} has {size}; save again"
            )
        pending = self.folder.save.pending
        buffer = pending.reserve(file, nbytes, start)
        made = torch.frombuffer(buffer, dtype=leaf.dtype).view(shape)
        if leaf.layout != "strided":
            pending.fetch([made])  # nested tensors are put together from values
        return made

    def _document(self, path: str) -> bytes | None:
        return self.folder.read(path)


def load_remote_packed(
    save: RemoteSave,
    *,
    meta: bool = False,
    device: torch.device | None = None,
    allow_pickle: bool | None = False,
    choice: Choice | None = None,
) -> Any:
    """The tensordict of safetensors files elsewhere: headers are read, and room is made for the rest."""
    where, part = save.url, None
    if "" in save.files or INDEX_NAME not in save.files:
        opened = [_open(save, "" if "" in save.files else SINGLE_NAME)]
    else:
        where += f"/{INDEX_NAME}"
        document = save.store.read(save.at(INDEX_NAME)) or b""
        opened, part = open_shards(where, document, lambda name: _open(save, name), choice)
    tensors: dict[str, torch.Tensor] = {}
    metadata: dict[str, str] = {}
    for found, texts, _ in opened:
        tensors.update(found)
        metadata.update(texts)
    if part is None and choice is not None:
        part = wanted(tensors, metadata, choice, where)
    needed = set(needed_at_once(metadata, where))
    save.pending.fetch(tensor for name, tensor in tensors.items() if name in needed)
    if meta:
        tensors = {name: tensor if name in needed else tensor.to("meta") for name, tensor in tensors.items()}
    return unpack(tensors, metadata, where=where, device=device, allow_pickle=allow_pickle, part=part)


def _open(save: RemoteSave, path: str) -> tuple[dict[str, torch.Tensor], dict[str, str], Mapping]:
    place, size = save.at(path), save.files.get(path)
    where = f"{save.url}/{path}".rstrip("/")
    if size is None:
        raise FileNotFoundError(f"the index of a safetensors save names its files, and {where} is missing; save again")
    head = save.store.ranges([(place, 0, min(_FIRST_READ, size))])[0] if size else b""
    length = int.from_bytes(head[:8], "little")
    if size < 8 or length > min(LONGEST_HEADER, size - 8):
        raise ValueError(
            f"a safetensors file starts with the length of its header, and {where} has {size} bytes where that "
            f"would be {length}; it was cut off, or is no such file"
        )
    if 8 + length > len(head):
        head += save.store.ranges([(place, len(head), 8 + length)])[0]
    header = load_header(head[8 : 8 + length], size - 8 - length, where)
    mapping = Mapping.nothing()
    mapping.nbytes = size - 8 - length
    mapping.buffer = save.pending.reserve(place, mapping.nbytes, 8 + length)
    return views(mapping, header), header.metadata, mapping
