"""Measures saves, loads and imports for the README and the benchmark page: ``python -m benchmarks.compare``.

Every round runs every case of a workload once, in random order, after the writes of the previous case have reached the
disk and replaced files are removed, and with touched free memory (see `touch_free_memory`); a cell is the median over
the rounds. Files go into the page cache: only the rows marked "durable" sync while the clock runs. The table of each
workload is printed when it is complete; ``--json`` adds its times to a file, from which ``--plot`` draws several runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import platform
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter

import numpy
import torch

from benchmarks.plot import bars
from benchmarks.savers import (
    LIMIT,
    LIMIT_ONE_FILE,
    LOADERS,
    OURS,
    OURS_ONE_FILE,
    REFERENCE,
    SAVERS,
    TORCH,
    TORCH_MMAP,
    TORCH_UNCHECKED,
    Saver,
    scratch,
    settle,
    touch,
)
from benchmarks.workloads import Tree, flat, gpt2, one_leaf, size, small_leaves, transformer, transposed

COLUMNS = tuple(dict.fromkeys(saver.name for saver in (*SAVERS, *LOADERS)))
IMPORTS = {OURS.name: "tensordict_core", REFERENCE.name: "tensordict"}
FRESH, OVER = "save", "save over an earlier one"
FRESH_DURABLE, OVER_DURABLE = "save, durable", "save over an earlier one, durable"
OPEN, AGAIN, READ, IMPORT = "open", "open again at once", "open and read", "`import` on top of `import torch`"
LOADS = (OPEN, AGAIN, READ)

KEPT = 128 << 20
"""Saves up to this size stay until all cases are measured: when ext4 makes a file, it scans those removed in the last
minutes, and after thousands of them takes five times as long."""

TOUCHED = 64 << 20
"""The most bytes of page cache that are touched before a save is timed."""

Times = dict[str, dict[str, dict[str, list[float]]]]
"""Milliseconds by workload, row and column."""


@dataclass(frozen=True)
class Case:
    """One cell of a table: the row, the column, and the function that runs once per round and returns the time."""

    row: str
    column: str
    sample: Callable[[], float]


def workloads(options: argparse.Namespace) -> dict[str, Callable[[], Tree]]:
    """The workloads by their letters in the tables."""
    layers, leaves = options.layers, options.leaves
    return {
        "A": lambda: gpt2(layers),
        "A flat": lambda: dict(flat(gpt2(layers))),
        "B": lambda: one_leaf(1 << 27 if layers == 12 else 1 << 22),
        "C": lambda: small_leaves(leaves),
        "D": lambda: transposed(count=8 if layers == 12 else 1),
        "E": lambda: transformer(8 * layers),
    }


WHAT = {
    "A": "parameters of GPT-2",
    "A flat": "parameters of GPT-2 under flat keys",
    "B": "leaf",
    "C": "leaves of 1 KiB",
    "D": "transposed leaves",
    "E": "leaves of a transformer",
}


def timed(work: Callable[[], object]) -> float:
    """Measures one call in milliseconds."""
    start = perf_counter()
    work()
    return 1000 * (perf_counter() - start)


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def saving(saver: Saver, tree: Tree, folder: Path) -> list[Case]:
    """The cases of saves to a new path and to a path with an earlier save."""
    held = saver.hold(tree)
    earlier = folder / f"earlier-{COLUMNS.index(saver.name)}{saver.ending}"
    stays = size(tree) <= KEPT

    def on_fresh(save: Callable[[object, Path], object]) -> float:
        fresh = folder / f"{secrets.token_hex(4)}{saver.ending}"  # the name determines the place on the disk
        took = timed(lambda: save(held, fresh))
        settle()
        if not stays:
            remove(fresh)
        return took

    def over(save: Callable[[object, Path], object]) -> float:
        took = timed(lambda: save(held, earlier))
        settle()
        return took

    cases = [Case(FRESH, saver.name, lambda: on_fresh(saver.save))]
    if saver not in (LIMIT, LIMIT_ONE_FILE):
        saver.save(held, earlier)
        cases.append(Case(OVER, saver.name, lambda: over(saver.save)))
    durable = saver.durable
    if durable is not None:
        cases.append(Case(FRESH_DURABLE, saver.name, lambda: on_fresh(durable)))
        if saver.ours:
            cases.append(Case(OVER_DURABLE, saver.name, lambda: over(durable)))
    return cases


def loading(saver: Saver, tree: Tree, folder: Path) -> list[Case]:
    """The cases of loads: after other work, a second time with warm caches, and with a read of all data."""
    load = saver.load
    assert load is not None
    path = folder / f"saved-{COLUMNS.index(saver.name)}{saver.ending}"
    touch_free_memory(size(tree), folder)
    os.sync()  # the memory and the page size of a file affect every later time
    saver.save(saver.hold(tree), path)
    settle()

    def again() -> float:
        load(path)
        return timed(lambda: load(path))

    return [
        Case(OPEN, saver.name, lambda: timed(lambda: load(path))),
        Case(AGAIN, saver.name, again),
        Case(READ, saver.name, lambda: timed(lambda: touch(load(path)))),
    ]


def importing() -> list[Case]:
    """The cases of imports in a new interpreter with torch."""

    def sample(module: str) -> float:
        code = f"import time, torch; t = time.perf_counter(); import {module}; print(1000 * (time.perf_counter() - t))"
        return float(subprocess.run([sys.executable, "-W", "ignore", "-c", code], stdout=-1, check=True).stdout)

    return [Case(IMPORT, column, lambda module=module: sample(module)) for column, module in IMPORTS.items()]


def touch_free_memory(nbytes: int, folder: Path) -> None:
    """Has the machine hold memory that a case will take, of its own and for files: virtual ones give free memory back.

    The first touch of what was given back costs ten times the write that it is for. The pages of files come from lists
    of free memory of their own, so some are taken by a file, which is gone before it reaches the disk: what a short
    save would pay for that is as much as all else.

    Args:
        nbytes: of what the case writes.
        folder: where it does.
    """
    numpy.empty(6 * nbytes, numpy.uint8)[:: mmap.PAGESIZE] = 1
    part = bytes(4 << 20)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(0, min(2 * nbytes, TOUCHED), len(part)):
            file.write(part)


def measure(
    cases: list[Case], rounds: int, seconds: float, nbytes: int, folder: Path
) -> dict[str, dict[str, list[float]]]:
    """Runs every case once per round, in random order, until the rounds or the time are used up.

    Args:
        cases: the cases.
        rounds: the number of rounds.
        seconds: the time after which no further round starts.
        nbytes: the bytes that a case writes or reads.
        folder: the folder of the files.
    """
    times: dict[str, dict[str, list[float]]] = {}
    for case in cases:
        times.setdefault(case.row, {})[case.column] = []
    end = monotonic() + seconds
    for done in range(rounds):
        start = monotonic()
        for case in random.sample(cases, len(cases)):
            gc.collect()
            if case.row not in LOADS:
                touch_free_memory(nbytes, folder)
            os.sync()  # last: after large amounts of memory were freed, some writes took twice as long
            times[case.row][case.column].append(case.sample())
        if monotonic() + (monotonic() - start) > end and done + 1 < rounds:
            print(f"{done + 1} rounds of {rounds}: the time is up", file=sys.stderr)
            break
    return times


def measure_apart(
    cases: list[Case], rounds: int, seconds: float, nbytes: int, folder: Path
) -> dict[str, dict[str, list[float]]]:
    """Runs the cases that read first, while the disk is idle, and the cases that replace files last.

    Removed files slow down later cases that make files.
    """
    found: dict[str, dict[str, list[float]]] = {row: {} for row in dict.fromkeys(case.row for case in cases)}
    for rows in ((*LOADS, IMPORT), (FRESH, FRESH_DURABLE), (OVER, OVER_DURABLE)):
        part = [case for case in cases if case.row in rows]
        found |= measure(part, rounds, seconds * len(part) / len(cases), nbytes, folder) if part else {}
    return found


def table(title: str, times: dict[str, dict[str, list[float]]]) -> str:
    """Formats the medians in milliseconds as a Markdown table."""
    columns = [column for column in COLUMNS if any(column in row for row in times.values())]
    lines = [f"| {title}, milliseconds | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for row, cells in times.items():
        shown = [shown_time(median(cells[column])) if cells.get(column) else "" for column in columns]
        lines.append(f"| {row} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def shown_time(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ratios(times: dict[str, dict[str, list[float]]]) -> str:
    """Formats the speedups over the best time of each other library, and the fraction of the machine's limit."""
    lines = []
    for row, cells in times.items():
        found = {column: median(samples) for column, samples in cells.items() if samples}
        others = {
            "the reference's best": [time for column, time in found.items() if column.startswith("reference")],
            "its best to a folder": [found.get(name) for name in ("reference", "reference, 16 threads")],
            "safetensors": [found.get("safetensors")],
            "torch": [found.get(saver.name) for saver in (TORCH, TORCH_MMAP)],
            "torch without CRC": [found.get(TORCH_UNCHECKED.name)],
        }
        for ours, limit in ((OURS, LIMIT), (OURS_ONE_FILE, LIMIT_ONE_FILE)):
            if ours.name not in found:
                continue
            parts = [
                f"{min(known) / found[ours.name]:.2f} x {name}"
                for name, every in others.items()
                if (known := [time for time in every if time is not None])
            ]
            if limit.name in found:
                parts.append(f"{found[limit.name] / found[ours.name]:.2f} of the limit")
            if parts:
                lines.append(f"- {row}; {ours.name}: {', '.join(parts)}")
    return "\n".join(lines)


