"""Tree writer: saves a tensordict to a folder with one file for each leaf and one ``meta.json`` for each node.

A leaf that is already mapped onto its target file is not written again. Tied tensors share a file through hard links.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from tensordict_core.extension import gc_paused
from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.checksums import Extent
from tensordict_memmap.engine.sink import reserve_files
from tensordict_memmap.engine.sources import FileRange, check_memory, chunks, detached
from tensordict_memmap.engine.tuning import JOB_BYTES
from tensordict_memmap.engine.write_plan import FileWrite
from tensordict_memmap.formats import tree
from tensordict_memmap.formats.names import LEAF
from tensordict_memmap.loading.leaves import LeafOpener, check_mappable
from tensordict_memmap.loading.mapped import lock_mapped
from tensordict_memmap.saving.options import SaveOptions
from tensordict_memmap.saving.writer import Run, Writer
from tensordict_memmap.schema.build import build, fill
from tensordict_memmap.schema.dtypes import as_bytes
from tensordict_memmap.schema.node import Dense, Leaf, Node, leaves, nodes, plain, show
from tensordict_memmap.schema.plan import plan_to_save
from tensordict_memmap.storage.manifest import Entry, Manifest
from tensordict_memmap.tensor.memmap import MemoryMappedTensor


class TreeFile(NamedTuple):
    """One file of a tree.

    Args:
        path: Its path in the folder, with ``/`` between names.
        ranges: Its content; empty if the file only gets its size.
        size: Its size in bytes.
        key: The name of the file in errors.
    """

    path: str
    ranges: list[FileRange]
    size: int
    key: Any = None

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes of the file, whose ranges are consecutive, a few megabytes at a time."""
        for one in self.ranges:
            source = one.source
            if isinstance(source, torch.Tensor):
                check_memory(one.key, source)
                plain = source.detach()
                for part, _ in chunks(plain, plain.element_size(), JOB_BYTES):
                    yield as_bytes(part.cpu().as_subclass(torch.Tensor)).numpy().tobytes()
            else:
                data = memoryview(cast(Any, source)).cast("B") if len(source) else memoryview(b"")
                for start in range(0, len(data), JOB_BYTES):
                    yield bytes(data[start : start + JOB_BYTES])


def node_files(node: Node) -> Iterator[TreeFile]:
    """Yield the files that describe one node."""
    prefix = node.folder + "/" if node.folder else ""
    for name, document in tree.describe(node).items():
        path = prefix + name
        yield TreeFile(path, [FileRange(path, document)], len(document), path)


def leaf_files(leaf: Leaf, *, like: bool = False) -> Iterator[TreeFile]:
    """Yield the files of one leaf that are not empty: its values, and the component shapes of a nested tensor.

    Args:
        leaf: The leaf.
        like: Whether to leave out the values.
    """
    key, source = plain(leaf.key), leaf.source
    if leaf.layout == "strided":
        if leaf.nbytes:
            yield TreeFile(leaf.file, [] if like or source is None else [FileRange(key, source)], leaf.nbytes, key)
        return
    assert source is not None
    components = [part.detach() for part in source.unbind()]
    ranges, offset = [], 0
    for part in components:
        ranges.append(FileRange(key, part, offset))
        offset += prod(part.shape) * leaf.dtype.itemsize
    if offset:
        yield TreeFile(leaf.file, [] if like else ranges, offset, key)
    shapes = torch.tensor([list(part.shape) for part in components], dtype=torch.int64, device="cpu")
    if shapes.numel():
        yield TreeFile(leaf.shapes_file, [FileRange(key, shapes)], shapes.nbytes, key)


def escaped_names(schema: Node) -> dict[str, dict[str, str]]:
    """Return the file names of the keys with escaped names, by folder and key, for the manifest."""
    return {
        node.folder: {
            key: stem + (LEAF if isinstance(node.entries[key], Leaf) else "") for key, stem in node.escaped.items()
        }
        for node in nodes(schema)
        if isinstance(node, Dense) and node.escaped
    }


