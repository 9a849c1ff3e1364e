"""The ways to put a tree of tensors on disk and back that are measured against one another, behind one interface.

Each is what a user of that library would write. Building the library's own container is not part of the time.
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
    """One way: what holds the tensors in memory, how that is saved, and how it comes back.

    Args:
        name: what tables call it.
        hold: builds the library's container of a tree.
        save: puts that at a path.
        load: opens what is there; None where nothing does.
        durable: saves so that it survives a power failure; None where the library has no such way.
        ending: what its paths end with.
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
    """safetensors takes contiguous tensors only, so a user copies before saving: that is part of its time."""
    return {key: leaf.contiguous() for key, leaf in tree.items()}


def save_unchecked(state: object, path: Path) -> None:
    """torch.save without the CRC of its records."""
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state, path)
    finally:
        torch.serialization.set_crc32_options(True)


def settle() -> None:
    """Waits for what a save left to the background, so that the next case does not pay for it."""
    cleanup.wait()


@contextmanager
def scratch(parent: Path | None) -> Iterator[Path]:
    """A folder to save to, in which nobody makes files where others were just removed; it is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="benchmark-", dir=parent))
    syscalls.scatter(str(folder))
    try:
        yield folder
    finally:
        settle()
        shutil.rmtree(folder)


OURS = Saver(
    "ours, a file a leaf",
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
LIMIT = Saver("limit, a file a leaf", files_of_tree, write_plain, durable=partial(write_plain, sync=True))
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
    """Reads every byte that was loaded: an opened file has not been read yet."""
    if isinstance(loaded, torch.Tensor):
        loaded.sum()
        return
    for value in loaded.values():
        touch(value)
