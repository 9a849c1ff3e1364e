"""Public calls that load: `load_memmap`, `load_memmap_` and `from_safetensors`.

A load parses the description of a save, checks its files and maps them; it does not change the files. Folders that the
tensordict package saved load too, including its oldest layout. Pickled values are unpickled only with
``allow_pickle=True``; without it, an error is raised before anything is unpickled.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import torch

from tensordict_core.extension import annotate
from tensordict_memmap.loading.open import describe, open_any, open_packed
from tensordict_memmap.loading.request import LoadRequest, key_path, selection_of
from tensordict_memmap.remote.urls import is_remote, local_path
from tensordict_memmap.schema.diff import fit, refuse_other_keys, remove_old_keys
from tensordict_memmap.schema.node import Leaf, Node
from tensordict_memmap.schema.select import Keys, Rows
from tensordict_memmap.schema.sharded import has_distributed


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
    eager: bool | None = None,
) -> Any:
    """Open a save of any format as a tensordict that is mapped onto its files.

    In-place writes change the files, depending on ``mode``. The result is not locked: an entry that is set or replaced
    is in memory only; ``make_memmap`` adds one to the folder.

    Args:
        prefix: A saved folder, or a folder inside one for a nested tensordict; a safetensors file, archive or
            consolidated file; or a URL such as ``s3://bucket/run``, which is read into memory.
        device: The device to copy entries to; by default they are mapped. ``"meta"`` reads no data.
        non_blocking: Whether copies to ``device`` may be asynchronous.
        out: A tensordict to write the values into, which is returned; entries that it lacks are added, and entries that
            the save lacks are kept.
        robust_key: Accepted for compatibility and ignored: file names are read as they were written.
        subpath: The nested key of a tensordict or tensor to load alone, as a tuple or with ``/`` between its names. The
            elements of lazy stacks have their numbers as names, ``"1/sub"`` for example.
        mode: With ``"r+"`` writes change the files, with ``"r"`` or ``"c"`` they are private to this process. The
            default is ``"r+"`` for a folder whose files are writable and have no checksums, otherwise ``"r"``. ``"r+"``
            removes the checksums of the loaded leaves.
        num_threads: Accepted for compatibility and ignored: mapping uses no threads.
        allow_pickle: Whether values without a JSON form may be unpickled, which can run arbitrary code.
        verify: ``"size"`` compares each file with its expected size; ``"full"`` reads all loaded files and compares
            them with the checksums that a save with ``checksum=True`` recorded; ``"none"`` also accepts files that are
            longer than expected.
        keys: One or several patterns of keys to load, such as ``[("encoder", "*"), "decoder.**.weight"]``. A pattern is
            a tuple of names, or a string that is split on ``.``; in a name, ``*``, ``?`` and ``[...]`` match
            characters, and ``**`` matches any number of names. A match includes all entries nested in it; no other file
            is opened.
        rows: The rows of the first batch dimension to load: a slice, whose result is mapped, or a number or a list of
            numbers, whose rows are read into memory.
        like: A tensordict with the expected structure, which may be on the ``meta`` device. The result has its keys in
            its order, and its class. Where ``like`` has a DTensor, so has the result, and this rank reads only the
            parts of the file that it holds.
        strict: With ``like``, whether missing keys, unexpected keys and other dtypes raise an error. Otherwise missing
            entries keep the values of ``like``, unexpected ones are ignored, and dtypes are those of the save. A
            different shape always raises an error.
        fill: With ``like``, the value of entries that were not saved.
        cast: With ``like``, whether entries are converted to its dtypes.
        cls: The class of the root if its saved class is not registered.
        eager: Whether several threads read all loaded tensors into memory during the call, in large blocks; the result
            is then not mapped. By default only on a network file system with ``mode="r"`` or ``"c"``, if the tensors
            take at most a quarter of the free memory. Loads from a URL are always eager.

    Raises:
        FileNotFoundError: There is no saved tensordict, or the file of a leaf is missing; the error names the key.
        ValueError: A file is too short, too long or damaged, or needs ``allow_pickle``; the error names the key.
        KeyError: There is no entry at ``subpath``, or a pattern of ``keys`` matches nothing.
        RuntimeError: The save differs from ``like``; the error lists all differences.
        ImportError: The URL requires fsspec, which is not installed.

    Warns:
        UserWarning: A class is not registered, and its content becomes a plain tensordict.

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
    # selected rows, and a result in the structure of ``like``, are moved after they are made
    late = target if moved and device != "meta" and (rows is not None or like is not None) else None
    parts, sharded = None, has_distributed(like)
    if sharded:
        from tensordict_memmap.distributed.load import wanted_parts  # imports torch.distributed

        parts, eager = wanted_parts(like), False
    request = LoadRequest(
        key_path(subpath),
        selection_of(keys),
        rows,
        mode,
        target if late is None else None,
        non_blocking,
        False if allow_pickle is None else allow_pickle,
        verify,
        cls,
        parts=parts,
        eager=eager,
    )
    loaded = _open(local_path(prefix), request)
    if like is not None:
        if sharded:
            from tensordict_memmap.distributed.load import sharded_like

            loaded = sharded_like(loaded, like, cast=cast)
        loaded = fit(loaded, like, strict=strict, fill=fill, cast=cast)
    elif keys is not None and not isinstance(loaded, torch.Tensor):
        annotate(loaded, "keys", keys)
    if late is not None:
        loaded = loaded.to(late, non_blocking=non_blocking)
    if out is not None:
        return _write_into(out, loaded)
    return loaded if cls is None else cls._from_mapped(loaded)


