"""Formats of a distributed save: each describes the tensordict, plans the parts of a rank and lays out the files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod

from tensordict_memmap.distributed.assign import Assignment
from tensordict_memmap.distributed.layout import Layout, packed_layout, path_in
from tensordict_memmap.distributed.local_parts import LocalParts
from tensordict_memmap.distributed.placements import Part
from tensordict_memmap.distributed.plan import ShardPlan
from tensordict_memmap.engine.checksums import DIGITS, checksum_of
from tensordict_memmap.engine.write_plan import FileWrite
from tensordict_memmap.formats import tree
from tensordict_memmap.formats.detect import SAFETENSORS, TREE
from tensordict_memmap.formats.safetensors.describe import describe
from tensordict_memmap.formats.safetensors.header import ENDING, INDEX_ENDING, Form
from tensordict_memmap.remote.urls import is_remote
from tensordict_memmap.saving.options import SaveOptions
from tensordict_memmap.saving.tree import escaped_names, leaf_files, link_file, node_files
from tensordict_memmap.schema.node import Leaf, Path, leaves, nodes
from tensordict_memmap.storage.header_checksums import write_checksums
from tensordict_memmap.storage.manifest import Entry, Manifest


class Format(ABC):
    """The information that one rank has about a save in one format.

    Args:
        held: The tensordict and its parts.
        options: The options of the save.

    Attributes:
        stored: The leaves whose tensors all ranks write, in the order of the plan.
        plan: The plan of the parts that this rank holds.
        parts: The parts in memory, for each tensor of the plan.
        keys: The nested key of each tensor.
    """

    is_folder = False
    stored: Sequence[Leaf]
    plan: ShardPlan
    parts: list[list[Part]]
    keys: list[Path]

    def __init__(self, held: LocalParts, options: SaveOptions) -> None:
        self.held = held
        self.options = options

    def _plan(self, stored: Sequence[Leaf], forms: Sequence[Form] | None = None) -> None:
        self.stored = stored
        self.keys = [leaf.key for leaf in stored]
        self.plan, self.parts = self.held.plan(stored, forms)

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shape of each whole tensor."""
        return [self.plan.kinds[kind].shape for kind in self.plan.column]

    @abstractmethod
    def layout(self, assignment: Assignment, save_id: str) -> Layout:
        """Return the files and offsets of the tensors, which the coordinator decides."""

    def sizes(self) -> list[int]:
        """Return the bytes of each whole tensor."""
        return [prod(kind.shape) * kind.dtype.itemsize for kind in (self.plan.kinds[one] for one in self.plan.column)]

    @abstractmethod
    def manifest(
        self,
        staged: str | None,
        layout: Layout,
        save_id: str,
        *,
        durable: bool,
        checksums: Sequence[str] = (),
    ) -> Manifest | None:
        """Complete the staged files when all ranks have written, and list them if they are a folder.

        Args:
            staged: The staged folder; None if the files are elsewhere.
            layout: The files.
            save_id: The id of the save.
            durable: Whether files are synced.
            checksums: The checksum of each tensor of the plan, if the save has checksums.
        """


class _Packed(Format):
    """One safetensors file, or shards and their index."""

    def __init__(self, held: LocalParts, options: SaveOptions) -> None:
        super().__init__(held, options)
        self.is_folder = options.shard_size is not None
        self.pack = describe(held.schema)
        self._plan(self.pack.leaves, self.pack.forms)

    def layout(self, assignment: Assignment, save_id: str) -> Layout:
        pack = self.pack
        return packed_layout(
            assignment.names,
            pack.forms,
            pack.metadata,
            save_id,
            self.options.shard_size,
            checksum=self.options.checksum,
        )

    def manifest(
        self, staged: str | None, layout: Layout, save_id: str, *, durable: bool, checksums: Sequence[str] = ()
    ) -> Manifest | None:
        if self.options.checksum and staged is not None:
            found: list[list[tuple[int, str]]] = [[] for _ in layout.files]
            for file, offset, checksum in zip(layout.file_of, layout.offsets, checksums, strict=True):
                found[file].append((offset, checksum[-DIGITS:]))
            for path, rows in zip(layout.files, found, strict=True):
                digits = "".join(one for _, one in sorted(rows))
                write_checksums(path_in(staged, path), layout.texts[path], digits, durable=durable)
        return list_files(layout, save_id) if self.is_folder else None