def titles(name: str, tree: Tree) -> str:
    return f"{name}: {len(list(flat(tree))):,} {WHAT[name]}, {size(tree) / 1e6:,.0f} MB"


def run(options: argparse.Namespace) -> Times:
    """Measures the selected workloads, and prints the tables of each when it is complete."""
    chosen = [one.strip() for one in options.only.split(",")] if options.only else [*workloads(options), "import"]
    unknown = set(chosen) - {*workloads(options), "import"}
    if unknown:
        raise SystemExit(f"--only takes {', '.join([*workloads(options), 'import'])}, not {', '.join(unknown)}")
    found: Times = {}
    for name in chosen:
        with scratch(options.folder) as folder:
            if name == "import":
                title, cases, nbytes = "import", importing(), 0
            else:
                tree = workloads(options)[name]()
                title, nbytes = titles(name, tree), size(tree)
                cases = [case for saver in SAVERS for case in saving(saver, tree, folder)]
                if name != "A flat":  # loads like the nested ones
                    cases += [case for saver in LOADERS for case in loading(saver, tree, folder)]
                del tree
            cases = [case for case in cases if options.rows in case.row and (options.durable or not _syncs(case))]
            found[title] = measure_apart(cases, options.rounds, options.seconds, nbytes, folder)
        print(table(title, found[title]), ratios(found[title]), "", sep="\n\n", flush=True)
        if options.json is not None:
            merged(options.json, {title: found[title]})
        del cases
    return found


