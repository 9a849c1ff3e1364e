"""Remote loads: folders and files under URLs such as ``s3://bucket/run``, through fsspec.

The manifest at the URL names the snapshot that holds the files of the current save (``snapshots.py``); a copied local
save loads too. A load requests the descriptions first, and then exactly the bytes of the requested leaves and rows
(``ranges.py``).
"""

from __future__ import annotations

import contextlib
import os
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tensordict_memmap.formats.archive import read_index
from tensordict_memmap.formats.detect import ARCHIVE, SAFETENSORS, TREE, format_by_content
from tensordict_memmap.formats.names import META
from tensordict_memmap.formats.safetensors.header import INDEX_NAME, SINGLE_NAME, header_length, load_header
from tensordict_memmap.loading.leaves import LeafOpener
from tensordict_memmap.loading.request import LoadRequest
from tensordict_memmap.loading.safetensors import Opened, assembled, open_shards, views
from tensordict_memmap.remote.ranges import RangeReader
from tensordict_memmap.remote.snapshots import current_snapshot
from tensordict_memmap.remote.store import Store
from tensordict_memmap.schema.node import Leaf, show
from tensordict_memmap.storage.manifest import NAME
from tensordict_memmap.storage.snapshot import ListedFolder
from tensordict_memmap.storage.staging import temporary_folder

_FIRST_READ = 1 << 16
"""Bytes of a safetensors file that are read first; most headers fit in."""


class RemoteSave:
    """A saved tensordict at a URL: its format, its files and their reader.

    Args:
        url: The URL.

    Attributes:
        format: The format.
        files: The size in bytes of each file by path; one file at the URL itself has the path ``""``.
        reader: The reader of the wanted bytes of the files.

    Raises:
        FileNotFoundError: There is no save.
        ValueError: The save is damaged.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = Store(url)
        self.reader = RangeReader(self.store)
        self.snapshot = ""
        self.aliases: dict[str, str] = {}
        self.version: tuple[Any, ...] | None = None
        self.is_file = self.store.is_file()
        if self.is_file:
            self.version = self.store.version()
            self.files = {"": self.store.size()}
            self.format = format_by_content(self.files[""], self._read_range)
            return
        found = current_snapshot(self.store)
        if found is not None:
            self.snapshot, self.aliases = found.name, found.manifest.aliases
        if found is not None and found.name:
            self.files = {name: entry.size for name, entry in found.manifest.files.items()}
        else:
            self.files = self.store.sizes()
            self.files.pop(NAME, None)
        if not self.files:
            raise FileNotFoundError(f"no saved tensordict at {url}; give the URL that it was saved to")
        packed = META not in self.files and (INDEX_NAME in self.files or SINGLE_NAME in self.files)
        self.format = SAFETENSORS if packed else TREE

    def stored_path(self, path: str) -> str:
        """Return the path under the URL of a file of the save, in the folder of its snapshot."""
        return f"{self.snapshot}/{path}" if self.snapshot and path else path

    def was_replaced(self) -> bool:
        """Return whether another save replaced this one since it was opened."""
        if self.is_file:
            return self.store.version() != self.version
        found = current_snapshot(self.store)
        return found is not None and found.name != self.snapshot

    def folder(self) -> RemoteFolder | None:
        """Return the files of a tree or of an archive, for parsing; None for a compressed archive."""
        if self.format == ARCHIVE:
            members = self._members()
            return None if members is None else RemoteFolder(self, members)
        return RemoteFolder(self, {name: (self.stored_path(name), 0, size) for name, size in self.files.items()})

    @contextlib.contextmanager
    def downloaded(self) -> Iterator[str]:
        """Yield a local copy of the save, removed at the end of the context."""
        with temporary_folder() as folder:
            yield self.download(os.path.join(folder, self.store.name))

    def download(self, path: str) -> str:
        """Copy the save to a new local path, in the local layout."""
        if self.is_file:
            self.store.fs.get_file(self.store.root, path)
            return path
        os.makedirs(path)
        targets = [self.target(path, name) for name in self.files]
        self.store.fs.get([self.store.full_path(self.stored_path(name)) for name in self.files], targets)
        manifest = self.store.read(self.stored_path(NAME))
        if manifest is not None:
            Path(path, NAME).write_bytes(manifest)
        return path

    def target(self, folder: str, name: str) -> str:
        """Return the path of a file of the save in a local folder, and create the folders above it.

        Raises:
            ValueError: The path leads out of the folder.
        """
        place, target = os.path.realpath(folder), os.path.join(folder, *name.split("/"))
        if os.path.commonpath([place, os.path.realpath(target)]) != place:
            raise ValueError(f"{self.url} is damaged: its file {name!r} is outside its folder; save again")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        return target

    def _read_range(self, offset: int, nbytes: int) -> bytes:
        end = min(offset + nbytes, self.files[""])
        return self.store.read_ranges([("", offset, end)])[0] if end > offset else b""

    def _members(self) -> dict[str, tuple[str, int, int]] | None:
        """Return the file, offset and size of each member of an archive; None if the archive is compressed."""
        size = self.files[""]
        buffer = self.reader.reserve("", size)
        address = int(buffer.ctypes.data)
        try:
            with self.store.fs.open(self.store.root, "rb") as opened, zipfile.ZipFile(opened) as file:
                starts = [info.header_offset for info in file.infolist()]
                spans = [(start, min(start + 30, size)) for start in starts if 0 <= start < size]
                self.reader.read_spans(
                    (address + start, address + end) for start, end in [*spans, (file.start_dir, size)]
                )
                members = read_index(memoryview(buffer).cast("B"), file, self.url)
        except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, OverflowError, struct.error) as error:
            raise ValueError(f"{self.url} is not a readable archive, which is a zip file ({error})") from None
        if not all(member.stored for member in members.values()):
            return None
        return {name: ("", member.offset, member.size) for name, member in members.items()}


class RemoteFolder(ListedFolder):
    """The files of a remote save.

    Args:
        save: The save.
        files: For each path, the file that holds its content, the offset in that file, and the size.
    """

    def __init__(self, save: RemoteSave, files: dict[str, tuple[str, int, int]]) -> None:
        super().__init__(files)
        self.root = save.url
        self.save = save
        self.files = files
        self._contents: dict[str, bytes] = {}

    def prefetch(self) -> None:
        """Read all descriptions at once, because each request takes a round trip."""
        self._read_files([name for name in self.files if name.rpartition("/")[2] == META])

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if there is no file."""
        if path in self.files and path not in self._contents:
            self._read_files([path])
        return self._contents.get(path)

    def _read_files(self, paths: list[str]) -> None:
        self._contents.update(dict.fromkeys(paths, b""))
        filled = [path for path in paths if self.files[path][2]]
        ranges = [(file, start, start + size) for file, start, size in map(self.files.__getitem__, filled)]
        self._contents.update(zip(filled, self.save.store.read_ranges(ranges), strict=True))


