"""Prints the tables that the README and the page about benchmarks quote: ``python -m benchmarks.compare``.

Every round runs every case of a workload once, in a random order, after the writes of the case before have reached the
disk and what it replaced is gone, and with free memory that a virtual machine really has; a cell is the median over the
rounds. Files go into the page cache: but for the rows
that say "durable", nothing is synced while the clock runs. Each workload's table is printed when it is done; with
``--json`` its times go to a file, from which ``--plot`` draws what several runs gave.
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
"""Bytes of a save up to which it stays until all is measured: whenever ext4 makes a file, it looks through those that
were removed in the minutes before, and after thousands of them takes five times as long."""

TOUCHED = 64 << 20
"""The most bytes of memory for files that are held before a save is timed."""

Times = dict[str, dict[str, dict[str, list[float]]]]
"""Milliseconds by workload, row and column."""


@dataclass(frozen=True)
class Case:
    """One cell of a table: what is done once a round, and which time it gave."""

    row: str
    column: str
    sample: Callable[[], float]


def workloads(options: argparse.Namespace) -> dict[str, Callable[[], Tree]]:
    """What is saved, by the letters that the tables go by."""
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
    """Milliseconds that one call takes."""
    start = perf_counter()
    work()
    return 1000 * (perf_counter() - start)


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def saving(saver: Saver, tree: Tree, folder: Path) -> list[Case]:
    """Saves to a path where nothing is, and to one where an earlier save is."""
    held = saver.hold(tree)
    earlier = folder / f"earlier-{COLUMNS.index(saver.name)}{saver.ending}"
    stays = size(tree) <= KEPT

    def on_fresh(save: Callable[[object, Path], object]) -> float:
        fresh = folder / f"{secrets.token_hex(4)}{saver.ending}"  # the place on the disk goes by the name
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
    """Opens what was saved once: after other work, a second time with all that it needs in caches, and to read it."""
    load = saver.load
    assert load is not None
    path = folder / f"saved-{COLUMNS.index(saver.name)}{saver.ending}"
    touch_free_memory(size(tree), folder)
    os.sync()  # what memory a file lies in, and in pages of which size, is in every later time
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
    """Imports in a fresh interpreter that has torch."""

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
    """Runs every case once a round, in a random order, until the rounds are done or the time is up.

    Args:
        cases: what is run.
        rounds: how often.
        seconds: after which no further round begins.
        nbytes: of what a case writes or reads.
        folder: where.
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
            os.sync()  # last: right after so much was freed, some writes took twice as long
            times[case.row][case.column].append(case.sample())
        if monotonic() + (monotonic() - start) > end and done + 1 < rounds:
            print(f"{done + 1} rounds of {rounds}: the time is up", file=sys.stderr)
            break
    return times


def measure_apart(
    cases: list[Case], rounds: int, seconds: float, nbytes: int, folder: Path
) -> dict[str, dict[str, list[float]]]:
    """Runs first the cases that read, which the disk would still be busy beside, and last those that replace files.

    What was removed slows down who makes files after it.
    """
    found: dict[str, dict[str, list[float]]] = {row: {} for row in dict.fromkeys(case.row for case in cases)}
    for rows in ((*LOADS, IMPORT), (FRESH, FRESH_DURABLE), (OVER, OVER_DURABLE)):
        part = [case for case in cases if case.row in rows]
        found |= measure(part, rounds, seconds * len(part) / len(cases), nbytes, folder) if part else {}
    return found


def table(title: str, times: dict[str, dict[str, list[float]]]) -> str:
    """The medians in milliseconds, as Markdown."""
    columns = [column for column in COLUMNS if any(column in row for row in times.values())]
    lines = [f"| {title}, milliseconds | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for row, cells in times.items():
        shown = [shown_time(median(cells[column])) if cells.get(column) else "" for column in columns]
        lines.append(f"| {row} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def shown_time(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ratios(times: dict[str, dict[str, list[float]]]) -> str:
    """How many times as fast ours is as the best of the others, and which part of the limit it reaches."""
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
    """Measures the workloads that were asked for, and prints each one's tables when it is done."""
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
                if name != "A flat":  # loads as the nested ones do
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
    """What a file holds, with new times in place of earlier ones of the same rows."""
    times: Times = json.loads(path.read_text()) if path.exists() else {}
    for title, rows in new.items():
        times.setdefault(title, {}).update(rows)
    path.write_text(json.dumps(times, indent=1))
    return times


SUMMARY = {
    "ours, a file a leaf": (OURS.name,),
    "ours, one file": (OURS_ONE_FILE.name,),
    "reference": (REFERENCE.name, "reference, 16 threads"),
    "its one file": ("reference, consolidated",),
    "torch": (TORCH.name, TORCH_MMAP.name),
    "safetensors": ("safetensors",),
    "limit, a file a leaf": (LIMIT.name,),
    "limit, one file": (LIMIT_ONE_FILE.name,),
}
"""The columns of the table in the README, and which of the measured ones each is the best of."""


def summary(times: Times) -> str:
    """One table of all workloads: the rows without syncing."""
    lines = ["| milliseconds | " + " | ".join(SUMMARY) + " |", "|---|" + "---:|" * len(SUMMARY)]
    for title, rows in times.items():
        for row, cells in rows.items():
            if row in (FRESH, OVER, *LOADS, IMPORT):
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
    """How many rounds there were, and where."""
    counts = [len(samples) for rows in times.values() for row in rows.values() for samples in row.values()] or [0]
    rounds = f"{min(counts)} to {max(counts)} rounds" if min(counts) != max(counts) else f"{counts[0]} rounds"
    return (
        f"Medians of {rounds} on {os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python "
        f"{platform.python_version()}, torch {torch.__version__}."
    )


def filled(page: str, times: Times) -> str:
    """A page with tables between ``<!-- measured: summary -->`` or ``all`` and ``<!-- end -->``."""
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
    parser.add_argument("--seconds", type=float, default=150, help="for each workload; what is done by then counts")
    parser.add_argument("--only", default="", help="workloads: A, A flat, B, C, D, E, import; with commas between")
    parser.add_argument("--rows", default="", help="rows that hold this text")
    parser.add_argument("--no-durable", dest="durable", action="store_false", help="leaves the rows out that sync")
    parser.add_argument("--layers", type=int, default=12, help="of GPT-2; 12 are 498 MB; fewer shrink B, D and E too")
    parser.add_argument("--leaves", type=int, default=5000, help="of 1 KiB")
    parser.add_argument("--folder", type=Path, help="where files are written; a temporary folder by default")
    parser.add_argument("--json", type=Path, help="adds the times to this file")
    parser.add_argument("--plot", type=Path, help="draws the times, with --json those of its file, to this SVG file")
    parser.add_argument("--no-run", dest="run", action="store_false", help="prints and draws what --json has")
    parser.add_argument(
        "--fill", type=Path, nargs="*", default=[], help="puts the tables into these pages, between their marks"
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