def _syncs(case: Case) -> bool:
    return "durable" in case.row


def merged(path: Path, new: Times) -> Times:
    """Replaces the times of the same rows in a file, and returns all its times."""
    times: Times = json.loads(path.read_text()) if path.exists() else {}
    for title, rows in new.items():
        times.setdefault(title, {}).update(rows)
    path.write_text(json.dumps(times, indent=1))
    return times


SUMMARY = {
    "ours": (OURS.name, OURS_ONE_FILE.name),
    "reference": (REFERENCE.name, "reference, 16 threads", "reference, consolidated", "reference, archive"),
    "torch": (TORCH.name, TORCH_UNCHECKED.name, TORCH_MMAP.name),
    "safetensors": ("safetensors",),
    "limit": (LIMIT.name, LIMIT_ONE_FILE.name),
}
"""The columns of the table in the README; each shows the best of several measured columns."""
SUMMARIZED = (FRESH, OVER, OPEN, IMPORT)
"""Its rows."""


def summary(times: Times) -> str:
    """Formats one table of all workloads: new saves, saves over earlier ones, and opening."""
    lines = ["| milliseconds | " + " | ".join(SUMMARY) + " |", "|---|" + "---:|" * len(SUMMARY)]
    for title, rows in times.items():
        for row, cells in rows.items():
            if row in SUMMARIZED and not title.startswith("A flat"):
                best = [
                    min((median(cells[name]) for name in names if cells.get(name)), default=None)
                    for names in SUMMARY.values()
                ]
                shown = ["" if time is None else shown_time(time) for time in best]
                what = row if row == IMPORT else f"{title}: {row}"
                lines.append(f"| {what} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


PLOT = "![Times of saving and opening, shorter is better](benchmarks.svg)"


def circumstances(times: Times) -> str:
    """Describes the number of rounds, the machine and the versions."""
    counts = [len(samples) for rows in times.values() for row in rows.values() for samples in row.values()] or [0]
    rounds = f"{min(counts)} to {max(counts)} rounds" if min(counts) != max(counts) else f"{counts[0]} rounds"
    return (
        f"Medians of {rounds} on {os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python "
        f"{platform.python_version()}, torch {torch.__version__}."
    )


def filled(page: str, times: Times) -> str:
    """Fills the tables of a page in between ``<!-- measured: summary -->`` or ``all`` and ``<!-- end -->``."""
    parts = [summary(times), circumstances(times)]
    everything = [table(title, rows) for title, rows in times.items()]
    for mark, text in (("summary", "\n\n".join(parts)), ("all", "\n\n".join([PLOT, *everything, parts[1]]))):
        before, start, rest = page.partition(f"<!-- measured: {mark} -->\n")
        if start:
            _, end, after = rest.partition("<!-- end -->")
            page = f"{before}{start}\n{text}\n\n{end}{after}"
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=150, help="time limit for each workload; completed rounds count"
    )
    parser.add_argument("--only", default="", help="workloads, separated by commas: A, A flat, B, C, D, E, import")
    parser.add_argument("--rows", default="", help="run only rows whose names contain this text")
    parser.add_argument("--no-durable", dest="durable", action="store_false", help="skip the rows that sync")
    parser.add_argument(
        "--layers", type=int, default=12, help="number of GPT-2 layers; 12 are 498 MB; fewer shrink B, D and E, too"
    )
    parser.add_argument("--leaves", type=int, default=5000, help="number of leaves of 1 KiB")
    parser.add_argument("--folder", type=Path, help="folder of the files; a temporary folder by default")
    parser.add_argument("--json", type=Path, help="add the times to this file")
    parser.add_argument("--plot", type=Path, help="draw the times, with --json those of its file, to this SVG file")
    parser.add_argument(
        "--no-run", dest="run", action="store_false", help="measure nothing; print and draw the times of --json"
    )
    parser.add_argument(
        "--fill", type=Path, nargs="*", default=[], help="write the tables into these pages, between their marks"
    )
    options = parser.parse_args()
    times = run(options) if options.run else {}
    if options.json is not None:
        times = merged(options.json, {})
    if not options.run:
        for title, rows in times.items():
            print(table(title, rows), ratios(rows), "", sep="\n\n")
    for page in options.fill:
        page.write_text(filled(page.read_text(), times))
    if options.plot is not None:
        options.plot.write_text(bars(times, (FRESH, OVER, OPEN)))
    print(circumstances(times))


if __name__ == "__main__":
    main()
