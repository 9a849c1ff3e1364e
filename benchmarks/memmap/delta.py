"""Deltas: a save of 1 % changed blocks against a full save, ``python -m benchmarks.memmap.delta`` prints both.

The weights are those of a model of some layers. Before each delta, one block of 64 KiB in a hundred is changed at a
random place. Full saves and deltas take turns, each to a new place on the disk, after earlier writes have reached it.
Loads read every byte of the whole.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import secrets
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from tensordict_core import TensorDict
from tensordict_memmap import load_memmap, save, save_delta

BLOCK = 1 << 16
CASES = {"1 % of blocks": 0.01, "10 % of blocks": 0.1, "every block": 1.0, "nothing": 0.0}


def weights(nbytes: int) -> TensorDict:
    """Layers of 16 MiB in bfloat16."""
    count = max(nbytes >> 24, 1)
    return TensorDict({f"layer{n}": {"weight": torch.randn(2048, 4096).bfloat16()} for n in range(count)})


def change(td: TensorDict, part: float) -> None:
    """Changes one element in a part of the blocks."""
    for leaf in td.values(True, True):
        flat = leaf.view(-1)
        step = BLOCK // leaf.element_size()
        blocks = range(0, flat.numel(), step)
        for start in random.sample(blocks, round(part * len(blocks))):
            flat[start] += 1


def disk(path: Path) -> int:
    """The bytes of the files at a path."""
    if path.is_file():
        return path.stat().st_size
    return sum(os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(path) for name in names)


def timed(call: Callable[[], object]) -> float:
    """Milliseconds of a call."""
    gc.collect()
    os.sync()
    start = perf_counter()
    call()
    return 1000 * (perf_counter() - start)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def read(path: Path) -> object:
    """Loads a save and reads every byte of it."""
    return [leaf.view(torch.int64).sum() for leaf in load_memmap(path).values(True, True)]


def measure(nbytes: int, part: float, ending: str, folder: Path, rounds: int) -> tuple[list[float], float, list[int]]:
    """Medians of saving all, saving a delta, loading all and loading a delta; the median ratio; the bytes of both."""
    td, base = weights(nbytes), folder / f"base{ending}"
    save(td, base, checksum=True)
    times: list[list[float]] = []
    sizes: list[int] = []
    for _ in range(rounds):
        new = td.clone()
        change(new, part)
        full, small = (folder / f"{secrets.token_hex(4)}{end}" for end in (ending, ".safetensors"))
        calls = [partial(save, new, full, checksum=True), partial(save_delta, new, small, base=base)]
        spent = [0.0, 0.0]
        for which in random.sample((0, 1), 2):
            spent[which] = timed(calls[which])
        times.append([*spent, timed(partial(read, full)), timed(partial(read, small))])
        sizes = [disk(full), disk(small)]
        remove(full)
        remove(small)
    return [median(column) for column in zip(*times, strict=True)], median(a / b for a, b, *_ in times), sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mib", type=int, default=256, help="size of the weights")
    parser.add_argument("--folder", type=Path, help="folder of the files; a temporary folder by default")
    options = parser.parse_args()
    print(
        "| changed | base | save all, ms | delta, ms | ratio | all, bytes | delta, bytes | load all, ms | delta, ms |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for case, part in CASES.items():
        for form, ending in {"a file per leaf": "", "one file": ".safetensors"}.items():
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                found = measure(options.mib << 20, part, ending, Path(folder), options.rounds)
            (full, delta, load_full, load_delta), ratio, (size, small) = found
            row = [f"{full:.0f}", f"{delta:.0f}", f"{ratio:.1f} x", f"{size:,}", f"{small:,}"]
            print(f"| {case} | {form} | {' | '.join(row)} | {load_full:.0f} | {load_delta:.0f} |", flush=True)


if __name__ == "__main__":
    main()
