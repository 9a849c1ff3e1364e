"""The first save of a new process, compared with its second one; an earlier process has compiled the kernels.

``python -m benchmarks.memmap.first_save`` prints both, for contiguous and for strided tensors of 268 MB, in ms.
Each round is a new process; imports before the save are not timed.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from benchmarks.savers import OURS, OURS_ONE_FILE, Saver
from benchmarks.workloads import Tree, transposed, uniform

NBYTES = 1 << 28
TREES = {"contiguous": uniform, "strided": lambda count, nbytes: transposed(count)}
SAVERS: dict[str, Saver] = {saver.name: saver for saver in (OURS, OURS_ONE_FILE)}


def tree(layout: str) -> Tree:
    """Eight leaves of 32 MiB."""
    return TREES[layout](NBYTES >> 25, 1 << 25)


class FirstSave:
    """The difference between the first and the second save of a process, in seconds."""

    params = (list(TREES), list(SAVERS))
    param_names = ("layout", "saver")
    unit = "seconds"
    timeout = 300

    def setup(self, layout: str, name: str) -> None:
        saves(layout, name)  # compiles the kernels

    def track_first_save(self, layout: str, name: str) -> float:
        first, second = saves(layout, name)
        return (first - second) / 1000


class FromNothing:
    """The first save of a process: 64 MB, including imports, compilation and reads of the kernel cache."""

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


def saves(layout: str, name: str, folder: Path | None = None) -> tuple[float, float]:
    """Measures the first and the second save of a new process in milliseconds."""
    code = "import sys; from benchmarks.memmap.first_save import report; report(*sys.argv[1:])"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    # Without cached byte code, an import would compile its modules again.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir(), "benchmark-byte-code"))
    with tempfile.TemporaryDirectory(dir=folder) as place:
        command = [sys.executable, "-W", "ignore", "-c", code, layout, name, place]
        done = subprocess.run(command, stdout=-1, check=True, env=environment)
    first, second = map(float, done.stdout.split())
    return first, second


def report(layout: str, name: str, place: str) -> None:
    """Saves twice to new paths and prints the milliseconds of each."""
    saver = SAVERS[name]
    held = saver.hold(tree(layout))
    times = []
    for number in range(2):
        np.empty(2 * NBYTES, "u1")[::4096] = 1  # so that the system has free pages for the file in each round
        os.sync()
        start = perf_counter()
        saver.save(held, Path(place) / f"{number}{saver.ending}")
        times.append(1000 * (perf_counter() - start))
    print(*times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="folder of the files; a temporary folder by default")
    options = parser.parse_args()
    cases = [(layout, name) for layout in TREES for name in SAVERS]
    for layout, name in cases:
        saves(layout, name, options.folder)
    times: dict[tuple[str, str], list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in range(options.rounds):
        for case in random.sample(cases, len(cases)):
            times[case].append(saves(*case, options.folder))
    print("| save of 268 MB, milliseconds | first | second | difference |\n|---|---:|---:|---:|")
    for (layout, name), found in times.items():
        first, second = (median(column) for column in zip(*found, strict=True))
        more = median(one - two for one, two in found)
        print(f"| {layout}, {name} | {first:.0f} | {second:.0f} | {more:.0f} |")


if __name__ == "__main__":
    main()
