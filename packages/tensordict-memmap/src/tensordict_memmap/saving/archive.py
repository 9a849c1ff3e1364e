"""Archives: a tree in one zip file, which any zip tool opens and whose leaves are mapped where they lie.

A save writes all payloads in one pass as any save does, then reads them back from the page cache for the checksums that
the format asks for. Compressed archives load into memory.
"""

from __future__ import annotations

import functools
import itertools
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from tensordict_memmap.engine import executor as pool
from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.future import Cancelled, Progress, run_save
from tensordict_memmap.engine.sources import FileRange, chunks, detached
from tensordict_memmap.engine.tuning import JOB_BYTES
from tensordict_memmap.engine.write_plan import FileWrite, write_files
from tensordict_memmap.formats import tree
from tensordict_memmap.formats.archive import ENDING, METHODS, Member, closing, local_header
from tensordict_memmap.formats.names import META
from tensordict_memmap.loading.archive import Archive, ArchiveOpener, bytes_of
from tensordict_memmap.saving.value_writeback import remember_file
from tensordict_memmap.schema.build import build
from tensordict_memmap.schema.dtypes import as_bytes
from tensordict_memmap.schema.node import Dense, Leaf, nodes, show
from tensordict_memmap.schema.plan import plan
from tensordict_memmap.storage import ownership, transaction
from tensordict_memmap.storage.manifest import NAME, Entry, Manifest
from tensordict_memmap.storage.rows_committed import LOCK
from tensordict_memmap.storage.snapshot import SavedFolder, read_folder
from tensordict_memmap.storage.transaction import save_file
from tensordict_memmap.tensor.mapping import Mapping
from tensordict_memmap.tensor.memmap import MemoryMappedTensor

__all__ = [
    "ArchiveSave",
    "is_archive_path",
    "is_memmap_archive",
    "pack_memmap",
    "refresh_archive_checksums",
    "unpack_memmap",
]

_Parts = list[tuple[str, list[FileRange], int]]
"""What an archive is made of: the path, the pieces and the size of each entry."""


def is_archive_path(path: str | os.PathLike[str] | None, archive: bool | None) -> bool:
    """Whether a save makes an archive: as ``archive`` says, else by the ending.

    >>> is_archive_path("x.tdz", None), is_archive_path("x", True), is_archive_path("x.tdz", False)
    (True, True, False)
    """
    if path is None:
        if archive:
            raise ValueError("an archive is a file, and there is no path; pass one")
        return False
    return archive if archive is not None else os.fspath(path).endswith(ENDING)


def is_memmap_archive(path: str | os.PathLike[str]) -> bool:
    """Whether a path is an archive with a saved tensordict in it.

    >>> _ = TensorDict({"a": torch.zeros(3)}).save("is.tdz")
    >>> is_memmap_archive("is.tdz"), is_memmap_archive("absent")
    (True, False)
    """
    try:
        if not os.path.isfile(path):  # a pipe would wait
            return False
        with open(path, "rb") as file:
            if file.read(2) != b"PK":
                return False
        with zipfile.ZipFile(path) as archive:
            return META in archive.namelist()
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return False


def pack_memmap(
    prefix: str | os.PathLike[str],
    archive_path: str | os.PathLike[str],
    *,
    compression: str | int | None = None,
    compresslevel: int | None = None,
) -> Path:
    """Puts a saved folder into one archive, which loads as the folder does.

    Args:
        prefix: the folder.
        archive_path: the archive, outside the folder. What it held before is there until all of the new one is.
        compression: ``"stored"``, ``"deflate"``, ``"bzip2"``, ``"lzma"`` or a constant of `zipfile`, for the tensors.
        compresslevel: as `zipfile` takes it.

    Raises:
        ValueError: The folder has no saved tensordict, or the archive would lie in it.

    >>> _ = TensorDict({"a": torch.arange(3)}).memmap("folder")
    >>> TensorDict.load_memmap(pack_memmap("folder", "packed.tdz"))["a"].sum()
    tensor(3)
    """
    root, target = os.path.realpath(prefix), os.path.realpath(archive_path)
    parts = read_folder(root, _parts_of)
    if os.path.commonpath([root, target]) == root:
        raise ValueError(f"an archive lies outside what it holds, and {target} is in {root}; choose another path")
    save_file(
        target, functools.partial(_write_archive, parts, _method(compression), compresslevel, None, None, None, False)
    )
    return Path(archive_path)


