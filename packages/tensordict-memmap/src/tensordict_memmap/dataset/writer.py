"""Dataset writer: appends rows to the files of a dataset and commits them in its manifest."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from tensordict_memmap.calls.load import load_memmap
from tensordict_memmap.dataset.columns import Column, check_growable, match_batch, write_rows
from tensordict_memmap.dataset.ragged import RaggedWriter, read_lengths, saved_state, shapes_leaf
from tensordict_memmap.dataset.range_locks import EVERY_ROW, RowLock
from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.engine.sources import FileRange
from tensordict_memmap.engine.write_plan import FileWrite, write_files
from tensordict_memmap.formats import tree
from tensordict_memmap.formats.names import META
from tensordict_memmap.formats.parse_tree import parse
from tensordict_memmap.saving.tree import escaped_names
from tensordict_memmap.schema.node import Node, Value, leaves, nodes, show
from tensordict_memmap.storage import locks, ownership, transaction
from tensordict_memmap.storage.manifest import NAME, Entry, Manifest
from tensordict_memmap.storage.rows_committed import LOCK, Part, RaggedState, Ring, RowsCommitted, fingerprint, resized
from tensordict_memmap.storage.snapshot import SavedFolder, row_description
from tensordict_memmap.storage.staging import replace_file


class Writer:
    """A writer of a dataset, which holds its lock and its open files.

    Args:
        root: The absolute path of the saved folder.
        part: The rows ``(start, stop)`` to fill as one of several writers; None for all rows.
        durable: Whether commits are synced to disk.
        allow_pickle: Whether saved non-tensor values without a JSON form may be unpickled.

    Attributes:
        committed_rows: The number of rows that the last commit has.
        written_rows: The number of rows that are written; those of them that are not committed yet are the last ones.
        allocated_rows: The number of rows that the files have space for.
        kept_rows: The number of rows that `close` keeps in the files: readers may have seen them, or they are reserved.
    """

    def __init__(self, root: str, part: tuple[int, int] | None, durable: bool, allow_pickle: bool | None) -> None:
        self.root, self.durable = root, durable
        self.part: Part | None = None
        self.guard = threading.RLock()
        self.columns: list[Column] = []
        self.ragged: dict[str, RaggedWriter] = {}
        self.kept_rows = 0
        self.ring: Ring | None = None
        if part is not None and not 0 <= part[0] < part[1]:
            raise ValueError(f"part {part} is not a range of rows (start, stop); pass 0 <= start < stop")
        transaction.recover(root)
        if not os.path.exists(os.path.join(root, META)):
            raise FileNotFoundError(
                f"{root} has no {META}, so it is not a saved tensordict; save one, or create a dataset"
            )
        if ownership.read_manifest(root) is None and ownership.manifest_for(root) is not None:
            raise ValueError(f"{root} is part of a larger save, which grows only as a whole; open the whole save")
        self.lock = RowLock(os.path.join(root, LOCK), EVERY_ROW if part is None else part)
        try:
            self._open(part, allow_pickle)
        except BaseException:
            self.close(cut=False)
            raise

    def _open(self, part: tuple[int, int] | None, allow_pickle: bool | None) -> None:
        with locks.locked(self.root):
            folder = SavedFolder(self.root)
            folder.shows_slots = True
            manifest = folder.count(ownership.read_manifest(self.root))
            if manifest is not None and not manifest.complete:
                raise ValueError(
                    f"{self.root} holds a save that was interrupted while it overwrote files in place; save again"
                )
            self.node = parse(folder)
            self.batch_size = check_growable(self.node, "the saved tensordict").batch_size
            rows = self.batch_size[0]
            if part is None:
                ownership.remove_replacements(self.root, os.listdir(self.root))
            self._open_columns(rows)
            self._read_values(allow_pickle)
            self._describe(manifest)
            old = manifest.rows_committed if manifest is not None else None
            kept = folder.rows is not None and old is not None
            self.committed = old if kept and old is not None else RowsCommitted(rows, rows)
            kept &= self._open_ragged(part)
            self.ring = self.committed.ring
            if self.ring is not None and part is not None:
                raise ValueError(f"{self.root} is a ring, which has one writer; open the dataset without part=")
            if part is not None:
                self._take_part(part)
            if not kept or part is not None or self.documents != self._documents(self.committed.rows):
                self._publish(self.committed)
        self.committed_rows = self.committed.rows if self.part is None else self.part.done
        if self.ring is not None:
            self.committed_rows = self.ring.head
        self.written_rows = self.committed_rows
        space = [column.size // column.row_bytes for column in self.columns if column.row_bytes]
        self.allocated_rows = min(space, default=0)
        self.kept_rows = max(self.allocated_rows, self.committed.shown)

    def _open_columns(self, rows: int) -> None:
        for leaf in leaves(self.node):
            self.columns.append(Column(self.root, leaf if leaf.layout == "strided" else shapes_leaf(leaf)))
        for column in self.columns:
            column.open(rows)

    def _read_values(self, allow_pickle: bool | None) -> None:
        """Read the values that were saved by pickle, with which the values of later rows are compared."""
        for value in nodes(self.node):
            if isinstance(value, Value) and value.pickle is not None:
                value.value = load_memmap(self.root, subpath=value.key, allow_pickle=allow_pickle).data

    def _open_ragged(self, part: tuple[int, int] | None) -> bool:
        """Open the ragged columns; return whether the manifest knew all of them."""
        known = self.committed.ragged
        for leaf in leaves(self.node):
            if leaf.layout == "strided":
                continue
            if part is not None:
                raise ValueError(
                    f"key {show(leaf.key)} is a ragged column, whose rows have no fixed places, and part= is for "
                    "writers that fill separate places; open the dataset without a part"
                )
            state = known.get(leaf.file) or saved_state(self.root, leaf)
            self.ragged[leaf.file] = RaggedWriter(self.root, leaf, state)
        if self.ragged:
            self.committed = replace(self.committed, ragged=self._ragged_states())
        return self.ragged.keys() == known.keys()

    def _ragged_states(self) -> dict[str, RaggedState]:
        """Return the states of the ragged columns with all that is written."""
        return {file: one.committed() for file, one in self.ragged.items()}

    def _describe(self, manifest: Manifest | None) -> None:
        """Read the parts of the manifest and of the ``meta.json`` files that do not depend on the number of rows."""
        self.documents: dict[str, bytes] = {}
        self.files = dict(manifest.files) if manifest is not None else {}
        self.names: dict[str, dict[str, str]] = manifest.names if manifest is not None else {}
        for node in nodes(self.node):
            path = f"{node.folder}/{META}" if node.folder else META
            document = syscalls.read_file(os.path.join(self.root, path))
            if document is None:
                continue
            if isinstance(node, Value):
                self.files.setdefault(path, Entry(len(document)))
                if node.pickle is not None:
                    self.files.setdefault(node.pickle, Entry(os.path.getsize(os.path.join(self.root, node.pickle))))
            else:
                self.documents[path] = document

    def _take_part(self, part: tuple[int, int]) -> None:
        start, stop = part
        for other in self.committed.parts:
            if (other.start, other.stop) == part:
                self.part = other
            elif start < other.stop and other.start < stop:
                raise ValueError(
                    f"part {part} overlaps the rows {other.start} to {other.stop}, which another writer began; pass "
                    "these numbers to continue them, or others"
                )
        if self.part is None:
            if start < self.committed.rows:
                raise ValueError(
                    f"part {part} starts within the {self.committed.rows} committed rows, and a part starts after "
                    "them; open the dataset without a part to overwrite rows"
                )
            self.part = Part(start, stop, start)
            self.committed = replace(self.committed, parts=(*self.committed.parts, self.part))
        for column in self.columns:
            column.grow(stop)

    def refresh(self) -> None:
        """Read the number of rows that other writers have committed."""
        if self.part is not None:
            with self.guard:
                self.committed = self._latest()

    def _latest(self) -> RowsCommitted:
        """Return the committed rows from the current manifest."""
        return ownership.rows_committed(self.root) or self.committed

    # --- rows

    def write(self, rows: Any, *, one: bool, threads: int | None = None, pbar: bool | None = None) -> int:
        """Write rows after those already written; return their number."""
        number, tensors = match_batch(self.node, self.batch_size, rows, one=one, ragged=self.committed.ragged)
        with self.guard:
            self._check_alive()
            if self.ring is not None:
                self._write_ring(tensors if not one else [tensor[None] for tensor in tensors], number, threads, pbar)
                return number
            end = self.written_rows + number
            if self.part is not None and end > self.part.stop:
                raise ValueError(
                    f"{end - self.part.stop} of the rows are beyond the part of this writer, rows {self.part.start} to "
                    f"{self.part.stop}; open another part for them"
                )
            if self.part is None:
                self._check_no_parts()
                if end > self.allocated_rows:
                    self._allocate(end)
            if self.ragged:
                tensors = self._write_ragged(tensors, threads)
            write_rows(self.columns, tensors, self.written_rows, threads, pbar)
            self.written_rows = end
            for column in self.ragged.values():
                column.end = column.written
        return number

    def _write_ring(self, tensors: list[torch.Tensor], number: int, threads: int | None, pbar: bool | None) -> None:
        """Write rows to spare slots, and commit whenever these are full."""
        assert self.ring is not None
        start, first = 0, self.written_rows
        while start < number:
            spare = self.committed_rows + self.ring.slots - self.ring.capacity - self.written_rows
            if not spare:
                self.commit()
                continue
            slot = self.written_rows % self.ring.slots
            stop = min(number, start + min(spare, self.ring.slots - slot))
            try:
                write_rows(self.columns, [tensor[start:stop] for tensor in tensors], slot, threads, pbar)
            except BaseException:
                self.written_rows = max(first, self.committed_rows)  # the part that was written must not be committed
                raise
            self.written_rows += stop - start
            start = stop

    def _write_ragged(self, tensors: list[Any], threads: int | None) -> list[torch.Tensor]:
        """Write the elements of ragged columns; return the leaves of a batch with the shapes of their rows instead.

        The elements count once the shapes are written too, so a failed write leaves nothing between those of two rows.
        """
        out = list(tensors)
        for place, leaf in enumerate(leaves(self.node)):
            writer = self.ragged.get(leaf.file)
            if writer is not None:
                writer.write(tensors[place], threads)
                out[place] = writer.shapes(tensors[place].lengths)
        return out

    def _allocate(self, rows: int) -> None:
        ahead = rows + rows // 2
        try:
            for column in self.columns:
                column.grow(ahead)
        except OSError:  # the file size is limited
            ahead = rows
        self.allocated_rows = ahead

    def commit(self) -> bool:
        """Commit the written rows; return whether there were any."""
        with self.guard:
            if self.written_rows == self.committed_rows:
                return False
            self._check_alive()
            if self.durable:
                for column in self.columns:
                    if column.fd >= 0:
                        os.fsync(column.fd)
                for ragged in self.ragged.values():
                    ragged.sync()
            with locks.locked(self.root):
                if self.ring is not None:
                    self.ring = replace(self.ring, head=self.written_rows)
                    self._publish(replace(self.committed, ring=self.ring))
                elif self.part is None:
                    shown = max(self.written_rows, self.committed.shown)
                    ragged_states = self._ragged_states()
                    self._publish(replace(self.committed, rows=self.written_rows, shown=shown, ragged=ragged_states))
                else:
                    self.part = replace(self.part, done=self.written_rows)
                    self._publish(self._latest().with_part(self.part))
            self.committed_rows = self.written_rows
            return True

    def resize(self, rows: int) -> None:
        """Set the number of committed rows; new rows are zeros."""
        if rows < 0:
            raise ValueError(f"{rows} is not a number of rows; pass 0 or more")
        with self.guard:
            self._check_alive()
            if self.ring is not None:
                raise RuntimeError("a ring keeps its size; create another dataset with another capacity")
            if self.part is not None:
                raise RuntimeError("the writer of a part cannot resize the dataset; open it without a part")
            self.commit()
            for column in self.columns:
                column.clear(self.committed_rows, rows)
                column.grow(rows)
            if self.ragged:
                self._resize_ragged(rows)
            with locks.locked(self.root):
                shown, states = max(rows, self.committed.shown), self._ragged_states()
                self._publish(RowsCommitted(rows, shown, ragged=states))
            self.committed_rows = self.written_rows = rows
            self.allocated_rows = max(self.allocated_rows, rows)

    def _resize_ragged(self, rows: int) -> None:
        """Set the ends of the ragged columns to those of a number of rows; new rows have no elements."""
        kept = min(self.committed_rows, rows)
        for column, leaf in zip(self.columns, leaves(self.node), strict=True):
            ragged = self.ragged.get(leaf.file)
            if ragged is not None:
                ragged.end = int(read_lengths(self.root, leaf, kept).sum()) * ragged.element_bytes
                if rows > kept:
                    lengths = torch.zeros(rows - kept, dtype=torch.int64, device="cpu")
                    write_rows([column], [ragged.shapes(lengths)], kept, None)

    def reserve(self, rows: int) -> None:
        """Reserve the disk space for a total number of rows."""
        with self.guard:
            self._check_alive()
            sizes = [column.size for column in self.columns]
            try:
                for column in self.columns:
                    column.reserve(rows)
            except OSError:
                for column, size in zip(self.columns, sizes, strict=True):
                    if column.fd >= 0 and column.size > size and self.part is None:
                        os.ftruncate(column.fd, size)
                        column.size = size
                raise
            self.allocated_rows = max(self.allocated_rows, rows)
            self.kept_rows = max(self.kept_rows, rows)

    # --- commits

    def _publish(self, committed: RowsCommitted) -> None:
        """Replace the manifest, then the ``meta.json`` files; the caller holds the lock of the folder."""
        if not self.lock.is_held():
            raise RuntimeError(f"{self.root} was replaced by another save since this writer opened it; open it again")
        rows = committed.rows
        documents = self._documents(rows)
        described = row_description(self.root)
        current = syscalls.read_file(os.path.join(self.root, described)) or b""
        committed = replace(committed, meta=(fingerprint(current), fingerprint(documents[described])))
        files = self.files | {path: Entry(len(document)) for path, document in documents.items()}
        held = rows if self.ring is None else self.ring.slots
        files |= {column.leaf.file: Entry(held * column.row_bytes) for column in self.columns if column.row_bytes}
        files |= {file: Entry(state.nbytes) for file, state in committed.ragged.items()}
        manifest = Manifest(files, self.names, rows_committed=committed)
        self.kept_rows = max(self.kept_rows, committed.shown)  # first: `close` cuts no rows that others may see
        replace_file(os.path.join(self.root, NAME), manifest.dumps(), durable=self.durable)
        # Meanwhile, programs that do not read manifests see more rows in nested nodes than above, never fewer.
        order = sorted(documents, key=lambda path: path.count("/"), reverse=rows >= self.committed.rows)
        for path in order:
            place = os.path.join(self.root, *path.split("/"))
            if syscalls.read_file(place) != documents[path]:
                replace_file(place, documents[path], durable=self.durable)
        self.committed = committed
        for file, state in committed.ragged.items():
            self.ragged[file].state = state

    def _documents(self, rows: int) -> dict[str, bytes]:
        return {path: resized(document, rows) for path, document in self.documents.items()}

    def _check_alive(self) -> None:
        if not self.lock.is_open():
            raise RuntimeError(
                "the writer was closed, or is a forked copy, and only the process that opened it can write; open the "
                "dataset again"
            )

    def _check_no_parts(self) -> None:
        if self.committed.parts:
            first = self.committed.parts[0]
            raise RuntimeError(
                f"rows {first.start} to {first.stop} were begun by the writer of a part, so no rows can be appended; "
                f"finish them with part=({first.start}, {first.stop}), or drop them with resize(len(dataset))"
            )

    def close(self, *, cut: bool = True) -> None:
        """Close the files and release the lock; ``cut`` first truncates space that was not reserved."""
        with self.guard:
            for column in self.columns:
                if cut and self.part is None and self.lock.is_held():
                    with contextlib.suppress(OSError):
                        column.cut(max(self.kept_rows, self.committed.shown))
                column.close()
            for ragged in self.ragged.values():
                if cut and self.lock.is_held():
                    with contextlib.suppress(OSError):
                        ragged.cut()
                ragged.close()
            self.lock.close()


def write_empty(
    node: Node,
    folder: str,
    capacity: int,
    reserve: bool,
    durable: bool,
    ragged: Mapping[str, RaggedState],
    ring: Ring | None = None,
) -> Manifest:
    """Write a dataset without rows into an empty folder."""
    entries: dict[str, Entry] = {}
    files: list[FileWrite] = []
    for one in nodes(node):
        os.makedirs(f"{folder}/{one.folder}", exist_ok=True)
        for name, document in tree.describe(one).items():
            path = f"{one.folder}/{name}" if one.folder else name
            document = resized(document, 0) if name == META else document
            entries[path] = Entry(len(document))
            files.append(FileWrite(f"{folder}/{path}", [FileRange(path, document)]))
    write_files(files, durable=durable)
    for leaf in leaves(node):
        if leaf.layout != "strided":
            for file in (leaf.file, leaf.shapes_file):
                Descriptor(os.open, f"{folder}/{file}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666).close()
                entries[file] = Entry(0)
            continue
        column = Column(folder, leaf)
        if column.row_bytes:
            column.open(0)
            try:
                if reserve:
                    column.reserve(capacity)
                else:
                    column.grow(capacity)
                if durable:
                    os.fsync(column.fd)
            finally:
                column.close()
            entries[leaf.file] = Entry(0 if ring is None else capacity * column.row_bytes)
    described = syscalls.read_file(os.path.join(folder, row_description(folder))) or b""
    return Manifest(
        entries,
        escaped_names(node),
        rows_committed=RowsCommitted(0, 0, (fingerprint(described),), ragged=dict(ragged), ring=ring),
    )
