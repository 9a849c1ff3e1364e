"""Conversion: what was saved in one format is saved in another, a few megabytes at a time.

The source is mapped and the target written as any save is, so neither is ever in memory as a whole, and the target is
all or nothing. What cannot be mapped (compressed archives, what lies elsewhere) is first copied to a temporary folder
beside the target.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

from tensordict_memmap.engine import syscalls as system
from tensordict_memmap.formats.detect import ARCHIVE, CONSOLIDATED, SAFETENSORS, TREE, kind_of
from tensordict_memmap.loading.archive import Archive
from tensordict_memmap.loading.calls import load_memmap
from tensordict_memmap.remote.load import RemoteSave
from tensordict_memmap.remote.upload import save_remote
from tensordict_memmap.remote.urls import here, is_remote
from tensordict_memmap.saving.archive import unpack_memmap
from tensordict_memmap.saving.calls import save
from tensordict_memmap.saving.consolidated import consolidate

__all__ = ["FORMATS", "convert"]

FORMATS = (TREE, SAFETENSORS, ARCHIVE, CONSOLIDATED)
"""What a save can be converted to."""


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    format: str | None = None,
    *,
    compression: Any = None,
    shard_size: int | None = None,
    num_threads: int | None = None,
    durable: bool = False,
    allow_pickle: bool = False,
) -> None:
    """Saves again, in another format, what was saved; memory beside the files stays under 64 MiB.

    Args:
        source: a path or an address, in any format.
        target: a path or an address. What it held before is there until all of the new content is.
        format: ``"tree"``, ``"safetensors"``, ``"archive"`` or ``"consolidated"``; None goes by the ending of the
            target: ``.safetensors``, ``.tdz``, or none of these for a tree.
        compression: how an archive is compressed; by default not.
        shard_size: the most bytes of tensors in one safetensors file; the target is then a folder.
        num_threads: threads that write; a good number for this machine if None.
        durable: whether the target survives a power failure once this returns.
        allow_pickle: whether values without a JSON form may be unpickled, to be pickled again.

    Raises:
        FileNotFoundError: Nothing was saved there.
        ValueError: There is no such format, or the source is damaged.
        TypeError: The format has no place for an entry; the error names its key.

    >>> _ = TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(2)}}).save("tree")
    >>> convert("tree", "one.safetensors")
    >>> convert("one.safetensors", "one.bin", "consolidated")
    >>> TensorDict.from_consolidated("one.bin")["b", "c"]
    tensor([1., 1.])
    """
    if format is not None and format not in FORMATS:
        raise ValueError(f"a save has one of the formats {', '.join(map(repr, FORMATS))}, not {format!r}")
    if is_remote(target):

        def stage(path: str) -> None:
            convert(
                source,
                path,
                format,
                compression=compression,
                shard_size=shard_size,
                num_threads=num_threads,
                allow_pickle=allow_pickle,
            )

        save_remote(str(target), stage)
        return
    target = here(target)
    with _mappable(here(source), target) as path:
        loaded = load_memmap(path, mode="r", allow_pickle=allow_pickle)
        if format == CONSOLIDATED:
            if compression is not None or shard_size is not None:
                raise ValueError("a consolidated file is one and not compressed; leave compression and shard_size out")
            consolidate(loaded, target, num_threads=num_threads or 0)
            if durable:
                with open(target, "r+b") as file:
                    os.fsync(file.fileno())
                system.sync_folder(os.path.dirname(os.path.abspath(target)))
            return
        save(
            loaded,
            target,
            archive=True if format == ARCHIVE else None if format is None else False,
            format=format if format in (TREE, SAFETENSORS) else None,
            compression=compression,
            shard_size=shard_size,
            num_threads=num_threads,
            durable=durable,
        )


@contextlib.contextmanager
def _mappable(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Iterator[str | os.PathLike[str]]:
    """A path whose content can be mapped: the source itself, or a copy of it beside the target."""
    if not is_remote(source) and not _is_compressed(source):
        yield source
        return
    folder, name = os.path.split(os.path.abspath(target))
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}.converted-", dir=folder) as place:
        copy = os.path.join(place, "copy")
        if is_remote(source):
            with _mappable(RemoteSave(str(source)).download(copy), target) as path:
                yield path
        else:
            yield unpack_memmap(source, copy)


def _is_compressed(path: str | os.PathLike[str]) -> bool:
    if kind_of(path) != ARCHIVE or not os.path.exists(path):
        return False
    return not all(member.stored for member in Archive(os.path.abspath(path)).members.values())
