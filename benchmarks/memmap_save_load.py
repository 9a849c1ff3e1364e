"""Saving and loading again, beside torch, safetensors and the reference, into the page cache; ours durably too."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

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
    Saver,
    settle,
    touch,
)
from benchmarks.workloads import gpt2, one_leaf, small_leaves, transformer, transposed

# Smaller than those of the tables, so that all of them take minutes: parameters in the shapes of GPT-2 with 2 of its 12
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
LIMITS = (LIMIT, LIMIT_ONE_FILE)


class OnDisk:
    """A fresh folder a sample, and earlier writes are waited for before the clock runs."""

    params: tuple[object, ...] = tuple(WORKLOADS)
    param_names: tuple[str, ...] = ("workload",)
    number = 1
    rounds = 1
    repeat = 7
    warmup_time = 0
    timeout = 300

    def setup(self, workload: str) -> None:
        tree = WORKLOADS[workload]()
        self.folder = Path(tempfile.mkdtemp(prefix="bench-"))
        self.held = {saver.name: saver.hold(tree) for saver in (*SAVERS, *LIMITS)}
        os.sync()

    def teardown(self, workload: str) -> None:
        settle()
        shutil.rmtree(self.folder)

    def path(self, saver: Saver) -> Path:
        return self.folder / f"{(*SAVERS, *LIMITS).index(saver)}{saver.ending}"

    def save(self, saver: Saver) -> None:
        saver.save(self.held[saver.name], self.path(saver))

    def save_durably(self, saver: Saver) -> None:
        assert saver.durable is not None
        saver.durable(self.held[saver.name], self.path(saver))


class Save(OnDisk):
    """Saving to a fresh path in a process that has saved before; FirstSave times the first one."""

    def setup(self, workload: str) -> None:
        super().setup(workload)
        for saver in SAVERS:
            self.save(saver)
            shutil.rmtree(self.path(saver)) if self.path(saver).is_dir() else self.path(saver).unlink()
        os.sync()

    def time_save(self, workload: str) -> None:
        self.save(OURS)

    def time_save_one_file(self, workload: str) -> None:
        self.save(OURS_ONE_FILE)

    def time_save_durable(self, workload: str) -> None:
        self.save_durably(OURS)

    def time_save_one_file_durable(self, workload: str) -> None:
        self.save_durably(OURS_ONE_FILE)

    def time_save_reference(self, workload: str) -> None:
        self.save(REFERENCE)

    def time_save_reference_consolidated(self, workload: str) -> None:
        self.save(REFERENCE_CONSOLIDATED)

    def time_save_torch(self, workload: str) -> None:
        self.save(TORCH)

    def time_save_safetensors(self, workload: str) -> None:
        self.save(SAFETENSORS)

    def time_save_limit(self, workload: str) -> None:
        self.save(LIMIT)

    def time_save_limit_one_file(self, workload: str) -> None:
        self.save(LIMIT_ONE_FILE)


class SaveOver(OnDisk):
    """Saving to where an earlier save is."""

    def setup(self, workload: str) -> None:
        super().setup(workload)
        for saver in SAVERS:
            self.save(saver)
        settle()
        os.sync()

    def time_save_over(self, workload: str) -> None:
        self.save(OURS)

    def time_save_over_one_file(self, workload: str) -> None:
        self.save(OURS_ONE_FILE)

    def time_save_over_durable(self, workload: str) -> None:
        self.save_durably(OURS)

    def time_save_over_reference(self, workload: str) -> None:
        self.save(REFERENCE)

    def time_save_over_torch(self, workload: str) -> None:
        self.save(TORCH)

    def time_save_over_safetensors(self, workload: str) -> None:
        self.save(SAFETENSORS)


class Load(OnDisk):
    """Opening what was saved, and opening it and reading every byte."""

    def setup(self, workload: str) -> None:
        super().setup(workload)
        for saver in SAVERS:
            self.save(saver)

    def open(self, saver: Saver) -> object:
        assert saver.load is not None
        return saver.load(self.path(TORCH if saver is TORCH_MMAP else saver))

    def time_open(self, workload: str) -> None:
        self.open(OURS)

    def time_open_one_file(self, workload: str) -> None:
        self.open(OURS_ONE_FILE)

    def time_open_reference(self, workload: str) -> None:
        self.open(REFERENCE)

    def time_open_reference_consolidated(self, workload: str) -> None:
        self.open(REFERENCE_CONSOLIDATED)

    def time_open_torch(self, workload: str) -> None:
        self.open(TORCH_MMAP)

    def time_open_safetensors(self, workload: str) -> None:
        self.open(SAFETENSORS)

    def time_read(self, workload: str) -> None:
        touch(self.open(OURS))

    def time_read_one_file(self, workload: str) -> None:
        touch(self.open(OURS_ONE_FILE))

    def time_read_reference(self, workload: str) -> None:
        touch(self.open(REFERENCE))

    def time_read_torch(self, workload: str) -> None:
        touch(self.open(TORCH_MMAP))

    def time_read_safetensors(self, workload: str) -> None:
        touch(self.open(SAFETENSORS))


class FirstSave:
    """The first save of a process: 64 MB, with all that is imported, compiled or read from a cache on the way."""

    number = 1
    repeat = 7
    timeout = 120

    def timeraw_first_save(self) -> tuple[str, str]:
        return self.first_save("from tensordict_core import TensorDict")

    def timeraw_first_save_reference(self) -> tuple[str, str]:
        return self.first_save("from tensordict import TensorDict")

    def first_save(self, container: str) -> tuple[str, str]:
        setup = f"""
            import tempfile, torch
            {container}
            td = TensorDict({{str(i): torch.ones(1 << 20) for i in range(16)}}, [])
            folder = tempfile.TemporaryDirectory()
        """
        return "td.memmap(folder.name)", setup
