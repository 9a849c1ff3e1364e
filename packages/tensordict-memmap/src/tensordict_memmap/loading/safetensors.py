"""Loads of safetensors files: one mapping for each file, and plain tensors over it.

Each tensor has its own version counter and storage, so that autograd, pickling and ``torch.save`` handle a tensor and
not the whole file. A folder of shards is opened through its index; the files that an index names are in its folder.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import pickle
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import torch

from tensordict_core.extension import Meta, annotate, gc_paused
from tensordict_memmap.engine import syscalls
from tensordict_memmap.formats.safetensors.delta import DELTA
from tensordict_memmap.formats.safetensors.describe import RECORD
from tensordict_memmap.formats.safetensors.dotted_names import DIGEST, by_names, digest, size_of_all
from tensordict_memmap.formats.safetensors.header import (
    INDEX_ENDING,
    INDEX_NAME,
    SAVE_ID,
    SINGLE_NAME,
    Header,
    Kind,
    header_length,
    load_header,
)
from tensordict_memmap.formats.safetensors.parse import bind, parse, schema_of, tensors_of
from tensordict_memmap.loading.request import LoadRequest
from tensordict_memmap.loading.unpickle import unpickle
from tensordict_memmap.schema.build import build_part, remember_file
from tensordict_memmap.schema.dtypes import NUMPY, NUMPY_DIMS
from tensordict_memmap.schema.node import WRAPPED, Node, Value
from tensordict_memmap.schema.select import Part
from tensordict_memmap.storage import transaction
from tensordict_memmap.storage.header_checksums import CHECKSUMS, drop_packed_checksums, verify_packed
from tensordict_memmap.storage.manifest import NAME
from tensordict_memmap.storage.snapshot import unreplaced
from tensordict_memmap.tensor.mapping import MODES
from tensordict_memmap.tensor.mapping import Mapping as FileMapping
from tensordict_memmap.tensor.mapping import open_file as open_mapped
from tensordict_memmap.tensor.storage import keep_mapped

Opened = tuple[dict[str, torch.Tensor], dict[str, str]]
"""The tensors and the metadata of a file."""


class Chosen(NamedTuple):
    """The requested part of a save, the names of its tensors, and those of all tensors of the save."""

    part: Part
    taken: set[str]
    names: Collection[str]


Resolve = Callable[[str, Opened, LoadRequest], tuple[list[Opened], Chosen | None]]
"""Opens the full save that a delta describes, from the path, the opened file and the options."""


def load_packed(path: str | os.PathLike[str], request: LoadRequest, resolve: Resolve | None = None) -> Any:
    """Open a safetensors file, or a folder or an index of several.

    Args:
        path: The file, the folder or the index.
        request: The options. The caller applies its rows.
        resolve: A function that opens the base of a delta; without it, deltas are refused.
    """
    folder = path if os.path.isdir(path) else os.path.dirname(path) if str(path).endswith(INDEX_ENDING) else None

    def load() -> Any:
        with gc_paused(request.verify != "full" and not request.moves):
            return _load(path, folder is not None and folder is path, request, resolve)

    return load() if folder is None else unreplaced(folder, load)


def _load(path: str | os.PathLike[str], inside: bool, request: LoadRequest, resolve: Resolve | None) -> Any:
    where, mode = os.fspath(path), request.mode or "r"
    if inside:
        transaction.recover(where)
        index = os.path.join(where, INDEX_NAME)
        where = index if os.path.lexists(index) else os.path.join(where, SINGLE_NAME)
    opened, chosen = _open_files(where, mode, request)
    if resolve is not None and len(opened) == 1 and DELTA in opened[0][1]:
        opened, chosen = resolve(where, opened[0], request)
    loaded = assembled(opened, chosen, where, request)
    if not (request.moves or request.is_meta or isinstance(loaded, torch.Tensor)):
        remember_file(loaded, None if request.only else Path(os.path.abspath(path)), mode)
        annotate(loaded, "metadata", opened[0][1] if opened else {})
    return loaded


def assembled(
    opened: Sequence[Opened],
    chosen: Chosen | None,
    where: str,
    request: LoadRequest,
    read: Callable[[Iterable[torch.Tensor]], None] | None = None,
) -> Any:
    """Return the requested tensordict or tensor of opened files.

    Args:
        opened: The tensors and the metadata of each file.
        chosen: The requested part of them, if it is already known.
        where: Their path, which errors name.
        request: The options.
        read: A function that reads the bytes of tensors of remote files.
    """
    tensors, metadata = _united(opened, where)
    if chosen is None and request.is_partial:
        chosen = choose(tensors, metadata, request, where)
    if chosen is not None:
        tensors = {name: tensor for name, tensor in tensors.items() if name in chosen.taken}
    schema = _schema(tensors, metadata, chosen, where)
    if isinstance(schema, torch.Size) or not (request.is_meta or read is not None):
        at_once = set[str]()
    else:
        at_once = tensors_of(schema, at_once=True)
    if read is not None:
        read(tensor for name, tensor in tensors.items() if name in at_once)
    if request.is_meta:
        tensors = {name: tensor if name in at_once else tensor.to("meta") for name, tensor in tensors.items()}
    elif request.moves:
        assert request.device is not None
        tensors = {name: one.to(request.device, non_blocking=request.non_blocking) for name, one in tensors.items()}
    device, cls = request.node_device, request.wrapper
    if isinstance(schema, torch.Size):
        made = by_names(tensors, Meta(schema, device), locked=request.locked)
        return made if cls is None else cls._from_disk_form({}, {WRAPPED: made})
    bind(schema, tensors, where, device)
    unpickle(schema, lambda value: _unpickled(tensors, value), where, request.allow_pickle)
    return build_part(Part(schema, schema) if chosen is None else chosen.part, _source, device=device, cls=cls)


_source = attrgetter("source")


def _united(opened: Sequence[Opened], where: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors and the metadata of all files."""
    tensors: dict[str, torch.Tensor] = {}
    metadata: dict[str, str] = {}
    for found, texts in opened:
        tensors = tensors | found if tensors else found
        metadata |= texts
    if DELTA in metadata:
        raise ValueError(
            f"{where} is a delta, which loads together with its base, from a local path and by load_memmap; flatten it "
            "with convert(delta, target) and load that"
        )
    return tensors, metadata


