"""Loads of safetensors files: one mapping for each file, and plain tensors over it.

Each tensor has its own version counter and storage, so that autograd, pickling and ``torch.save`` handle a tensor and
not the whole file. A folder of shards is opened through its index; the files that an index names are in its folder.
"""

from __future__ import annotations

import itertools
import operator
import os
import pickle
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch

from tensordict_core.extension import Meta, annotate
from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.gc_paused import gc_paused
from tensordict_memmap.formats.safetensors.delta import DELTA
from tensordict_memmap.formats.safetensors.describe import RECORD
from tensordict_memmap.formats.safetensors.dotted_names import DIGEST, by_names, digest, keys_of, size_of_all
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
from tensordict_memmap.formats.safetensors.parse import bind, parse, read_at_once
from tensordict_memmap.loading.request import LoadRequest
from tensordict_memmap.loading.unpickle import unpickle
from tensordict_memmap.schema.build import build, remember_file
from tensordict_memmap.schema.dtypes import NUMPY, NUMPY_DIMS
from tensordict_memmap.schema.node import Node, Value
from tensordict_memmap.schema.prune import Choice, Part, part_of_names, part_of_schema
from tensordict_memmap.storage import transaction
from tensordict_memmap.storage.header_checksums import CHECKSUMS, drop_packed_checksums, verify_packed
from tensordict_memmap.storage.manifest import NAME
from tensordict_memmap.storage.snapshot import unreplaced
from tensordict_memmap.tensor.mapping import MODES
from tensordict_memmap.tensor.mapping import Mapping as FileMapping
from tensordict_memmap.tensor.mapping import open_file as open_mapped

Opened = tuple[dict[str, torch.Tensor], dict[str, str]]
"""The tensors and the metadata of a file."""

Resolve = Callable[[str, Opened, LoadRequest], tuple[list[Opened], Part | None]]
"""Opens the full save that a delta describes, from the path, the opened file and the options."""