def _parts_of(folder: SavedFolder) -> _Parts:
    """All files of a saved folder, mapped."""
    root = folder.root
    if not os.path.isfile(os.path.join(root, META)):
        raise ValueError(f"a saved folder has a {META}, and {root} has none; give the folder that a save made")
    own = (NAME, ownership.JOURNAL, LOCK)
    manifest = folder.count(ownership.read_manifest(root))
    counted = {} if manifest is None or folder.rows is None else manifest.files  # rows of a dataset, not its files
    found: dict[str, int] = {}
    for place, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(files):
            path = os.path.join(place, name)
            if name not in own and os.path.isfile(path) and not os.path.islink(path):
                inside = os.path.relpath(path, root).replace(os.sep, "/")
                found[inside] = counted[inside].size if inside in counted else os.path.getsize(path)
    parts: _Parts = []
    for path in sorted(found, key=lambda path: path != META):
        whole = os.path.join(root, *path.split("/"))
        if os.path.basename(path) == META and (document := folder.read(path)) is not None:
            parts.append((path, [FileRange(path, document)], len(document)))
            continue
        pieces = [FileRange(path, np.memmap(whole, np.uint8, "r", shape=found[path]))] if found[path] else []
        parts.append((path, pieces, found[path]))
    return parts


def unpack_memmap(archive_path: str | os.PathLike[str], prefix: str | os.PathLike[str]) -> Path:
    """Makes a saved folder of an archive; the inverse of `pack_memmap`. Checksums are compared.

    Args:
        archive_path: the archive.
        prefix: the folder. An earlier save in it is replaced as a whole; other files in it stay.

    Raises:
        ValueError: It is no archive of a tensordict, or is damaged.

    >>> _ = TensorDict({"a": torch.arange(3)}).save("some.tdz")
    >>> TensorDict.load_memmap(unpack_memmap("some.tdz", "unpacked"))["a"].sum()
    tensor(3)
    """
    archive = Archive(os.path.abspath(archive_path))

    def write(folder: str) -> Manifest:
        for name in archive.members:
            place = os.path.join(folder, *name.split("/"))
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "xb") as out:
                for block in archive.blocks(name):
                    out.write(block)
        return Manifest({name: Entry(member.size) for name, member in archive.members.items()})

    transaction.save_folder(prefix, write, count=len(archive.members))
    return Path(prefix)


def refresh_archive_checksums(archive_path: str | os.PathLike[str]) -> Path:
    """Brings the checksums of an archive up to date after writes through a mapping, in place.

    Args:
        archive_path: the archive, whose leaves were written to with ``mode="r+"``.

    Raises:
        ValueError: It is no archive of a tensordict.

    >>> _ = TensorDict({"a": torch.arange(3)}).save("written.tdz")
    >>> _ = TensorDict.load_memmap("written.tdz", mode="r+")["a"].zero_()
    >>> zipfile.ZipFile(refresh_archive_checksums("written.tdz")).testzip() is None
    True
    """
    archive = Archive(os.path.abspath(archive_path), mode="r+")
    stored = [member for member in archive.members.values() if member.stored]
    _checksum(_slices(archive.data), stored, None)
    array = archive.mapping.array()
    for member in stored:
        crc = np.frombuffer(struct.pack("<I", member.crc), np.uint8)
        array[member.header + 14 : member.header + 18] = crc
        array[member.central + 16 : member.central + 20] = crc
    return Path(archive_path)


def _method(compression: str | int | None) -> int:
    if compression is None or compression is False:
        return zipfile.ZIP_STORED
    if isinstance(compression, str):
        if compression not in METHODS:
            raise ValueError(f"an archive is compressed by one of {', '.join(METHODS)}, not {compression!r}")
        return METHODS[compression]
    if compression not in METHODS.values() or isinstance(compression, bool):
        raise ValueError(
            f"an archive is compressed by {', '.join(METHODS)} or a constant of zipfile, not {compression!r}"
        )
    return compression