def _schema(
    tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str], chosen: Chosen | None, where: str
) -> Node | torch.Size:
    """Return the schema of a save, or the batch size of all nodes if the names of tensors determine the rest."""
    found = metadata.get(DIGEST)
    if RECORD in metadata:
        if chosen is not None:
            return chosen.part.holder
        size = None if found is None else size_of_all(metadata[RECORD], tensors, found)
        return parse(metadata[RECORD], where) if size is None else size
    if found not in (None, digest("", tensors if chosen is None else chosen.names)):
        raise ValueError(
            f"the names of the tensors in {where} are not those that were saved; the file is damaged, or another tool "
            f"changed it: remove {DIGEST!r} from its metadata to open it under the names that it has"
        )
    return torch.Size(()) if chosen is None else chosen.part.holder


def choose(names: Collection[str], metadata: Mapping[str, str], request: LoadRequest, where: str) -> Chosen:
    """Return the requested part of the tensors of one or several files.

    Raises:
        KeyError: There is no such entry.
    """
    part = request.part_of(parse(metadata[RECORD], where) if RECORD in metadata else schema_of(names))
    return Chosen(part, tensors_of(part.holder), names)


def _unpickled(tensors: Mapping[str, torch.Tensor], value: Value) -> Any:
    assert value.pickle is not None
    return pickle.loads(tensors[value.pickle].cpu().contiguous().view(torch.uint8).numpy().tobytes())


def _open_files(where: str, mode: str, request: LoadRequest) -> tuple[list[Opened], Chosen | None]:
    if not where.endswith(INDEX_ENDING):
        return [open_file(where, mode, request.verify)], None
    folder = os.path.dirname(where)
    if os.path.lexists(where) and not os.path.isfile(where):  # a pipe would wait
        raise ValueError(f"{where} is not a regular file, as the index of a safetensors save is; get it again")
    document = Path(where).read_bytes()
    return open_shards(where, document, lambda name: open_file(_shard(folder, name), mode, request.verify), request)


def _shard(folder: str, name: str) -> str:
    """Return the path of a shard: a file in a folder of ours; caches of published checkpoints consist of links."""
    path, manifest = os.path.join(folder, name), os.path.join(folder, NAME)
    if os.path.islink(path) and os.path.lexists(manifest) and not os.path.islink(manifest):
        raise ValueError(f"{path} is a link, and shards are files in the saved folder; replace the link by the file")
    return path


def open_file(path: str, mode: str, verify: str) -> Opened:
    """Map one safetensors file."""
    tensors, header, _ = map_file(path, mode, verify)
    return tensors, header.metadata


def map_file(path: str, mode: str, verify: str) -> tuple[dict[str, torch.Tensor], Header, bytes]:
    """Map one safetensors file; return its tensors, its header, and the bytes up to the end of that.

    Raises:
        ValueError: It is not a regular file, or its header or a checksum is damaged.
    """
    file, mode = open_mapped(path, mode)
    with file:
        fd = file.fileno()
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise ValueError(f"{path} is not a regular file, as a safetensors file is; pass the file itself")
        start = syscalls.read_at(fd, 8, 0)
        length = header_length(start, info.st_size, path)
        text = syscalls.read_at(fd, length, 8)
        start, data_size = start + text, info.st_size - 8 - length
        header = load_header(text, data_size, path)
        if verify == "full":
            verify_packed(fd, header, start, path)
        if MODES[mode] and CHECKSUMS in header.metadata:
            drop_packed_checksums(fd, header.metadata, start)
        mapping = FileMapping(fd, os.path.abspath(path), data_size, offset=8 + length, mode=mode, info=info)
    tensors = views(mapping.buffer, header)
    for tensor in tensors.values() if MODES[mode] else ():
        keep_mapped(tensor, mapping)
    return tensors, header, start


