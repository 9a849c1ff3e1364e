"""One file for a whole tensordict: safetensors files written in one pass and opened without a copy.

All addresses are known before a byte is written, so the file is reserved at once and its pieces go out in parallel,
many small tensors in one call. Opened, its tensors are plain ones over one mapping, each with a version counter and a
storage of its own, so that autograd, pickling and ``torch.save`` see a tensor and not a whole file.
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch

from tensordict_core.extension import annotate, annotation
from tensordict_memmap import commit
from tensordict_memmap import manifest as manifests
from tensordict_memmap.addresses import here, is_remote
from tensordict_memmap.checksums import DIGITS, Extent
from tensordict_memmap.collecting import uncollected
from tensordict_memmap.formats.names import META
from tensordict_memmap.formats.oldest import META_PT
from tensordict_memmap.formats.safetensors import (
    CODES,
    ENDING,
    INDEX_ENDING,
    LONGEST_HEADER,
    Slot,
    dump_header,
    load_header,
)
from tensordict_memmap.future import Cancelled, Progress, carry_out
from tensordict_memmap.manifest import Entry, Manifest
from tensordict_memmap.mapping import MODES, Mapping
from tensordict_memmap.onefile import save_file
from tensordict_memmap.packed_checksums import (
    CHECKSUMS,
    drop_packed_checksums,
    reserve_checksums,
    verify_packed,
    write_checksums,
)
from tensordict_memmap.packing import RECORD, pack
from tensordict_memmap.pruning import Choice, Part
from tensordict_memmap.settled import settled
from tensordict_memmap.sources import Piece, Run
from tensordict_memmap.transfer import FileWrite, write_files
from tensordict_memmap.unpacking import needed_at_once, unpack, wanted
from tensordict_memmap.verify import check_level

__all__ = [
    "PackedSave",
    "from_safetensors",
    "is_packed",
    "is_packed_path",
    "lies_in_its_file",
    "load_packed",
    "open_shards",
    "to_safetensors",
    "views",
]

FORMATS = ("tree", "safetensors")
SINGLE_NAME = "model" + ENDING
INDEX_NAME = "model" + INDEX_ENDING
"""What a folder with one file, or with shards, holds, by the convention of those who publish checkpoints."""


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

    Tensors go by their nested keys joined with ``.``. The structure (batch sizes, names, classes, lazy stacks,
    non-tensor values, tied weights) is a text in the file's metadata, and `from_safetensors` restores it.

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
    path = here(path)
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
    ) -> None:
        self.path = os.path.abspath(path)
        if self.path.endswith(INDEX_ENDING):
            raise ValueError(f"a save names the whole, and {path} is the index of parts; end the path with {ENDING}")
        if shard_size is not None and shard_size <= 0:
            raise ValueError(f"a shard takes at least one byte, not {shard_size}; pass a positive shard_size")
        self.threads, self.durable, self.existsok = threads, durable, existsok
        self.like, self.shard_size, self.checksum = like, shard_size, checksum
        self.pack = pack(td, copy_existing=copy_existing or like)
        self.total = sum(_size(one) for one in self.pack.tensors.values())

    def start(self, early: bool, result: Callable[[], Any], pbar: bool = False) -> Any:
        """Saves, now or in the background, and gives the result."""
        return carry_out(self.run, result, 0 if self.like else self.total, early=early, pbar=pbar)

    def run(self, progress: Progress | None, cancelled: Cancelled | None) -> None:
        """Writes the file and puts it in place."""
        if self.shard_size is None:

            def write(draft: str) -> None:
                self._write([self._file(draft, None, self.pack.metadata())], progress, cancelled)

            save_file(self.path, write, durable=self.durable, existsok=self.existsok, size=self.total)
            return
        if not self.existsok and os.path.isdir(self.path) and os.listdir(self.path):
            raise RuntimeError(f"with existsok=False a save makes a new folder, and {self.path} holds something")

        def write_shards(folder: str) -> Manifest:
            return self._write_shards(folder, progress, cancelled)

        commit.save_folder(self.path, write_shards, durable=self.durable, size=self.total)

    def _write_shards(self, folder: str, progress: Progress | None, cancelled: Cancelled | None) -> Manifest:
        assert self.shard_size is not None
        shards = split({name: _size(one) for name, one in self.pack.tensors.items()}, self.shard_size)
        names = _shard_names(len(shards))
        files = []
        for number, (name, shard) in enumerate(zip(names, shards, strict=True)):
            metadata = self.pack.metadata() if number == 0 else {"format": "pt"}
            files.append(self._file(f"{folder}/{name}", shard, metadata))
        if len(names) > 1:
            places = {one: name for name, shard in zip(names, shards, strict=True) for one in shard}
            index = orjson.dumps({"metadata": {"total_size": self.total}, "weight_map": places})
            names.append(INDEX_NAME)
            files.append(FileWrite(f"{folder}/{INDEX_NAME}", [Piece("the index", index)], len(index)))
        self._write(files, progress, cancelled)
        return Manifest({name: Entry(file.size or 0) for name, file in zip(names, files, strict=True)})

    def _file(self, path: str, names: Sequence[str] | None, metadata: dict[str, str]) -> FileWrite:
        header, pieces, apart = self.pack.layout(names)
        if self.checksum:
            runs = [piece for piece in pieces if isinstance(piece, Run)]
            for run in runs:
                run.digits = []
            metadata[CHECKSUMS] = reserve_checksums(len(apart) + sum(len(run.keys) for run in runs))
        start = dump_header(header, metadata)
        size = len(start) + max((entry["data_offsets"][1] for entry in header.values()), default=0)
        for piece in pieces:
            piece.offset += len(start)
        wanted = apart if self.checksum else []
        extents = [Extent(len(start) + offset, nbytes, fixed=True) for offset, nbytes in wanted]
        # not emptied first means cut to its size, which leaves room that takes no blocks
        all_pieces: list[Piece | Run] = [Piece("the header", start), *([] if self.like else pieces)]
        return FileWrite(path, all_pieces, size, fresh=not self.like, extents=extents)

    def _write(
        self,
        files: Sequence[FileWrite],
        progress: Progress | None,
        cancelled: Cancelled | None,
    ) -> None:
        write_files(files, threads=self.threads, durable=self.durable, progress=progress, cancelled=cancelled)
        for file in files if self.checksum else ():
            header = file.pieces[0]
            assert isinstance(header, Piece) and isinstance(header.source, bytes)
            if CHECKSUMS.encode() in header.source:
                write_checksums(os.fspath(file.path), header.source, _digits(file), durable=self.durable)

    def twin(self) -> Any:
        """A locked tensordict over the file."""
        cpu = torch.device("cpu")
        return load_packed(self.path, mode="r" if self.checksum else "r+", device=cpu, allow_pickle=True).lock_()


def _digits(file: FileWrite) -> str:
    """The digits of the checksums of the tensors of a file that was written, in its order."""
    found = [(extent.offset, extent.checksum()[-DIGITS:]) for extent in file.extents]
    found += [(piece.offset, "".join(piece.digits or ())) for piece in file.pieces if isinstance(piece, Run)]
    return "".join(digits for _, digits in sorted(found))


def _size(entry: tuple[torch.dtype, tuple[int, ...], int, Any, Any]) -> int:
    size = entry[0].itemsize
    for n in entry[1]:
        size *= n
    return size


# --- loading


def load_packed(
    path: str | os.PathLike[str],
    *,
    mode: str | None = None,
    move_to: torch.device | None = None,
    device: torch.device | None = None,
    non_blocking: bool = False,
    allow_pickle: bool | None = False,
    verify: str = "size",
    choice: Choice | None = None,
) -> Any:
    """The tensordict of a file; `from_safetensors` says what the arguments are.

    Args:
        path: the file, or the index of several.
        mode: how it is mapped; None is ``"r"``.
        move_to: where tensors are moved; ``meta`` reads the header only.
        device: the device of every node of the result.
        non_blocking: whether moves may be asynchronous.
        allow_pickle: whether values may be unpickled; None leaves them out.
        verify: how much is compared, as ``verify.py`` says.
        choice: what will be used of it: shards that hold nothing of that are not opened.
    """
    folder = path if os.path.isdir(path) else os.path.dirname(path) if str(path).endswith(INDEX_ENDING) else None
    load = functools.partial(_load, path, mode, move_to, device, non_blocking, allow_pickle, verify, choice)
    if verify != "full" and (move_to is None or move_to.type in ("cpu", "meta")):  # no byte of a tensor is read
        load = uncollected()(load)
    return load() if folder is None else settled(folder, load)


def _load(
    path: str | os.PathLike[str],
    mode: str | None,
    move_to: torch.device | None,
    device: torch.device | None,
    non_blocking: bool,
    allow_pickle: bool | None,
    verify: str,
    choice: Choice | None,
) -> Any:
    where = os.fspath(path)
    if os.path.isdir(where):
        commit.recover(where)
        index = os.path.join(where, INDEX_NAME)
        where = index if os.path.lexists(index) else os.path.join(where, SINGLE_NAME)
    mode = mode or "r"
    if mode not in MODES:
        raise ValueError(
            f"files are mapped with mode {', '.join(map(repr, MODES))}, not {mode!r}; use 'r+' to write to them"
        )
    meta = move_to is not None and move_to.type == "meta"
    opened, part = _open_files(where, mode, meta, verify, choice)
    tensors: dict[str, torch.Tensor] = {}
    metadata: dict[str, str] = {}
    for found, texts, _ in opened:
        tensors.update(found)
        metadata.update(texts)
    if part is None and choice is not None:
        part = wanted(tensors, metadata, choice, where)
    if meta and (needed := needed_at_once(metadata, where)):
        again, _ = _open_files(where, mode, False, verify, choice)
        real = {name: tensor for found, *_ in again for name, tensor in found.items()}
        tensors.update((name, real[name]) for name in needed if name in real)
    if move_to is not None and move_to.type not in ("cpu", "meta"):
        tensors = {name: tensor.to(move_to, non_blocking=non_blocking) for name, tensor in tensors.items()}
    loaded = unpack(tensors, metadata, where=where, device=device, allow_pickle=allow_pickle, part=part)
    if move_to is None or move_to.type == "cpu":
        annotate(loaded, "saved_path", Path(os.path.abspath(path)))
        annotate(loaded, "mode", mode)
        annotate(loaded, "mappings", [mapping for *_, mapping in opened])
    return loaded


def lies_in_its_file(td: Any, leaves: Sequence[torch.Tensor]) -> bool:
    """Whether tensors of a loaded tensordict still are those of its file, copies of the same values no longer are."""
    mappings = annotation(td, "mappings")
    if not mappings:
        return False
    ranges = [(one.address, one.address + one.nbytes) for one in mappings]
    return all(
        any(start <= leaf.data_ptr() and leaf.data_ptr() + leaf.nbytes <= end for start, end in ranges)
        for leaf in leaves
        if leaf.numel()
    )


def _open_files(
    where: str, mode: str, meta: bool, verify: str, choice: Choice | None
) -> tuple[list[_Opened], Part | None]:
    if not where.endswith(INDEX_ENDING):
        return [_open(where, mode, meta, verify)], None
    folder = os.path.dirname(where)
    if os.path.lexists(where) and not os.path.isfile(where):  # a pipe would wait
        raise ValueError(f"the index of a safetensors save is a regular file, and {where} is none; get it again")
    with open(where, "rb") as file:
        document = file.read()
    return open_shards(where, document, lambda name: _open(_shard(folder, name), mode, meta, verify), choice)


def _shard(folder: str, name: str) -> str:
    """The path of a shard. Folders of ours hold files; caches of published ones are made of links, manifest and all."""
    path, manifest = os.path.join(folder, name), os.path.join(folder, manifests.NAME)
    if os.path.islink(path) and os.path.lexists(manifest) and not os.path.islink(manifest):
        raise ValueError(f"shards lie inside the saved folder, and {path} is a link; put the file itself there")
    return path


_Opened = tuple[dict[str, torch.Tensor], dict[str, str], Mapping]


def _open(path: str, mode: str, meta: bool, verify: str) -> _Opened:
    if verify == "full":
        verify_packed(path)
    flags = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    fd = os.open(path, flags | (os.O_RDWR if MODES[mode] else os.O_RDONLY))
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise ValueError(f"a safetensors file is a regular file, and {path} is none; give the file itself")
        length = int.from_bytes(_read(fd, 8), "little")
        if info.st_size < 8 or length > min(LONGEST_HEADER, info.st_size - 8):
            raise ValueError(
                f"a safetensors file starts with the length of its header, and {path} has {info.st_size} bytes where "
                f"that would be {length}; it was cut off, or is no such file"
            )
        data_size = info.st_size - 8 - length
        text = _read(fd, length)
        slots, metadata = load_header(text, data_size, path)
        if MODES[mode] and CHECKSUMS in metadata:
            drop_packed_checksums(path, metadata, length.to_bytes(8, "little") + text)
        if meta:
            made = {slot.name: torch.empty(slot.shape, dtype=slot.dtype, device="meta") for slot in slots}
            return made, metadata, Mapping.nothing()
        if data_size:
            mapping = Mapping(
                fd, os.path.abspath(path), data_size, offset=8 + length, mode="r+" if MODES[mode] else "r"
            )
        else:
            mapping = Mapping.nothing(os.path.abspath(path))
    finally:
        os.close(fd)
    return views(mapping, slots), metadata, mapping


def _read(fd: int, nbytes: int) -> bytes:
    parts = []
    while nbytes and (part := os.read(fd, nbytes)):
        parts.append(part)
        nbytes -= len(part)
    return b"".join(parts)


# What NumPy has it makes with its shape at once, in half the time that torch takes for a tensor over a buffer.
_NUMPY = {
    dtype: torch.empty(0, dtype=dtype).numpy().dtype
    for dtype in CODES
    if dtype is not torch.bfloat16 and "float8" not in str(dtype)
}


def views(mapping: Mapping, slots: Sequence[Slot]) -> dict[str, torch.Tensor]:
    """The tensors of a file over its mapping; their addresses need not be aligned."""
    buffer, frombuffer, from_numpy, ndarray = mapping.buffer, torch.frombuffer, torch.from_numpy, np.ndarray
    tensors: dict[str, torch.Tensor] = {}
    current: torch.dtype | None = None
    row: Any = None  # the rest of the file as numbers of one dtype: tensors that follow one another are slices of it
    first = 0
    for name, dtype, shape, begin, end in slots:
        if dtype is not current:
            current, first = dtype, 0
            known = _NUMPY.get(dtype)
            row = None
            if known is not None:
                row = ndarray(((mapping.nbytes - begin) // dtype.itemsize,), known, buffer, begin)
        if begin == end:
            tensors[name] = torch.empty(shape, dtype=dtype)
        elif row is None:
            count = (end - begin) // dtype.itemsize
            tensors[name] = frombuffer(buffer, dtype=dtype, count=count, offset=begin).resize_(shape)
        elif len(shape) == 1:
            last = first + shape[0]
            tensors[name] = from_numpy(row[first:last])
            first = last
        else:
            last = first + (end - begin) // dtype.itemsize
            tensors[name] = from_numpy(row[first:last].reshape(shape))
            first = last
    return tensors


# --- shards


def _shard_names(count: int) -> list[str]:
    if count == 1:
        return [SINGLE_NAME]
    return [f"model-{number:05}-of-{count:05}{ENDING}" for number in range(1, count + 1)]


def split(sizes: dict[str, int], most: int) -> list[list[str]]:
    """Tensors in their order, as many in a shard as fit; one that is larger has its own.

    >>> split({"a": 3, "b": 3, "c": 9, "d": 1}, 6)
    [['a', 'b'], ['c'], ['d']]
    """
    shards: list[list[str]] = [[]]
    room = most
    for name, size in sizes.items():
        if size > room and shards[-1]:
            shards.append([])
            room = most
        shards[-1].append(name)
        room -= size
    return shards


def open_shards(
    path: str, document: bytes, open_one: Callable[[str], _Opened], choice: Choice | None = None
) -> tuple[list[_Opened], Part | None]:
    """Opens the files that an index names, or those of them that hold what is wanted.

    Args:
        path: what errors call the index.
        document: its content.
        open_one: opens the file of a name beside it.
        choice: what is wanted; None is everything.

    Returns:
        What was opened, the file with the record among it, and what is wanted of it, None where that is all.
    """
    try:
        index = orjson.loads(document)
        places: dict[str, Any] = index["weight_map"]
        files = sorted(set(places.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"the index of a safetensors save maps names to files, and {path} does not ({error}); get it again"
        ) from None
    for name in files:
        if not isinstance(name, str) or os.path.basename(name) != name or name in ("", ".", "..") or "\0" in name:
            raise ValueError(
                f"the files of {path} lie beside it, and {name!r:.200} does not; it is damaged: get it again"
            )
    opened = {name: open_one(name) for name in files[: 1 if choice is not None else None]}
    # a save of ours has its record in the first file; other tools write none
    part = wanted(places, opened[files[0]][1], choice, path) if choice is not None and files else None
    needed = set(files) if part is None else {places[name] for name in part.taken if name in places}
    opened |= {name: open_one(name) for name in files if name in needed and name not in opened}
    if part is not None and part.root is None and any(RECORD in texts for _, texts, _ in opened.values()):
        part = None
        opened |= {name: open_one(name) for name in files if name not in opened}
    for name, (tensors, _, _) in opened.items():
        wrong = [one for one in tensors if places.get(one) != name]
        if wrong:
            raise ValueError(
                f"{path} says which file holds each tensor, and that {name} holds {wrong[0]!r:.200} it does not; the "
                "files are not of one save: get all of them again"
            )
    there = {one for tensors, _, _ in opened.values() for one in tensors}
    missing = {one for one, name in places.items() if name in opened} - there
    if missing:
        raise ValueError(f"tensor {min(missing)!r:.200} of {path} is in none of its files; get all of them again")
    return [opened[name] for name in files if name in opened], part
