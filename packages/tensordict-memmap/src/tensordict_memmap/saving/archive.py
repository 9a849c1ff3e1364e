"""Zip archives: writes a tree into one zip file, packs and unpacks saved folders.

Any zip tool opens an archive. Leaves that are stored without compression are mapped in place; compressed ones are
loaded into memory. A save writes all payloads in one pass, then reads them back from the page cache to compute the
CRC-32 that the zip format requires.
"""

from __future__ import annotations

import functools
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tensordict_memmap.engine import executor, syscalls
from tensordict_memmap.engine.sources import FileRange, detached
from tensordict_memmap.engine.tuning import JOB_BYTES
from tensordict_memmap.engine.write_plan import FileWrite
from tensordict_memmap.formats import tree
from tensordict_memmap.formats.archive import METHODS, Member, local_header
from tensordict_memmap.formats.names import META
from tensordict_memmap.loading.archive import Archive, ArchiveOpener, bytes_of
from tensordict_memmap.loading.mapped import lock_mapped
from tensordict_memmap.saving.options import SaveOptions, check_local
from tensordict_memmap.saving.tree import TreeFile, leaf_files, node_files, refuse_mapped
from tensordict_memmap.saving.writer import Run, Writer
from tensordict_memmap.schema.build import build, remember_file
from tensordict_memmap.schema.node import Dense, Leaf, nodes
from tensordict_memmap.schema.plan import check_source, plan_to_save
from tensordict_memmap.storage.manifest import NAME, Entry, Manifest
from tensordict_memmap.storage.ownership import JOURNAL, inside, read_manifest
from tensordict_memmap.storage.rows_committed import LOCK
from tensordict_memmap.storage.snapshot import SavedFolder, read_folder
from tensordict_memmap.storage.transaction import saving
from tensordict_memmap.tensor.mapping import Mapping