def views(buffer: Any, header: Header) -> dict[str, torch.Tensor]:
    """Return the tensors of a file over its mapped bytes; their addresses need not be aligned."""
    kinds = header.kinds
    if 2 * sum(map(operator.is_not, kinds, kinds[1:])) > len(kinds):  # mostly of another kind than the one before
        return dict(zip(header.names, _one_by_one(buffer, kinds, 0), strict=True))
    made: list[torch.Tensor] = []
    begin = 0
    for (dtype, shape, nbytes), equal in itertools.groupby(kinds):
        same = list(equal)
        known = NUMPY.get(dtype)
        if known is not None and nbytes and 0 < len(shape) <= NUMPY_DIMS:
            made += map(torch.from_numpy, np.ndarray((len(same), *shape), known, buffer, begin))
        else:
            made += _one_by_one(buffer, same, begin)
        begin += len(same) * nbytes
    return dict(zip(header.names, made, strict=True))


def _one_by_one(buffer: Any, kinds: Sequence[Kind], begin: int) -> list[torch.Tensor]:
    known, from_numpy, ndarray = NUMPY.get, torch.from_numpy, np.ndarray
    made: list[torch.Tensor] = []
    for dtype, shape, nbytes in kinds:
        element = known(dtype)
        if not nbytes:
            made.append(torch.empty(shape, dtype=dtype, device="cpu"))
        elif element is not None:
            made.append(from_numpy(ndarray(shape, element, buffer, begin)))
        else:
            count = nbytes // dtype.itemsize
            made.append(torch.frombuffer(buffer, dtype=dtype, count=count, offset=begin).resize_(*shape or ((),)))
        begin += nbytes
    return made


def open_shards(
    path: str, document: bytes, open_one: Callable[[str], Opened], request: LoadRequest
) -> tuple[list[Opened], Chosen | None]:
    """Open the files that an index names, or only those that hold the requested part.

    Args:
        path: The path of the index, for errors.
        document: Its content.
        open_one: A function that opens the file of a name beside it.
        request: The options.

    Returns:
        The opened files, the one with the record among them, and the requested part of them; None is everything, or
        what all of them are needed for: they may hold the record that the first one lacks.
    """
    index, files = _parse_index(path, document)
    places: dict[str, str] = index["weight_map"]
    opened = {name: open_one(name) for name in files[: 1 if request.is_partial else None]}
    chosen = None
    if request.is_partial and files:
        # a save of ours has its record in the first file; other tools write none
        with contextlib.suppress(KeyError):
            chosen = choose(places, opened[files[0]][1], request, path)
    needed = set(files) if chosen is None else {places[name] for name in chosen.taken if name in places}
    opened |= {name: open_one(name) for name in files if name in needed and name not in opened}
    recorded = [RECORD in texts for _, texts in opened.values()]
    if chosen is not None and any(recorded) and not recorded[0]:
        chosen = None
        opened |= {name: open_one(name) for name in files if name not in opened}
    _check_places(path, places, opened)
    _check_save_ids(path, index, {name: texts for name, (_, texts) in opened.items()})
    return [opened[name] for name in files if name in opened], chosen


def _parse_index(path: str, document: bytes) -> tuple[dict[str, Any], list[str]]:
    """Return the index of shards, and the names of the files in it, in order."""
    try:
        index: dict[str, Any] = orjson.loads(document)
        files = sorted(set(index["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"the index of a safetensors save maps names to files, and {path} does not ({error}); get it again"
        ) from None
    for name in files:
        if not isinstance(name, str) or os.path.basename(name) != name or name in ("", ".", "..") or "\0" in name:
            raise ValueError(
                f"the files of {path} are in its folder, and {name!r:.200} is not; it is damaged: get it again"
            )
    return index, files


def _check_places(path: str, places: Mapping[str, str], opened: Mapping[str, Opened]) -> None:
    """Refuse files whose tensors are not those of the index."""
    for name, (tensors, _) in opened.items():
        wrong = [one for one in tensors if places.get(one) != name]
        if wrong:
            raise ValueError(
                f"{path} lists tensor {wrong[0]!r:.200} in {name}, which does not hold it; the files are not of one "
                "save: get all of them again"
            )
    there = {one for tensors, _ in opened.values() for one in tensors}
    missing = {one for one, name in places.items() if name in opened} - there
    if missing:
        raise ValueError(f"tensor {min(missing)!r:.200} of {path} is in none of its files; get all of them again")


def _check_save_ids(path: str, index: dict[str, Any], texts: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse files of several saves; saves by several ranks have an id in each of their files."""
    about = index.get("metadata")
    expected = about.get(SAVE_ID) if isinstance(about, dict) else None
    if expected is None and not any(SAVE_ID in found for found in texts.values()):
        return
    for name, found in texts.items():
        if found.get(SAVE_ID) != expected:
            raise ValueError(
                f"{name} is of another save than {path}: its id is {found.get(SAVE_ID)!r:.50} and not "
                f"{expected!r:.50}; get all files of one save"
            )
