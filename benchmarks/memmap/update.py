"""In-place writes: ``disk.update_(td)`` right after preallocation, and again when the pages are mapped.

``python -m benchmarks.memmap.update`` compares with the reference, ``Tensor.copy_`` and writes into reserved blocks;
each round runs every variant once, in random order, after earlier writes have reached the disk. The kernels are
compiled first.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

import tensordict as reference
from tensordict_core import TensorDict
from tensordict_memmap.engine.kernels.loader import functions

LEAVES, BLOCK = 8, 4 << 20
FIRST, WARM = "first fill", "warm"


def source(megabytes: int) -> dict[str, torch.Tensor]:
    """Leaves of random bytes."""
    return {str(i): torch.randint(256, (megabytes * (1 << 20) // LEAVES,), dtype=torch.uint8) for i in range(LEAVES)}


def allocate(cls: Any, leaves: dict[str, torch.Tensor], path: Path) -> Any:
    """An empty mapped twin."""
    return cls(leaves).memmap_like(path)


def plain_write(leaves: dict[str, torch.Tensor], path: Path, pool: ThreadPoolExecutor) -> None:
    """Writes at the speed of the machine: blocks are reserved, and two threads write 4 MiB at a time."""
    descriptors = {}
    for name, leaf in leaves.items():
        descriptors[name] = os.open(path / f"{name}.memmap", os.O_RDWR)
        os.posix_fallocate(descriptors[name], 0, leaf.nbytes)

    def write(name: str) -> None:
        data = leaves[name].numpy().data
        for start in range(0, len(data), BLOCK):
            os.pwrite(descriptors[name], data[start : start + BLOCK], start)

    list(pool.map(write, leaves))
    for descriptor in descriptors.values():
        os.close(descriptor)


def copy_all(disk: Any, leaves: dict[str, torch.Tensor]) -> None:
    for name, leaf in leaves.items():
        torch.Tensor.copy_(disk[name].as_subclass(torch.Tensor), leaf)


def timed(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return 1000 * (perf_counter() - start)


def rounds(folder: Path, megabytes: int, count: int) -> dict[tuple[str, str], list[float]]:
    """Measures each variant in milliseconds, first and warm."""
    leaves, pool = source(megabytes), ThreadPoolExecutor(2)
    ours, theirs = TensorDict(leaves), reference.TensorDict(leaves)
    ways: dict[str, tuple[Any, Callable[[Any, Path], object]]] = {
        "update_": (TensorDict, lambda disk, path: disk.update_(ours)),
        "update_ of the reference": (reference.TensorDict, lambda disk, path: disk.update_(theirs)),
        "Tensor.copy_": (TensorDict, lambda disk, path: copy_all(disk, leaves)),
        "fallocate and pwrite": (TensorDict, lambda disk, path: plain_write(leaves, path, pool)),
    }
    times: dict[tuple[str, str], list[float]] = {(state, way): [] for state in (FIRST, WARM) for way in ways}
    for _ in range(count):
        for way in random.sample(list(ways), len(ways)):
            cls, work = ways[way]
            path = folder / "disk"
            disk = allocate(cls, leaves, path)
            os.sync()
            times[FIRST, way].append(timed(lambda work=work, disk=disk, path=path: work(disk, path)))
            copy_all(disk, leaves)  # through the mapping, so that all its pages are mapped
            times[WARM, way].append(timed(lambda work=work, disk=disk, path=path: work(disk, path)))
            del disk
            shutil.rmtree(path)
    return times


class Update:
    """Writes 256 MB into new buffers, and again into the same ones."""

    params = (["update_", "update_ of the reference", "Tensor.copy_"], [FIRST, WARM])
    param_names = ("way", "state")
    number = 1
    rounds = 1
    repeat = 7
    warmup_time = 0
    timeout = 300

    def setup(self, way: str, state: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bench-"))
        if not hasattr(self, "leaves"):  # asv calls this before every sample
            self.leaves = source(256)
        cls = reference.TensorDict if "reference" in way else TensorDict
        self.source = cls(self.leaves)
        self.disk = allocate(cls, self.leaves, self.folder / "disk")
        if state == WARM:
            copy_all(self.disk, self.leaves)
        os.sync()

    def teardown(self, way: str, state: str) -> None:
        del self.disk
        shutil.rmtree(self.folder)

    def time_update(self, way: str, state: str) -> None:
        if way == "Tensor.copy_":
            copy_all(self.disk, self.leaves)
        else:
            self.disk.update_(self.source)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    functions(0)
    folder = Path(tempfile.mkdtemp(prefix="update-", dir=options.folder))
    try:
        times = rounds(folder, options.megabytes, options.rounds)
    finally:
        shutil.rmtree(folder)
    for what, best in (("medians", median), ("fastest", min)):
        found = {case: best(taken) for case, taken in times.items()}
        print(what)
        for (state, way), value in found.items():
            print(f"  {state:12}{way:28}{value:9.1f} ms, {value / found[state, 'update_']:5.2f} x ours")


if __name__ == "__main__":
    main()
