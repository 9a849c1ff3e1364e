"""Saving: a tensordict is planned as a tree of records, its files are written in parallel, and it is mapped onto them.

``memmap`` gives a mapped twin, ``memmap_`` maps the tensordict itself, ``memmap_like`` makes room without copying, and
without a folder all of them use shared memory. Whatever stops a save, the earlier one is whole (``commit.py``).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

from tensordict_memmap.engine.future import SaveFuture
from tensordict_memmap.engine.sink import error_context, reserve_file
from tensordict_memmap.formats import tree
from tensordict_memmap.loading.calls import take_over
from tensordict_memmap.remote.upload import save_remote
from tensordict_memmap.remote.urls import is_remote, local_path
from tensordict_memmap.saving.archive import ArchiveSave, is_archive_path
from tensordict_memmap.saving.safetensors import PackedSave, is_packed_path
from tensordict_memmap.saving.tree import TreeSave, name_of
from tensordict_memmap.schema.build import build, fill
from tensordict_memmap.schema.node import Leaf
from tensordict_memmap.schema.plan import plan
from tensordict_memmap.tensor.memmap import MemoryMappedTensor

__all__ = ["memmap", "memmap_", "memmap_like", "save"]


def memmap(
    data: Any,
    prefix: str | os.PathLike[str] | None = None,
    *,
    copy_existing: bool = False,
    num_threads: int | None = None,
    return_early: bool = False,
    share_non_tensor: bool = False,
    existsok: bool = True,
    robust_key: bool | None = None,
    archive: bool | None = None,
    compression: Any = None,
    atomic: bool = True,
    durable: bool = False,
    checksum: bool = False,
    pbar: bool = False,
    format: str | None = None,
    shard_size: int | None = None,
) -> Any:
    """Writes a tensordict to a folder and returns a locked one of the same structure that is mapped onto the files.

    Args:
        data: a tensordict, lazy stack, tensorclass or non-tensor data.
        prefix: the folder; None uses shared memory that goes with its last owner.
        copy_existing: whether entries that are mapped onto other files already are copied rather than refused.
        num_threads: threads that copy; a good number for this machine if None or 0.
        return_early: whether to return a `SaveFuture` at once.
        share_non_tensor: accepted for compatibility: the files hold non-tensor values too, and other processes see them
            after ``memmap_refresh_``.
        existsok: whether an earlier save may be replaced.
        robust_key: accepted for compatibility: file names always escape unusual characters of keys.
        archive: whether to write one zip file of the folder's files; None goes by the ending ``.tdz``.
        compression: how that is compressed (``"deflate"``, ``"bzip2"``, ``"lzma"``); by default not, so it is mapped.
        atomic: whether the save replaces an earlier one as a whole or not at all; otherwise files are overwritten one
            by one and keep their inodes, for those who share live mappings. What an earlier save held leaves the disk
            when that is done, large ones soon after this returns.
        durable: whether the save survives a power failure once this returns.
        checksum: whether checksums are recorded, which ``load_memmap(..., verify="full")`` compares. Files are then
            mapped copy-on-write, so that the checksums stay true; ``load_memmap(..., mode="r+")`` drops them.
        pbar: whether to show how many bytes are out.
        format: ``"tree"`` for a folder with a file a leaf, ``"safetensors"`` for one file; None goes by the path, whose
            ending for that is ``.safetensors``.
        shard_size: the most bytes of tensors in one safetensors file; ``prefix`` is then a folder of several.

    Raises:
        RuntimeError: An entry is mapped onto another file and ``copy_existing`` is False, or the folder holds something
            and ``existsok`` is False.
        TypeError: An entry cannot be stored; the error names its key.
        OSError: The system refuses (a full disk among others); the earlier save is whole.

    >>> from tensordict_core import TensorDict
    >>> td = memmap(TensorDict({"a": torch.arange(3)}, [3]), "numbers")
    >>> td["a"][0] = 7
    >>> TensorDict.load_memmap("numbers")["a"].tolist()
    [7, 1, 2]
    """
    options = {
        "threads": num_threads,
        "durable": durable,
        "checksum": checksum,
        "copy_existing": copy_existing,
        "existsok": existsok,
    }
    one = _one_file(data, prefix, archive, compression, format, shard_size, atomic, **options)
    if one is not None:
        return one.start(return_early, one.twin, pbar)
    if prefix is None:
        return _early(return_early, lambda: _share(data, in_place=False))
    job = TreeSave(data, prefix, copy_existing, num_threads, existsok, atomic, durable, checksum=checksum)
    return job.start(return_early, job.twin, pbar)


def memmap_(
    td: Any,
    prefix: str | os.PathLike[str] | None = None,
    *,
    copy_existing: bool = False,
    num_threads: int | None = None,
    return_early: bool = False,
    share_non_tensor: bool = False,
    existsok: bool = True,
    robust_key: bool | None = None,
    atomic: bool = True,
    durable: bool = False,
    checksum: bool = False,
    pbar: bool = False,
    format: str | None = None,
) -> Any:
    """Maps a tensordict itself: its entries are replaced by mapped ones, and it is locked. Arguments as in `memmap`.

    >>> from tensordict_core import TensorDict
    >>> td = TensorDict({"a": torch.arange(3)}, [3])
    >>> memmap_(td) is td, td.is_memmap(), td.is_locked
    (True, True, True)
    """
    options = {
        "threads": num_threads,
        "durable": durable,
        "checksum": checksum,
        "copy_existing": copy_existing,
        "existsok": existsok,
    }
    one = _one_file(td, prefix, None, None, format, None, atomic, **options)
    if one is not None:
        return one.start(return_early, lambda: take_over(td, one.twin()), pbar)
    if prefix is None:
        return _early(return_early, lambda: _share(td, in_place=True))
    job = TreeSave(td, prefix, copy_existing, num_threads, existsok, atomic, durable, checksum=checksum)
    return job.start(return_early, job.itself, pbar)


def memmap_like(
    td: Any,
    prefix: str | os.PathLike[str] | None = None,
    *,
    copy_existing: bool = False,
    existsok: bool = True,
    num_threads: int | None = None,
    return_early: bool = False,
    share_non_tensor: bool = False,
    robust_key: bool | None = None,
    archive: bool | None = None,
    format: str | None = None,
    reserve: bool = False,
) -> Any:
    """A mapped tensordict of the same structure, filled with zeros; other arguments as in `memmap`.

    Nothing is copied, and files take no space on the disk until they are written to. Expanded entries get files of
    their expanded size. Writing through a mapping where the disk is full ends the process with SIGBUS, unless the space
    was taken before: ``reserve=True`` takes it now, so that a disk that is too small is an ``OSError`` that names the
    key, and nothing is left of what was begun.

    >>> from tensordict_core import TensorDict
    >>> data = memmap_like(TensorDict({"image": torch.ones(3, 4)}).expand(1000), "images")
    >>> data.batch_size, data["image"].shape, data["image"].max()
    (torch.Size([1000]), torch.Size([1000, 3, 4]), tensor(0.))
    """
    one = _one_file(td, prefix, archive, None, format, None, True, threads=num_threads, existsok=existsok, like=True)
    if one is not None and reserve:
        raise ValueError("space is reserved in a folder or in shared memory, not in one file; leave reserve out")
    if one is not None:
        return one.start(return_early, one.twin)
    if prefix is None:
        return _early(return_early, lambda: _share(td, in_place=False, like=True, reserve=reserve))
    job = TreeSave(td, prefix, True, num_threads, existsok, True, False, like=True)
    job.reserve = reserve
    return job.start(return_early, job.twin)


def save(
    data: Any,
    prefix: str | os.PathLike[str],
    *,
    copy_existing: bool = True,
    num_threads: int | None = None,
    return_early: bool = False,
    share_non_tensor: bool = False,
    existsok: bool = True,
    robust_key: bool | None = None,
    archive: bool | None = None,
    compression: Any = None,
    atomic: bool = True,
    durable: bool = False,
    checksum: bool = False,
    pbar: bool = False,
    format: str | None = None,
    shard_size: int | None = None,
) -> Any:
    """Writes a tensordict to a folder without mapping it; arguments as in `memmap`.

    The folder may be an address such as ``s3://bucket/run`` too, through fsspec (``tensordict-memmap[remote]``): the
    save is staged in a temporary folder here and then goes out in parallel, all or nothing.

    Returns:
        ``data`` itself, or a `SaveFuture` of it if ``return_early``.

    >>> from tensordict_core import TensorDict
    >>> td = TensorDict({"a": torch.arange(3)}, [3])
    >>> save(td, "saved") is td, TensorDict.load("saved")["a"].tolist()
    (True, [0, 1, 2])
    """
    if is_remote(prefix):
        return _save_elsewhere(dict(locals()))
    prefix = local_path(prefix)
    options = {
        "threads": num_threads,
        "durable": durable,
        "checksum": checksum,
        "copy_existing": copy_existing,
        "existsok": existsok,
    }
    one = _one_file(data, prefix, archive, compression, format, shard_size, atomic, mapped=False, **options)
    if one is not None:
        return one.start(return_early, lambda: data, pbar)
    job = TreeSave(data, prefix, copy_existing, num_threads, existsok, atomic, durable, checksum=checksum, mapped=False)
    return job.start(return_early, lambda: data, pbar)


def _save_elsewhere(options: dict[str, Any]) -> Any:
    """A save to an address, from the arguments of `save`."""
    data, url, early = options.pop("data"), options.pop("prefix"), options.pop("return_early")
    existsok = options.pop("existsok")
    stage = functools.partial(save, data.clone(recurse=False) if early else data, **options)  # entries as they are now
    return save_remote(url, stage, total=data.bytes(), existsok=existsok, early=early, result=data)


def _one_file(
    td: Any,
    prefix: Any,
    archive: bool | None,
    compression: Any,
    format: str | None,
    shard_size: int | None,
    atomic: bool,
    **options: Any,
) -> ArchiveSave | PackedSave | None:
    """The save to an archive or a safetensors file, None where it is one to a folder or to shared memory."""
    if is_remote(prefix) or local_path(prefix) != prefix:
        raise ValueError(f"files are mapped by their path here, and {prefix!r} is an address; save there and load it")
    mapped = options.pop("mapped", True)
    archived = format is None and is_archive_path(prefix, archive)
    packed = not archived and is_packed_path(prefix, format)
    if archive and packed:
        raise ValueError("an archive is a format of its own; pass archive=True or format, not both")
    if compression is not None and not archived:
        raise ValueError("only archives are compressed; pass archive=True, or a path that ends with .tdz")
    if shard_size is not None and not packed:
        raise ValueError("shards are safetensors files, and this save makes none; pass format='safetensors' too")
    if (packed or archived) and not atomic:
        raise ValueError(
            "one file is replaced as a whole, so there is no atomic=False; load it with mode='r+' to write in place"
        )
    if archived:
        return ArchiveSave(td, prefix, compression=compression, mapped=mapped, **options)
    return PackedSave(td, prefix, shard_size=shard_size, mapped=mapped, **options) if packed else None


def _early(return_early: bool, work: Callable[[], Any]) -> Any:
    return SaveFuture(lambda progress, cancelled: work(), 0) if return_early else work()


# --- shared memory


def _share(td: Any, *, in_place: bool, like: bool = False, reserve: bool = False) -> Any:
    node = tree.name_files(plan(td), tie=not like)
    made: dict[str, torch.Tensor] = {}

    def shared(leaf: Leaf) -> torch.Tensor:
        source = leaf.source
        assert source is not None
        first = made.get(leaf.alias or leaf.file)
        if first is None:
            first = _zeros(leaf, source, reserve) if like else _to_shared_memory(leaf, source)
            made[leaf.alias or leaf.file] = first
        return first

    if in_place:
        fill(node, shared)
        return td.lock_()
    return build(node, shared, device=torch.device("cpu")).lock_()


def _to_shared_memory(leaf: Leaf, source: torch.Tensor) -> torch.Tensor:
    if leaf.layout != "strided":
        return source.detach().to("cpu", copy=True)  # torch has no shared memory for them
    return MemoryMappedTensor.from_tensor(source.detach() if source.requires_grad else source)


def _zeros(leaf: Leaf, source: torch.Tensor, reserve: bool) -> torch.Tensor:
    if leaf.layout != "strided":
        return torch.zeros_like(source, device="cpu")
    made = MemoryMappedTensor.zeros(shape=source.shape, dtype=source.dtype)
    if reserve and made.handler.descriptor is not None:
        with error_context(name_of(leaf)):
            reserve_file(made.handler.descriptor.fd, made.nbytes)
    return made