def load_packed(path: str | os.PathLike[str], request: LoadRequest, resolve: Resolve | None = None) -> Any:
    """Open a safetensors file, or a folder or an index of several.

    Args:
        path: The file, the folder or the index.
        request: The options. The caller applies its rows, class and keys; here the keys only decide which shards are
            opened.
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
    opened, part = _open_files(where, mode, request.verify, request.choice)
    if resolve is not None and len(opened) == 1 and DELTA in opened[0][1]:
        opened, part = resolve(where, opened[0], request)
    loaded = assembled(opened, part, where, request)
    if not (request.moves or request.is_meta):
        remember_file(loaded, Path(os.path.abspath(path)), mode)
        annotate(loaded, "metadata", opened[0][1] if opened else {})
    return loaded


def assembled(
    opened: Sequence[Opened],
    part: Part | None,
    where: str,
    request: LoadRequest,
    read: Callable[[Iterable[torch.Tensor]], None] | None = None,
) -> Any:
    """Return the tensordict of opened files.

    Args:
        opened: The tensors and the metadata of each file.
        part: The requested part of them, if it is already known.
        where: Their path, which errors name.
        request: The options.
        read: A function that reads the bytes of tensors of remote files.
    """
    tensors, metadata = _united(opened, where)
    if part is None and request.choice is not None:
        part = chosen_part(tensors, metadata, request.choice, where)
    if part is not None:
        tensors = {name: tensor for name, tensor in tensors.items() if name in part.taken}
    schema = _schema(tensors, metadata, part, where)
    if isinstance(schema, torch.Size):
        at_once = set[str]()
    else:
        at_once = set(read_at_once(schema)) if request.is_meta or read is not None else set()
    if read is not None:
        read(tensor for name, tensor in tensors.items() if name in at_once)
    if request.is_meta:
        tensors = {name: tensor if name in at_once else tensor.to("meta") for name, tensor in tensors.items()}
    elif request.moves:
        assert request.device is not None
        tensors = {name: one.to(request.device, non_blocking=request.non_blocking) for name, one in tensors.items()}
    device = request.node_device
    if isinstance(schema, torch.Size):
        names = tensors if part is None else part.names
        return by_names(tensors, Meta(schema, device), names=names, locked=request.locked)
    bind(schema, tensors, where, device)
    unpickle(schema, lambda value: _unpickled(tensors, value), where, request.allow_pickle)
    return build(schema, attrgetter("source"), device=device)


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
    tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str], part: Part | None, where: str
) -> Node | torch.Size:
    """Return the schema of a save, or the batch size of all nodes if the names of tensors determine the rest."""
    if part is not None and part.schema is not None:
        return part.schema
    found = metadata.get(DIGEST)
    if RECORD in metadata:
        size = None if part is not None or found is None else size_of_all(metadata[RECORD], tensors, found)
        return parse(metadata[RECORD], where) if size is None else size
    if found not in (None, digest("", tensors if part is None else part.names)):
        raise ValueError(
            f"the names of the tensors in {where} are not those that were saved; the file is damaged, or another tool "
            f"changed it: remove {DIGEST!r} from its metadata to open it under the names that it has"
        )
    return torch.Size(())


def chosen_part(names: Collection[str], metadata: Mapping[str, str], choice: Choice, where: str) -> Part | None:
    """Return the requested part of the tensors of several files; None if all are requested."""
    if RECORD not in metadata:
        return part_of_names(keys_of(names), choice)
    return part_of_schema(parse(metadata[RECORD], where), names, choice)


def _unpickled(tensors: Mapping[str, torch.Tensor], value: Value) -> Any:
    assert value.pickle is not None
    return pickle.loads(tensors[value.pickle].cpu().contiguous().view(torch.uint8).numpy().tobytes())


def _open_files(where: str, mode: str, verify: str, choice: Choice | None) -> tuple[list[Opened], Part | None]:
    if not where.endswith(INDEX_ENDING):
        return [open_file(where, mode, verify)], None
    folder = os.path.dirname(where)
    if os.path.lexists(where) and not os.path.isfile(where):  # a pipe would wait
        raise ValueError(f"{where} is not a regular file, as the index of a safetensors save is; get it again")
    with open(where, "rb") as file:
        document = file.read()
    return open_shards(where, document, lambda name: open_file(_shard(folder, name), mode, verify), choice)


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
    return views(mapping.buffer, header), header, start


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
            made.append(torch.frombuffer(buffer, dtype=dtype, count=count, offset=begin).resize_(shape))
        begin += nbytes
    return made


def open_shards(
    path: str, document: bytes, open_one: Callable[[str], Opened], choice: Choice | None = None
) -> tuple[list[Opened], Part | None]:
    """Open the files that an index names, or only those that hold the requested part.

    Args:
        path: The path of the index, for errors.
        document: Its content.
        open_one: A function that opens the file of a name beside it.
        choice: The requested keys; None is everything.

    Returns:
        The opened files, the one with the record among them, and the requested part of them; None is everything.
    """
    index, files = _parse_index(path, document)
    places: dict[str, str] = index["weight_map"]
    opened = {name: open_one(name) for name in files[: 1 if choice is not None else None]}
    # a save of ours has its record in the first file; other tools write none
    part = chosen_part(places, opened[files[0]][1], choice, path) if choice is not None and files else None
    needed = set(files) if part is None else {places[name] for name in part.taken if name in places}
    opened |= {name: open_one(name) for name in files if name in needed and name not in opened}
    if part is not None and part.schema is None and any(RECORD in texts for _, texts in opened.values()):
        part = None
        opened |= {name: open_one(name) for name in files if name not in opened}
    _check_places(path, places, opened)
    _check_save_ids(path, index, {name: texts for name, (_, texts) in opened.items()})
    return [opened[name] for name in files if name in opened], part


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
