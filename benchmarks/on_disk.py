"""What asv's benchmarks of files have in common: one way to save, one tree of tensors, and a folder for each sample."""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from benchmarks.compare import KEPT, remove, touch_free_memory
from benchmarks.savers import SAVERS, TORCH_MMAP, Saver, settle
from benchmarks.workloads import Tree, size
from tensordict_memmap.engine import syscalls

BY_NAME = {saver.name: saver for saver in (*SAVERS, TORCH_MMAP)}


def names(*savers: Saver) -> tuple[str, ...]:
    """A parameter that says which way is timed."""
    return tuple(saver.name for saver in savers)


class OnDisk(ABC):
    """One save a sample; earlier writes are waited for before the clock runs.

    asv starts a process for each cell and calls ``setup`` there before every sample. The tensors are made for the first
    one and saved once, so that no sample pays for what that imports or compiles.
    """

    param_names: tuple[str, ...] = ("workload", "saver")
    number = 1
    rounds = 1
    repeat = 7
    warmup_time = 0
    timeout = 300

    @abstractmethod
    def tree(self, workload: Any) -> Tree:
        """The tensors of a workload."""

    def setup(self, workload: Any, name: str) -> None:
        if not hasattr(self, "held"):
            syscalls.scatter(".")  # so that nobody makes files where others were just removed
            self.saver = BY_NAME[name]
            tree = self.tree(workload)
            self.nbytes = size(tree)
            self.held = self.saver.hold(tree)
            self.new_path()
            self.save()
            self.teardown(workload, name)
        self.new_path()
        touch_free_memory(self.nbytes, Path())
        os.sync()

    def teardown(self, workload: Any, name: str) -> None:
        settle()
        if self.nbytes > KEPT:
            remove(self.path)

    def new_path(self) -> None:
        """Another place in the folder where asv runs the cell, which it removes; where on the disk goes by the name."""
        self.path = Path(f"{secrets.token_hex(4)}{self.saver.ending}").absolute()

    def save(self) -> None:
        self.saver.save(self.held, self.path)

    def save_durably(self) -> None:
        assert self.saver.durable is not None
        self.saver.durable(self.held, self.path)