# --- writing


class ArchiveSave:
    """One save to one archive: planned when it is made, done by `run`. It has checksums, asked for or not."""

    def __init__(
        self,
        td: Any,
        path: str | os.PathLike[str],
        *,
        compression: str | int | None = None,
        threads: int | None = None,
        durable: bool = False,
        checksum: bool = True,
        copy_existing: bool = True,
        existsok: bool = True,
        like: bool = False,
        mapped: bool = True,
    ) -> None:
        self.path = os.path.abspath(path)
        self.method = _method(compression)
        self.threads, self.durable, self.existsok, self.like = threads, durable, existsok, like
        self.node = tree.name_files(plan(td), tie=False)
        self.parts: _Parts = []
        for node in nodes(self.node):
            place = node.folder + "/" if node.folder else ""
            for name, document in tree.describe(node).items():
                self.parts.append(
                    (place + name, [FileRange(place + name, document)] if document else [], len(document))
                )
            for leaf in node.entries.values() if isinstance(node, Dense) else ():
                if isinstance(leaf, Leaf):
                    self._add(leaf, copy_existing or like)
        self.total = sum(size for _, _, size in self.parts)
        self.mapped = mapped
        self.written: Archive | None = None

    def _add(self, leaf: Leaf, copy_existing: bool) -> None:
        source = leaf.source
        assert source is not None
        if isinstance(source, MemoryMappedTensor) and not copy_existing and source.handler.filename is not None:
            raise RuntimeError(
                f"an entry stays in its file, and that of key {show(leaf.key)} is {source.handler.filename}; pass "
                "copy_existing=True to copy it"
            )
        key = leaf.key[0] if len(leaf.key) == 1 else leaf.key
        if leaf.layout == "strided":
            if leaf.nbytes:
                self.parts.append((leaf.file, [] if self.like else [FileRange(key, source)], leaf.nbytes))
            return
        components = [part.detach() for part in source.unbind()]
        pieces, offset = [], 0
        for part in components:
            pieces.append(FileRange(key, part, offset))
            offset += part.numel() * part.element_size()
        if offset:
            self.parts.append((leaf.file, [] if self.like else pieces, offset))
        shapes = torch.tensor([list(part.shape) for part in components], dtype=torch.int64)
        if shapes.numel():
            self.parts.append((leaf.shapes_file, [FileRange(key, shapes)], shapes.nbytes))

    def start(self, early: bool, result: Callable[[], Any], pbar: bool = False) -> Any:
        """Saves, now or in the background, and gives the result."""
        if early:
            for piece in itertools.chain.from_iterable(pieces for _, pieces, _ in self.parts):
                piece.source = detached(piece.source)
        return run_save(self.run, result, 0 if self.like else self.total, early=early, pbar=pbar)

    def run(self, progress: Progress | None, cancelled: Cancelled | None) -> None:
        """Writes the archive and puts it in place."""

        def write(draft: str) -> None:
            _write_archive(self.parts, self.method, None, self.threads, progress, cancelled, self.durable, draft)
            if self.mapped and syscalls.POSIX:  # elsewhere what is mapped cannot be renamed
                self.written = Archive(draft, mode="r+")  # before another save can take its name

        save_file(self.path, write, durable=self.durable, existsok=self.existsok, size=self.total)

    def twin(self) -> Any:
        """A locked tensordict over the archive; writes to it make the checksums stale."""
        archive = self.written or Archive(self.path, mode="r+")
        archive.renamed(self.path)
        made = build(self.node, ArchiveOpener(archive), device=torch.device("cpu"))
        remember_file(made, Path(self.path), "r+")
        return made.lock_()


