"""What the benchmarks of stores share: one data set, and rounds that interleave ours with the reference."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter
from typing import Any

import torch

BATCH = 256


def data(module: Any, rows: int) -> Any:
    """A data set of transitions as a tensordict of a module: 65 float columns, a small picture and a flag a row."""
    generator = torch.Generator().manual_seed(0)
    entries = {
        "obs": torch.rand(rows, 64, generator=generator),
        "picture": torch.randint(256, (rows, 16, 16, 3), dtype=torch.uint8, generator=generator),
        "next": {"reward": torch.rand(rows, 1, generator=generator), "done": torch.zeros(rows, 1, dtype=torch.bool)},
    }
    return module.TensorDict(entries, [rows])


def random_rows(rows: int) -> torch.Tensor:
    return torch.randperm(rows, generator=torch.Generator().manual_seed(1))[:BATCH]


def compare(cases: Mapping[str, Mapping[str, Callable[[], object]]], rounds: int = 9) -> None:
    """Prints a line a case: the median of each way in milliseconds, and how many times ours goes into the other's.

    Args:
        cases: For each case the ways to do it: ``"ours"`` and ``"reference"``.
        rounds: How often every way runs, in random order; two more rounds before them are not counted.
    """
    for case, ways in cases.items():
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(rounds + 2):
            for name in random.sample(list(ways), len(ways)):
                start = perf_counter()
                ways[name]()
                if turn > 1:
                    times[name].append((perf_counter() - start) * 1e3)
        middle = {name: median(found) for name, found in times.items()}
        shown = "  ".join(f"{name} {value:9.3f} ms" for name, value in middle.items())
        print(f"{case:28} {shown}   reference / ours {middle['reference'] / middle['ours']:6.2f}", flush=True)
