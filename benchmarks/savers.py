"""The ways to put a tree of tensors on disk and back that are measured against one another, behind one interface.

Each is what a user of that library would write. Building the library's own container is not part of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch

import tensordict as reference
import tensordict_core
import tensordict_memmap
from benchmarks.workloads import Tree, flat


@dataclass(frozen=True)
class Saver:
    """One way: what holds the tensors in memory, how that is saved, and how it comes back."""

    name: str
    hold: Callable[[Tree], object]
    save: Callable[[object, Path], object]
    load: Callable[[Path], object]


def contiguous(tree: Tree) -> dict[str, torch.Tensor]:
    """safetensors takes contiguous tensors only, so a user copies before saving: that is part of its time."""
    return {key: leaf.contiguous() for key, leaf in tree.items()}


OURS = Saver(
    "tensordict-memmap",
    lambda tree: tensordict_core.TensorDict(tree, []),
    lambda td, path: td.memmap(path),
    lambda path: tensordict_core.TensorDict.load_memmap(path),
)
OURS_ONE_FILE = Saver(
    "tensordict-memmap, one file",
    OURS.hold,
    tensordict_memmap.to_safetensors,
    tensordict_memmap.from_safetensors,
)
REFERENCE = Saver(
    "reference",
    lambda tree: reference.TensorDict(tree, []),
    lambda td, path: td.memmap(path),
    lambda path: reference.TensorDict.load_memmap(path),
)
REFERENCE_THREADS = Saver(
    "reference, 16 threads",
    REFERENCE.hold,
    lambda td, path: td.memmap(path, num_threads=16),
    REFERENCE.load,
)
TORCH = Saver("torch.save", lambda tree: dict(flat(tree)), torch.save, torch.load)
TORCH_MMAP = Saver("torch.load(mmap=True)", TORCH.hold, TORCH.save, lambda path: torch.load(path, mmap=True))
SAFETENSORS = Saver(
    "safetensors",
    lambda tree: dict(flat(tree)),
    lambda state, path: safetensors.torch.save_file(contiguous(state), path),
    safetensors.torch.load_file,
)


def touch(loaded: object) -> None:
    """Reads every byte that was loaded: an opened file has not been read yet."""
    if isinstance(loaded, torch.Tensor):
        loaded.sum()
        return
    for value in loaded.values():
        touch(value)
