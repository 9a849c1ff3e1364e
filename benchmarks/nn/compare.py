"""Compares parameters and modules with the reference and torch: ``python -m benchmarks.nn.compare``.

Every round runs all versions of a row one after another; a cell is the median over the rounds. A row that ends in
"again" runs torch's program instead of ours, so its last cell shows the random difference. The reference changes
``torch.vmap`` when it is imported, so the ensemble rows are measured with these changes.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from statistics import median
from timeit import Timer
from typing import Any

import torch

from benchmarks.nn import compiled, functional  # not their classes, which asv would time here again

# The rows: name, setup, and the methods of ours, of the reference, and of torch (or nothing).
ROWS: list[tuple[str, type[Any], str, str, str]] = [
    (
        "with params.to_module(model), 184 parameters",
        functional.Swap,
        "time_swap",
        "time_swap_reference",
        "time_swap_torch",
    ),
    ("from_module, 184 parameters", functional.Swap, "time_from_module", "time_from_module_reference", ""),
    ("TensorDictModule", functional.Calls, "time_module", "time_module_reference", "time_plain"),
    (
        "TensorDictSequential of ten",
        functional.Calls,
        "time_sequence_of_ten",
        "time_sequence_of_ten_reference",
        "time_plain_of_ten",
    ),
    (
        "vmap over 100 stacked models",
        functional.Ensemble,
        "time_ensemble",
        "time_ensemble_reference",
        "time_ensemble_torch",
    ),
    (
        "vmap over 100 stacked models, torch again",
        functional.Ensemble,
        "time_ensemble_torch_again",
        "time_ensemble_reference",
        "time_ensemble_torch",
    ),
    (
        "ten layers compiled, a dictionary made for each call",
        compiled.Compiled,
        "time_sequence_made",
        "time_sequence_made_reference",
        "time_dictionary_made",
    ),
    (
        "ten layers compiled, a dictionary",
        compiled.Compiled,
        "time_sequence",
        "time_sequence_reference",
        "time_dictionary",
    ),
    (
        "ten layers compiled, modules by hand",
        compiled.Compiled,
        "time_sequence",
        "time_sequence_reference",
        "time_steps",
    ),
    (
        "ten layers compiled, a dictionary again",
        compiled.Compiled,
        "time_dictionary_again",
        "time_sequence_reference",
        "time_dictionary",
    ),
    ("ten layers compiled, by hand", compiled.Compiled, "time_by_hand", "time_by_hand_reference", "time_dictionary"),
    ("ten layers compiled, tensors", compiled.Compiled, "time_sequence", "time_sequence_reference", "time_tensors"),
]


def sample(
    versions: list[Callable[[], None]], rounds: int, seconds: float, take: Callable[[list[float]], float]
) -> list[float]:
    """Measures the versions in turn, in microseconds per call."""
    timers = [Timer(version) for version in versions]
    counts = []
    for timer in timers:
        timer.timeit(3)
        counts.append(max(3, int(seconds / (timer.timeit(3) / 3))))
    times: list[list[float]] = [[] for _ in timers]
    for _ in range(rounds):
        for timer, count, values in zip(timers, counts, times, strict=True):
            values.append(timer.timeit(count) / count * 1e6)
    return [take(values) for values in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--only", default="", help="run only rows whose names contain this text")
    parser.add_argument("--least", action="store_true", help="print minima instead of medians, for a busy machine")
    options = parser.parse_args()
    take = min if options.least else median
    torch.set_num_threads(1)
    print("| what | ours, µs | reference, µs | torch, µs | reference / ours | torch / ours | ours - torch, µs |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    made: dict[type[Any], Any] = {}
    for name, setup, *methods in ROWS:
        if options.only not in name:
            continue
        if setup not in made:
            made[setup] = setup()
            made[setup].setup()
        found = sample([getattr(made[setup], method) for method in methods if method], options.rounds, 0.004, take)
        ours, reference = found[:2]
        cells = [f"{found[2]:.1f}"] if len(found) > 2 else [""]
        cells += [f"{reference / ours:.2f}"]
        cells += [f"{found[2] / ours:.2f}", f"{ours - found[2]:.1f}"] if len(found) > 2 else ["", ""]
        print(f"| {name} | {ours:.1f} | {reference:.1f} | {' | '.join(cells)} |", flush=True)
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"\n{'Minima' if options.least else 'Medians'} of {options.rounds} rounds, one thread, {versions}.")


if __name__ == "__main__":
    main()
