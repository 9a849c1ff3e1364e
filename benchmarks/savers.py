"""Savers: the libraries that save and load a tree of tensors, behind one interface.

Each saver uses its library as a user would. Building the library's own container is not timed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

import tensordict as reference
import tensordict_core
import tensordict_memmap
from benchmarks.limits import files_of_tree, one_file, write_plain
from benchmarks.workloads import Tree, flat
from tensordict_memmap.engine import syscalls
from tensordict_memmap.storage import cleanup


@dataclass(frozen=True)
class Saver:
    """One library: how it holds tensors in memory, saves them and loads them.

    Args:
        name: the name in the tables.
        hold: makes the library's container of a tree.
        save: saves the container to a path.
        load: opens a save; None if the saver has none.
        durable: saves so that the data survives a power failure; None if the library cannot.
        ending: the suffix of its paths.
        ours: whether it is what this project makes.
    """

    name: str
    hold: Callable[[Tree], Any]
    save: Callable[[Any, Path], object]
    load: Callable[[Path], Any] | None = None
    durable: Callable[[Any, Path], object] | None = None
    ending: str = ""
    ours: bool = False


def contiguous(tree: Tree) -> dict[str, torch.Tensor]:
    """Makes tensors contiguous, which safetensors requires; this is part of its time."""
    return {key: leaf.contiguous() for key, leaf in tree.items()}


def save_unchecked(state: object, path: Path) -> None:
    """Saves by torch.save without the CRC of its records."""
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state, path)
    finally:
        torch.serialization.set_crc32_options(True)


def settle() -> None:
    """Waits for background work of a save, so that it does not slow down the next case."""
    cleanup.wait()


@contextmanager
def scratch(parent: Path | None) -> Iterator[Path]:
    """Yields a new folder, placed away from recently removed files, and removes it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="benchmark-", dir=parent))
    syscalls.scatter(str(folder))
    try:
        yield folder
    finally:
        settle()
        shutil.rmtree(folder)


OURS = Saver(
    "ours, a file per leaf",
    lambda tree: tensordict_core.TensorDict(tree, []),
    lambda td, path: td.memmap(path),
    lambda path: tensordict_core.TensorDict.load_memmap(path),
    lambda td, path: tensordict_memmap.memmap(td, path, durable=True),
    ours=True,
)
OURS_ONE_FILE = Saver(
    "ours, one file",
    OURS.hold,
    tensordict_memmap.to_safetensors,
    tensordict_memmap.from_safetensors,
    partial(tensordict_memmap.to_safetensors, durable=True),
    ending=".safetensors",
    ours=True,
)
OURS_ARCHIVE = Saver("ours, archive", OURS.hold, OURS.save, OURS.load, OURS.durable, ending=".tdz", ours=True)
REFERENCE = Saver(
    "reference",
    lambda tree: reference.TensorDict(tree, []),
    lambda td, path: td.memmap(path),
    lambda path: reference.TensorDict.load_memmap(path),
)
REFERENCE_THREADS = Saver(
    "reference, 16 threads", REFERENCE.hold, lambda td, path: td.memmap(path, num_threads=16), REFERENCE.load
)
REFERENCE_CONSOLIDATED = Saver(
    "reference, consolidated",
    REFERENCE.hold,
    lambda td, path: td.consolidate(filename=path),
    lambda path: reference.TensorDict.from_consolidated(path),
    ending=".bin",
)
REFERENCE_ARCHIVE = Saver("reference, archive", REFERENCE.hold, REFERENCE.save, REFERENCE.load, ending=".tdz")
TORCH = Saver("torch.save", lambda tree: dict(flat(tree)), torch.save, torch.load, ending=".pt")
TORCH_UNCHECKED = Saver("torch.save, no CRC", TORCH.hold, save_unchecked, ending=".pt")
TORCH_MMAP = Saver(
    "torch.load(mmap=True)", TORCH.hold, TORCH.save, lambda path: torch.load(path, mmap=True), ending=".pt"
)
SAFETENSORS = Saver(
    "safetensors",
    lambda tree: dict(flat(tree)),
    lambda state, path: safetensors.torch.save_file(contiguous(state), path),
    safetensors.torch.load_file,
    ending=".safetensors",
)
LIMIT = Saver("limit, a file per leaf", files_of_tree, write_plain, durable=partial(write_plain, sync=True))
LIMIT_ONE_FILE = Saver("limit, one file", one_file, write_plain, durable=partial(write_plain, sync=True))

SAVERS = (
    OURS,
    OURS_ONE_FILE,
    OURS_ARCHIVE,
    REFERENCE,
    REFERENCE_THREADS,
    REFERENCE_CONSOLIDATED,
    REFERENCE_ARCHIVE,
    TORCH,
    TORCH_UNCHECKED,
    SAFETENSORS,
    LIMIT,
    LIMIT_ONE_FILE,
)
LOADERS = (
    OURS,
    OURS_ONE_FILE,
    OURS_ARCHIVE,
    REFERENCE,
    REFERENCE_CONSOLIDATED,
    REFERENCE_ARCHIVE,
    TORCH,
    TORCH_MMAP,
    SAFETENSORS,
)


def touch(loaded: object) -> None:
    """Reads every loaded byte: opening a file reads none."""
    if isinstance(loaded, torch.Tensor):
        loaded.sum()
        return
    for value in loaded.values():
        touch(value)
