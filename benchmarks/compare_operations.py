"""Prints what operations cost beside the reference and plain dictionaries: ``python -m benchmarks.compare_operations``.

Every round runs ours, the reference and the plain version of a row one after another; a cell is the median over the
rounds.
"""

from __future__ import annotations

import argparse
import math
import platform
from collections.abc import Callable
from statistics import median
from timeit import Timer
from typing import Any

import torch

import tensordict as reference
import tensordict_core
from benchmarks.operations import OPERATIONS, Operands


def number(timer: Timer, seconds: float) -> int:
    """How often to call for a sample of about ``seconds``."""
    timer.timeit(20)
    return max(5, int(seconds / max(timer.timeit(20) / 20, 1e-8)))


def interleaved(timers: list[Timer], rounds: int, seconds: float = 0.01) -> list[list[float]]:
    """Microseconds of every timer in every round, in which they run one after another; samples take ``seconds``."""
    count = number(timers[1], seconds)
    times: list[list[float]] = [[] for _ in timers]
    for _ in range(rounds):
        for timer, values in zip(timers, times, strict=True):
            values.append(timer.timeit(count) / count * 1e6)
    return times


def sample(run: Callable[[Operands], Any], operands: Operands) -> Timer:
    return Timer(lambda: run(operands))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--leaves", type=int, default=10)
    parser.add_argument("--only", default="", help="rows that hold this text")
    options = parser.parse_args()
    ours, theirs = Operands(tensordict_core, options.leaves), Operands(reference, options.leaves)
    print("| operation | ours, µs | reference, µs | plain, µs | reference / ours | ours / plain |")
    print("|---|---:|---:|---:|---:|---:|")
    ratios = []
    for operation in OPERATIONS:
        if options.only not in operation.name:
            continue
        timers = [sample(operation.run, ours), sample(operation.run, theirs)]
        if operation.plain is not None:
            timers.append(sample(operation.plain, ours))
        mine, other, *plain = map(median, interleaved(timers, options.rounds))
        ratios.append(other / mine)
        cells = (
            [f"{plain[0]:.2f}", f"{other / mine:.2f}", f"{mine / plain[0]:.2f}"]
            if plain
            else ["", f"{other / mine:.2f}", ""]
        )
        print(f"| {operation.name} | {mine:.2f} | {other:.2f} | {' | '.join(cells)} |", flush=True)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(
        f"\nGeometric mean of reference / ours: {mean:.2f}. Medians of {options.rounds} rounds, "
        f"{options.leaves} leaves of 3 x 4,"
    )
    print(f"Python {platform.python_version()}, torch {torch.__version__}.")


if __name__ == "__main__":
    main()