class RemoteOpener(LeafOpener):
    """Opens leaves of a remote save: tensors over reserved memory whose bytes are read later."""

    def __init__(self, folder: RemoteFolder, *, device: torch.device | None = None) -> None:
        super().__init__(folder.root, device=device)
        self.folder = folder

    def _map(self, leaf: Leaf) -> torch.Tensor:
        return self._map_file(leaf, leaf.file, leaf.nbytes, leaf.shape)

    def _map_file(self, leaf: Leaf, path: str, nbytes: int, shape: tuple[int, ...]) -> torch.Tensor:
        if not nbytes:
            return torch.empty(shape, dtype=leaf.dtype, device="cpu")
        place = self.folder.files.get(leaf.file)
        if place is None:
            raise FileNotFoundError(
                f"the file {leaf.file} of key {show(leaf.key)} is missing from {self.folder.root}; save again"
            )
        file, start, size = place
        if size != nbytes:
            raise ValueError(
                f"the file {leaf.file} of key {show(leaf.key)} in {self.folder.root} has {size} bytes, and the shape "
                f"and dtype take {nbytes}; save again"
            )
        reader = self.folder.save.reader
        made = torch.frombuffer(reader.reserve(file, nbytes, start), dtype=leaf.dtype).view(shape)
        if leaf.layout != "strided":
            reader.read([made])  # nested tensors are made from values
        return made

    def _document(self, path: str, nbytes: int) -> bytes | None:
        return self.folder.read(path)


def load_remote_packed(save: RemoteSave, request: LoadRequest) -> Any:
    """Build the tensordict of remote safetensors files: read their headers and reserve memory for the tensors."""
    where, chosen = save.url, None
    if save.is_file or INDEX_NAME not in save.files:
        opened = [_open(save, "" if save.is_file else SINGLE_NAME)]
    else:
        where += f"/{INDEX_NAME}"
        document = save.store.read(save.stored_path(INDEX_NAME)) or b""
        opened, chosen = open_shards(where, document, lambda name: _open(save, name), request)
    return assembled(opened, chosen, where, request, save.reader.read)


def _open(save: RemoteSave, path: str) -> Opened:
    file, size = save.stored_path(path), save.files.get(path)
    where = f"{save.url}/{path}".rstrip("/")
    if size is None:
        raise FileNotFoundError(f"{where} is missing, and the index of the safetensors save names it; save again")
    head = save.store.read_ranges([(file, 0, min(_FIRST_READ, size))])[0] if size else b""
    length = header_length(head, size, where)
    if 8 + length > len(head):
        head += save.store.read_ranges([(file, len(head), 8 + length)])[0]
    header = load_header(head[8 : 8 + length], size - 8 - length, where)
    return views(save.reader.reserve(file, size - 8 - length, 8 + length), header), header.metadata
