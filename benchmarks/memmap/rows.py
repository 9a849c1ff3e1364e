"""Rows of a dataset on disk: random batches, compared with the reference, indexed tensors and a copy in memory.

``python -m benchmarks.memmap.rows`` prints the table and the ratios; every round runs every variant once, in random
order. ``--cold`` loads the dataset and one batch while its pages are on the disk, compared with plain reads of the same
rows.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import tempfile
from collections.abc import Callable
from math import prod
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

import tensordict as reference
from tensordict_core import TensorDict
from tensordict_memmap import MemmapDataset, load_memmap

ROWS, SHAPE, BATCH = 20_000, (64, 64, 3), 256
"""Small pictures, 246 MB of them."""


def fill(path: Path, rows: int = ROWS) -> None:
    """Writes the dataset in blocks."""
    row = TensorDict({"image": torch.zeros(SHAPE, dtype=torch.uint8), "label": torch.tensor(0)})
    with MemmapDataset.create(path, row) as dataset:
        for first in range(0, rows, 1000):
            image = torch.randint(256, (1000, *SHAPE), dtype=torch.uint8)
            dataset.extend(TensorDict({"image": image, "label": torch.arange(first, first + 1000)}, [1000]))


def ways(path: Path) -> dict[str, Callable[[torch.Tensor], object]]:
    """The functions that read rows, by name; all return the same values."""
    ours, theirs, dataset = load_memmap(path), reference.load_memmap(path), MemmapDataset.open(path)
    image, plain = ours["image"], ours["image"].as_subclass(torch.Tensor)
    memory = TensorDict({"image": plain.clone(), "label": ours["label"].clone()}, [len(ours)])
    array = plain.numpy()

    return {
        "td[rows]": lambda rows: ours[rows],
        "dataset.__getitems__(rows)": lambda rows: dataset.__getitems__(rows.tolist()),
        "td['image'][rows]": lambda rows: image[rows],
        "index_select of the entry": lambda rows: torch.index_select(image, 0, rows),
        "td.gather(0, rows)": lambda rows: ours.gather(0, rows),
        "td[rows] of the reference": lambda rows: theirs[rows],
        "tensor[rows]": lambda rows: plain[rows],
        "numpy.take": lambda rows: array.take(rows.numpy(), axis=0),
        "index_select in memory": lambda rows: torch.index_select(memory["image"], 0, rows),
        "td[rows] in memory": lambda rows: memory[rows],
    }


def warm(way: Callable[[torch.Tensor], object]) -> None:
    """Touches all rows, as an epoch does, so that all pages are mapped."""
    for rows in torch.arange(ROWS).split(1000):
        way(rows)


class Rows:
    """Batches of 256 random rows, warm."""

    params = ("td[rows]", "td[rows] of the reference", "tensor[rows]", "numpy.take", "index_select in memory")
    param_names = ("way",)
    timeout = 300

    def setup_cache(self) -> None:
        fill(Path("data"))  # in asv's folder, which asv removes

    def setup(self, way: str) -> None:
        self.way = ways(Path("data"))[way]
        self.rows = torch.randint(ROWS, (BATCH,))
        warm(self.way)

    def time_rows(self, way: str) -> None:
        self.way(self.rows)


def million(folder: Path, rounds: int = 7) -> dict[str, float]:
    """Preallocates, loads and first touches a million rows (12.3 GB); returns median milliseconds."""
    row = {"image": torch.zeros(SHAPE, dtype=torch.uint8), "label": torch.zeros((), dtype=torch.int64)}
    libraries = {"ours": (TensorDict, load_memmap), "the reference": (reference.TensorDict, reference.load_memmap)}
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, (cls, load) in random.sample(list(libraries.items()), 2):
            path = folder / name
            like = cls(row).expand(1_000_000)

            def timed(what: str, work: Callable[[], Any], name: str = name) -> Any:
                start = perf_counter()
                made = work()
                times.setdefault(f"{what}, {name}", []).append(1000 * (perf_counter() - start))
                return made

            timed("memmap_like", lambda like=like, path=path: like.memmap_like(path))[:1000] = cls(row).expand(1000)
            loaded = timed("load", lambda load=load, path=path: load(path))
            timed("first touch of 250 rows", lambda loaded=loaded: loaded[torch.arange(0, 1000, 4)])
            del loaded
            shutil.rmtree(path)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {what: median(taken) for what, taken in sorted(times.items())} | {"peak memory of all, MB": peak}


def cold(path: Path, rounds: int) -> None:
    """Loads a dataset and a batch of random rows that are on the disk; returns median milliseconds."""

    def reads(rows: torch.Tensor) -> list[bytes]:
        with open(path / "image.memmap", "rb", buffering=0) as file:
            size = prod(SHAPE)
            return [os.pread(file.fileno(), size, row * size) for row in rows.tolist()]

    chosen: dict[str, Callable[[torch.Tensor], object]] = {
        "td[rows]": lambda rows: load_memmap(path)[rows],
        "td[rows] of the reference": lambda rows: reference.load_memmap(path)[rows],
        "tensor[rows]": lambda rows: load_memmap(path)["image"].as_subclass(torch.Tensor)[rows],
        "one read a row": reads,
    }
    times: dict[str, list[float]] = {name: [] for name in chosen}
    for _ in range(rounds):
        for name in random.sample(list(chosen), len(chosen)):
            for file in path.glob("*.memmap"):
                with open(file, "rb") as opened:
                    os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            rows = torch.randperm(ROWS)[:BATCH]
            start = perf_counter()
            chosen[name](rows)
            times[name].append(1000 * (perf_counter() - start))
    for name, taken in times.items():
        print(f"{name:35} {median(taken):9.1f} ms a load and a cold batch of {BATCH}")
    print(f"against the reference {median(times['td[rows] of the reference']) / median(times['td[rows]']):.1f} x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--million", action="store_true", help="measure a million preallocated rows instead")
    parser.add_argument("--cold", action="store_true", help="measure rows that are on the disk instead")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rows-", dir=options.folder))
    try:
        if options.million:
            for name, value in million(folder).items():
                print(f"{name:45} {value:10.2f}")
            return
        fill(folder / "data")
        os.sync()
        if options.cold:
            cold(folder / "data", options.rounds)
            return
        chosen = ways(folder / "data")
        for way in chosen.values():
            warm(way)
        times: dict[str, list[float]] = {name: [] for name in chosen}
        for _ in range(options.rounds):
            rows = torch.randint(ROWS, (BATCH,))
            for name in random.sample(list(chosen), len(chosen)):
                start = perf_counter()
                chosen[name](rows)
                times[name].append(1e6 * (perf_counter() - start))
    finally:
        shutil.rmtree(folder)
    report(times)


def report(times: dict[str, list[float]]) -> None:
    """Prints the median of each variant, and the fastest tenth, which other work on the machine disturbs less."""
    found = {name: (median(taken), sorted(taken)[len(taken) // 10]) for name, taken in times.items()}
    for name, (middle, fast) in found.items():
        print(f"{name:35} {middle:9.0f} us a batch of {BATCH}, fastest tenth {fast:9.0f}")
    for place, what in enumerate(("medians", "fastest tenths")):
        ours = found["td[rows]"][place]
        print(f"{what}: against the reference {found['td[rows] of the reference'][place] / ours:.2f} x", end="")
        print(f", of index_select in memory {found['index_select in memory'][place] / ours:.2f}")


if __name__ == "__main__":
    main()
