"""Loading: the descriptions of a saved folder are read, its files checked and mapped, and nothing on disk is changed.

Folders of the reference load too, those of its oldest layout included. Values that were pickled are unpickled only
where the caller allows it; without that the error comes before a byte of any is.
"""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import orjson
import torch

from tensordict_core.extension import Meta, TensorCollection, annotate, annotation
from tensordict_memmap import commit
from tensordict_memmap.archive import Archive, ArchiveOpener, is_memmap_archive
from tensordict_memmap.build import build
from tensordict_memmap.folder import SavedFolder
from tensordict_memmap.formats import tree
from tensordict_memmap.formats.names import META
from tensordict_memmap.formats.oldest import META_PT, parse_oldest
from tensordict_memmap.formats.parse import parse, stack_size
from tensordict_memmap.formats.tree import WRAPPED, Dense, Leaf, Node, Parts, Value, show
from tensordict_memmap.manifest import NAME, Manifest
from tensordict_memmap.mapping import MODES
from tensordict_memmap.opening import LeafOpener, read_file
from tensordict_memmap.packed import is_packed, lies_in_its_file, load_packed
from tensordict_memmap.tensor import MemoryMappedTensor
from tensordict_memmap.verify import check_level, leaf_files, open_sealed, verify_tree

__all__ = ["is_memmap", "load", "load_memmap", "load_memmap_", "memmap_refresh_"]


def load_memmap(
    prefix: str | os.PathLike[str],
    device: torch.device | str | None = None,
    non_blocking: bool = False,
    *,
    out: Any = None,
    robust_key: bool | None = None,
    subpath: str | tuple[str, ...] | None = None,
    mode: str | None = None,
    num_threads: int | None = None,
    allow_pickle: bool | None = None,
    verify: str = "size",
    cls: type[Any] | None = None,
) -> Any:
    """Opens a saved folder as a locked tensordict that is mapped onto its files.

    Args:
        prefix: the folder, or one inside for a nested tensordict alone.
        device: where entries are moved; by default they stay mapped. ``"meta"`` looks at no data.
        non_blocking: whether moves may be asynchronous.
        out: a tensordict that the values are written into, and that is returned.
        robust_key: accepted for compatibility: file names are read as they were written.
        subpath: a nested key to load alone; of a leaf it gives the tensor.
        mode: ``"r+"`` writes to the files, ``"r"`` keeps writes in this process; None is ``"r+"`` where files may be
            written to and have no checksums. Where they have, ``"r+"`` drops those of the leaves first.
        num_threads: accepted for compatibility: mapping takes no threads.
        allow_pickle: whether values without a JSON form may be unpickled, which can run any code that is in them.
        verify: ``"size"`` compares each file with the size that it should have, ``"full"`` reads all that is loaded
            and compares it with the checksums that a save with ``checksum=True`` recorded, ``"none"`` takes files that
            are longer than they should be too.
        cls: the class for a root whose own is not registered here.

    Raises:
        FileNotFoundError: There is no saved tensordict, or a leaf lacks its file; the error names the key.
        ValueError: A file is short, long or damaged, or pickled where that is not allowed; the error names the key.
        KeyError: There is nothing under ``subpath``.

    Warns:
        UserWarning: A class is not known here, and its content becomes a plain tensordict.

    >>> TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(2)}}).memmap("things")["a"].sum()
    tensor(3)
    >>> load_memmap("things")["b", "c"]
    MemoryMappedTensor([1., 1.])
    >>> load_memmap("things", subpath="b").saved_path.name
    'b'
    """
    if mode is not None and mode not in MODES:
        raise ValueError(
            f"files are mapped with mode {', '.join(map(repr, MODES))}, not {mode!r}; use 'r+' to write to them"
        )
    check_level(verify)
    packed = is_packed(prefix)
    archived = packed and is_memmap_archive(prefix)
    if packed and not archived:
        return _load_packed(prefix, device, non_blocking, out, subpath, mode, bool(allow_pickle), verify, cls)
    root = os.path.abspath(prefix)
    only = () if subpath is None else (subpath,) if isinstance(subpath, str) else tuple(subpath)
    target = None if device is None else torch.device(device)
    folder: SavedFolder | Archive
    if archived:
        folder = Archive(root, mode=mode)
        if verify == "full":
            folder.verify()
        node = parse(folder, only=only)
        opener: LeafOpener = ArchiveOpener(folder, device=target, non_blocking=non_blocking)
    else:
        commit.recover(root)
        folder = SavedFolder(root)
        manifest = folder.count(_find_manifest(root))
        node = _parse(folder, only)
        _tie(node, manifest, root)
        if verify == "full":
            verify_tree(node, root, manifest or commit.manifest_for(root), only)
        if manifest is not None:
            mode = open_sealed(root, manifest, leaf_files(node, only), mode)
        opener = LeafOpener(root, mode=mode, device=target, non_blocking=non_blocking, exact=verify != "none")
        opener.exact &= manifest is None or manifest.growth is None  # rows are written before they count
    _unpickle(node, folder, bool(allow_pickle))
    opener.ties = any(leaf.alias is not None for leaf in tree.leaves(node))
    for depth, key in enumerate(only, 1):
        below = _below(node, key)
        if isinstance(below, Leaf):
            if depth < len(only):
                raise KeyError(
                    f"there is nothing below key {show(below.key)}, which is a tensor; leave {only[depth:]} out"
                )
            return opener(below)
        node = below
    known = cls if cls is not None and _is_wrapper(cls) else None
    saved = None if archived else Path(root)  # parts of an archive have no path of their own
    loaded = build(node, opener, saved=saved, device=target or torch.device("cpu"), fallback=known)
    if archived and opener.device is None:
        annotate(loaded, "saved_path", Path(root))
        annotate(loaded, "mode", mode)
    if known is not None and isinstance(node, Dense):
        loaded = known._from_disk_form({}, {WRAPPED: loaded})
    if out is not None:
        return out.update_(loaded)
    return loaded if opener.device is not None else loaded.lock_()


