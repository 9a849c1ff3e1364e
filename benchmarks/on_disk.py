"""Base of asv's benchmarks of files: a saver, a tree of tensors, and a new folder for each sample."""

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
    """Returns the asv parameter that selects the saver."""
    return tuple(saver.name for saver in savers)


class OnDisk(ABC):
    """Runs one save per sample, after earlier writes have reached the disk.

    asv starts a process for each cell and calls ``setup`` there before every sample. The first one makes the tensors
    and saves them once, so that no sample includes imports or compilation.
    """

    param_names: tuple[str, ...] = ("workload", "saver")
    number = 1
    rounds = 1
    repeat = 7
    warmup_time = 0
    timeout = 300

    @abstractmethod
    def tree(self, workload: Any) -> Tree:
        """Returns the tensors of a workload."""

    def setup(self, workload: Any, name: str) -> None:
        if not hasattr(self, "held"):
            syscalls.scatter(".")  # so that new files are not made where others were just removed
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
        """Returns a new path in asv's folder, which asv removes; the name determines the place on the disk."""
        self.path = Path(f"{secrets.token_hex(4)}{self.saver.ending}").absolute()

    def save(self) -> None:
        self.saver.save(self.held, self.path)

    def save_durably(self) -> None:
        assert self.saver.durable is not None
        self.saver.durable(self.held, self.path)
