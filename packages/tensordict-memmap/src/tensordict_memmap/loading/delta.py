"""Deltas: opens a delta file together with the chain of its bases.

The first save of the chain is mapped copy-on-write, and the changed blocks are written into private pages, so a delta
of one percent takes one percent of the memory of the full save. Each base is identified by a checksum of its manifest,
for a folder, or of its header, for a safetensors file. Both change when the base is saved again or opened for writing.
Other changes of a base are found by ``verify="full"``.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tensordict_memmap.engine import executor, syscalls
from tensordict_memmap.engine.checksums import checksum_of
from tensordict_memmap.formats.detect import SAFETENSORS, TREE
from tensordict_memmap.formats.safetensors.delta import DELTA, DeltaRecord, DeltaTensor
from tensordict_memmap.formats.safetensors.describe import describe
from tensordict_memmap.loading.detect import format_of
from tensordict_memmap.loading.request import LoadRequest
from tensordict_memmap.loading.safetensors import Chosen, Opened, choose, map_file
from tensordict_memmap.schema.dtypes import as_bytes
from tensordict_memmap.schema.node import Leaf
from tensordict_memmap.schema.plan import plan
from tensordict_memmap.storage.header_checksums import CHECKSUMS, recorded_checksums
from tensordict_memmap.storage.manifest import NAME, Manifest
from tensordict_memmap.storage.verify import damaged
from tensordict_memmap.tensor.mapping import MODES, note_changes
from tensordict_memmap.tensor.memmap import MemoryMappedTensor

OpenTree = Callable[[str], Any]
"""Opens a saved folder copy-on-write, without unpickling values."""

_TOGETHER = 64
"""The number of tensors that one job hashes."""


@dataclass(slots=True)
class Base:
    """A save that a delta is based on, opened copy-on-write.

    Args:
        path: Its absolute path, without symbolic links.
        id: The identity of its content.
        tensors: Its tensors by their names in a safetensors file.
        checksums: The recorded checksums of tensors, by name; those without one are compared byte by byte.
        record: Its record, if it is a delta itself.
        paths: Its own path and those of its bases.
    """

    path: str
    id: str
    tensors: dict[str, torch.Tensor]
    checksums: dict[str, str]
    record: DeltaRecord | None = None
    paths: list[str] = field(default_factory=list)

    @property
    def depth(self) -> int:
        """The number of deltas up to the first save."""
        return 0 if self.record is None else self.record.depth


def resolve(
    path: str, opened: Opened, request: LoadRequest, *, open_tree: OpenTree
) -> tuple[list[Opened], Chosen | None]:
    """Open the full save that a delta describes; return its opened files and the requested part.

    Args:
        path: The delta.
        opened: Its tensors and metadata.
        request: The options of the load.
        open_tree: A function that opens a base that is a folder.

    Raises:
        FileNotFoundError: A base is missing; the error names it.
        ValueError: A base was changed, a record is damaged, or the mode is ``"r+"``.
    """
    views, metadata = opened
    if request.mode is not None and MODES[request.mode]:
        raise ValueError(
            f"{path} is a delta, and mode='r+' would write to its base; load it with mode='r', or flatten it first "
            "with convert(delta, target)"
        )
    record = DeltaRecord.loads(metadata[DELTA], path)
    chosen = choose(record.tensors, metadata, request, path) if request.is_partial else None
    wanted = None if chosen is None else chosen.taken
    tensors, _ = _whole(path, views, record, wanted, open_tree)
    if request.verify == "full":
        expected = {name: one.checksum for name, one in record.tensors.items() if name in tensors}
        found = checksums_of(tensors)
        bad = [f"tensor {name!r}" for name, checksum in expected.items() if found[name] != checksum]
        if bad:
            raise damaged(bad, f"{path} or its base")
    texts = {name: text for name, text in metadata.items() if name != DELTA}
    return [(tensors, texts)], chosen


def open_base(path: str | os.PathLike[str], *, open_tree: OpenTree) -> Base:
    """Open the save that a new delta is to be based on, all tensors of it.

    Raises:
        FileNotFoundError: There is no save.
        ValueError: The save is of another format, or has no checksums.
    """
    base = _open(os.path.realpath(path), open_tree)
    base.paths = [base.path]
    if base.record is not None:
        base.checksums = {name: one.checksum for name, one in base.record.tensors.items()}
        base.tensors, paths = _whole(base.path, base.tensors, base.record, None, open_tree)
        base.paths += paths
    return base


def read_delta(path: str | os.PathLike[str]) -> DeltaRecord | None:
    """Return the record of a delta file, whose bases are not opened; None for any other save.

    Raises:
        ValueError: The file is damaged.
    """
    try:
        is_file = stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return None
    if not is_file or format_of(path) != SAFETENSORS:
        return None
    text = map_file(os.fspath(path), "r", "size")[1].metadata.get(DELTA)
    return None if text is None else DeltaRecord.loads(text, os.fspath(path))


# --- the chain


def _whole(
    path: str, views: dict[str, torch.Tensor], record: DeltaRecord, wanted: Collection[str] | None, open_tree: OpenTree
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Return the wanted tensors of the whole of a delta, and the paths of its bases, nearest first."""
    deltas = [(path, views, record)]
    paths: list[str] = []
    while True:
        base = _open_expected(path, record, open_tree)
        paths.append(base.path)
        if base.depth != record.depth - 1:
            raise ValueError(
                f"{path} is delta {record.depth} of its chain, and its base {base.path} is number {base.depth}; one of "
                "them is damaged: restore them from another copy"
            )
        if base.record is None:
            break
        path, record = base.path, base.record
        deltas.append((path, base.tensors, record))
    tensors = base.tensors
    for place, held, one in reversed(deltas):
        tensors = {
            name: _tensor(name, about, held, tensors, place)
            for name, about in one.tensors.items()
            if wanted is None or name in wanted
        }
        note_changes(tensor for name, tensor in tensors.items() if one.tensors[name].blocks is not None)
    return tensors, paths


