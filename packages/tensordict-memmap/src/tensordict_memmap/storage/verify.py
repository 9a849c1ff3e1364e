"""Verification of file sizes and checksums when a save is loaded.

``verify="size"`` compares each file with the size that its ``meta.json`` implies, at no cost, since the load opens
every file anyway. ``"full"`` reads all loaded files and compares them with the checksums that ``checksum=True``
recorded. ``"none"`` only requires that no file is shorter than its tensor, as a mapping of it must not be.

A save with checksums is sealed: its leaves are mapped copy-on-write by default. ``mode="r+"`` first drops the checksums
of the leaves that are opened for writing and syncs the manifest to disk, so that no checksum is ever stale.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tensordict_memmap.engine import executor, syscalls
from tensordict_memmap.engine.checksums import BLOCK, Extent, read_checksum
from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.formats.names import META
from tensordict_memmap.schema.node import Leaf, Node, Value, leaves, listed, nodes, subject
from tensordict_memmap.storage import transaction
from tensordict_memmap.storage.manifest import Manifest

LEVELS = ("none", "size", "full")
"""The levels of verification, from least to most thorough."""


def check_level(verify: str) -> None:
    """Refuse an unknown level of verification.

    Raises:
        ValueError: The level is unknown.

    >>> check_level("full")
    """
    if verify not in LEVELS:
        raise ValueError(f"unknown verify={verify!r}; the levels are {', '.join(map(repr, LEVELS))}")


def leaf_files(node: Node, only: tuple[str, ...] = ()) -> dict[str, Leaf]:
    """Return the leaves at or below a nested key, by the paths of their files."""
    found: dict[str, Leaf] = {}
    for leaf in leaves(node):
        if leaf.key[: len(only)] == only:
            found[leaf.file] = leaf
            if leaf.layout != "strided":
                found[leaf.shapes_file] = leaf
    return found


def open_sealed(root: str, manifest: Manifest, leaves: dict[str, Leaf], mode: str | None) -> str | None:
    """Return the mode for mapping leaves; for ``"r+"`` drops their checksums first.

    Args:
        root: The loaded folder.
        manifest: Its manifest.
        leaves: The leaves to map, by the paths of their files.
        mode: The mode that the caller requests.
    """
    sealed = [path for path in leaves if (entry := manifest.files.get(path)) and entry.checksum is not None]
    if sealed and mode == "r+":
        transaction.drop_checksums(root, sealed)
    return "r" if sealed and mode is None else mode


def verify_tree(node: Node, root: str, manifest: Manifest | None, only: tuple[str, ...] = ()) -> None:
    """Verify the checksums of all files of the leaves and nodes at or below a nested key.

    Raises:
        ValueError: A checksum differs or is missing; the error names the keys.
        FileNotFoundError: A file is missing.
    """
    named: dict[str, str] = {}
    for one in nodes(node):
        on_the_way = one.key == only[: len(one.key)] or one.key[: len(only)] == only
        if on_the_way:
            place = one.folder + "/" if one.folder else ""
            named[f"{place}{META}"] = f"the description of {subject(one.key)}"
            if isinstance(one, Value) and one.pickle is not None:
                named[one.pickle] = subject(one.key)
    for path, leaf in leaf_files(node, only).items():
        if leaf.nbytes or leaf.layout != "strided":
            named[path] = subject(leaf.key)
    checks: list[Range] = []
    missing = []
    for path, name in named.items():
        entry = None if manifest is None else manifest.files.get(path)
        if entry is None and not os.path.lexists(f"{root}/{path}"):
            continue  # a part without content has no file
        if entry is None or entry.checksum is None:
            missing.append(name)
        elif _size(f"{root}/{path}", name) != entry.size:
            raise damaged([name], root)  # before reading the number of bytes that an untrusted manifest lists
        else:
            checks.append(Range(name, f"{root}/{path}", 0, entry.size, entry.checksum, entry.size))
    if missing:
        raise without_checksum(missing, root)
    verify_ranges(checks, root)


@dataclass(slots=True)
class Range:
    """A range of a file and its recorded checksum.

    Args:
        name: Its name in errors.
        file: The path, or the descriptor of an open file.
        offset: The offset of its first byte.
        nbytes: Its length in bytes.
        checksum: Its recorded checksum.
        size: The size of the whole file in bytes, if known.
    """

    name: str
    file: str | int
    offset: int
    nbytes: int
    checksum: str
    size: int | None = None


_Blocks = list[tuple[Range, Extent, int, int]]


def verify_ranges(ranges: Iterable[Range], where: str) -> None:
    """Read ranges of files on several threads and compare them with their checksums.

    Raises:
        ValueError: A checksum differs; the error names the ranges.
    """
    bad: dict[str, None] = {}
    extents = []
    jobs: list[_Blocks] = []
    left = 0
    for one in ranges:
        block = read_checksum(one.checksum)
        if block is None:
            bad[one.name] = None
            continue
        extent = Extent(one.offset, one.nbytes, block)
        extents.append((one, extent))
        for start, nbytes in extent.missing():
            if not jobs or jobs[-1][0][0].file != one.file or nbytes > left:
                jobs.append([])
                left = BLOCK
            jobs[-1].append((one, extent, start, nbytes))
            left -= nbytes
    failed: list[Range] = []
    executor.run([[functools.partial(_hash_blocks, job, failed)] for job in jobs])
    bad.update((one.name, None) for one in failed)
    bad.update((one.name, None) for one, extent in extents if extent.checksum() != one.checksum)
    if bad:
        raise damaged(list(bad), where)


def _hash_blocks(job: _Blocks, failed: list[Range]) -> None:
    first = job[0][0]
    file = _open(first)
    if file is None:
        failed.extend(one for one, *_ in job)
        return
    with file:
        for _, extent, start, nbytes in job:
            extent.read_back(file.fileno(), start, nbytes)


def _open(one: Range) -> Descriptor | None:
    """Open the file of a range; return None if it is not a regular file or has another size."""
    if isinstance(one.file, int):
        return Descriptor(os.dup, one.file)
    try:
        file = Descriptor(os.open, one.file, os.O_RDONLY | syscalls.NO_LINK | syscalls.NO_WAIT | syscalls.BINARY)
    except OSError:
        return None
    info = os.fstat(file.fileno())
    if stat.S_ISREG(info.st_mode) and one.size in (None, info.st_size) and one.offset + one.nbytes <= info.st_size:
        return file
    return None


def without_checksum(names: Sequence[str], where: str) -> ValueError:
    """Return the error for files without checksums."""
    return ValueError(
        f"{where} has no checksum of {listed(names)}, and verify='full' requires one: it was saved without checksums, "
        "or opened with mode='r+'; save it with checksum=True, or load it with verify='size'"
    )


def damaged(names: Sequence[str], where: str) -> ValueError:
    """Return the error for files that differ from their checksums."""
    return ValueError(
        f"checksum mismatch in {where} of {listed(names)}; restore {'it' if len(names) == 1 else 'them'} from another "
        "copy, or load with verify='size' to read the damaged content"
    )


def _size(path: str, name: str) -> int:
    try:
        return os.lstat(path).st_size
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            errno.ENOENT, f"the file of {name} is missing, and every leaf and node requires one; restore it", path
        ) from None
