"""Scaling of saves with leaves (1 to 100,000), bytes (1 KiB to 4 GiB) and other files in the folder; and memory.

asv tracks ours; ``python -m benchmarks.memmap_scaling`` compares with the reference, torch and safetensors. Options
select long or large cases: ``--leaves 100000``, ``--bytes 4294967296``.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import Any

from benchmarks.compare import KEPT, remove, shown_time
from benchmarks.on_disk import OnDisk, names
from benchmarks.savers import (
    OURS,
    OURS_ONE_FILE,
    REFERENCE,
    REFERENCE_CONSOLIDATED,
    SAFETENSORS,
    TORCH,
    Saver,
    scratch,
    settle,
)
from benchmarks.workloads import Tree, size, transposed, uniform

SAVERS = (OURS, OURS_ONE_FILE, REFERENCE, REFERENCE_CONSOLIDATED, TORCH, SAFETENSORS)
LEAVES = (1, 10, 100, 1000, 10_000)
SIZES = tuple(1 << power for power in (10, 16, 20, 24, 28))
BESIDE = (1000, 100_000)
KIB = 1 << 10


class Leaves(OnDisk):
    """Saves of leaves of 1 KiB to a new path."""

    params = ([1, 100, 1000], names(OURS, OURS_ONE_FILE))
    param_names = ("leaves", "saver")

    def tree(self, workload: int) -> Tree:
        return uniform(workload, KIB)

    def time_save(self, leaves: int, name: str) -> None:
        self.save()


class Bytes(Leaves):
    """Saves of one leaf to a new path."""

    params = ([1 << 10, 1 << 20, 1 << 26], names(OURS, OURS_ONE_FILE))
    param_names = ("bytes", "saver")

    def tree(self, workload: int) -> Tree:
        return uniform(1, workload)


class Beside(Leaves):
    """Saves of one leaf of 1 KiB to a new path in a folder with other files."""

    params = ([100, 10_000], names(OURS, OURS_ONE_FILE))
    param_names = ("files", "saver")

    def tree(self, workload: int) -> Tree:
        fill(Path(), workload)
        return uniform(1, KIB)


class Add(OnDisk):
    """Adds an entry of 1 KiB to a saved folder with many entries, by `make_memmap`."""

    params = ([1, 100, 1000], names(OURS, REFERENCE))
    param_names = ("leaves", "saver")

    def tree(self, workload: int) -> Tree:
        return uniform(workload, KIB)

    def setup(self, workload: int, name: str) -> None:
        super().setup(workload, name)
        held: Any = self.held
        self.mapped = held.clone().memmap_(self.path)  # the reference adds to a saved tensordict, not to a loaded one

    def time_add(self, leaves: int, name: str) -> None:
        self.mapped.make_memmap("added", (256,))


class Memory:
    """Memory of a save of 268 MB in addition to the tensors, in a new process."""

    params = (["contiguous", "transposed"], names(OURS, OURS_ONE_FILE))
    param_names = ("layout", "saver")
    unit = "bytes"
    timeout = 300

    def track_extra_memory(self, layout: str, name: str) -> int:
        return extra_memory(name, 1 << 28, layout == "transposed")


def extra_memory(name: str, nbytes: int, strided: bool) -> int:
    """Runs one save in a new process, and returns by how much its memory grew at most."""
    arguments = [name, str(nbytes), "strided" if strided else ""]
    code = "import sys; from benchmarks.memmap_scaling import report_memory; report_memory(*sys.argv[1:])"
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}  # asv runs it in another folder
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code, *arguments], stdout=-1, check=True, env=here)
    return int(done.stdout.split()[-1])


def report_memory(name: str, nbytes: str, strided: str) -> None:
    """Prints by how much the peak resident memory of this process exceeds that before a save."""
    saver = next(saver for saver in SAVERS if saver.name == name)
    count = int(nbytes)
    held = saver.hold(transposed(max(count >> 25, 1)) if strided else uniform(max(count >> 25, 1), min(count, 1 << 25)))
    with tempfile.TemporaryDirectory() as folder:
        first = transposed(4) if strided else uniform(1, KIB)  # large enough to load Numba and the kernels
        saver.save(saver.hold(first), Path(folder) / f"first{saver.ending}")  # the imports are not measured
        del first
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = memory("VmHWM")
        mapped = saver.save(held, Path(folder) / f"saved{saver.ending}")
        print(max(memory("VmHWM") - before, 0))
        del mapped


def memory(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith(what))


# --- the table


def row(what: str, tree: Tree, folder: Path, rounds: int, seconds: float) -> str:
    """Measures all savers, interleaved, and formats the medians in milliseconds."""
    held = {saver: saver.hold(tree) for saver in SAVERS}
    times: dict[Saver, list[float]] = {saver: [] for saver in SAVERS}
    end = monotonic() + seconds
    for done in range(rounds):
        if done and monotonic() > end:
            break
        for saver in random.sample(SAVERS, len(SAVERS)):
            path = folder / f"{secrets.token_hex(4)}{saver.ending}"
            os.sync()
            start = perf_counter()
            try:
                saver.save(held[saver], path)
            except (MemoryError, OSError, RuntimeError):  # for example, more files than a process can map
                continue
            times[saver].append(1000 * (perf_counter() - start))
            settle()
            if size(tree) > KEPT:
                remove(path)
    return (
        f"| {what} | "
        + " | ".join(shown_time(median(times[saver])) if times[saver] else "-" for saver in SAVERS)
        + " |"
    )


def fill(folder: Path, count: int) -> None:
    """Puts empty files into a folder."""
    for number in range(count):
        (folder / f"sample-{number:08}").touch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30, help="time limit for each row; completed rounds count")
    parser.add_argument("--leaves", type=int, nargs="*", default=LEAVES, help="numbers of leaves of 1 KiB")
    parser.add_argument("--bytes", type=int, nargs="*", default=SIZES, help="sizes of one leaf")
    parser.add_argument("--beside", type=int, nargs="*", default=BESIDE, help="numbers of other files in the folder")
    parser.add_argument("--memory", type=int, nargs="*", default=[1 << 28], help="sizes whose memory is measured")
    parser.add_argument("--folder", type=Path, help="folder of the files; a temporary folder by default")
    options = parser.parse_args()
    head = " | ".join(saver.name for saver in SAVERS) + " |\n|---|" + "---:|" * len(SAVERS)
    with scratch(options.folder) as folder:
        for saver in SAVERS:  # imports and compilation are not measured
            saver.save(saver.hold(uniform(4, 1 << 24)), folder / f"warm{SAVERS.index(saver)}{saver.ending}")
        print(f"| save, milliseconds | {head}", flush=True)
        for leaves in options.leaves:
            print(
                row(f"{leaves:,} of 1 KiB", uniform(leaves, KIB), folder, options.rounds, options.seconds), flush=True
            )
        for nbytes in options.bytes:
            what = f"one of {nbytes // KIB:,} KiB"
            print(row(what, uniform(1, nbytes), folder, options.rounds, options.seconds), flush=True)
    for count in options.beside:
        with scratch(options.folder) as folder:
            fill(folder, count)
            what = f"1 of 1 KiB, beside {count:,} files"
            print(row(what, uniform(1, KIB), folder, 4 * options.rounds, options.seconds), flush=True)
    if options.memory:
        print(f"\n| memory in addition to the tensors, MiB | {head}", flush=True)
    for nbytes in options.memory:
        for layout in ("contiguous", "transposed"):
            cells = [f"{extra_memory(saver.name, nbytes, layout == 'transposed') / 2**20:,.0f}" for saver in SAVERS]
            print(f"| {nbytes >> 20:,} MiB, {layout} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