def _open_expected(path: str, record: DeltaRecord, open_tree: OpenTree) -> Base:
    """Open the base of a delta, and compare its identity with the recorded one."""
    place = os.path.realpath(os.path.join(os.path.dirname(os.path.realpath(path)), *record.base.split("/")))
    try:
        base = _open(place, open_tree)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            errno.ENOENT,
            f"{path} is a delta, and its base is missing ({error.strerror or error}); restore the base, or load "
            "another save",
            place,
        ) from error
    except ValueError as error:
        raise _changed(path, place, str(error)) from error
    if base.id != record.base_id:
        raise _changed(path, place, f"its identity is {base.id}, and that of the base was {record.base_id}")
    return base


def _changed(path: str, place: str, reason: str) -> ValueError:
    return ValueError(
        f"{path} is a delta, and its base {place} was changed since: {reason}; restore the base as it was, or load "
        "another save"
    )


def _tensor(
    name: str, about: DeltaTensor, held: Mapping[str, torch.Tensor], below: Mapping[str, torch.Tensor], path: str
) -> torch.Tensor:
    """Return one tensor of a whole: that of the base or of the delta, or that of the base with blocks of the delta."""
    stored = below.get(name) if about.tensor is None else held.get(about.tensor)
    if stored is None:
        place = "its base" if about.tensor is None else "the file"
        raise _broken(path, name, f"is not in {place}")
    if about.blocks is None:
        return stored
    base = below.get(name)
    blocks = about.blocks
    count = sum(stop - start for start, stop in blocks)
    if base is None or base.dtype != stored.dtype or stored.dim() != 1 or len(stored) != count:
        raise _broken(path, name, "has blocks that do not belong to the tensor of the base")
    if blocks and blocks[-1][1] > base.numel():
        raise _broken(path, name, "has blocks behind the end of the tensor of the base")
    flat = base.view(-1)  # of a private mapping: only the written pages are copied
    position = 0
    for start, stop in blocks:
        flat[start:stop] = stored[position : (position := position + stop - start)]
    return base


def _broken(path: str, name: str, what: str) -> ValueError:
    return ValueError(f"tensor {name!r:.200} of the delta {path} {what}; the file is damaged: restore it")


