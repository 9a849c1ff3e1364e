"""Opening saved tensordicts of any format, from a path or a URL, by a `LoadRequest`.

The schema of a folder or an archive is pruned to the requested keys before a file is opened. The tensors of a single
file are views of one mapping. Of a remote save, the schema is read first, and then the bytes of the requested leaves
and rows.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import torch

from tensordict_core.extension import annotate, gc_paused
from tensordict_memmap.engine.syscalls import read_file
from tensordict_memmap.formats.detect import ARCHIVE, CONSOLIDATED, SAFETENSORS, TREE
from tensordict_memmap.formats.names import META
from tensordict_memmap.formats.oldest import META_PT, parse_oldest
from tensordict_memmap.formats.parse_tree import parse
from tensordict_memmap.loading import delta
from tensordict_memmap.loading.archive import Archive, ArchiveOpener
from tensordict_memmap.loading.consolidated import load_consolidated
from tensordict_memmap.loading.detect import opened
from tensordict_memmap.loading.eager import in_memory, is_worth_reading
from tensordict_memmap.loading.leaves import LeafOpener, check_mappable
from tensordict_memmap.loading.remote import RemoteFolder, RemoteOpener, RemoteSave, load_remote_packed
from tensordict_memmap.loading.request import LoadRequest
from tensordict_memmap.loading.safetensors import load_packed
from tensordict_memmap.loading.unpickle import unpickle
from tensordict_memmap.remote.urls import is_remote
from tensordict_memmap.schema.build import build_part, remember_file
from tensordict_memmap.schema.node import Leaf, Node, Value, leaves, nodes, show
from tensordict_memmap.schema.plan import plan
from tensordict_memmap.schema.select import Part, row_runs, take_rows
from tensordict_memmap.storage import ownership
from tensordict_memmap.storage.manifest import NAME, Manifest
from tensordict_memmap.storage.snapshot import SavedFolder, read_folder
from tensordict_memmap.storage.verify import leaf_files, open_sealed, verify_tree

_MOST_ATTEMPTS = 20


def open_any(path: str | os.PathLike[str], request: LoadRequest) -> Any:
    """Return the requested tensordict, unlocked, or tensor of a path or a URL.

    Raises:
        ValueError: Its nodes or values are nested more deeply than Python can traverse; saves are nested at most 200
            levels deep.
    """
    try:
        return _open_remote(str(path), request) if is_remote(path) else _open_here(path, request)
    except RecursionError:
        raise ValueError(
            f"{os.fspath(path)} holds nodes or values that are nested deeper than Python can walk from here; load it "
            "with fewer calls around the load, or restore the file"
        ) from None


def describe(path: str | os.PathLike[str], request: LoadRequest) -> Node | Leaf:
    """Return the schema of the requested part; read no data."""
    if is_remote(path):
        return _record(_open_remote(str(path), request), request)
    return opened(path, functools.partial(_describe_as, path, request))


def _describe_as(path: str | os.PathLike[str], request: LoadRequest, format: str) -> Node | Leaf:
    if format == TREE:
        return read_folder(path, lambda folder: _read_tree(folder, request)[1].entry)
    if format == ARCHIVE:
        return _read_tree(Archive(os.path.abspath(path), mode=request.mode), request)[1].entry
    if format == SAFETENSORS:  # mapping reads no data either, and nested tensors of every layout can be mapped
        request = replace(request, device=None)
    return _record(_open_as(path, request, format), request)


def _record(loaded: Any, request: LoadRequest) -> Node | Leaf:
    if isinstance(loaded, torch.Tensor):
        return Leaf(request.only, "", loaded.dtype, tuple(loaded.shape))
    return plan(loaded)


def _open_here(path: str | os.PathLike[str], request: LoadRequest) -> Any:
    """Open a local path; return the requested tensor, or an unlocked tensordict."""
    return opened(path, functools.partial(_open_rows, path, request.private))


def _open_rows(path: str | os.PathLike[str], request: LoadRequest, format: str) -> Any:
    """Open the requested rows, in memory if that was requested or is faster."""
    gpu = request.device if request.device is not None and request.device.type == "cuda" else None
    if gpu is not None:
        request = replace(request, device=None, mode=request.mode or "r")
    loaded = _open_as(path, request, format)
    if request.rows is not None:
        loaded = take_rows(loaded, request.rows)
    if request.is_meta or request.moves:
        return loaded
    if gpu is not None:
        return in_memory(loaded, gpu)
    is_private = request.mode in ("r", "c") or (request.mode is None and format in (SAFETENSORS, CONSOLIDATED))
    if request.eager or (request.eager is None and is_private and is_worth_reading(path, loaded)):
        return in_memory(loaded)
    return loaded


def _open_as(path: str | os.PathLike[str], request: LoadRequest, format: str) -> Any:
    """Open all rows of a save of the given format."""
    if format == TREE:
        return read_folder(path, lambda folder: open_folder(folder, request))
    if format == ARCHIVE:
        return open_folder(Archive(os.path.abspath(path), mode=request.mode), request)
    if format == CONSOLIDATED:
        if request.verify == "full":
            raise ValueError(
                f"verify='full' compares checksums, and consolidated files such as {os.fspath(path)} hold none; load "
                "it with verify='size', and save it in another format with checksum=True"
            )
        loaded = load_consolidated(path, request)
        moves = request.device is not None and request.device.type != "cpu"
        return loaded.to(request.device, non_blocking=request.non_blocking) if moves else loaded
    return open_packed(path, request)


# --- files of one mapping


def open_packed(path: str | os.PathLike[str], request: LoadRequest) -> Any:
    """Open a safetensors file, shards, or a delta with its bases."""
    return load_packed(path, request, functools.partial(delta.resolve, open_tree=open_tree))


def open_tree(path: str) -> Any:
    """Open a folder that deltas are based on: copy-on-write, with None in place of pickled values."""
    request = LoadRequest(mode="r", allow_pickle=None)
    return read_folder(path, lambda folder: open_folder(folder, request))


# --- files elsewhere


def _open_remote(url: str, request: LoadRequest) -> Any:
    if request.mode == "r+":
        raise ValueError(
            f"mode='r+' is for local files, and writes do not reach {url}; load it with mode='r', and save there again"
        )
    for _ in range(_MOST_ATTEMPTS):
        save = RemoteSave(url)
        try:
            loaded = _from_remote(save, request)
        except Exception:
            if not save.was_replaced():  # the files of an earlier save go when another one is there
                raise
        else:
            if not save.is_file or not save.was_replaced():  # one file is read in several requests, all by its name
                return loaded
    raise BlockingIOError(
        f"{url} was replaced during each of {_MOST_ATTEMPTS} attempts to load it; save there less often, or to another "
        "URL"
    )


def _from_remote(save: RemoteSave, request: LoadRequest) -> Any:
    folder = save.folder() if save.format in (TREE, ARCHIVE) else None
    if request.verify == "full" or (folder is None and save.format != SAFETENSORS):
        with save.downloaded() as path:
            loaded = _open_here(path, replace(request, mode="r"))
        for node in [] if isinstance(loaded, torch.Tensor) else nodes(plan(loaded)):
            annotate(node.origin, "saved_path", None)
        return loaded
    unmoved = request if request.is_meta else replace(request, device=None)
    if folder is None:
        loaded = load_remote_packed(save, unmoved)
    else:
        if not request.only:
            folder.prefetch()
        node = _parse(folder, request.only)
        for leaf in leaves(node):
            leaf.alias = save.aliases.get(leaf.file)
        part = request.part_of(node)
        unpickle(node, functools.partial(_unpickled, folder), folder.root, request.allow_pickle)
        loaded = _built(part, RemoteOpener(folder, device=unmoved.device), unmoved, None)
    if request.rows is not None:
        loaded = _fetch_rows(loaded, request, save)
    elif not request.is_meta:
        save.reader.read(_tensors(loaded) if request.parts is None else request.parts(loaded))
    if request.moves:
        loaded = loaded.to(request.device, non_blocking=request.non_blocking)
    return loaded


def _fetch_rows(loaded: Any, request: LoadRequest, save: RemoteSave) -> Any:
    """Rows of a remote tensordict; only their bytes are read."""
    assert request.rows is not None
    if request.is_meta:
        return take_rows(loaded, request.rows)
    runs = row_runs(loaded, request.rows) or [slice(0, 0)]  # with no row comes what does not belong to rows
    save.reader.read(tensor for run in runs for tensor in _tensors(loaded[run]))
    return take_rows(loaded, request.rows)


def _tensors(loaded: Any) -> list[torch.Tensor]:
    found = [loaded] if isinstance(loaded, torch.Tensor) else loaded._leaves()
    return [tensor for tensor in found if not tensor.is_nested]  # a nested tensor is built from its mapped values


# --- trees and archives


def _read_tree(folder: SavedFolder | Archive, request: LoadRequest) -> tuple[Node, Part, Manifest | None]:
    """Return the schema of a save, its requested part, and the manifest if it adds to the schema."""
    manifest = None
    with gc_paused():
        if isinstance(folder, Archive):
            node = parse(folder, only=request.only)
        else:
            manifest = folder.count(_find_manifest(folder.root))
            node = _parse(folder, request.only)
            _tie(node, manifest, folder.root)
        return node, request.part_of(node), manifest


def open_folder(folder: SavedFolder | Archive, request: LoadRequest) -> Any:
    """Open a folder in the tree format, or an archive, as an unlocked tensordict or as a tensor."""
    root, mode = folder.root, request.mode
    node, part, manifest = _read_tree(folder, request)
    archived = isinstance(folder, Archive)
    if isinstance(folder, Archive):
        if request.verify == "full":
            folder.verify()
        if mode == "r+":
            _refuse_compressed(folder, part.holder)
        opener: LeafOpener = ArchiveOpener(folder, device=request.device, non_blocking=request.non_blocking)
    else:
        if request.verify == "full":
            verify_tree(node, root, manifest or ownership.manifest_for(root), request.only)
        if manifest is not None:
            mode = open_sealed(root, manifest, leaf_files(node, request.only), mode)
        opener = LeafOpener(
            root,
            mode=mode,
            device=request.device,
            non_blocking=request.non_blocking,
            exact=request.verify != "none",
        )
        opener.exact &= manifest is None or manifest.rows_committed is None  # rows are written before they count
        opener.is_listed = lambda: ownership.manifest_for(root) is not None
    unpickle(node, functools.partial(_unpickled, folder), folder.root, request.allow_pickle)
    loaded = _built(part, opener, request, None if archived else Path(root))
    if archived and opener.device is None and not isinstance(part.entry, Leaf):  # its parts have no path of their own
        remember_file(loaded, Path(root), mode)
    return loaded


def _refuse_compressed(archive: Archive, part: Node) -> None:
    """Refuse to open compressed entries for writing, because writes would not change the file."""
    for leaf in leaves(part):
        member = archive.members.get(leaf.file)
        if member is not None and not member.stored:
            raise RuntimeError(
                f"key {show(leaf.key)} is compressed in {archive.path}, and mode='r+' writes to the file; load it with "
                "mode='r', or unpack the archive with unpack_memmap and load the folder"
            )


def _built(part: Part, opener: LeafOpener, request: LoadRequest, saved: Path | None) -> Any:
    """Return the tensordict or tensor over the files."""
    found = list(leaves(part.holder))
    if saved is not None and opener.device is None:
        check_mappable(len(found), opener.root)
    opener.ties = any(leaf.alias is not None for leaf in found)
    device = request.device or torch.device("cpu")
    with gc_paused(short=device.type in ("cpu", "meta")):
        return build_part(part, opener, saved=saved, device=device, cls=request.wrapper)


def _parse(folder: SavedFolder | RemoteFolder, only: tuple[str, ...]) -> Node:
    if folder.has(META):
        return parse(folder, only=only)
    if folder.has(META_PT):
        return parse_oldest(folder)
    if os.path.isdir(folder.root):
        raise FileNotFoundError(
            f"{folder.root} has no {META}, so it is not a saved tensordict; pass the path that it was saved to"
        )
    raise FileNotFoundError(f"no saved tensordict at {folder.root}; give the path that it was saved to")


def _find_manifest(root: str) -> Manifest | None:
    """Return the manifest, if it has more than the descriptions."""
    document = read_file(f"{root}/{NAME}")
    if document is not None and _says_nothing_more(document):
        return None
    manifest = ownership.manifest_for(root)
    if manifest is None:
        return None
    if not manifest.complete:
        raise ValueError(
            f"the save in {root} was stopped while it overwrote files in place, so its content is incomplete; save "
            "again (atomic=True keeps the earlier save until then)"
        )
    return manifest


def _tie(node: Node, manifest: Manifest | None, root: str) -> None:
    if manifest is not None and manifest.aliases and _describes(manifest, root):
        for leaf in leaves(node):
            leaf.alias = manifest.aliases.get(leaf.file)


def _says_nothing_more(document: bytes) -> bool:
    """Return whether a manifest lists files only, as the descriptions do too; parsing thousands of lines takes time."""
    try:
        record = orjson.loads(document)
    except orjson.JSONDecodeError:
        return False
    said = isinstance(record, dict) and record.get("complete") is True
    return said and not record.get("aliases") and "seal" not in record and "growing" not in record


def _describes(manifest: Manifest, root: str) -> bool:
    """Return whether the folder is the one that the manifest describes: another library may have saved over it."""
    entry = manifest.files.get(META)
    return entry is not None and os.path.getsize(f"{root}/{META}") == entry.size


def _unpickled(folder: SavedFolder | Archive | RemoteFolder, value: Value) -> Any:
    """Return the content of the pickle file of a value."""
    assert value.pickle is not None
    data = folder.read(value.pickle)
    if data is None:
        raise FileNotFoundError(f"the value of key {show(value.key)}, {value.pickle}, is missing; restore it")
    is_archive = data[:2] == b"PK"  # what torch.save writes
    content = torch.load(io.BytesIO(data), weights_only=False) if is_archive else pickle.loads(data)
    return content["data"] if not value.stack and isinstance(content, dict) and "data" in content else content
