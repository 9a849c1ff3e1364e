"""Saves to a folder: a file for each leaf and a description for each node, all of them written in one plan.

A leaf that is mapped onto the very file it would be saved to is not written again, and a tensor that is tied to another
is a second name of its file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import torch

from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.checksums import Extent
from tensordict_memmap.engine.future import Cancelled, Progress, run_save
from tensordict_memmap.engine.gc_paused import gc_paused
from tensordict_memmap.engine.sink import reserve_files
from tensordict_memmap.engine.sources import FileRange, detached
from tensordict_memmap.engine.write_plan import FileWrite, write_files
from tensordict_memmap.formats import tree
from tensordict_memmap.formats.names import LEAF
from tensordict_memmap.loading.leaves import LeafOpener, check_mappable
from tensordict_memmap.schema.build import build, fill
from tensordict_memmap.schema.node import Dense, Leaf, leaves, nodes, show
from tensordict_memmap.schema.plan import plan
from tensordict_memmap.storage import transaction
from tensordict_memmap.storage.manifest import Entry, Manifest
from tensordict_memmap.tensor.memmap import MemoryMappedTensor

__all__ = ["TreeSave", "name_of"]


class TreeSave:
    """One save to one folder: planned when it is made, done by `run`."""

    def __init__(
        self,
        td: Any,
        prefix: str | os.PathLike[str],
        copy_existing: bool,
        threads: int | None,
        existsok: bool,
        atomic: bool,
        durable: bool,
        *,
        like: bool = False,
        checksum: bool = False,
        mapped: bool = True,
    ) -> None:
        self.td = td
        self.checksum = checksum
        self.root = os.path.abspath(prefix)
        self.threads, self.atomic, self.durable, self.like = threads, atomic, durable, like
        self.existsok, self.mapped = existsok, mapped
        self.reserve = False
        if not existsok:
            transaction.check_new(self.root)
        self.kept: dict[str, torch.Tensor] = {}
        with gc_paused():
            self.node = tree.name_files(plan(td), tie=not like)
            self.leaves = list(leaves(self.node))
        if mapped:
            check_mappable(len(self.leaves), self.root)
        if not like:
            for leaf in self.leaves:
                self._check_source(leaf, copy_existing)
        self.total = 0 if like else sum(leaf.nbytes for leaf in self.leaves if leaf.file not in self.kept)

    def _check_source(self, leaf: Leaf, copy_existing: bool) -> None:
        source = leaf.source
        if not isinstance(source, MemoryMappedTensor):
            if not self.atomic and os.path.isdir(self.root) and source is not None and _may_be_of_a_file(source):
                leaf.source = source.clone()  # a view of what the folder holds, which is overwritten before it is read
            return
        mapping = source.handler
        if mapping.filename is None or not source.numel():
            return
        with contextlib.suppress(OSError):
            info = os.stat(f"{self.root}/{leaf.file}")
            if (info.st_dev, info.st_ino) == mapping.identity and mapping.mode == "r+":
                whole = source.is_contiguous() and source.offset == 0 and source.nbytes == info.st_size
                if whole and not self.checksum:
                    self.kept[leaf.file] = source
                elif whole and not self.atomic:
                    leaf.source = source.clone()
                if whole:  # with checksums it is copied: who has it mapped could make them wrong
                    return
        if not copy_existing:
            raise RuntimeError(
                f"an entry stays in its file, and that of key {show(leaf.key)} is {mapping.filename}; pass "
                f"copy_existing=True to copy it to {self.root}/{leaf.file}"
            )
        if not self.atomic and os.path.realpath(mapping.filename).startswith(os.path.realpath(self.root) + os.sep):
            leaf.source = source.clone()  # its file is overwritten before it is read, maybe

    def start(self, early: bool, result: Callable[[], Any], pbar: bool = False) -> Any:
        """Saves, now or in the background, and gives the result."""
        if early:
            for leaf in self.leaves:
                leaf.source = detached(leaf.source)
        return run_save(self.run, result, self.total, early=early, pbar=pbar)

    def run(self, progress: Progress | None, cancelled: Cancelled | None) -> None:
        """Writes all files and puts them in place."""
        transaction.save_folder(
            self.root,
            lambda folder: self.write(folder, progress, cancelled),
            durable=self.durable,
            atomic=self.atomic,
            existsok=self.existsok,
            size=self.total,
            count=len(self.leaves),
            files=() if self.atomic else self._paths(),
        )

    def write(self, folder: str, progress: Progress | None = None, cancelled: Cancelled | None = None) -> Manifest:
        """Writes all files to a folder that will take the place of the saved one, or whose files will."""
        manifest = self._write(folder, progress, cancelled)
        if self.mapped and syscalls.POSIX:  # elsewhere a folder with mapped files cannot be renamed
            self._map(folder)
        return manifest

    def _map(self, folder: str) -> None:
        """Maps the files before they have the names that other saves could take, one after the other."""
        opener = self._opener(folder)
        with gc_paused():
            for leaf in self.leaves:
                tensor = self.kept[leaf.file] = opener(leaf)
                if isinstance(tensor, MemoryMappedTensor) and tensor.handler.filename == f"{folder}/{leaf.file}":
                    tensor.handler.filename = f"{self.root}/{leaf.file}"

    def opener(self) -> LeafOpener:
        """What maps the files once they are in place."""
        return self._opener(self.root)

    def _opener(self, folder: str) -> LeafOpener:
        opener = LeafOpener(folder, kept=self.kept, mode="r" if self.checksum else None)
        opener.ties = any(leaf.alias is not None for leaf in self.leaves)
        return opener

    def twin(self) -> Any:
        """A locked tensordict over the files."""
        with gc_paused():
            return build(self.node, self.opener(), saved=Path(self.root), device=torch.device("cpu")).lock_()

    def itself(self) -> Any:
        """The tensordict itself, now over the files."""
        with gc_paused():
            fill(self.node, self.opener(), saved=Path(self.root))
        return self.td.lock_()

    # --- writing

    def _paths(self) -> Iterator[str]:
        """Every file that may be written."""
        for node in nodes(self.node):
            for name in tree.describe(node):
                yield f"{node.folder}/{name}" if node.folder else name
        for leaf in self.leaves:
            yield leaf.file
            if leaf.layout != "strided":
                yield leaf.shapes_file

    def _write(self, folder: str, progress: Progress | None, cancelled: Cancelled | None) -> Manifest:
        entries: dict[str, Entry] = {}
        names: dict[str, dict[str, str]] = {}
        files: list[FileWrite] = []

        def add(path: str, pieces: list[FileRange], size: int, key: Any = None) -> None:
            entries[path] = Entry(size)
            place = f"{folder}/{path}"
            extents = [Extent(0, size)] if self.checksum else []
            files.append(FileWrite(place, pieces, size, self.atomic or _make_way(place), extents, key))

        for node in nodes(self.node):
            place = node.folder + "/" if node.folder else ""
            if place and self.kept:
                os.makedirs(f"{folder}/{node.folder}", exist_ok=True)
            for name, document in tree.describe(node).items():
                add(place + name, [FileRange(show(node.key) if node.key else name, document)], len(document))
            if isinstance(node, Dense) and node.escaped:
                names[node.folder] = {
                    key: stem + (LEAF if isinstance(node.entries[key], Leaf) else "")
                    for key, stem in node.escaped.items()
                }
        aliases: dict[str, str] = {}
        kept: list[str] = []
        for leaf in self.leaves:
            if leaf.layout != "strided":
                self._add_nested(leaf, add)
            elif leaf.file in self.kept:
                entries[leaf.file] = Entry(leaf.nbytes)
                kept.append(leaf.file)
            elif nbytes := leaf.nbytes:
                if leaf.alias is not None:
                    aliases[leaf.file] = leaf.alias
                    entries[leaf.file] = Entry(nbytes)
                else:
                    name = name_of(leaf)
                    pieces = [] if self.like or leaf.source is None else [FileRange(name, leaf.source)]
                    add(leaf.file, pieces, nbytes, name)
        if self.atomic:
            for file in kept:
                self._keep(file, folder, add)
        write_files(files, threads=self.threads, durable=self.durable, progress=progress, cancelled=cancelled)
        if self.reserve:
            reserve_files((name_of(leaf), f"{folder}/{leaf.file}") for leaf in self.leaves)
        for written in files if self.checksum else ():
            path = os.fspath(written.path)[len(folder) + 1 :]
            entries[path] = Entry(entries[path].size, written.extents[0].checksum())
        for file, first in aliases.items():
            _link(f"{folder}/{first}", f"{folder}/{file}", self.durable)
            entries[file] = entries[first]
        return Manifest(entries, names, aliases)

    def _keep(self, file: str, folder: str, add: Callable[[str, list[FileRange], int], None]) -> None:
        """Takes a file of the earlier save over as it is, so that whoever has it mapped stays connected."""
        source, place = self.kept[file], f"{folder}/{file}"
        assert isinstance(source, MemoryMappedTensor)
        with contextlib.suppress(OSError):  # a file system without hard links, or the earlier save is gone
            os.link(f"{self.root}/{file}", place)
            info = os.stat(place)
            if (info.st_dev, info.st_ino) == source.handler.identity:
                return
            os.unlink(place)  # another save has that name by now
        del self.kept[file]
        add(file, [FileRange(file, source)], source.nbytes)

    def _add_nested(self, leaf: Leaf, add: Callable[[str, list[FileRange], int], None]) -> None:
        assert leaf.source is not None
        parts = [part.detach() for part in leaf.source.unbind()]
        rows = [list(part.shape) for part in parts]
        pieces, offset = [], 0
        for part in parts:
            if not self.like:
                pieces.append(FileRange(name_of(leaf), part, offset))
            offset += prod(part.shape) * leaf.dtype.itemsize
        if offset:
            add(leaf.file, pieces, offset)
        shapes = torch.tensor(rows, dtype=torch.int64)
        if shapes.numel():
            add(leaf.shapes_file, [FileRange(name_of(leaf), shapes)], shapes.nbytes)


def name_of(leaf: Leaf) -> Any:
    """What errors call a leaf."""
    return leaf.key[0] if len(leaf.key) == 1 else leaf.key


def _make_way(path: str) -> bool:
    """Before a file is overwritten in place: one with other names must go, or those would change too.

    Returns:
        Whether a new file is to be made.
    """
    try:
        info = os.lstat(path)
    except OSError:
        return True
    if info.st_nlink > 1 or os.path.islink(path):
        os.unlink(path)
        return True
    return False


def _link(first: str, second: str, durable: bool) -> None:
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


def _may_be_of_a_file(tensor: torch.Tensor) -> bool:
    """Whether the memory is not torch's own: views of mapped tensors do not tell that they are some."""
    values = tensor.values() if tensor.layout is torch.jagged else tensor
    is_strided = values.device.type == "cpu" and values.layout is torch.strided
    return is_strided and not values.untyped_storage().resizable()