load = load_memmap
"""`load_memmap` under another name."""


def load_memmap_(
    td: Any,
    prefix: str | os.PathLike[str],
    *,
    allow_pickle: bool | None = None,
    mode: str | None = None,
    verify: str = "size",
) -> Any:
    """Writes the values of a saved folder into the entries of a tensordict.

    Raises:
        KeyError: The folder holds a key that the tensordict lacks.

    >>> td = TensorDict({"a": torch.arange(3)}).save("there").zero_()
    >>> load_memmap_(td, "there")["a"]
    tensor([0, 1, 2])
    """
    return td.update_(load_memmap(prefix, allow_pickle=allow_pickle, mode=mode or "r", verify=verify))


def memmap_refresh_(td: Any, *, allow_pickle: bool | None = None) -> Any:
    """Takes in what was added to, or saved over, the folder that a tensordict is mapped onto.

    Raises:
        RuntimeError: The tensordict is not mapped onto a folder.

    >>> mine, theirs = TensorDict({"a": torch.ones(2)}).memmap("shared"), load_memmap("shared")
    >>> _ = mine.make_memmap("b", torch.Size([3]))
    >>> sorted(memmap_refresh_(theirs).keys())
    ['a', 'b']
    """
    place = annotation(td, "saved_path")
    if place is None:
        raise RuntimeError(
            "a tensordict is refreshed from the folder that it is mapped onto, and this one has none; load it with "
            "load_memmap or save it with memmap(path)"
        )
    mode = annotation(td, "mode")
    return take_over(td, load_memmap(place, allow_pickle=allow_pickle, mode=mode))


def is_memmap(td: Any) -> bool:
    """Whether a tensordict has leaves and all are memory-mapped.

    >>> is_memmap(TensorDict({"a": torch.ones(2)}).memmap())
    True
    """
    found = [leaf.source for leaf in _strided(td) if leaf.source is not None]
    mapped = all(isinstance(tensor, MemoryMappedTensor) for tensor in found) or lies_in_its_file(td, found)
    return bool(found) and mapped


def _strided(td: Any) -> list[Leaf]:
    # nested tensors over a file are no MemoryMappedTensor: torch makes its own kind of them
    return [leaf for leaf in tree.leaves(tree.structure(td)) if leaf.layout == "strided"]


def _load_packed(
    prefix: str | os.PathLike[str],
    device: torch.device | str | None,
    non_blocking: bool,
    out: Any,
    subpath: str | tuple[str, ...] | None,
    mode: str | None,
    allow_pickle: bool,
    verify: str,
    cls: type[Any] | None,
) -> Any:
    target = None if device is None else torch.device(device)
    on = target or torch.device("cpu")
    loaded = load_packed(
        prefix,
        mode=mode,
        move_to=target,
        device=on,
        non_blocking=non_blocking,
        allow_pickle=allow_pickle,
        verify=verify,
    )
    if cls is not None and _is_wrapper(cls) and not isinstance(loaded, cls):
        loaded = cls._from_disk_form({}, {WRAPPED: loaded})
    if subpath is not None:
        loaded = loaded.get(subpath)
    if out is not None:
        return out.update_(loaded)
    return loaded if target is not None or isinstance(loaded, torch.Tensor) else loaded.lock_()


# --- reading


def _parse(folder: SavedFolder, only: tuple[str, ...]) -> Node:
    if folder.has(META):
        return parse(folder, only=only)
    if folder.has(META_PT):
        return parse_oldest(folder)
    raise FileNotFoundError(
        f"a saved tensordict has a {META}, and {folder.root} "
        + ("has none; give the folder that it was saved to" if os.path.isdir(folder.root) else "is no folder")
    )