class _Tree(Format):
    """A folder with a file for each leaf."""

    is_folder = True

    def __init__(self, held: LocalParts, options: SaveOptions) -> None:
        super().__init__(held, options)
        self.schema = tree.name_files(held.schema)
        self.leaves = list(leaves(self.schema))
        self._plan([leaf for leaf in self.leaves if leaf.layout == "strided" and leaf.nbytes and leaf.alias is None])

    def layout(self, assignment: Assignment, save_id: str) -> Layout:
        writers = [0] * len(self.stored)
        for share in assignment.shares:
            for tensor in share.column.nonzero()[0].tolist():
                writers[tensor] += 1
        small = [file for node in nodes(self.schema) for file in node_files(node)]
        small += [file for leaf in self.leaves if leaf.layout != "strided" for file in leaf_files(leaf)]
        return Layout(
            [leaf.file for leaf in self.stored],
            [leaf.nbytes for leaf in self.stored],
            list(range(len(self.stored))),
            [0] * len(self.stored),
            whole=small,
            owned={number for number, count in enumerate(writers) if count == 1},
        )

    def manifest(
        self, staged: str | None, layout: Layout, save_id: str, *, durable: bool, checksums: Sequence[str] = ()
    ) -> Manifest | None:
        manifest = list_files(layout, save_id)
        if self.options.checksum:
            for path, checksum in zip(layout.files, checksums, strict=True):
                manifest.files[path] = Entry(manifest.files[path].size, checksum)
            for file in layout.whole:
                manifest.files[file.path] = Entry(file.size, checksum_of(b"".join(file.blocks())))
        manifest.names = escaped_names(self.schema)
        for leaf in self.leaves:
            if leaf.alias is not None and leaf.nbytes:
                if staged is not None:
                    link_file(f"{staged}/{leaf.alias}", f"{staged}/{leaf.file}", durable)
                manifest.files[leaf.file] = manifest.files[leaf.alias]
                manifest.aliases[leaf.file] = leaf.alias
        return manifest


def list_files(layout: Layout, save_id: str) -> Manifest:
    """Return the manifest of the files of a layout."""
    entries = {path: Entry(size) for path, size in zip(layout.files, layout.sizes, strict=True)}
    entries |= {file.path: Entry(file.size) for file in layout.whole}
    return Manifest(entries, save_id=save_id)


def whole_writes(folder: str, layout: Layout) -> list[FileWrite]:
    """Return the files that the coordinator writes alone."""
    return [FileWrite(f"{folder}/{file.path}", file.ranges, file.size, key=file.key) for file in layout.whole]


def format_of(held: LocalParts, path: str, options: SaveOptions) -> Format:
    """Return the format of a save to a path.

    Raises:
        ValueError: It is one that only one process writes.
    """
    found = options.format_for(path.rpartition("/")[2] if is_remote(path) else path)
    if found not in (TREE, SAFETENSORS):
        raise ValueError(
            f"{path} is an archive, and several ranks write folders and safetensors files; save to one of those, and "
            "convert it"
        )
    if found == SAFETENSORS and path.endswith(INDEX_ENDING):
        raise ValueError(f"{path} is the index of shards, and a save names the whole; end the path with {ENDING}")
    return (_Tree if found == TREE else _Packed)(held, options)


def check_same_names(names: Sequence[list[str]], ranks: Sequence[int]) -> None:
    """Refuse tensordicts with different entries, of which each rank has the names.

    Raises:
        ValueError: A rank has an entry that another lacks; the error names both.
    """
    first = names[0]
    for own, rank in zip(names, ranks, strict=True):
        if own is first or own == first:
            continue
        more, less = sorted(set(own) - set(first)), sorted(set(first) - set(own))
        what = f"has {more[0]!r}, which rank {ranks[0]} lacks" if more else f"lacks {less[0]!r}" if less else ""
        raise ValueError(
            f"rank {rank} {what or 'has the entries in another order'}, and all ranks save the same entries; give it "
            "the same entries, with empty tensors where it holds nothing"
        )
