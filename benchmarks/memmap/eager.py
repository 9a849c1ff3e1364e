"""Eager loads of tensors that are on the disk, and over a mount with a millisecond a request, beside mappings.

``python -m benchmarks.memmap.eager`` saves 256 MiB as a folder and as one file and drops their pages from memory before
each load. A loaded tensor is complete once each of its pages was read. The slow mount is simulated: each request of a
load waits first; a mapping is simulated by one thread that reads as many bytes at a time as Linux reads ahead. Every
round runs every variant once, in random order.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time, sleep
from typing import Any
from unittest.mock import patch

import torch

from tensordict_core import TensorDict
from tensordict_memmap import load_memmap
from tensordict_memmap.engine import syscalls
from tensordict_memmap.loading import eager

LEAVES, NUMBERS = 32, 1 << 21
READ_AHEAD = 128 << 10
"""The bytes that Linux reads ahead of an access by default."""
WAIT = 1e-3


def drop(path: Path) -> None:
    """Drops the pages of a save from memory."""
    for file in [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]:
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def load(path: Path, *, is_eager: bool) -> list[torch.Tensor]:
    """Loads a save and reads a number of each page."""
    return [leaf.view(-1)[:: 4096 // 4].sum() for leaf in load_memmap(path, mode="r", eager=is_eager).values()]


def load_slowly(path: Path) -> object:
    """Loads a file eagerly, where each request waits."""
    read = syscalls.read_parts

    def read_parts(*arguments: Any) -> None:
        sleep(WAIT)
        read(*arguments)

    with patch.object(syscalls, "read_parts", read_parts), patch.object(eager, "is_on_network", lambda path: True):
        return load_memmap(path, mode="r")


def read_as_mapped(path: Path) -> None:
    """Reads a file with one thread and a wait before each request, as the accesses to a mapping do."""
    with open(path, "rb", buffering=0) as file:
        while file.read(READ_AHEAD):
            sleep(WAIT)


def measure(variants: dict[str, Callable[[], object]], paths: list[Path], rounds: int) -> None:
    """Prints the median wall time of each variant, the shortest, and the median of the processor time."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name in random.sample(list(variants), len(variants)):
            for path in paths:
                drop(path)
            wall, processor = perf_counter(), process_time()
            variants[name]()
            times[name].append((1e3 * (perf_counter() - wall), 1e3 * (process_time() - processor)))
    for name, taken in times.items():
        walls = [wall for wall, _ in taken]
        print(f"{name:28} {median(walls):7.0f} ms, shortest {min(walls):7.0f}, ", end="")
        print(f"processor time {median(processor for _, processor in taken):7.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eager-", dir=options.folder) as place:
        folder, file = Path(place) / "folder", Path(place) / "file.safetensors"
        td = TensorDict({f"leaf{i}": torch.randn(NUMBERS) for i in range(LEAVES)})
        td.save(folder)
        td.save(file)
        variants: dict[str, Callable[[], object]] = {}
        for path in (folder, file):
            variants[f"{path.name}, eager"] = partial(load, path, is_eager=True)
            variants[f"{path.name}, mapped"] = partial(load, path, is_eager=False)
        variants["slow mount, eager"] = partial(load_slowly, file)
        variants["slow mount, as mapped"] = partial(read_as_mapped, file)
        measure(variants, [folder, file], options.rounds)


if __name__ == "__main__":
    main()
