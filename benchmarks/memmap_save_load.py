"""Saving to a fresh path and loading again, beside torch, safetensors and the reference, into the page cache."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from benchmarks.savers import OURS, REFERENCE, SAFETENSORS, TORCH, TORCH_MMAP, Saver, touch
from benchmarks.workloads import gpt2, small_leaves, transposed

# Parameters in the shapes of GPT-2 with 2 of its 12 layers (214 MB), 1,000 leaves of 1 KiB, and 67 MB that lie
# transposed in memory.
WORKLOADS = {
    "gpt2, 2 layers": lambda: gpt2(layers=2),
    "1,000 small": lambda: small_leaves(1000),
    "transposed": lambda: transposed(count=2),
}
SAVERS = (OURS, REFERENCE, TORCH, SAFETENSORS)


class OnDisk:
    """A fresh folder a sample, and earlier writes are waited for before the clock runs."""

    params = tuple(WORKLOADS)
    param_names = ("workload",)
    number = 1
    rounds = 1
    repeat = 7
    warmup_time = 0
    timeout = 300

    def setup(self, workload: str) -> None:
        tree = WORKLOADS[workload]()
        self.folder = Path(tempfile.mkdtemp(prefix="bench-"))
        self.held = {saver: saver.hold(tree) for saver in SAVERS}
        os.sync()

    def teardown(self, workload: str) -> None:
        shutil.rmtree(self.folder)

    def path(self, saver: Saver) -> Path:
        return self.folder / saver.name


class Save(OnDisk):
    """Saving in a process that has saved before; FirstSave times the first one."""

    def setup(self, workload: str) -> None:
        super().setup(workload)
        for saver in SAVERS:
            saver.save(self.held[saver], self.folder / "warm")
            shutil.rmtree(self.folder / "warm") if (self.folder / "warm").is_dir() else (self.folder / "warm").unlink()
        os.sync()

    def save(self, saver: Saver) -> None:
        saver.save(self.held[saver], self.path(saver))

    def time_save(self, workload: str) -> None:
        self.save(OURS)

    def time_save_reference(self, workload: str) -> None:
        self.save(REFERENCE)

    def time_save_torch(self, workload: str) -> None:
        self.save(TORCH)

    def time_save_safetensors(self, workload: str) -> None:
        self.save(SAFETENSORS)


class Load(OnDisk):
    """Opening what was saved, and opening it and reading every byte."""

    def setup(self, workload: str) -> None:
        super().setup(workload)
        for saver in SAVERS:
            saver.save(self.held[saver], self.path(saver))

    def time_open(self, workload: str) -> None:
        OURS.load(self.path(OURS))

    def time_open_reference(self, workload: str) -> None:
        REFERENCE.load(self.path(REFERENCE))

    def time_open_torch(self, workload: str) -> None:
        TORCH_MMAP.load(self.path(TORCH))

    def time_open_safetensors(self, workload: str) -> None:
        SAFETENSORS.load(self.path(SAFETENSORS))

    def time_read(self, workload: str) -> None:
        touch(OURS.load(self.path(OURS)))

    def time_read_reference(self, workload: str) -> None:
        touch(REFERENCE.load(self.path(REFERENCE)))

    def time_read_torch(self, workload: str) -> None:
        touch(TORCH_MMAP.load(self.path(TORCH)))

    def time_read_safetensors(self, workload: str) -> None:
        touch(SAFETENSORS.load(self.path(SAFETENSORS)))


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
