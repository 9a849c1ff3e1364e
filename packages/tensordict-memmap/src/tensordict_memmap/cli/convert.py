"""`convert`: copies a saved tensordict to another format, a few megabytes at a time.

The source is mapped and the target is written like any save, so neither is in memory as a whole, and the target is
replaced in one step. A source that cannot be mapped (a compressed archive, a remote save) is first copied to a
temporary folder, beside the target unless that is a URL.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

from tensordict_memmap.calls.load import load_memmap
from tensordict_memmap.calls.save import save
from tensordict_memmap.formats.detect import ARCHIVE, CONSOLIDATED
from tensordict_memmap.loading.archive import Archive
from tensordict_memmap.loading.detect import format_of
from tensordict_memmap.loading.remote import RemoteSave
from tensordict_memmap.remote.upload import save_remote
from tensordict_memmap.remote.urls import is_remote, local_path
from tensordict_memmap.saving.archive import unpack_memmap
from tensordict_memmap.saving.consolidated import save_consolidated
from tensordict_memmap.saving.options import FORMATS as SAVE_FORMATS

FORMATS = (*SAVE_FORMATS, CONSOLIDATED)
"""The formats that a save can be converted to."""


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    format: str | None = None,
    *,
    compression: Any = None,
    shard_size: int | None = None,
    num_threads: int | None = None,
    durable: bool = False,
    checksum: bool = False,
    allow_pickle: bool = False,
    pbar: bool | None = None,
) -> None:
    """Copy a saved tensordict to another format, with less than 64 MiB of memory in addition to the mapped files.

    Args:
        source: The path or URL of a save in any format.
        target: A path or URL. Existing content is replaced when the new content is complete.
        format: ``"tree"``, ``"safetensors"``, ``"archive"`` or ``"consolidated"``; by default according to the file
            name extension of the target: ``.safetensors``, ``.tdz`` for an archive, and a tree for any other.
        compression: The compression of an archive; none by default.
        shard_size: The maximum size in bytes of the tensors in one safetensors file; the target is then a folder.
        num_threads: The number of writer threads; chosen for the machine if None.
        durable: Whether to sync the target to disk before the call returns.
        checksum: Whether to record checksums, which ``load_memmap(..., verify="full")`` compares.
        allow_pickle: Whether values without a JSON form may be unpickled, and pickled again.
        pbar: Whether to show a progress bar; None shows one on a terminal after two seconds.

    Raises:
        FileNotFoundError: There is no save at the source.
        ValueError: The format is unknown, or the source is damaged.
        TypeError: The format cannot hold an entry; the error names its key.

    >>> _ = TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(2)}}).save("tree")
    >>> convert("tree", "one.safetensors")
    >>> convert("one.safetensors", "one.bin", "consolidated")
    >>> TensorDict.from_consolidated("one.bin")["b", "c"]
    tensor([1., 1.])
    """
    options: dict[str, Any] = {"compression": compression, "shard_size": shard_size, "num_threads": num_threads}
    options |= {"durable": durable, "checksum": checksum, "pbar": pbar}
    with _mappable(local_path(source), target) as path:
        save_as(load_memmap(path, mode="r", allow_pickle=allow_pickle), target, format, **options)


def save_as(data: Any, target: str | os.PathLike[str], format: str | None, **options: Any) -> None:
    """Save a tensordict in a format, given by its name or by the suffix of the target.

    Args:
        data: The tensordict.
        target: A path or URL.
        format: The format, as in `convert`.
        options: The options of `save`.

    Raises:
        ValueError: The format is unknown, or has no such option.
    """
    if format is not None and format not in FORMATS:
        raise ValueError(f"unknown format {format!r}; the formats are {', '.join(map(repr, FORMATS))}")
    if is_remote(target):
        save_remote(str(target), lambda path: save_as(data, path, format, **options))
        return
    target = local_path(target)
    if format == CONSOLIDATED:
        if options.pop("compression") is not None or options.pop("shard_size") is not None:
            raise ValueError("compression and shard_size do not apply to a consolidated file; omit them")
        if options.pop("checksum"):
            raise ValueError("a consolidated file has no place for checksums; omit them, or choose another format")
        save_consolidated(data, target, num_threads=options.pop("num_threads") or 0, **options)
        return
    save(data, target, format=format, **options)


@contextlib.contextmanager
def _mappable(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Iterator[str | os.PathLike[str]]:
    """Yield a path whose content can be mapped: the source, or a copy of it, beside a target that is no URL."""
    if not is_remote(source) and not _is_compressed(source):
        yield source
        return
    parent, name = (None, "tensordict") if is_remote(target) else os.path.split(os.path.abspath(local_path(target)))
    if parent is not None:
        os.makedirs(parent, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}.converted-", dir=parent) as folder:
        copy = os.path.join(folder, "copy")
        if is_remote(source):
            with _mappable(RemoteSave(str(source)).download(copy), target) as path:
                yield path
        else:
            yield unpack_memmap(source, copy)


def _is_compressed(path: str | os.PathLike[str]) -> bool:
    if format_of(path) != ARCHIVE or not os.path.exists(path):
        return False
    return not all(member.stored for member in Archive(os.path.abspath(path)).members.values())