def _below(node: Node | Leaf, key: str) -> Node | Leaf:
    while isinstance(node, Parts) and WRAPPED in node.parts:
        node = node.parts[WRAPPED]
    table: dict[str, Any] = node.entries if isinstance(node, Dense) else node.parts if isinstance(node, Parts) else {}
    if key not in table:
        raise KeyError(f"no entry {key!r} was saved there; there are {sorted(table)[:10]}")
    found: Node | Leaf = table[key]
    return found


def _find_manifest(root: str) -> Manifest | None:
    """The manifest, where it says more than descriptions do."""
    document = read_file(f"{root}/{NAME}")
    if document is not None and _says_nothing_more(document):
        return None
    manifest = commit.manifest_for(root)
    if manifest is None:
        return None
    if not manifest.complete:
        raise ValueError(
            f"a save that is read was finished, and the one in {root} was stopped while it overwrote files in place; "
            "save "
            "again (atomic=True keeps the earlier save until then)"
        )
    return manifest


def _tie(node: Node, manifest: Manifest | None, root: str) -> None:
    if manifest is not None and manifest.aliases and _describes(manifest, root):
        for leaf in tree.leaves(node):
            leaf.alias = manifest.aliases.get(leaf.file)


def _says_nothing_more(document: bytes) -> bool:
    """Whether a manifest only lists files, which their descriptions do too; checking thousands of lines takes time."""
    try:
        record = orjson.loads(document)
    except orjson.JSONDecodeError:
        return False
    said = isinstance(record, dict) and record.get("complete") is True
    return said and not record.get("aliases") and "seal" not in record and "growing" not in record


def _describes(manifest: Manifest, root: str) -> bool:
    """Whether the folder is the one that the manifest describes: another library may have saved over it."""
    entry = manifest.files.get(META)
    return entry is not None and os.path.getsize(f"{root}/{META}") == entry.size


def _unpickle(node: Node, folder: SavedFolder | Archive, allowed: bool) -> None:
    pickled = [one for one in tree.nodes(node) if isinstance(one, Value) and one.pickle is not None]
    if pickled and not allowed:
        where = f"key {show(pickled[0].key)}" if pickled[0].key else "the value"
        raise ValueError(
            f"{where} was pickled, and unpickling runs whatever code is in the file; pass allow_pickle=True if you "
            "trust "
            f"who wrote {folder.root}"
        )
    for value in pickled:
        assert value.pickle is not None
        data = folder.read(value.pickle)
        if data is None:
            raise FileNotFoundError(f"the value of key {show(value.key)}, {value.pickle}, is missing; restore it")
        is_archive = data[:2] == b"PK"  # what torch.save writes
        content = torch.load(io.BytesIO(data), weights_only=False) if is_archive else pickle.loads(data)
        if not value.stack and isinstance(content, dict) and "data" in content:
            content = content["data"]
        value.value = content
        if value.stack:
            value.batch_size = stack_size(value.value, value.batch_size)


def _is_wrapper(cls: type[Any]) -> bool:
    """Whether a class is put together from the tensordict that it holds, as tensorclasses are."""
    own, default = getattr(cls, "_from_disk_form", None), TensorCollection._from_disk_form
    return own is not None and getattr(own, "__func__", None) is not getattr(default, "__func__", None)


# --- refreshing


def take_over(td: Any, fresh: Any) -> Any:
    """Gives the nodes of ``td`` the entries of ``fresh``, node by node where they are of one kind, and locks it."""
    old, new = tree.structure(td), tree.structure(fresh)
    _refresh_node(old, new)
    for name in ("mappings", "mode"):
        annotate(td, name, annotation(fresh, name))
    return td.lock_()


def _refresh_node(old: Node, new: Node) -> bool:
    """Whether the old node could take in the new one."""
    if (
        isinstance(old, Parts)
        and isinstance(new, Parts)
        and old.cls is new.cls
        and old.parts.keys() == new.parts.keys()
    ):
        return all(_refresh_node(part, new.parts[name]) for name, part in old.parts.items())
    if not (isinstance(old, Dense) and isinstance(new, Dense)):
        return False
    for name in old.entries.keys() - new.entries.keys():
        old.origin._del(name)
    for name, entry in new.entries.items():
        before = old.entries.get(name)
        if isinstance(entry, Leaf):
            if not (isinstance(before, Leaf) and _is_same(before.source, entry.source)):
                old.origin._set(name, entry.source, False)
        elif before is None or isinstance(before, Leaf) or not _refresh_node(before, entry):
            old.origin._set(name, entry.origin, False)
    old.origin._set_meta(Meta(torch.Size(new.batch_size), new.origin._meta.device, new.names))
    annotate(old.origin, "saved_path", annotation(new.origin, "saved_path"))
    return True


def _is_same(old: Any, new: Any) -> bool:
    """Whether two tensors are mapped onto the same part of the same file."""
    if not (isinstance(old, MemoryMappedTensor) and isinstance(new, MemoryMappedTensor)):
        return False
    place = (new.handler.identity, new.offset, new.shape, new.dtype, new.stride())
    return (old.handler.identity, old.offset, old.shape, old.dtype, old.stride()) == place and bool(new.numel())
