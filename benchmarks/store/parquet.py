"""Parquet to tensordicts and to a dataset on disk, beside pyarrow's own reader: ``python -m benchmarks.store.parquet``.

Every round reads the same file, of columns of numbers and of one column of features, in all ways one after another. A
ratio is the time of pyarrow, which gives NumPy arrays, over that of the row; the medians of the rounds are printed.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pyarrow.parquet as pq
import torch

from tensordict_core import TensorDict
from tensordict_memmap import MemmapDataset
from tensordict_store import from_parquet, iter_parquet, to_parquet


def rows(count: int) -> TensorDict:
    """Eight columns of numbers and one of 32 features."""
    columns = {f"x{i}": torch.randn(count) for i in range(8)}
    return TensorDict({**columns, "features": torch.randn(count, 32)}, [count])


def plain(path: Path) -> None:
    """All columns as arrays of NumPy, by pyarrow."""
    table = pq.read_table(path)
    for column in table.columns:
        chunks = column.combine_chunks()
        (getattr(chunks, "storage", chunks).flatten() if hasattr(chunks, "storage") else chunks).to_numpy()


def dataset(path: Path, folder: Path, step: int) -> None:
    """A dataset on disk, in bounded memory."""
    batches = iter_parquet(path, rows=step)
    first = next(batches)
    with MemmapDataset.create(folder, first[0]) as made:
        made.extend(first)
        for batch in batches:
            made.extend(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="160 bytes each")
    parser.add_argument("--step", type=int, default=131_072, help="rows of a batch")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    path, target = folder / "rows.parquet", folder / "dataset"
    try:
        to_parquet(rows(options.rows), path, compression="none", use_dictionary=False)
        ways: dict[str, Callable[[], object]] = {
            "pyarrow to NumPy": lambda: plain(path),
            "from_parquet": lambda: from_parquet(path),
            "iter_parquet": lambda: [None for _ in iter_parquet(path, rows=options.step)],
            "iter_parquet to MemmapDataset": lambda: dataset(path, target, options.step),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, way in ways.items():
                start = time.perf_counter()
                way()
                times[name].append(time.perf_counter() - start)
                shutil.rmtree(target, ignore_errors=True)
        print("| way | ms | pyarrow / this |\n|---|---:|---:|")
        for name, values in times.items():
            ratio = median(base / own for base, own in zip(times["pyarrow to NumPy"], values, strict=True))
            print(f"| {name} | {median(values) * 1e3:.0f} | {ratio:.2f} |")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