def refuse_mapped(leaf: Leaf, target: str) -> None:
    """Refuse a leaf that is mapped onto a file, for ``copy_existing=False``.

    Raises:
        RuntimeError: The leaf is mapped onto a file.
    """
    mapped = leaf.source.handler.filename if isinstance(leaf.source, MemoryMappedTensor) else None
    if mapped is not None:
        raise RuntimeError(
            f"A filename was provided but the tensor already has a file associated: key {show(leaf.key)} is mapped "
            f"onto {mapped}; pass copy_existing=True to copy it to {target}"
        )


class TreeWriter(Writer):
    """Saves a tensordict to a folder with one file for each leaf."""

    is_folder = True

    def __init__(self, data: Any, path: str | os.PathLike[str], options: SaveOptions) -> None:
        super().__init__(data, path, options)
        self.kept: dict[str, torch.Tensor] = {}
        """The mapped tensors of the files that are kept; after the save, those of all files."""
        self._opener: LeafOpener | None = None
        self.schema = tree.name_files(plan_to_save(data), tie=not options.like)
        self.leaves = list(leaves(self.schema))
        if options.mapped:
            check_mappable(len(self.leaves), self.path)
        if not options.like:
            for leaf in self.leaves:
                self._check_source(leaf)
            self.total = sum(leaf.nbytes for leaf in self.leaves if leaf.file not in self.kept)
        self.count = len(self.leaves)

    def _check_source(self, leaf: Leaf) -> None:
        """Refuse a leaf that is mapped onto another file, and clone one whose file is overwritten in place."""
        source, atomic = leaf.source, self.options.atomic
        if not isinstance(source, MemoryMappedTensor):
            if not atomic and os.path.isdir(self.path) and source is not None and _may_be_of_a_file(source):
                leaf.source = source.clone()  # possibly a view of a file that is overwritten before it is read
            return
        mapping = source.handler
        if mapping.filename is None or not source.numel():
            return
        if _is_whole_file(source, f"{self.path}/{leaf.file}"):
            if not self.options.checksum:
                self.kept[leaf.file] = source
            elif not atomic:  # with checksums it is copied, since writes through existing mappings would break them
                leaf.source = source.clone()
            return
        if not self.options.copy_existing:
            refuse_mapped(leaf, f"{self.path}/{leaf.file}")
        if not atomic and os.path.realpath(mapping.filename).startswith(os.path.realpath(self.path) + os.sep):
            leaf.source = source.clone()  # its file may be overwritten before it is read

    def hold(self) -> None:
        """Detach all sources from later changes of the tensordict."""
        for leaf in self.leaves:
            leaf.source = detached(leaf.source)

    def paths(self) -> Iterable[str]:
        """Yield the paths of all files that may be written."""
        for node in nodes(self.schema):
            yield from (file.path for file in node_files(node))
        for leaf in self.leaves:
            yield leaf.file
            if leaf.layout != "strided":
                yield leaf.shapes_file

    # --- writing

    def write(self, staged: str, run: Run) -> Manifest:
        """Write all files into the staging folder and return their manifest."""
        options = self.options
        files: list[TreeFile] = []
        for node in nodes(self.schema):
            if node.folder and self.kept:
                os.makedirs(f"{staged}/{node.folder}", exist_ok=True)
            files.extend(node_files(node))
        entries: dict[str, Entry] = {}
        aliases: dict[str, str] = {}
        for leaf in self.leaves:
            source = self.kept.get(leaf.file)
            if source is not None and self._keep(leaf.file, source, staged):
                entries[leaf.file] = Entry(leaf.nbytes)
            elif leaf.alias is not None and leaf.nbytes and source is None:
                aliases[leaf.file] = leaf.alias
            else:
                files.extend(leaf_files(leaf, like=options.like))
        entries |= {file.path: Entry(file.size) for file in files}
        writes = [self._file_write(file, staged) for file in files]
        run.write_files(writes)
        if options.reserve:
            reserve_files((plain(leaf.key), f"{staged}/{leaf.file}") for leaf in self.leaves)
        if options.checksum:
            for file, written in zip(files, writes, strict=True):
                entries[file.path] = Entry(file.size, written.extents[0].checksum())
        for path, first in aliases.items():
            link_file(f"{staged}/{first}", f"{staged}/{path}", run.durable)
            entries[path] = entries[first]
        return Manifest(entries, escaped_names(self.schema), aliases)

    def _file_write(self, file: TreeFile, staged: str) -> FileWrite:
        place = f"{staged}/{file.path}"
        extents = [Extent(0, file.size)] if self.options.checksum else []
        fresh = self.options.atomic or _remove_linked(place)
        return FileWrite(place, file.ranges, file.size, fresh, extents, file.key)

    def _keep(self, file: str, source: torch.Tensor, staged: str) -> bool:
        """Hard-link a file of the earlier save into this one, which keeps mappings connected; False on failure."""
        if not self.options.atomic:
            return True
        assert isinstance(source, MemoryMappedTensor)
        place = f"{staged}/{file}"
        with contextlib.suppress(OSError):  # the file system has no hard links, or the earlier save was removed
            os.link(f"{self.path}/{file}", place)
            info = os.stat(place)
            if (info.st_dev, info.st_ino) == source.handler.identity:
                return True
            os.unlink(place)  # another save has replaced the file since
        del self.kept[file]
        return False

    # --- results

    def map(self, staged: str) -> None:
        """Map the staged files."""
        opener = self.opener()
        opener.root = staged
        with gc_paused():
            for leaf in self.leaves:
                tensor = self.kept[leaf.file] = opener(leaf)
                if isinstance(tensor, MemoryMappedTensor) and tensor.handler.filename == f"{staged}/{leaf.file}":
                    tensor.handler.filename = f"{self.path}/{leaf.file}"
        opener.root = self.path

    def opener(self) -> LeafOpener:
        """Return the opener of the leaves in the committed folder."""
        if self._opener is None:
            self._opener = LeafOpener(self.path, kept=self.kept, mode="r" if self.options.checksum else None)
            self._opener.ties = any(leaf.alias is not None for leaf in self.leaves)
        return self._opener

    def mapped(self) -> Any:
        """Return a locked tensordict mapped onto the files."""
        with gc_paused():
            made = build(self.schema, self.opener(), saved=Path(self.path), device=torch.device("cpu"))
        return lock_mapped(made)

    def fill(self) -> Any:
        """Replace the entries of the tensordict by mapped ones, lock it and return it."""
        with gc_paused():
            fill(self.schema, self.opener(), saved=Path(self.path))
        return lock_mapped(self.data)