# --- one save of the chain


def _open(path: str, open_tree: OpenTree) -> Base:
    if not os.path.lexists(path):
        raise FileNotFoundError(errno.ENOENT, "there is no save to base a delta on; give the path of one", path)
    format = format_of(path)
    if format == TREE:
        return _open_folder(path, open_tree)
    if format == SAFETENSORS and os.path.isfile(path):
        return _open_packed(path)
    what = "shards of safetensors" if format == SAFETENSORS else f"{format} file"
    raise ValueError(
        f"{path} holds a save as {what}, and the base of a delta is a folder with a file for each leaf or one "
        "safetensors file; convert it with TensorDict.load(path).save(target, checksum=True)"
    )


def _open_packed(path: str) -> Base:
    tensors, header, start = map_file(path, "r", "size")
    checksums = recorded_checksums(header)
    if checksums is None:
        raise _unsealed(path)
    text = header.metadata.get(DELTA)
    record = None if text is None else DeltaRecord.loads(text, path)
    return Base(path, checksum_of(start), tensors, checksums, record)


def _open_folder(path: str, open_tree: OpenTree) -> Base:
    document = _read_manifest(path)
    loaded = open_tree(path)
    if _read_manifest(path) != document:
        raise ValueError(f"{path} was replaced while it was opened; try again")
    manifest = Manifest.loads(document, where=os.path.join(path, NAME))
    unsealed = [name for name, entry in manifest.files.items() if entry.checksum is None]
    if unsealed or not manifest.complete or manifest.rows_committed is not None:
        raise _unsealed(path)
    tensors: dict[str, torch.Tensor] = {}
    checksums: dict[str, str] = {}
    for leaf in describe(plan(loaded)).leaves:
        source = leaf.source
        if isinstance(source, MemoryMappedTensor) and source.handler.filename is not None and source.offset == 0:
            name = os.path.relpath(source.handler.filename, path).replace(os.sep, "/")
            entry = manifest.files.get(name)
            if entry is not None and entry.checksum is not None and entry.size == source.nbytes:
                checksums[leaf.file] = entry.checksum
        tensors[leaf.file] = contiguous_source(leaf)
    return Base(path, checksum_of(document), tensors, checksums)


def _read_manifest(path: str) -> bytes:
    document = syscalls.read_file(os.path.join(path, NAME))
    if document is None:
        raise _unsealed(path) if os.path.lexists(path) else FileNotFoundError(errno.ENOENT, "no save", path)
    return document


def _unsealed(path: str) -> ValueError:
    return ValueError(
        f"{path} has no {CHECKSUMS.removeprefix('tensordict_')} of all tensors, and the base of a delta needs them, so "
        "that changes of it are detected; save it with checksum=True and do not open it with mode='r+'"
    )


# --- bytes


def contiguous_source(leaf: Leaf) -> torch.Tensor:
    """Return the tensor of a planned leaf as its file has it: on the CPU and contiguous; a copy only if it is not."""
    if leaf.stacked is not None:
        tensor = torch.stack([part.detach() for part in leaf.stacked.parts], leaf.stacked.dim)
    else:
        assert leaf.source is not None
        tensor = leaf.source.detach()
    return tensor.as_subclass(torch.Tensor).resolve_conj().resolve_neg().cpu().contiguous()


def checksums_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the checksums of contiguous tensors, by name, computed on several threads; empty for those without bytes.

    >>> checksums_of({"a": torch.zeros(0), "b": torch.tensor([97, 98, 99], dtype=torch.uint8)})
    {'a': '', 'b': 'xxh3_64/4194304:f267cda02014e7eb'}
    """
    found = dict.fromkeys(tensors, "")
    names = [name for name, tensor in tensors.items() if tensor.numel()]

    def hash_some(part: Iterable[str]) -> None:
        for name in part:
            found[name] = checksum_of(as_bytes(tensors[name]).numpy().data)

    executor.run(
        [[functools.partial(hash_some, names[start : start + _TOGETHER])] for start in range(0, len(names), _TOGETHER)]
    )
    return found
