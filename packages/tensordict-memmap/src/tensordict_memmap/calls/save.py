"""Public calls that save: `memmap`, `memmap_`, `memmap_like` and `save`.

`memmap` returns a mapped tensordict, `memmap_` maps the tensordict itself, `memmap_like` creates files without copying,
and `save` only writes. Without a path the first three use shared memory. An earlier save at the path stays complete
until the new one replaces it (`transaction`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Unpack

import torch

from tensordict_core import TensorCollection, extension
from tensordict_core.extension import (
    MemmapLikeOptions,
    MemmapOptions,
    RankSaveOptions,
    share_values,
    with_options,
)
from tensordict_memmap.calls.reopen import reopened
from tensordict_memmap.engine.future import SaveFuture
from tensordict_memmap.formats.detect import ARCHIVE, SAFETENSORS, TREE
from tensordict_memmap.remote.upload import save_remote
from tensordict_memmap.remote.urls import is_remote, local_path
from tensordict_memmap.saving.archive import ArchiveWriter
from tensordict_memmap.saving.options import DEFAULTS, SHARED_MEMORY, SaveOptions
from tensordict_memmap.saving.safetensors import SafetensorsWriter
from tensordict_memmap.saving.shared_memory import share
from tensordict_memmap.saving.tree import TreeWriter
from tensordict_memmap.saving.writer import Writer, carry_out
from tensordict_memmap.schema.sharded import has_distributed

_WRITERS: dict[str, type[Writer]] = {TREE: TreeWriter, SAFETENSORS: SafetensorsWriter, ARCHIVE: ArchiveWriter}


@with_options(extension.SaveOptions, DEFAULTS)
def memmap(
    data: Any,
    prefix: str | os.PathLike[str] | None = None,
    copy_existing: bool = False,
    *,
    return_early: bool = False,
    **options: Unpack[extension.SaveOptions],
) -> Any:
    """Write a tensordict to a folder and return a locked tensordict of the same structure, mapped onto the files.

    Args:
        data: A tensordict, lazy stack, tensorclass or non-tensor data.
        prefix: The folder or file; None uses shared memory, which is freed once nothing maps it.
        copy_existing: Whether to copy entries that are mapped onto other files; if False they raise an error.
        num_threads: The number of writer threads; chosen for the machine if None or 0.
        return_early: Whether to return a `SaveFuture` immediately.
        share_non_tensor: Whether in-place writes of non-tensor values are visible in all processes that receive the
            result. The files always hold the values, and other processes read them with ``memmap_refresh_``.
        existsok: Whether an existing save may be replaced.
        robust_key: Accepted for compatibility and ignored: file names always escape unusual characters of keys.
        archive: Whether to write all files into one zip file; None decides by the suffix ``.tdz``.
        compression: The compression of an archive, ``"deflate"``, ``"bzip2"`` or ``"lzma"``. The default is none; only
            an uncompressed archive can be mapped.
        atomic: Whether an existing save is replaced atomically. Otherwise its files are overwritten in place and keep
            their inodes, for processes that share mappings of them. The disk space of a large earlier save is freed in
            the background.
        durable: Whether to sync files to disk, so that the save survives a power failure once the call returns.
        checksum: Whether to record checksums, which ``load_memmap(..., verify="full")`` compares. Files are then
            mapped copy-on-write, so that the checksums stay valid; ``load_memmap(..., mode="r+")`` drops them.
        pbar: Whether to show a progress bar; None shows one on a terminal if the save takes over two seconds.
        format: ``"tree"`` for a folder with a file for each leaf, ``"safetensors"`` for one file, ``"archive"`` for one
            zip file; None decides by the suffix, ``.safetensors`` or ``.tdz``.
        shard_size: The maximum size in bytes of the tensors in one safetensors file; ``prefix`` is then a folder that
            holds the shards.

    Raises:
        RuntimeError: An entry is mapped onto another file and ``copy_existing`` is False, or the folder is not empty
            and ``existsok`` is False.
        ValueError: Options contradict each other, or the format is unknown.
        TypeError: An entry cannot be stored; the error names its key.
        OSError: Writing fails, for example because the disk is full; the earlier save is unchanged.

    >>> from tensordict_core import TensorDict
    >>> td = memmap(TensorDict({"a": torch.arange(3)}, [3]), "numbers")
    >>> td["a"][0] = 7
    >>> TensorDict.load_memmap("numbers")["a"].tolist()
    [7, 1, 2]
    """
    chosen = SaveOptions.of("memmap", extension.SaveOptions, options, copy_existing=copy_existing)
    return _memmap(data, prefix, chosen, options, early=return_early)


@with_options(MemmapOptions, DEFAULTS)
def memmap_(
    td: Any,
    prefix: str | os.PathLike[str] | None = None,
    copy_existing: bool = False,
    *,
    return_early: bool = False,
    **options: Unpack[MemmapOptions],
) -> Any:
    """Save a tensordict, replace its entries by mapped ones and lock it.

    The arguments are those of `memmap`.

    >>> from tensordict_core import TensorDict
    >>> td = TensorDict({"a": torch.arange(3)}, [3])
    >>> memmap_(td) is td, td.is_memmap(), td.is_locked
    (True, True, True)
    """
    chosen = SaveOptions.of("memmap_", MemmapOptions, options, copy_existing=copy_existing)
    return _memmap(td, prefix, chosen, options, in_place=True, early=return_early)


@with_options(MemmapLikeOptions, DEFAULTS)
def memmap_like(
    td: Any,
    prefix: str | os.PathLike[str] | None = None,
    copy_existing: bool = False,
    *,
    return_early: bool = False,
    **options: Unpack[MemmapLikeOptions],
) -> Any:
    """Return a mapped tensordict of the same structure, filled with zeros.

    A folder that holds a save of this structure (keys, shapes, dtypes and classes) is opened, and its tensors keep
    their values, unless ``existsok`` is False; a save of another structure is replaced.

    Nothing is copied, and files take no space on the disk until they are written to. Expanded entries get files of
    their expanded size. Writing through a mapping when the disk is full ends the process with SIGBUS; ``reserve=True``
    allocates the space first and raises an error if the disk is too small. Other arguments are those of `memmap`.

    Raises:
        OSError: The disk is full and ``reserve`` is True; the error names the key.

    >>> from tensordict_core import TensorDict
    >>> data = memmap_like(TensorDict({"image": torch.ones(3, 4)}).expand(1000), "images")
    >>> data.batch_size, data["image"].shape, data["image"].max()
    (torch.Size([1000]), torch.Size([1000, 3, 4]), tensor(0.))
    """
    chosen = SaveOptions.of("memmap_like", MemmapLikeOptions, options, like=True)
    if chosen.existsok and chosen.format_for(prefix) == TREE:
        found = reopened(td, local_path(prefix), allocate=chosen.reserve)
        if found is not None:
            if options.get("share_non_tensor", False):
                share_values(found)
            return SaveFuture(lambda progress, cancelled: found, 0) if return_early else found
    return _memmap(td, prefix, chosen, options, early=return_early)


@with_options(RankSaveOptions, DEFAULTS)
def save(
    data: Any,
    prefix: str | os.PathLike[str],
    copy_existing: bool = True,
    *,
    return_early: bool = False,
    **options: Unpack[RankSaveOptions],
) -> Any:
    """Write a tensordict to a folder, a file or a URL without mapping it; the arguments are those of `memmap`.

    If leaves are DTensors, or with ``group``, all ranks of a process group save together: each rank calls this function
    and writes its own bytes of one checkpoint, which replaces an existing one when all ranks have written. An error of
    one rank is raised on every rank.

    A URL such as ``s3://bucket/run`` requires fsspec (``tensordict-memmap[remote]``). The save is written to a local
    temporary folder and uploaded in parallel; readers see either the earlier or the new save.

    ``group`` is the process group or device mesh of the ranks that save; None is the default process group if a leaf is
    a DTensor, and this process alone otherwise. ``placements`` describes the plain leaves with ``group``: ``None`` or
    ``Replicate()`` if each rank holds the whole tensor, ``Shard(dim)`` if the ranks hold consecutive parts along that
    dimension, in the order of the group; if it is a batch dimension, its sizes are added up. ``timeout`` is the maximum
    time to wait for another rank, in seconds; half an hour if None. With ``return_early``, ``pending`` says whether to
    wait for (``"wait"``) or to cancel (``"cancel"``) an earlier save of these ranks that still runs.

    Returns:
        ``data`` itself, or a `SaveFuture` of it if ``return_early``.

    Raises:
        RankError: Another rank failed or did not answer in time; the error names
            it, and the earlier checkpoint is unchanged.

    >>> from tensordict_core import TensorDict
    >>> td = TensorDict({"a": torch.arange(3)}, [3])
    >>> save(td, "saved") is td, TensorDict.load("saved")["a"].tolist()
    (True, [0, 1, 2])
    """
    chosen = SaveOptions.of("save", RankSaveOptions, options, copy_existing=copy_existing, mapped=False)
    ranks: dict[str, Any] = {
        name: options[name] for name in ("group", "placements", "timeout", "pending") if name in options
    }
    return save_with(data, prefix, chosen, early=return_early, pbar=options.get("pbar"), **ranks)


def save_with(
    data: Any,
    prefix: str | os.PathLike[str],
    options: SaveOptions,
    *,
    early: bool = False,
    pbar: bool | None = None,
    result: Callable[[], Any] | None = None,
    **ranks: Any,
) -> Any:
    """`save` with checked options.

    ``result`` is called once everything is saved, in the thread of the save; it returns the result of the call or of
    its future, which by default is ``data``. ``ranks`` are the arguments about a save by several ranks.
    """
    if prefix is None:
        raise TypeError("prefix is None; name a folder or a file, or call memmap() for tensors in shared memory")
    if ranks.get("group") is not None or has_distributed(data):
        from tensordict_memmap.distributed import calls  # imports torch.distributed

        return calls.save(data, prefix, options, early=early, pbar=pbar, result=result, **ranks)
    if ranks.get("placements") is not None or ranks.get("timeout") is not None:
        raise ValueError("placements= and timeout= are about a save by several ranks; pass group= too")
    result = result or (lambda: data)
    if is_remote(prefix):
        held = data.clone(recurse=False) if early else data  # the caller may replace entries during the save
        local = replace(options, existsok=True)
        return save_remote(
            str(prefix),
            lambda path: _save(held, path, local, lambda: data, pbar=pbar),
            total=data.bytes(),
            existsok=options.existsok,
            early=early,
            result=result,
        )
    return _save(data, local_path(prefix), options, result, early=early, pbar=pbar)


def _save(
    data: Any,
    path: Any,
    options: SaveOptions,
    result: Callable[[], Any],
    *,
    early: bool = False,
    pbar: bool | None = None,
) -> Any:
    return carry_out(lambda: _writer(data, path, options), lambda writer: result(), early=early, pbar=pbar)


def _refuse_modules(td: Any) -> None:
    """Refuse nested parameters: they are a module, which would not train the tensors that are put into their place.

    Raises:
        RuntimeError: A node is a module.
    """
    if isinstance(td, torch.nn.Module):
        raise RuntimeError(
            f"memmap_ would replace the parameters of a {type(td).__name__} by mapped tensors, which are not trained; "
            "use memmap() or memmap_like(), which return a mapped tensordict"
        )
    if isinstance(td, TensorCollection):
        for node in td._nodes():
            _refuse_modules(node)


def _memmap(
    data: Any,
    path: Any,
    options: SaveOptions,
    keywords: Mapping[str, Any],
    *,
    in_place: bool = False,
    early: bool = False,
) -> Any:
    """Save and return a mapped tensordict, or map the tensordict itself; without a path in shared memory."""
    share_written = keywords.get("share_non_tensor", False)
    if in_place:
        _refuse_modules(data)

    def result(writer: Any) -> Any:
        td = writer.fill() if in_place else data._mapped(writer.mapped())
        if share_written:
            share_values(td)
        return td

    if options.format_for(path) == SHARED_MEMORY:
        make = functools.partial(
            share, data, in_place=in_place, like=options.like, reserve=options.reserve, values=share_written
        )
        return SaveFuture(lambda progress, cancelled: make(), 0) if early else make()
    return carry_out(lambda: _writer(data, path, options), result, early=early, pbar=keywords.get("pbar"))


def _writer(data: Any, path: Any, options: SaveOptions) -> Writer:
    return _WRITERS[options.format_for(path)](data, path, options)
