"""Writer of safetensors files: a whole tensordict in one file or in shards, written in one pass.

All addresses are known before a byte is written, so the file is reserved at once and its ranges are written in
parallel, many small tensors in one call.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from tensordict_core.extension import annotate
from tensordict_memmap.engine.checksums import DIGITS, Extent
from tensordict_memmap.engine.file_ranges import file_ranges
from tensordict_memmap.engine.sources import FileRange, batches, detached
from tensordict_memmap.engine.sources import Run as SourceRun
from tensordict_memmap.engine.write_plan import FileWrite
from tensordict_memmap.formats.detect import SAFETENSORS
from tensordict_memmap.formats.safetensors.describe import Pack, describe
from tensordict_memmap.formats.safetensors.header import (
    ENDING,
    INDEX_ENDING,
    INDEX_NAME,
    SAVE_ID,
    SINGLE_NAME,
    dump_header,
)
from tensordict_memmap.formats.safetensors.plain import PlainPack, describe_plain
from tensordict_memmap.loading.mapped import lock_mapped
from tensordict_memmap.loading.request import LoadRequest
from tensordict_memmap.loading.safetensors import load_packed
from tensordict_memmap.saving.options import SaveOptions, check_local
from tensordict_memmap.saving.tree import refuse_mapped
from tensordict_memmap.saving.writer import Run, Writer, carry_out
from tensordict_memmap.schema.node import Stacked, leaves
from tensordict_memmap.schema.plan import plan_to_save
from tensordict_memmap.storage.header_checksums import CHECKSUMS, reserve_checksums, write_checksums
from tensordict_memmap.storage.manifest import Entry, Manifest


def to_safetensors(
    data: Any,
    path: str | os.PathLike[str],
    *,
    num_threads: int | None = None,
    durable: bool = False,
    checksum: bool = False,
    shard_size: int | None = None,
) -> None:
    """Write a tensordict to a safetensors file, which any safetensors tool can open.

    Tensors are named by their nested keys joined with ``.``. The rest of the structure (batch sizes, names, classes,
    lazy stacks, non-tensor values, tied weights) is in the file's metadata, and `from_safetensors` restores it.

    Args:
        data: A tensordict, lazy stack, tensorclass or non-tensor data.
        path: The file. An existing file is replaced when the new one is complete.
        num_threads: The number of writer threads; chosen for the machine if None or 0.
        durable: Whether to sync the file to disk before the call returns.
        checksum: Whether the file's metadata records a checksum of each tensor and of the header, which
            ``verify="full"`` compares.
        shard_size: The maximum size in bytes of the tensors in one file. ``path`` is then a folder with shards
            ``model-00001-of-00003.safetensors``, ..., and ``model.safetensors.index.json``.

    Raises:
        TypeError: An entry cannot be stored; the error names its key.
        OSError: Writing fails, for example because the disk is full; an existing file is unchanged.

    >>> to_safetensors(TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(3)}}, [3]), "x.safetensors")
    >>> from tensordict_memmap import from_safetensors
    >>> from_safetensors("x.safetensors")["b"].batch_size
    torch.Size([3])
    """
    options = SaveOptions(
        num_threads=num_threads,
        durable=durable,
        checksum=checksum,
        shard_size=shard_size,
        format=SAFETENSORS,
        mapped=False,
    )
    check_local(path)
    carry_out(lambda: SafetensorsWriter(data, path, options), lambda writer: None)


class SafetensorsWriter(Writer):
    """The plan of a save to one safetensors file, or with ``shard_size`` to a folder of several."""

    def __init__(self, data: Any, path: str | os.PathLike[str], options: SaveOptions) -> None:
        super().__init__(data, path, options)
        if self.path.endswith(INDEX_ENDING):
            raise ValueError(f"{path} is the index of shards, and a save names the whole; end the path with {ENDING}")
        self.is_folder = options.shard_size is not None
        self.pack = (None if self.is_folder else describe_plain(data)) or self._described()
        self.sizes = [form.nbytes for form in self.pack.forms]
        self.total = 0 if options.like else sum(self.sizes)
        self.opened: Any = None
        self.save_id: str | None = None

    def _described(self) -> Pack:
        schema = plan_to_save(self.data)
        if not (self.options.copy_existing or self.options.like):
            for leaf in leaves(schema):
                refuse_mapped(leaf, self.path)
        return describe(schema)

    def hold(self) -> None:
        """Keep the memory of all tensors as it is now."""
        if isinstance(self.pack, PlainPack):
            self.pack.sources = list(map(detached, self.pack.sources))
            return
        for leaf in self.pack.leaves:
            if leaf.stacked is not None:
                leaf.stacked = Stacked(list(map(detached, leaf.stacked.parts)), leaf.stacked.dim)
            else:
                leaf.source = detached(leaf.source)

    def write(self, staged: str, run: Run) -> Manifest | None:
        """Write the file, or all shards."""
        if not self.is_folder:
            self._write([self._file(staged, None)], run)
            return None
        return self._write_shards(staged, run)

    def _write_shards(self, folder: str, run: Run) -> Manifest:
        assert self.options.shard_size is not None
        shards = split(self.sizes, self.options.shard_size)
        names = shard_names(len(shards))
        self.save_id = secrets.token_hex(16)
        files = []
        for number, (name, shard) in enumerate(zip(names, shards, strict=True)):
            files.append(self._file(f"{folder}/{name}", shard, first=number == 0))
        if len(names) > 1:
            assert isinstance(self.pack, Pack)
            index = shard_index([leaf.file for leaf in self.pack.leaves], names, shards, self.total, self.save_id)
            names.append(INDEX_NAME)
            files.append(FileWrite(f"{folder}/{INDEX_NAME}", [FileRange("the index", index)], len(index)))
        self._write(files, run)
        return Manifest({name: Entry(file.size or 0) for name, file in zip(names, files, strict=True)})

    def _file(self, path: str, part: range | None, *, first: bool = True) -> FileWrite:
        """Return one file of all tensors, or of some; the first holds the structure."""
        names, keys, sources, forms, ends, addresses = self.pack.layout(part)
        sizes = [form.nbytes for form in forms]
        ranges, alone = file_ranges(keys, sources, addresses, [0, *ends[:-1]], sizes)
        metadata = self.pack.metadata(names if part is None else None) if first else {"format": "pt"}
        if self.save_id is not None:
            metadata[SAVE_ID] = self.save_id
        if self.options.checksum:
            runs = [one for one in ranges if isinstance(one, SourceRun)]
            for run in runs:
                run.digits = []
            metadata[CHECKSUMS] = reserve_checksums(len(alone) + sum(len(run.keys) for run in runs))
        start = dump_header(names, forms, ends, metadata)
        for one in ranges:
            one.offset += len(start)
        wanted = alone if self.options.checksum else []
        extents = [Extent(len(start) + offset, nbytes) for offset, nbytes in wanted]
        # a file that is not fresh is truncated to its size, and holes take no blocks
        like, size = self.options.like, len(start) + (ends[-1] if ends else 0)
        content: list[FileRange | SourceRun] = [FileRange("the header", start), *([] if like else ranges)]
        return FileWrite(path, content, size, fresh=not like, extents=extents)

    def _write(self, files: Sequence[FileWrite], run: Run) -> None:
        run.write_files(files)
        for file in files if self.options.checksum else ():
            header = file.ranges[0]
            assert isinstance(header, FileRange) and isinstance(header.source, bytes)
            if CHECKSUMS.encode() in header.source:
                write_checksums(os.fspath(file.path), header.source, _digits(file), durable=run.durable)

    def map(self, staged: str) -> None:
        """Map the staged file; shards are mapped when they are in place."""
        if not self.is_folder:
            self.opened = self._open(staged)

    def mapped(self) -> Any:
        """Return a locked tensordict over the file."""
        if self.opened is None:
            return lock_mapped(self._open(self.path))
        annotate(self.opened, "saved_path", Path(self.path))
        return lock_mapped(self.opened)

    def _open(self, path: str) -> Any:
        mode = "r" if self.options.checksum else "r+"
        return load_packed(path, LoadRequest(mode=mode, allow_pickle=True, locked=True))


def _digits(file: FileWrite) -> str:
    """Return the digits of the checksums of the tensors in a written file, in their order."""
    found = [(extent.offset, extent.checksum()[-DIGITS:]) for extent in file.extents]
    found += [(one.offset, "".join(one.digits or ())) for one in file.ranges if isinstance(one, SourceRun)]
    return "".join(digits for _, digits in sorted(found))


# --- shards


def shard_names(count: int) -> list[str]:
    """Return the names of the files of a sharded save.

    >>> shard_names(1), shard_names(2)[1]
    (['model.safetensors'], 'model-00002-of-00002.safetensors')
    """
    if count == 1:
        return [SINGLE_NAME]
    return [f"model-{number:05}-of-{count:05}{ENDING}" for number in range(1, count + 1)]


def shard_index(
    tensors: Sequence[str], files: Sequence[str], shards: Sequence[range], nbytes: int, save_id: str
) -> bytes:
    """Return the index of the files of a sharded save.

    Args:
        tensors: The names of the tensors.
        files: The names of the files.
        shards: The numbers of the tensors in each of them.
        nbytes: The bytes of all tensors.
        save_id: The id of the save.

    >>> shard_index(["a", "b"], shard_names(2), [range(1), range(1, 2)], 12, "0123")[:60]
    b'{"metadata":{"total_size":12,"tensordict_save_id":"0123"},"w'
    """
    places = {tensors[number]: file for file, shard in zip(files, shards, strict=True) for number in shard}
    return orjson.dumps({"metadata": {"total_size": nbytes, SAVE_ID: save_id}, "weight_map": places})


def split(sizes: Sequence[int], most: int) -> list[range]:
    """Return ranges of tensors by number, as many in a shard as fit; a larger one has a shard of its own.

    >>> split([3, 3, 9, 1], 6)
    [range(0, 2), range(2, 3), range(3, 4)]
    """
    shards = batches(range(len(sizes)), sizes.__getitem__, most_bytes=most)
    return [range(shard[0], shard[-1] + 1) for shard in shards] or [range(0)]
