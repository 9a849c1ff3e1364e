"""Loading: `load_memmap`, `load_memmap_`, `memmap_refresh_` and `from_safetensors`.

A load parses the descriptions of a save, checks its files and maps them; it changes nothing on the disk. Folders of the
reference load too, also in its oldest layout. Pickled values are unpickled only with ``allow_pickle=True``; without it,
the error comes before any of them is unpickled.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from tensordict_core.extension import Meta, annotate, annotation, on_exit
from tensordict_memmap.loading.open import describe, open_any
from tensordict_memmap.loading.request import LoadRequest, key_path, selection_of
from tensordict_memmap.loading.safetensors import lies_in_its_file, load_packed
from tensordict_memmap.remote.urls import is_remote, local_path
from tensordict_memmap.schema.diff import differences, fit
from tensordict_memmap.schema.node import Dense, Leaf, Node, Parts, leaves
from tensordict_memmap.schema.plan import plan
from tensordict_memmap.schema.select import Keys, Rows
from tensordict_memmap.tensor.memmap import MemoryMappedTensor

__all__ = ["describe_saved", "from_safetensors", "is_memmap", "load", "load_memmap", "load_memmap_", "memmap_refresh_"]


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
    keys: Keys | None = None,
    rows: Rows | None = None,
    like: Any = None,
    strict: bool = True,
    fill: float | None = None,
    cast: bool = False,
    cls: type[Any] | None = None,
) -> Any:
    """Opens a save of any format as a locked tensordict that is mapped onto its files.

    Args:
        prefix: the folder, or one inside for a nested tensordict alone; a safetensors file, archive or consolidated
            file; or an address such as ``s3://bucket/run``, whose bytes are read into memory.
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
        keys: what to load alone: a pattern or several, ``[("encoder", "*"), "decoder.**.weight"]``. Tuples are matched
            part by part, strings are split on ``.``; ``*``, ``?`` and ``[...]`` stand for characters of one part,
            ``**`` for any number of parts, and what is named comes with all below it. Nothing else is opened.
        rows: what to take along the first batch dimension: a slice (stays mapped), a number, or a list of numbers.
        like: a tensordict of the structure that is wanted, on the ``meta`` device too. The result has its keys in its
            order, and its class.
        strict: with ``like``, whether keys that are missing or unexpected, and other dtypes, are refused. Otherwise
            what is missing keeps the values of ``like``, what is unexpected is left out, and dtypes stay as saved.
            Other shapes are refused always.
        fill: with ``like``, the number that entries get which were not saved.
        cast: with ``like``, whether entries are converted to its dtypes.
        cls: the class for a root whose own is not registered here.

    Raises:
        FileNotFoundError: There is no saved tensordict, or a leaf lacks its file; the error names the key.
        ValueError: A file is short, long or damaged, or pickled where that is not allowed; the error names the key.
        KeyError: There is nothing under ``subpath``, or a pattern of ``keys`` names nothing.
        RuntimeError: What is saved differs from ``like``; the error says all that does.
        ImportError: An address needs fsspec.

    Warns:
        UserWarning: A class is not known here, and its content becomes a plain tensordict.

    >>> TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(2)}}).memmap("things")["a"].sum()
    tensor(3)
    >>> load_memmap("things")["b", "c"]
    MemoryMappedTensor([1., 1.])
    >>> load_memmap("things", subpath="b").saved_path.name
    'b'
    >>> list(load_memmap("things", keys="b.*").keys(True, True)), load_memmap("things", subpath="a", rows=[2, 0])
    ([('b', 'c')], tensor([2, 0]))
    """
    target = None if device is None else torch.device(device)
    moved = target is not None and target.type != "cpu"
    # what is only a part, or is put together with something else, moves when it is
    late = target if moved and device != "meta" and (rows is not None or like is not None) else None
    request = LoadRequest(
        key_path(subpath),
        selection_of(keys),
        rows,
        mode,
        target if late is None else None,
        non_blocking,
        bool(allow_pickle),
        verify,
        cls,
        subpath is None and keys is None and rows is None and like is None and cls is None and not moved,
    )
    loaded = open_any(local_path(prefix), request)
    if like is not None:
        loaded = fit(loaded, like, strict=strict, fill=fill, cast=cast)
    elif keys is not None and not isinstance(loaded, torch.Tensor):
        annotate(loaded, "keys", keys)
    if late is not None:
        loaded = loaded.to(late, non_blocking=non_blocking)
    if out is not None:
        return out.update_(loaded)
    if not (moved or isinstance(loaded, torch.Tensor)):
        on_exit(loaded.lock_(), _stays_locked)
    return loaded


def _stays_locked(td: Any) -> None:
    """Ends a ``with`` block over a loaded tensordict, which stays locked."""


load = load_memmap
"""`load_memmap` under another name."""


def describe_saved(
    prefix: str | os.PathLike[str], *, subpath: str | tuple[str, ...] | None = None, keys: Keys | None = None
) -> Node | Leaf:
    """The schema of a save, of a part of it, or of one tensor; nothing but descriptions is read."""
    request = LoadRequest(key_path(subpath), selection_of(keys), device=torch.device("meta"), allow_pickle=None)
    return describe(local_path(prefix), request)


def load_memmap_(
    td: Any,
    prefix: str | os.PathLike[str],
    *,
    allow_pickle: bool | None = None,
    mode: str | None = None,
    verify: str = "size",
) -> Any:
    """Writes a save into the entries of a tensordict, in place; keys that it lacks are added, mapped.

    Raises:
        KeyError: The tensordict is locked and lacks a key; nothing was written then.

    >>> td = TensorDict({"a": torch.arange(3)}).save("there").zero_()
    >>> load_memmap_(td, "there")["a"]
    tensor([0, 1, 2])
    """
    loaded = load_memmap(prefix, allow_pickle=allow_pickle, mode=mode or "r", verify=verify)
    if td.is_locked:
        unknown = differences(plan(loaded), plan(td)).unexpected
        if unknown:
            raise KeyError(
                f"a locked tensordict takes in what it has a place for, and key {unknown[0]!r} has none; unlock it, or "
                "leave the key out by load_into(..., strict=False)"
            )
        return td.update_(loaded)
    return td.update(loaded, inplace=True)


def memmap_refresh_(td: Any, *, allow_pickle: bool | None = None) -> Any:
    """Updates a mapped tensordict with the entries that were added to, or saved over, its folder.

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
    keys = annotation(td, "keys")
    fresh = load_memmap(place, allow_pickle=allow_pickle, mode=mode, keys=keys)
    return take_over(td, fresh)


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
    return [leaf for leaf in leaves(plan(td)) if leaf.layout == "strided"]


