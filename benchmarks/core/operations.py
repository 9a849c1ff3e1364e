"""Compares operations with the reference and plain dictionaries: ``python -m benchmarks.core.operations``.

Every round runs ours, the reference and the plain version of a row one after another, a few milliseconds each. Times
are CPU times of this thread, so that other work on the machine is not counted; a time is the median over the rounds, a
ratio the median of the ratios of the rounds. ``--grow`` prints ratios by the number of leaves and levels, ``--times``
prints times too.
"""

from __future__ import annotations

import argparse
import math
import platform
import time
from collections.abc import Callable
from statistics import median
from timeit import Timer
from types import ModuleType
from typing import NamedTuple

import torch

import tensordict as reference
import tensordict_core
from benchmarks.operations import COLUMNS, OPERATIONS, ROWS, Operands, Operation

LEAVES = (1, 10, 100, 1000)
DEPTHS = (1, 2, 3, 4, 5)


class Row(NamedTuple):
    """The times of one operation in microseconds, and their ratios; ``None`` without a plain version."""

    ours: float
    reference: float
    plain: float | None
    gain: float
    over_plain: float | None


class Pair(NamedTuple):
    """The operands of both libraries."""

    ours: Operands
    reference: Operands


def operands(leaves: int, depth: int) -> Pair:
    """The operands of both libraries, of one size."""
    libraries: tuple[ModuleType, ModuleType] = (tensordict_core, reference)
    return Pair(*[Operands(library, leaves, depth) for library in libraries])


def number(timer: Timer, seconds: float) -> int:
    """Returns the number of calls for a sample of about ``seconds``."""
    timer.timeit(5)
    return max(2, int(seconds / max(timer.timeit(5) / 5, 1e-8)))


def interleaved(timers: list[Timer], rounds: int, seconds: float = 0.01) -> list[list[float]]:
    """Runs the timers one after another in every round, and returns microseconds; a sample takes ``seconds``."""
    count = number(timers[1], seconds)
    times: list[list[float]] = [[] for _ in timers]
    for _ in range(rounds):
        for timer, values in zip(timers, times, strict=True):
            values.append(timer.timeit(count) / count * 1e6)
    return times


def timer(run: Callable[[Operands], object], operands: Operands) -> Timer:
    """Times one version of a row."""
    return Timer(lambda: run(operands), timer=time.thread_time)


def measure(operation: Operation, pair: Pair, rounds: int, seconds: float) -> Row:
    """Measures one row, with samples of about ``seconds`` each."""
    timers = [timer(operation.run, o) for o in pair]
    if operation.plain is not None:
        timers.append(timer(operation.plain, pair.ours))
    columns = interleaved(timers, rounds, seconds)
    mine, other, *plain = [median(column) for column in columns]
    gain = median(theirs / ours for ours, theirs in zip(columns[0], columns[1], strict=True))
    over = median(ours / bare for ours, bare in zip(columns[0], columns[2], strict=True)) if plain else None
    return Row(mine, other, plain[0] if plain else None, gain, over)


def mean(ratios: list[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def ratio(value: float | None) -> str:
    """Formats a number of a cell, which is empty without a plain version."""
    return "" if value is None else f"{value:.2f}"


def table(chosen: list[Operation], pair: Pair, rounds: int, seconds: float, times: bool) -> None:
    """Prints a row for each operation, the highest speedup over the reference first."""
    found = [(operation.name, measure(operation, pair, rounds, seconds)) for operation in chosen]
    heads = ["reference / ours", "ours / plain", *(["ours, µs", "reference, µs", "plain, µs"] if times else [])]
    print(f"| operation | {' | '.join(heads)} |")
    print("|---|" + "---:|" * len(heads))
    for name, row in sorted(found, key=lambda item: -item[1].gain):
        cells = [ratio(row.gain), ratio(row.over_plain)]
        if times:
            cells += [ratio(row.ours), ratio(row.reference), ratio(row.plain)]
        print(f"| {name} | {' | '.join(cells)} |")
    gains = [row.gain for _, row in found]
    print(f"\nGeometric mean of reference / ours: {mean(gains):.2f}. Leaves of {ROWS} x {COLUMNS}.")


def growth(chosen: list[Operation], rounds: int, seconds: float) -> None:
    """Prints reference / ours and ours / plain for each number of leaves and of levels, and their geometric means."""
    sizes = [(leaves, 1) for leaves in LEAVES] + [(10, depth) for depth in DEPTHS[1:]]
    pairs = [operands(*size) for size in sizes]
    heads = [f"{leaves:,} x {depth}" for leaves, depth in sizes]
    print(f"| leaves x levels: reference / ours, ours / plain | {' | '.join(heads)} |")
    print("|---|" + "---:|" * len(heads))
    columns: list[list[Row]] = [[] for _ in sizes]
    for operation in chosen:
        for pair, column in zip(pairs, columns, strict=True):
            column.append(measure(operation, pair, rounds, seconds))
        cells = [f"{ratio(column[-1].gain)}, {ratio(column[-1].over_plain)}" for column in columns]
        print(f"| {operation.name} | {' | '.join(cells)} |", flush=True)
    gains = [mean([row.gain for row in column]) for column in columns]
    over = [mean([row.over_plain for row in column if row.over_plain]) for column in columns]
    print(f"| geometric mean | {' | '.join(map('{:.2f}, {:.2f}'.format, gains, over))} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--seconds", type=float, default=0.002, help="duration of a sample")
    parser.add_argument("--leaves", type=int, default=10, help="number of leaves of each level")
    parser.add_argument("--depth", type=int, default=1, help="the number of levels")
    parser.add_argument("--only", default="", help="run only rows with these names, separated by commas")
    parser.add_argument("--grow", action="store_true", help="print ratios by the number of leaves and levels")
    parser.add_argument("--times", action="store_true", help="print times in microseconds too")
    options = parser.parse_args()
    names = {name.strip() for name in options.only.split(",") if name.strip()}
    chosen = [operation for operation in OPERATIONS if not names or operation.name in names]
    if options.grow:
        growth([operation for operation in chosen if operation.grows], options.rounds, options.seconds)
    else:
        pair = operands(options.leaves, options.depth)
        table(chosen, pair, options.rounds, options.seconds, options.times)
    print(f"Medians of {options.rounds} rounds, Python {platform.python_version()}, torch {torch.__version__}.")


if __name__ == "__main__":
    main()
