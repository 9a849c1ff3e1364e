"""Options of saving and loading: typed keyword arguments that core's methods and ``tensordict-memmap`` share.

A method takes them as ``**options: Unpack[SaveOptions]`` and passes them on, so each name and type is written once.
The defaults are those of ``tensordict-memmap``; the docstrings document them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from typing import Any, TypeAlias, TypedDict

import torch
from torch import Tensor

from tensordict_core.base.keys import NestedKey

StrPath: TypeAlias = str | PathLike[str]


class _FileOptions(TypedDict, total=False):
    num_threads: int | None
    share_non_tensor: bool
    existsok: bool
    robust_key: bool | None
    format: str | None


class MemmapOptions(_FileOptions, total=False):
    """The options of ``memmap_``; the docstring of ``memmap`` explains each."""

    atomic: bool
    durable: bool
    checksum: bool
    pbar: bool | None


class SaveOptions(MemmapOptions, total=False):
    """The options of ``save`` and ``memmap``: those of ``memmap_`` and of single-file formats."""

    archive: bool | None
    compression: Any
    shard_size: int | None


class RankSaveOptions(SaveOptions, total=False):
    """The options of ``save``: those of ``memmap``, and of a save by several ranks."""

    group: Any
    placements: Any
    timeout: float | None
    pending: str


class MemmapLikeOptions(_FileOptions, total=False):
    """The options of ``memmap_like``."""

    archive: bool | None
    reserve: bool


class LoadOptions(TypedDict, total=False):
    """The options of ``load_memmap``."""

    out: Any
    robust_key: bool | None
    subpath: NestedKey | None
    mode: str | None
    num_threads: int | None
    allow_pickle: bool | None
    verify: str
    keys: NestedKey | Iterable[NestedKey] | None
    rows: int | slice | range | Sequence[int] | Tensor | None
    like: Any
    strict: bool
    fill: float | None
    cast: bool
    eager: bool | None


class ConsolidateOptions(TypedDict, total=False):
    """The options of ``consolidate``."""

    num_threads: int
    device: torch.device | str | int | None
    non_blocking: bool
    inplace: bool
    use_buffer: bool
    share_memory: bool
    pin_memory: bool
    metadata: bool