def _write_archive(
    parts: _Parts,
    method: int,
    level: int | None,
    threads: int | None,
    progress: Progress | None,
    cancelled: Cancelled | None,
    durable: bool,
    draft: str,
) -> None:
    if method != zipfile.ZIP_STORED:
        _write_compressed(parts, method, level, progress, cancelled, draft)
        if durable:
            syscalls.sync_file(draft)
        return
    members, pieces, position = [], [], 0
    for name, sources, size in parts:
        member = Member(name, size)
        position += len(local_header(member, position, align=not name.endswith((".json", ".pickle", ".pkl"))))
        for piece in sources:
            pieces.append(FileRange(piece.key, piece.source, member.offset + piece.offset, piece.dtype))
        position += size
        members.append(member)
    whole = all(sources or not size for _, sources, size in parts)  # else room is left, which should take no blocks
    write_files(
        [FileWrite(draft, pieces, position, fresh=whole)], threads=threads, progress=progress, cancelled=cancelled
    )
    with open(draft, "r+b") as file:
        if whole or not syscalls.POSIX:
            mapping = Mapping.open(draft, position, mode="r")
            _checksum(_slices(bytes_of(mapping)), members, threads)
        else:  # looking at room through a mapping takes memory on tmpfs, and a signal ends who finds none
            _checksum(lambda start, stop: os.pread(file.fileno(), stop - start, start), members, threads)
        for member in members:
            aligned = member.offset - member.header
            file.seek(member.header)
            header = local_header(member, member.header, align=not member.name.endswith((".json", ".pickle", ".pkl")))
            assert len(header) == aligned
            file.write(header)
        file.seek(position)
        file.write(closing(members, position))
        if durable:
            file.flush()
            os.fsync(file.fileno())


def _write_compressed(
    parts: _Parts,
    method: int,
    level: int | None,
    progress: Progress | None,
    cancelled: Cancelled | None,
    draft: str,
) -> None:
    key: object = None
    try:
        with zipfile.ZipFile(draft, "w") as file:
            for name, pieces, size in parts:
                key = pieces[0].key if pieces else name
                _compress(file, name, pieces, size, method, level, progress, cancelled)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} (writing {key!r})", draft) from error


def _compress(
    file: zipfile.ZipFile,
    name: str,
    pieces: Sequence[FileRange],
    size: int,
    method: int,
    level: int | None,
    progress: Progress | None,
    cancelled: Cancelled | None,
) -> None:
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_STORED if name.endswith(".json") else method
    info._compresslevel = level  # type: ignore[attr-defined]  # what ZipFile.write sets from its own argument
    with file.open(info, "w", force_zip64=size >= 1 << 31) as out:
        written = 0
        for block in _blocks(pieces):
            if cancelled is not None and cancelled():
                raise CancelledError("the save was cancelled")
            out.write(block)
            written += len(block)
            if progress is not None:
                progress(len(block))
        for start in range(written, size, JOB_BYTES):  # room that nothing is written to
            out.write(bytes(min(JOB_BYTES, size - start)))


def _blocks(pieces: Sequence[FileRange]) -> Iterator[bytes]:
    """The bytes of pieces that follow one another, a few megabytes at a time."""
    for piece in pieces:
        source = piece.source
        if isinstance(source, torch.Tensor):
            plain = source.detach()
            for part, _ in chunks(plain, plain.element_size(), JOB_BYTES):
                yield as_bytes(part.cpu().as_subclass(torch.Tensor)).numpy().tobytes()
        else:
            data = memoryview(cast(Any, source)).cast("B") if len(source) else memoryview(b"")
            for start in range(0, len(data), JOB_BYTES):
                yield bytes(data[start : start + JOB_BYTES])


def _slices(data: memoryview) -> Callable[[int, int], memoryview]:
    return lambda start, stop: data[start:stop]


def _checksum(read: Callable[[int, int], bytes | memoryview], members: Sequence[Member], threads: int | None) -> None:
    """Computes the CRC-32 of each member, on several threads, of the bytes that ``read`` gives from start to stop."""

    def one(member: Member) -> None:
        crc = 0
        for start in range(member.offset, member.offset + member.size, JOB_BYTES):
            crc = zlib.crc32(read(start, min(start + JOB_BYTES, member.offset + member.size)), crc)
        member.crc = crc

    largest_first = sorted(members, key=lambda member: -member.size)
    pool.run([[functools.partial(one, member)] for member in largest_first], threads=threads)
