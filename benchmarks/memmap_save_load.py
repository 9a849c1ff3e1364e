"""Saves and loads, compared with torch, safetensors and the reference, in the page cache; ours also durable."""

from __future__ import annotations

import os

from benchmarks.on_disk import OnDisk, names
from benchmarks.savers import (
    LIMIT,
    LIMIT_ONE_FILE,
    OURS,
    OURS_ONE_FILE,
    REFERENCE,
    REFERENCE_CONSOLIDATED,
    SAFETENSORS,
    TORCH,
    TORCH_MMAP,
    settle,
    touch,
)
from benchmarks.workloads import Tree, gpt2, one_leaf, small_leaves, transformer, transposed

# Smaller than in the tables, so that all take minutes: parameters in the shapes of GPT-2 with 2 of its 12
# layers (214 MB), one leaf of 134 MB, 1,000 leaves of 1 KiB, 67 MB that lie transposed in memory, and the 391 leaves of
# a transformer of 32 layers (102 MB).
WORKLOADS = {
    "A: gpt2, 2 layers": lambda: gpt2(layers=2),
    "B: one leaf": lambda: one_leaf(1 << 25),
    "C: 1,000 small": lambda: small_leaves(1000),
    "D: transposed": lambda: transposed(count=2),
    "E: transformer, 32 layers": lambda: transformer(layers=32),
}
SAVERS = (OURS, OURS_ONE_FILE, REFERENCE, REFERENCE_CONSOLIDATED, TORCH, SAFETENSORS)


class Saved(OnDisk):
    """Saves of a workload, by its name."""

    def tree(self, workload: str) -> Tree:
        return WORKLOADS[workload]()


class Save(Saved):
    """Saves to a new path in a process that has saved before; `memmap_first_save` times the first save."""

    params = (tuple(WORKLOADS), names(*SAVERS, LIMIT, LIMIT_ONE_FILE))

    def time_save(self, workload: str, name: str) -> None:
        self.save()


class Earlier(Saved):
    """Saves to a path with an earlier save."""

    def setup(self, workload: str, name: str) -> None:
        super().setup(workload, name)
        self.save()
        settle()
        os.sync()


class SaveOver(Earlier):
    """Saves to a path with an earlier save."""

    params = (tuple(WORKLOADS), names(*SAVERS))

    def time_save_over(self, workload: str, name: str) -> None:
        self.save()


class Durable(Saved):
    """Durable saves to a new path, which survive a power failure."""

    params = (tuple(WORKLOADS), names(OURS, OURS_ONE_FILE, LIMIT, LIMIT_ONE_FILE))

    def time_save_durable(self, workload: str, name: str) -> None:
        self.save_durably()


class DurableOver(Earlier):
    """Durable saves to a path with an earlier save."""

    params = (tuple(WORKLOADS), names(OURS, OURS_ONE_FILE))

    def time_save_over_durable(self, workload: str, name: str) -> None:
        self.save_durably()


class Load(Saved):
    """Opens a save, and opens it and reads every byte."""

    params = (tuple(WORKLOADS), names(OURS, OURS_ONE_FILE, REFERENCE, REFERENCE_CONSOLIDATED, TORCH_MMAP, SAFETENSORS))

    def setup(self, workload: str, name: str) -> None:
        super().setup(workload, name)
        self.save()

    def open(self) -> object:
        assert self.saver.load is not None
        return self.saver.load(self.path)

    def time_open(self, workload: str, name: str) -> None:
        self.open()

    def time_read(self, workload: str, name: str) -> None:
        touch(self.open())
