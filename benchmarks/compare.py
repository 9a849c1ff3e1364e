"""Prints the table that the README quotes: ``python -m benchmarks.compare`` (or ``nox -s compare``).

Every round runs every case once, in a random order, after the writes of the case before have reached the disk; a cell
is the median over the rounds. Files go into the page cache: nothing is synced while the clock runs.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from benchmarks.savers import (
    OURS,
    OURS_ONE_FILE,
    REFERENCE,
    REFERENCE_THREADS,
    SAFETENSORS,
    TORCH,
    TORCH_MMAP,
    Saver,
    touch,
)
from benchmarks.workloads import Tree, flat, gpt2, size, small_leaves, transposed

SAVERS = (OURS, OURS_ONE_FILE, REFERENCE, REFERENCE_THREADS, TORCH, SAFETENSORS)
LOADERS = (OURS, OURS_ONE_FILE, REFERENCE, TORCH, TORCH_MMAP, SAFETENSORS)
COLUMNS = tuple(dict.fromkeys((*SAVERS, *LOADERS)))
IMPORTS = {OURS.name: "tensordict_core", REFERENCE.name: "tensordict"}


@dataclass(frozen=True)
class Case:
    """One cell of the table: what is done once a round, and which times it gave."""

    row: str
    column: str
    sample: Callable[[], float]


def timed(work: Callable[[], object]) -> float:
    """Milliseconds that one call takes."""
    start = perf_counter()
    work()
    return 1000 * (perf_counter() - start)


def saving(saver: Saver, tree: Tree, folder: Path) -> Callable[[], float]:
    """Saves to a path where nothing is, and removes it again."""
    held, path = saver.hold(tree), folder / "fresh"

    def sample() -> float:
        took = timed(lambda: saver.save(held, path))
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        return took

    return sample


def loading(saver: Saver, tree: Tree, folder: Path) -> dict[str, Callable[[], float]]:
    """Opens what was saved once, and opens it and reads all of it."""
    path = Path(tempfile.mkdtemp(dir=folder)) / "saved"
    saver.save(saver.hold(tree), path)
    return {
        "open": lambda: timed(lambda: saver.load(path)),
        "open and read": lambda: timed(lambda: touch(saver.load(path))),
    }


def importing(module: str) -> Callable[[], float]:
    """Imports a module in a fresh interpreter that has torch."""
    code = f"import time, torch; t = time.perf_counter(); import {module}; print(1000 * (time.perf_counter() - t))"
    return lambda: float(subprocess.run([sys.executable, "-W", "ignore", "-c", code], stdout=-1, check=True).stdout)


def cases(layers: int, leaves: int, folder: Path) -> list[Case]:
    """Every cell of the table."""
    found = [Case("`import` on top of `import torch`", name, importing(module)) for name, module in IMPORTS.items()]
    parameters = gpt2(layers)
    trees: dict[str, Tree] = {
        "parameters of GPT-2": parameters,
        "leaves of 1 KiB": small_leaves(leaves),
        "transposed leaves": transposed(),
        "parameters of GPT-2 under flat keys": dict(flat(parameters)),
    }
    for what, tree in trees.items():
        described = f"{len(list(flat(tree))):,} {what}, {size(tree) / 1e6:,.0f} MB"
        for saver in SAVERS:
            found.append(Case(f"save {described}", saver.name, saving(saver, tree, folder)))
        if "flat" in what:
            continue  # loads as the nested ones do
        for saver in LOADERS:
            for verb, sample in loading(saver, tree, folder).items():
                found.append(Case(f"{verb} {described}", saver.name, sample))
    return found


def table(times: dict[tuple[str, str], list[float]]) -> str:
    """The medians in milliseconds, as Markdown."""
    columns = [saver.name for saver in COLUMNS]
    rows = dict.fromkeys(row for row, _ in times)
    lines = ["| milliseconds | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for row in rows:
        cells = [f"{median(times[row, c]):,.1f}" if (row, c) in times else "" for c in columns]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12, help="of GPT-2; 12 are 498 MB")
    parser.add_argument("--leaves", type=int, default=5000, help="of 1 KiB")
    parser.add_argument("--only", default="", help="rows that hold this text")
    parser.add_argument("--folder", type=Path, help="where files are written; a temporary folder by default")
    options = parser.parse_args()

    folder = Path(tempfile.mkdtemp(prefix="compare-", dir=options.folder))
    times: dict[tuple[str, str], list[float]] = {}
    try:
        chosen = [case for case in cases(options.layers, options.leaves, folder) if options.only in case.row]
        times = {(case.row, case.column): [] for case in chosen}
        for _ in range(options.rounds):
            for case in random.sample(chosen, len(chosen)):
                os.sync()
                times[case.row, case.column].append(case.sample())
    finally:
        shutil.rmtree(folder)
    print(table(times))
    print(
        f"\nMedians of {options.rounds} rounds on {os.cpu_count()} cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}."
    )


if __name__ == "__main__":
    main()