def _open(path: str | os.PathLike[str], request: LoadRequest) -> Any:
    try:
        return open_any(path, request)
    except KeyError:
        # no key has that name, so its slashes are those of a path
        if len(request.only) != 1 or "/" not in request.only[0]:
            raise
        try:
            return open_any(path, replace(request, only=tuple(request.only[0].split("/"))))
        except KeyError:
            pass
        raise


load = load_memmap
"""An alias of `load_memmap`."""


def describe_saved(
    prefix: str | os.PathLike[str], *, subpath: str | tuple[str, ...] | None = None, keys: Keys | None = None
) -> Node | Leaf:
    """Return the schema of a save, of a part of it, or of one tensor; no tensor is read."""
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
    """Write a save into a tensordict: values are written in place, missing keys are added as mapped entries.

    Keys that the save lacks are removed; ``load_memmap(prefix, out=td)`` keeps them.

    Args:
        td: The tensordict.
        prefix: The path or URL of the save, in any format.
        allow_pickle: Whether values without a JSON form may be unpickled, which can run arbitrary code.
        mode: How the files of added entries are mapped, as for `load_memmap`; ``"r"`` by default.
        verify: How much of the save is checked, as for `load_memmap`.

    Raises:
        KeyError: The tensordict is locked, and it or the save lacks a key; nothing is written then.

    >>> td = TensorDict({"a": torch.arange(3)}).save("there").zero_()
    >>> load_memmap_(td, "there")["a"]
    tensor([0, 1, 2])
    """
    if has_distributed(td):
        from tensordict_memmap.distributed.load import read_into, wanted_parts  # imports torch.distributed

        request = LoadRequest(mode="r", allow_pickle=bool(allow_pickle), verify=verify, parts=wanted_parts(td))
        loaded = open_any(local_path(prefix), request)
        refuse_other_keys(loaded, td, removes=True)
        saved = loaded.clone(False)  # read_into removes what it read from ``loaded``
        read_into(td, loaded)
    else:
        loaded = saved = load_memmap(prefix, allow_pickle=allow_pickle, mode=mode or "r", verify=verify)
        refuse_other_keys(saved, td, removes=True)
    _write_into(td, loaded)
    if not td.is_locked:
        remove_old_keys(saved, td)
    return td


def _write_into(td: Any, loaded: Any) -> Any:
    refuse_other_keys(loaded, td)
    return td.update_(loaded) if td.is_locked else td.update(loaded, inplace=True)


def from_safetensors(
    path: str | os.PathLike[str],
    device: torch.device | str | None = None,
    *,
    mode: str = "r",
    allow_pickle: bool = False,
    verify: str = "size",
) -> Any:
    """Open any safetensors file as a tensordict, without a copy.

    Args:
        path: The file, or the ``.safetensors.index.json`` of several; `load_memmap` opens URLs. Names of a
            file without a recorded structure are split on ``.``.
        device: The device to copy tensors to; with None they are mapped and the result has no device.
        mode: With ``"r"`` writes to tensors are private to this process; with ``"r+"`` they change the file, and the
            checksums of the tensors are removed.
        allow_pickle: Whether values without a JSON form may be unpickled, which can run arbitrary code.
        verify: ``"full"`` reads the file and compares the checksums that ``checksum=True`` recorded; otherwise only
            the header and the size are checked.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is damaged, is not a safetensors file, or the path is a URL.

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
    return open_packed(path, request)