def is_memmap_archive(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is an archive of a tensordict.

    >>> _ = TensorDict({"a": torch.zeros(3)}).save("is.tdz")
    >>> is_memmap_archive("is.tdz"), is_memmap_archive("absent")
    (True, False)
    """
    try:
        if not os.path.isfile(path):  # opening a pipe would block
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
    """Pack a saved folder into one archive, which loads like the folder.

    Args:
        prefix: The folder.
        archive_path: The path of the archive, outside the folder. An existing file is replaced once the archive is
            complete.
        compression: ``"stored"``, ``"deflate"``, ``"bzip2"``, ``"lzma"`` or a constant of `zipfile`, for the tensors.
        compresslevel: The level, as in `zipfile.ZipFile`.

    Raises:
        ValueError: The folder holds no saved tensordict, or the path of the archive is inside it.

    >>> _ = TensorDict({"a": torch.arange(3)}).memmap("folder")
    >>> TensorDict.load_memmap(pack_memmap("folder", "packed.tdz"))["a"].sum()
    tensor(3)
    """
    check_local(archive_path)
    root, target = os.path.realpath(prefix), os.path.realpath(archive_path)
    files = read_folder(root, _files_of)
    if os.path.commonpath([root, target]) == root:
        raise ValueError(f"{target} is inside {root}, the folder to pack; choose a path outside it")
    method = _method(compression)
    with saving(target, is_folder=False) as stage:
        _write_archive(files, method, compresslevel, stage.path, Run())
    return Path(archive_path)


def _files_of(folder: SavedFolder) -> list[TreeFile]:
    """Return all files of a saved folder, mapped, ``meta.json`` first."""
    root = folder.root
    if not os.path.isfile(os.path.join(root, META)):
        raise ValueError(f"{root} has no {META}, so it is not a saved folder; pass the folder of an earlier save")
    own = (NAME, JOURNAL, LOCK)
    manifest = folder.count(read_manifest(root))
    # the files of a growing dataset may be longer than its rows
    counted = {} if manifest is None or folder.rows is None else manifest.files
    sizes: dict[str, int] = {}
    for place, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(place, name)
            if name not in own and not os.path.islink(path):
                if not os.path.isfile(path):
                    raise ValueError(f"{path} is a pipe, a device or a socket, and an archive holds files; remove it")
                relative = os.path.relpath(path, root).replace(os.sep, "/")
                sizes[relative] = counted[relative].size if relative in counted else os.path.getsize(path)
    files: list[TreeFile] = []
    for path in sorted(sizes, key=lambda path: path != META):
        source: Any = folder.read(path) if path.rpartition("/")[2] == META else None
        size = sizes[path] if source is None else len(source)
        if source is None and size:
            source = np.memmap(inside(root, path), np.uint8, "r", shape=size)
        files.append(TreeFile(path, [FileRange(path, source)] if size else [], size, path))
    return files


def unpack_memmap(archive_path: str | os.PathLike[str], prefix: str | os.PathLike[str]) -> Path:
    """Unpack an archive into a folder and verify its checksums; the inverse of `pack_memmap`.

    Args:
        archive_path: The archive.
        prefix: The folder. An existing save in it is replaced atomically; other files in it are kept.

    Raises:
        ValueError: The file is damaged, or is not an archive of a tensordict.

    >>> _ = TensorDict({"a": torch.arange(3)}).save("some.tdz")
    >>> TensorDict.load_memmap(unpack_memmap("some.tdz", "unpacked"))["a"].sum()
    tensor(3)
    """
    archive = Archive(os.path.abspath(archive_path))
    with saving(prefix, is_folder=True, count=len(archive.members)) as stage:
        for name in archive.members:
            place = inside(stage.path, name)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "xb") as out:
                for block in archive.blocks(name):
                    out.write(block)
        stage.manifest = Manifest({name: Entry(member.size) for name, member in archive.members.items()})
    return Path(prefix)


def refresh_archive_checksums(archive_path: str | os.PathLike[str]) -> Path:
    """Update the checksums of an archive in place, after writes through a mapping.

    Args:
        archive_path: The archive, loaded with ``mode="r+"`` and written to.

    Raises:
        ValueError: The file is not an archive of a tensordict.

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
    """Return the compression method as a constant of `zipfile`.

    Raises:
        ValueError: The method is unknown.
    """
    if compression is None or compression is False:
        return zipfile.ZIP_STORED
    found = METHODS.get(compression) if isinstance(compression, str) else compression
    if found is None or found not in METHODS.values() or isinstance(compression, bool):
        raise ValueError(
            f"unknown compression {compression!r}; the methods are {', '.join(METHODS)} and the constants of zipfile"
        )
    return found


# --- writing


class ArchiveWriter(Writer):
    """Saves a tensordict to one archive. The zip format has checksums, whether ``checksum`` is set or not."""

    def __init__(self, data: Any, path: str | os.PathLike[str], options: SaveOptions) -> None:
        super().__init__(data, path, options)
        self.method = _method(options.compression)
        self.schema = tree.name_files(plan_to_save(data), tie=False)
        self.files: list[TreeFile] = []
        for node in nodes(self.schema):
            self.files.extend(node_files(node))
            for leaf in node.entries.values() if isinstance(node, Dense) else ():
                if isinstance(leaf, Leaf):
                    check_source(leaf, like=options.like)
                    if not (options.copy_existing or options.like):
                        refuse_mapped(leaf, self.path)
                    self.files.extend(leaf_files(leaf, like=options.like))
        self.total = 0 if options.like else sum(file.size for file in self.files)
        self.archive: Archive | None = None

    def hold(self) -> None:
        """Detach all sources from later changes of the tensordict."""
        for file in self.files:
            for one in file.ranges:
                one.source = detached(one.source)

    def write(self, staged: str, run: Run) -> None:
        """Write the archive."""
        _write_archive(self.files, self.method, None, staged, run)

    def map(self, staged: str) -> None:
        """Map the staged archive."""
        self.archive = Archive(staged, mode="r+")

    def mapped(self) -> Any:
        """Return a locked tensordict mapped onto the archive; writes to it make the checksums stale."""
        archive = self.archive or Archive(self.path, mode="r+")
        archive.renamed(self.path)
        made = build(self.schema, ArchiveOpener(archive), device=torch.device("cpu"))
        remember_file(made, Path(self.path), "r+")
        return lock_mapped(made)


def _write_archive(files: Sequence[TreeFile], method: int, level: int | None, staged: str, run: Run) -> None:
    if method == zipfile.ZIP_STORED:
        _write_stored(files, staged, run)
    else:
        _write_compressed(files, method, level, staged, run)


def _write_stored(files: Sequence[TreeFile], staged: str, run: Run) -> None:
    members, ranges, position = [], [], 0
    for file in files:
        member = Member(file.path, file.size)
        position += len(_header(member, position))
        for one in file.ranges:
            ranges.append(FileRange(one.key, one.source, member.offset + one.offset, one.dtype))
        position += file.size
        members.append(member)
    whole = all(file.ranges or not file.size for file in files)  # False if some members are holes
    run.write_files([FileWrite(staged, ranges, position, fresh=whole)], durable=False)
    with open(staged, "r+b") as out:
        if whole or not syscalls.POSIX:
            mapping = Mapping.open(staged, position, mode="r")
            _checksum(_slices(bytes_of(mapping)), members, run.threads)
        else:  # reading a hole through a mapping allocates memory on tmpfs, and raises SIGBUS if it is full
            _checksum(lambda start, stop: os.pread(out.fileno(), stop - start, start), members, run.threads)
        for member in members:
            out.seek(member.header)
            out.write(_header(member, member.header))
        with zipfile.ZipFile(out, "w") as archive:  # which writes the directory at the end
            archive.start_dir, archive.filelist = position, [member.info() for member in members]
        if run.durable:
            out.flush()
            os.fsync(out.fileno())


def _header(member: Member, position: int) -> bytes:
    return local_header(member, position, align=not member.name.endswith((".json", ".pickle", ".pkl")))


def _write_compressed(files: Sequence[TreeFile], method: int, level: int | None, staged: str, run: Run) -> None:
    key: object = None
    try:
        with open(staged, "r+b") as opened:
            out = zipfile.ZipFile(opened, "w")
            try:
                for file in files:
                    key = file.key
                    _compress(out, file, zipfile.ZIP_STORED if file.path.endswith(".json") else method, level, run)
                out.close()
            except BaseException:
                out.fp = None  # it refuses to close amid a member, which would hide what has happened
                raise
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} (writing {key!r})", staged) from error
    if run.durable:
        syscalls.sync_file(staged)


