"""One file for a whole tensordict: safetensors files written in one pass and opened without a copy.

All addresses are known before a byte is written, so the file is reserved at once and its pieces go out in parallel,
many small tensors in one call. How it is opened is in ``packed_load.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import torch

from tensordict_core.extension import annotate, annotation
from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.checksums import DIGITS, Extent
from tensordict_memmap.engine.file_ranges import file_ranges
from tensordict_memmap.engine.future import Cancelled, Progress, run_save
from tensordict_memmap.engine.gc_paused import gc_paused
from tensordict_memmap.engine.sources import FileRange, Run, detached
from tensordict_memmap.engine.write_plan import FileWrite, write_files
from tensordict_memmap.formats.names import META
from tensordict_memmap.formats.oldest import META_PT
from tensordict_memmap.formats.safetensors.describe import describe
from tensordict_memmap.formats.safetensors.header import ENDING, INDEX_ENDING, dump_header
from tensordict_memmap.loading.safetensors import INDEX_NAME, SINGLE_NAME, load_packed
from tensordict_memmap.remote.urls import is_remote, local_path
from tensordict_memmap.schema.node import Node, Stacked, leaves, show
from tensordict_memmap.schema.plan import plan
from tensordict_memmap.storage import transaction
from tensordict_memmap.storage.header_checksums import CHECKSUMS, reserve_checksums, write_checksums
from tensordict_memmap.storage.manifest import Entry, Manifest
from tensordict_memmap.storage.transaction import save_file
from tensordict_memmap.storage.verify import check_level
from tensordict_memmap.tensor.memmap import MemoryMappedTensor

__all__ = [
    "PackedSave",
    "from_safetensors",
    "is_packed",
    "is_packed_path",
    "to_safetensors",
]

FORMATS = ("tree", "safetensors")


def is_packed_path(path: str | os.PathLike[str] | None, format: str | None = None) -> bool:
    """Whether a path stands for a safetensors file: by ``format``, else by its ending.

    Raises:
        ValueError: There is no such format, or it needs a path.

    >>> is_packed_path("model.safetensors"), is_packed_path("folder"), is_packed_path("model.safetensors", "tree")
    (True, False, False)
    """
    if format is not None and format not in FORMATS:
        raise ValueError(f"a tensordict is saved in one of the formats {', '.join(map(repr, FORMATS))}, not {format!r}")
    if path is None:
        if format is not None:
            raise ValueError(f"the format {format!r} is one of files, and there is no path; pass one")
        return False
    return format == "safetensors" if format is not None else os.fspath(path).endswith((ENDING, INDEX_ENDING))


def is_packed(path: str | os.PathLike[str]) -> bool:
    """Whether what is at a path is to be opened as safetensors: a file, or a folder with shards and no tree.

    >>> is_packed("nothing.safetensors"), is_packed("nothing")
    (True, False)
    """
    if os.path.isdir(path):
        return any(os.path.isfile(os.path.join(path, name)) for name in (INDEX_NAME, SINGLE_NAME)) and not any(
            os.path.lexists(os.path.join(path, name)) for name in (META, META_PT)
        )
    return os.path.isfile(path) or is_packed_path(path)


def to_safetensors(
    data: Any,
    path: str | os.PathLike[str],
    *,
    num_threads: int | None = None,
    durable: bool = False,
    checksum: bool = False,
    shard_size: int | None = None,
) -> None:
    """Writes a tensordict to a safetensors file, which any tool of that ecosystem opens.

    Tensors go by their nested keys joined with ``.``. What that does not tell of the structure (batch sizes, names,
    classes, lazy stacks, non-tensor values, tied weights) is in a text in the file's metadata, and `from_safetensors`
    restores it.

    Args:
        data: a tensordict, lazy stack, tensorclass or non-tensor data.
        path: the file. What it held before is there, whole, until all of the new content is.
        num_threads: threads that write; a good number for this machine if None or 0.
        durable: whether the file survives a power failure once this returns.
        checksum: whether the file's metadata records a checksum of each tensor and of the header, which
            ``verify="full"`` compares.
        shard_size: the most bytes of tensors in one file. Then ``path`` is a folder, with shards
            ``model-00001-of-00003.safetensors`` and so on, and ``model.safetensors.index.json``.

    Raises:
        TypeError: An entry cannot be stored; the error names its key.
        OSError: The system refuses (a full disk among others); the earlier file is whole.

    >>> to_safetensors(TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(3)}}, [3]), "x.safetensors")
    >>> from_safetensors("x.safetensors")["b"].batch_size
    torch.Size([3])
    """
    PackedSave(data, path, threads=num_threads, durable=durable, checksum=checksum, shard_size=shard_size).run(
        None, None
    )


def from_safetensors(
    path: str | os.PathLike[str],
    device: torch.device | str | None = None,
    *,
    mode: str = "r",
    allow_pickle: bool = False,
    verify: str = "size",
) -> Any:
    """Opens a safetensors file as a tensordict, without a copy: ours, the reference's, or any published checkpoint.

    Args:
        path: the file, or the ``.safetensors.index.json`` of several; `load_memmap` opens addresses. Without a
            structure in it, names are split on ``.``.
        device: where tensors are moved; None leaves them mapped, and the result without a device.
        mode: ``"r"`` keeps writes to tensors in this process, ``"r+"`` writes them to the file, whose checksums of
            tensors are dropped first.
        allow_pickle: whether values without a JSON form may be unpickled, which can run any code that is in them.
        verify: ``"full"`` reads the file and compares the checksums that ``checksum=True`` recorded; otherwise header
            and size are compared.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged, or no safetensors file, or an address.

    >>> to_safetensors(TensorDict({"layer": {"weight": torch.ones(2, 2)}}), "model.safetensors")
    >>> from_safetensors("model.safetensors")["layer", "weight"].shape
    torch.Size([2, 2])
    """
    path = local_path(path)
    if is_remote(path):
        raise ValueError(
            f"from_safetensors maps files of this machine, and {path!r} is an address; open it with load_memmap"
        )
    target = None if device is None else torch.device(device)
    check_level(verify)
    return load_packed(path, mode=mode, move_to=target, device=target, allow_pickle=allow_pickle, verify=verify)


# --- saving


class PackedSave:
    """One save to one file: planned when it is made, done by `run`.

    Args:
        td: what to save.
        path: the file.
        threads: as `to_safetensors` takes it, and so are the others.
        like: whether only room is made, of zeros.
        mapped: whether `twin` will be asked for.
    """

    def __init__(
        self,
        td: Any,
        path: str | os.PathLike[str],
        *,
        threads: int | None = None,
        durable: bool = False,
        checksum: bool = False,
        copy_existing: bool = True,
        existsok: bool = True,
        like: bool = False,
        shard_size: int | None = None,
        mapped: bool = False,
    ) -> None:
        self.path = os.path.abspath(path)
        if self.path.endswith(INDEX_ENDING):
            raise ValueError(f"a save names the whole, and {path} is the index of parts; end the path with {ENDING}")
        if shard_size is not None and shard_size <= 0:
            raise ValueError(f"a shard takes at least one byte, not {shard_size}; pass a positive shard_size")
        self.threads, self.durable, self.existsok = threads, durable, existsok
        self.like, self.shard_size, self.checksum = like, shard_size, checksum
        with gc_paused():
            root = plan(td)
            if not (copy_existing or like):
                _check_mapped(root)
            self.pack = describe(root)
        self.sizes = [form.nbytes for form in self.pack.forms]
        self.total = sum(self.sizes)
        self.mapped = mapped
        self.written: Any = None

    def start(self, early: bool, result: Callable[[], Any], pbar: bool = False) -> Any:
        """Saves, now or in the background, and gives the result."""
        if early:
            for leaf in self.pack.leaves:
                if leaf.stacked is not None:
                    leaf.stacked = Stacked(list(map(detached, leaf.stacked.parts)), leaf.stacked.dim)
                else:
                    leaf.source = detached(leaf.source)
        return run_save(self.run, result, 0 if self.like else self.total, early=early, pbar=pbar)

    def run(self, progress: Progress | None, cancelled: Cancelled | None) -> None:
        """Writes the file and puts it in place."""
        if self.shard_size is None:

            def write(draft: str) -> None:
                self._write([self._file(draft, None)], progress, cancelled)
                if self.mapped and syscalls.POSIX:  # elsewhere what is mapped cannot be renamed
                    self.written = self._open(draft)  # before another save can take its name

            save_file(self.path, write, durable=self.durable, existsok=self.existsok, size=self.total)
            return
        if not self.existsok and os.path.isdir(self.path) and os.listdir(self.path):
            raise RuntimeError(f"with existsok=False a save makes a new folder, and {self.path} holds something")

        def write_shards(folder: str) -> Manifest:
            return self._write_shards(folder, progress, cancelled)

        transaction.save_folder(self.path, write_shards, durable=self.durable, size=self.total)

    def _write_shards(self, folder: str, progress: Progress | None, cancelled: Cancelled | None) -> Manifest:
        assert self.shard_size is not None
        shards = split(self.sizes, self.shard_size)
        names = _shard_names(len(shards))
        files = []
        for number, (name, shard) in enumerate(zip(names, shards, strict=True)):
            files.append(self._file(f"{folder}/{name}", shard, first=number == 0))
        if len(names) > 1:
            tensors = [leaf.file for leaf in self.pack.leaves]
            places = {tensors[one]: name for name, shard in zip(names, shards, strict=True) for one in shard}
            index = orjson.dumps({"metadata": {"total_size": self.total}, "weight_map": places})
            names.append(INDEX_NAME)
            files.append(FileWrite(f"{folder}/{INDEX_NAME}", [FileRange("the index", index)], len(index)))
        self._write(files, progress, cancelled)
        return Manifest({name: Entry(file.size or 0) for name, file in zip(names, files, strict=True)})

    def _file(self, path: str, part: range | None, *, first: bool = True) -> FileWrite:
        """One file: of all tensors, or of a part of them; the first says what the structure is."""
        with gc_paused():
            rows, forms, ends, addresses = self.pack.layout(part)
            names, sizes = [leaf.file for leaf in rows], [form.nbytes for form in forms]
            keys, sources = (
                [leaf.key for leaf in rows],
                [leaf.source if leaf.stacked is None else leaf.stacked for leaf in rows],
            )
            pieces, alone = file_ranges(keys, sources, addresses, [0, *ends[:-1]], sizes)
            metadata = self.pack.metadata(names if part is None else None) if first else {"format": "pt"}
            if self.checksum:
                runs = [piece for piece in pieces if isinstance(piece, Run)]
                for run in runs:
                    run.digits = []
                metadata[CHECKSUMS] = reserve_checksums(len(alone) + sum(len(run.keys) for run in runs))
            start = dump_header(names, forms, ends, metadata)
        for piece in pieces:
            piece.offset += len(start)
        wanted = alone if self.checksum else []
        extents = [Extent(len(start) + offset, nbytes) for offset, nbytes in wanted]
        # not emptied first means cut to its size, which leaves room that takes no blocks
        all_pieces: list[FileRange | Run] = [FileRange("the header", start), *([] if self.like else pieces)]
        return FileWrite(path, all_pieces, len(start) + (ends[-1] if ends else 0), fresh=not self.like, extents=extents)

    def _write(
        self,
        files: Sequence[FileWrite],
        progress: Progress | None,
        cancelled: Cancelled | None,
    ) -> None:
        write_files(files, threads=self.threads, durable=self.durable, progress=progress, cancelled=cancelled)
        for file in files if self.checksum else ():
            header = file.ranges[0]
            assert isinstance(header, FileRange) and isinstance(header.source, bytes)
            if CHECKSUMS.encode() in header.source:
                write_checksums(os.fspath(file.path), header.source, _digits(file), durable=self.durable)

    def twin(self) -> Any:
        """A locked tensordict over the file."""
        if self.written is None:
            return self._open(self.path).lock_()
        annotate(self.written, "saved_path", Path(self.path))
        for mapping in annotation(self.written, "mappings"):
            mapping.filename = self.path
        return self.written.lock_()

    def _open(self, path: str) -> Any:
        cpu = torch.device("cpu")
        return load_packed(path, mode="r" if self.checksum else "r+", device=cpu, allow_pickle=True, locked=True)


def _check_mapped(root: Node) -> None:
    for leaf in leaves(root):
        source = leaf.source
        if isinstance(source, MemoryMappedTensor) and source.handler.filename is not None:
            raise RuntimeError(
                f"key {show(leaf.key)} is mapped onto {source.handler.filename}, and a mapped entry stays in its file; "
                "pass copy_existing=True to copy it"
            )


def _digits(file: FileWrite) -> str:
    """The digits of the checksums of the tensors of a file that was written, in its order."""
    found = [(extent.offset, extent.checksum()[-DIGITS:]) for extent in file.extents]
    found += [(piece.offset, "".join(piece.digits or ())) for piece in file.ranges if isinstance(piece, Run)]
    return "".join(digits for _, digits in sorted(found))


# --- shards


def _shard_names(count: int) -> list[str]:
    if count == 1:
        return [SINGLE_NAME]
    return [f"model-{number:05}-of-{count:05}{ENDING}" for number in range(1, count + 1)]


def split(sizes: Sequence[int], most: int) -> list[range]:
    """Numbers of tensors in their order, as many in a shard as fit; one that is larger has its own.

    >>> split([3, 3, 9, 1], 6)
    [range(0, 2), range(2, 3), range(3, 4)]
    """
    shards = []
    first, room = 0, most
    for number, size in enumerate(sizes):
        if size > room and number > first:
            shards.append(range(first, number))
            first, room = number, most
        room -= size
    return [*shards, range(first, len(sizes))]