def _remove_linked(path: str) -> bool:
    """Remove a file with several hard links before it is overwritten in place; return whether no file is left."""
    try:
        info = os.lstat(path)
    except OSError:
        return True
    if info.st_nlink > 1 or os.path.islink(path):
        os.unlink(path)
        return True
    return False


def link_file(first: str, second: str, durable: bool) -> None:
    """Give a file a second name; copy it where the file system has no hard links."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.samefile(first, second):
            return
        os.unlink(second)
    try:
        os.link(first, second)
    except OSError:  # a file system without hard links
        shutil.copyfile(first, second)
        if durable:
            syscalls.sync_file(second)


def _is_whole_file(source: MemoryMappedTensor, path: str) -> bool:
    """Return whether a mapped tensor is all of the file at a path, mapped for writing."""
    mapping = source.handler
    try:
        info = os.stat(path)
    except OSError:
        return False
    if (info.st_dev, info.st_ino) != mapping.identity or mapping.mode != "r+":
        return False
    return source.is_contiguous() and source.offset == 0 and source.nbytes == info.st_size


def _may_be_of_a_file(tensor: torch.Tensor) -> bool:
    """Return whether a tensor may be a view of a mapped file: its memory was not allocated by torch."""
    values = tensor.values() if tensor.layout is torch.jagged else tensor
    is_strided = values.device.type == "cpu" and values.layout is torch.strided
    return is_strided and not values.untyped_storage().resizable()