def _compress(archive: zipfile.ZipFile, file: TreeFile, method: int, level: int | None, run: Run) -> None:
    info = zipfile.ZipInfo(file.path)
    info.compress_type = method
    info._compresslevel = level  # type: ignore[attr-defined]  # what ZipFile.write sets from its own argument
    with archive.open(info, "w", force_zip64=file.size >= 1 << 31) as out:
        written = 0
        for block in file.blocks():
            run.check_cancelled()
            out.write(block)
            written += len(block)
            run.count(len(block))
        for start in range(written, file.size, JOB_BYTES):  # a file without a source is filled with zeros
            out.write(bytes(min(JOB_BYTES, file.size - start)))


def _slices(data: memoryview) -> Callable[[int, int], memoryview]:
    return lambda start, stop: data[start:stop]


def _checksum(read: Callable[[int, int], bytes | memoryview], members: Sequence[Member], threads: int | None) -> None:
    """Compute the CRC-32 of each member on several threads; ``read`` returns the bytes from start to stop."""

    def one(member: Member) -> None:
        crc = 0
        for start in range(member.offset, member.offset + member.size, JOB_BYTES):
            crc = zlib.crc32(read(start, min(start + JOB_BYTES, member.offset + member.size)), crc)
        member.crc = crc

    largest_first = sorted(members, key=lambda member: -member.size)
    executor.run([[functools.partial(one, member)] for member in largest_first], threads=threads)
