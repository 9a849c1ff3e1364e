"""Overhead of checksums in a save: ``python -m benchmarks.memmap.checksums`` prints medians and the difference.

Each round saves every workload with and without checksums, in random order, to a new place on the disk, after earlier
writes have reached it.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import secrets
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.compare import remove, touch_free_memory
from benchmarks.savers import scratch, settle
from benchmarks.workloads import Tree, gpt2, one_leaf, size, transposed
from tensordict_core import TensorDict
from tensordict_memmap import save

WORKLOADS = {"A": gpt2, "B": one_leaf, "D": transposed}
FORMS = {"a file per leaf": "", "one file": ".safetensors"}


def rounds(tree: Tree, ending: str, folder: Path, count: int) -> dict[bool, list[float]]:
    """Measures saves without and with checksums in milliseconds."""
    td, times = TensorDict(tree), {False: [], True: []}
    save(td, folder / f"warm{ending}", checksum=True)
    for _ in range(count):
        for checksum in random.sample((False, True), 2):
            gc.collect()
            touch_free_memory(size(tree), folder)
            os.sync()
            path = folder / f"{secrets.token_hex(4)}{ending}"
            start = perf_counter()
            save(td, path, checksum=checksum)
            times[checksum].append(1000 * (perf_counter() - start))
            settle()
            remove(path)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="A,B,D", help="workloads, separated by commas")
    parser.add_argument("--folder", type=Path, help="folder of the files; a temporary folder by default")
    options = parser.parse_args()
    print("| save, milliseconds | without | with checksums | more | more, pair by pair |\n|---|---:|---:|---:|---:|")
    for name in options.only.split(","):
        tree = WORKLOADS[name]()
        for form, ending in FORMS.items():
            with scratch(options.folder) as folder:
                times = rounds(tree, ending, folder, options.rounds)
            plain, checked = median(times[False]), median(times[True])
            pairs = median(b / a for a, b in zip(times[False], times[True], strict=True))
            more = " | ".join(f"{100 * (ratio - 1):+.0f} %" for ratio in (checked / plain, pairs))
            print(f"| {name}, {form} | {plain:.1f} | {checked:.1f} | {more} |", flush=True)


if __name__ == "__main__":
    main()
