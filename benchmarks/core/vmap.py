"""Compares ``torch.vmap`` with torch's own functions and with the replacements of the reference.

``python -m benchmarks.core.vmap``. The reference replaces functions of ``torch._functorch.vmap`` when it is imported;
this module finds them by comparing that module before and after, and swaps them in one process. Ours, the reference and
a plain dictionary run one after another in every round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from timeit import Timer
from typing import Any

import torch
import torch._functorch.vmap as torch_vmap

OWN = dict(vars(torch_vmap))

import tensordict as reference  # noqa: E402 (what its import replaces is to be seen)
import tensordict_core  # noqa: E402 (as above)
from benchmarks.core.operations import interleaved  # noqa: E402 (as above)
from benchmarks.operations import ROWS, Operands  # noqa: E402 (as above)

REPLACED = {name: value for name, value in vars(torch_vmap).items() if name in OWN and OWN[name] is not value}


def add(entries: Any) -> Any:
    """Adds a number; to each tensor of a dictionary."""
    return {key: leaf + 1 for key, leaf in entries.items()} if type(entries) is dict else entries + 1


def identity(entries: Any) -> Any:
    """Returns its argument, so that only flattening and unflattening take time."""
    return entries


def row(function: Callable[[Any], Any], sources: list[Any], rounds: int) -> list[float]:
    """Measures a mapped function for each source in microseconds."""
    mapped = torch.vmap(function)
    timers = [Timer(lambda source=source: mapped(source), timer=time.thread_time) for source in sources]
    return [median(column) for column in interleaved(timers, rounds, 0.004)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41)
    rounds = parser.parse_args().rounds
    for name, function in REPLACED.items():
        print(f"torch._functorch.vmap.{name} is of the module {function.__module__}")
    ours, theirs = Operands(tensordict_core), Operands(reference)
    sources = [ours.flat, theirs.flat, ours.source]
    print("\n| vmap of | reference / ours | plain / ours |\n|---|---:|---:|")
    for what, functions in (("replaced functions", REPLACED), ("torch's own", {name: OWN[name] for name in REPLACED})):
        for name, function in functions.items():
            setattr(torch_vmap, name, function)
        for label, mapped in (("a sum", add), ("the identity", identity)):
            mine, *others = row(mapped, sources, rounds)
            print(f"| {label}, {what} | {' | '.join(f'{other / mine:.2f}' for other in others)} |")
    print(f"\nTen leaves of {ROWS} rows; medians of {rounds} rounds, torch {torch.__version__}.")


if __name__ == "__main__":
    main()
