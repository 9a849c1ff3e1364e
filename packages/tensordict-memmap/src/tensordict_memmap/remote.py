"""Saves elsewhere: folders and files under addresses such as ``s3://bucket/run``, through fsspec.

Objects cannot be renamed, so a folder is all or nothing another way. The files of each save go under a name of its own,
``tensordict-<16 hex digits>/``, in the local layout, manifest included, so any tool that copies that folder has a saved
folder. The manifest at the address itself, which names it and lists its files, is written last, as one object: until
then the earlier save is what loads, and after that its files are removed. A folder that was copied there by other means
loads as it is. One file is one object, which object stores replace as a whole.

A save is staged in a temporary folder here, in the same pass as any save, and goes out from there in parallel. A load
asks for descriptions first, and then for exactly the bytes of the leaves and rows that are wanted (``fetching.py``).
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import orjson
import torch

from tensordict_memmap.detect import ARCHIVE, SAFETENSORS, TREE, kind_of_bytes
from tensordict_memmap.fetching import Pending, Store
from tensordict_memmap.formats.archive import read_index
from tensordict_memmap.formats.names import META
from tensordict_memmap.formats.safetensors import LONGEST_HEADER, load_header
from tensordict_memmap.formats.tree import Leaf, show
from tensordict_memmap.future import SaveFuture
from tensordict_memmap.listed import ListedFolder
from tensordict_memmap.manifest import NAME, Entry, Manifest
from tensordict_memmap.mapping import Mapping
from tensordict_memmap.opening import LeafOpener
from tensordict_memmap.packed_load import INDEX_NAME, SINGLE_NAME, open_shards, views
from tensordict_memmap.pruning import Choice
from tensordict_memmap.unpacking import needed_at_once, unpack, wanted

__all__ = [
    "RemoteFolder",
    "RemoteOpener",
    "RemoteSave",
    "load_remote_packed",
    "save_remote",
]

_GENERATION = re.compile(r"tensordict-[0-9a-f]{16}")
_GROUP = 1 << 26
_FIRST_READ = 1 << 16


# --- saving


def save_remote(
    url: str,
    save: Callable[[str], Any],
    *,
    total: int = 0,
    existsok: bool = True,
    early: bool = False,
    result: Any = None,
) -> Any:
    """Saves to an address, all or nothing.

    Args:
        url: the address.
        save: saves to a path here, in the format that its ending or its own arguments say.
        total: bytes of the tensors, to show progress by.
        existsok: whether an earlier save may be replaced.
        early: whether to return a `SaveFuture` at once.
        result: what is returned.

    Raises:
        ImportError: fsspec is not installed.
        RuntimeError: Something is there, and ``existsok`` is False.
    """
    store = Store(url)
    if not existsok and (store.is_file() or store.sizes()):
        raise RuntimeError(f"with existsok=False a save goes where nothing is, and there is {url}; choose another name")

    def work(progress: Callable[[int], None] | None, cancelled: Callable[[], bool] | None) -> Any:
        with tempfile.TemporaryDirectory(prefix="tensordict-") as place:
            path = os.path.join(place, store.root.rpartition("/")[2] or "save")
            save(path)
            _upload(path, store, progress, cancelled)
        return result

    return SaveFuture(work, total) if early else work(None, None)


def _upload(
    path: str, store: Store, progress: Callable[[int], None] | None, cancelled: Callable[[], bool] | None
) -> None:
    if os.path.isfile(path):
        store.fs.put_file(path, store.root)
        if progress is not None:
            progress(os.path.getsize(path))
        return
    generation = f"tensordict-{secrets.token_hex(8)}"
    files = {}
    for place, _, names in os.walk(path):
        for name in names:
            whole = os.path.join(place, name)
            files[os.path.relpath(whole, path).replace(os.sep, "/")] = os.path.getsize(whole)
    try:
        for group in _groups(files):
            if cancelled is not None and cancelled():
                raise CancelledError("the save was cancelled")
            sources = [os.path.join(path, *name.split("/")) for name in group]
            store.fs.put(sources, [store.at(f"{generation}/{name}") for name in group])
            if progress is not None:
                progress(sum(files[name] for name in group))
        manifest = Manifest({name: Entry(size) for name, size in files.items() if name != NAME})
        if NAME in files:
            with open(os.path.join(path, NAME), "rb") as file:
                manifest = Manifest.loads(file.read())
        record = orjson.loads(Manifest({}).replaced_under(generation, manifest).dumps())
        earlier = _read_manifest(store)
        store.write(NAME, orjson.dumps({**record, "generation": generation}))
    except BaseException:
        _remove(store, generation)
        raise
    if earlier is not None and earlier[0]:
        _remove(store, earlier[0])


def _groups(files: dict[str, int]) -> Iterator[list[str]]:
    """Files to send at once, as many as make some ten megabytes."""
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


def _remove(store: Store, generation: str) -> None:
    with contextlib.suppress(Exception):  # what is left is named by no manifest, and nobody reads it
        store.fs.rm(store.at(generation), recursive=True)
        store.fs.invalidate_cache()


def _read_manifest(store: Store) -> tuple[str, Manifest] | None:
    """The generation that an address holds, ``""`` for a folder that was copied there, and its manifest."""
    document = store.read(NAME)
    if document is None:
        return None
    where = f"{store.url}/{NAME}"
    manifest = Manifest.loads(document, where=where)
    generation = orjson.loads(document).get("generation", "")
    if generation == "":
        return "", manifest
    if not isinstance(generation, str) or not _GENERATION.fullmatch(generation):
        raise ValueError(f"a manifest elsewhere names the folder of its files, and {where} is damaged; save again")
    return generation, manifest.under(generation)


# --- loading


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
        if self.store.is_file():
            self.files = {"": self.store.size()}
            self.kind = kind_of_bytes(self.files[""], self._read_range)
            return
        found = _read_manifest(self.store)
        if found is None or not found[0]:
            self.files = self.store.sizes()
            self.files.pop(NAME, None)
            self.aliases = {} if found is None else found[1].aliases
        else:
            self.generation, manifest = found
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
        found = _read_manifest(self.store)
        return found is not None and found[0] != self.generation

    def folder(self) -> RemoteFolder | None:
        """The files of a tree or of an archive, as parsing reads them; None of a compressed one."""
        if self.kind == ARCHIVE:
            members = self._members()
            return None if members is None else RemoteFolder(self, members)
        return RemoteFolder(self, {name: (self.at(name), 0, size) for name, size in self.files.items()})

    @contextlib.contextmanager
    def copied(self) -> Iterator[str]:
        """A copy of everything here, for as long as this is open."""
        with tempfile.TemporaryDirectory(prefix="tensordict-") as place:
            name = self.store.root.rpartition("/")[2] or "save"
            yield self.download(os.path.join(place, name))

    def download(self, path: str) -> str:
        """Copies everything to a path that is not there yet, in the local layout."""
        if self.store.is_file():
            self.store.fs.get_file(self.store.root, path)
            return path
        os.makedirs(path)
        for group in _groups(self.files):
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
        opened = [_open(save, "" if "" in save.files else SINGLE_NAME, meta)]
    else:
        where += f"/{INDEX_NAME}"
        document = save.store.read(save.at(INDEX_NAME)) or b""
        opened, part = open_shards(where, document, lambda name: _open(save, name, meta), choice)
    tensors: dict[str, torch.Tensor] = {}
    metadata: dict[str, str] = {}
    for found, texts, _ in opened:
        tensors.update(found)
        metadata.update(texts)
    if part is None and choice is not None:
        part = wanted(tensors, metadata, choice, where)
    if not meta:
        save.pending.fetch(tensors[name] for name in needed_at_once(metadata, where) if name in tensors)
    return unpack(tensors, metadata, where=where, device=device, allow_pickle=allow_pickle, part=part)


def _open(save: RemoteSave, path: str, meta: bool) -> tuple[dict[str, torch.Tensor], dict[str, str], Mapping]:
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
    slots, metadata = load_header(head[8 : 8 + length], size - 8 - length, where)
    if meta:
        made = {slot.name: torch.empty(slot.shape, dtype=slot.dtype, device="meta") for slot in slots}
        return made, metadata, Mapping.nothing()
    mapping = Mapping.nothing()
    mapping.nbytes = size - 8 - length
    mapping.buffer = save.pending.reserve(place, mapping.nbytes, 8 + length)
    return views(mapping, slots), metadata, mapping