# --- refreshing


def take_over(td: Any, fresh: Any) -> Any:
    """Gives the nodes of ``td`` the entries of ``fresh``, node by node if they are of one kind, and locks it."""
    old, new = plan(td), plan(fresh)
    _refresh_node(old, new)
    for name in ("mappings", "mode"):
        annotate(td, name, annotation(fresh, name))
    return td.lock_()


def _refresh_node(old: Node, new: Node) -> bool:
    """Updates a node; returns whether both nodes are of one kind."""
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
                old.origin._set(name, entry.source)
        elif before is None or isinstance(before, Leaf) or not _refresh_node(before, entry):
            old.origin._set(name, entry.origin)
    old.origin._set_meta(Meta(torch.Size(new.batch_size), new.origin._meta.device, new.names))
    annotate(old.origin, "saved_path", annotation(new.origin, "saved_path"))
    return True


def _is_same(old: Any, new: Any) -> bool:
    """Whether two tensors are mapped onto the same part of the same file."""
    if not (isinstance(old, MemoryMappedTensor) and isinstance(new, MemoryMappedTensor)):
        return False
    place = (new.handler.identity, new.offset, new.shape, new.dtype, new.stride())
    return (old.handler.identity, old.offset, old.shape, old.dtype, old.stride()) == place and bool(new.numel())


# --- files of one format


def from_safetensors(
    path: str | os.PathLike[str],
    device: torch.device | str | None = None,
    *,
    mode: str = "r",
    allow_pickle: bool = False,
    verify: str = "size",
) -> Any:
    """Opens any safetensors file as a tensordict, without a copy.

    Args:
        path: the file, or the ``.safetensors.index.json`` of several; `load_memmap` opens URLs. Names of a
            file without a recorded structure are split on ``.``.
        device: where tensors are moved; None leaves them mapped, and the result without a device.
        mode: ``"r"`` keeps writes to tensors in this process, ``"r+"`` writes them to the file, whose checksums of
            tensors are dropped first.
        allow_pickle: whether values without a JSON form may be unpickled, which can run any code that is in them.
        verify: ``"full"`` reads the file and compares the checksums that ``checksum=True`` recorded; otherwise header
            and size are compared.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged, no safetensors file, or a URL.

    >>> from tensordict_memmap import to_safetensors
    >>> to_safetensors(TensorDict({"layer": {"weight": torch.ones(2, 2)}}), "model.safetensors")
    >>> from_safetensors("model.safetensors")["layer", "weight"].shape
    torch.Size([2, 2])
    """
    path = local_path(path)
    if is_remote(path):
        raise ValueError(f"{path!r} is a URL, and from_safetensors maps local files; open it with load_memmap")
    target = None if device is None else torch.device(device)
    request = LoadRequest(mode=mode, device=target, allow_pickle=allow_pickle, verify=verify, on_device=False)
    return load_packed(path, request)
