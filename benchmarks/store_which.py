"""Which store when: random rows, a slice, all rows and appended rows of one data set in every store.

``python -m benchmarks.store_which`` prints the table of docs/stores.md: how many times as long as mapped files each
store takes, the least of several interleaved rounds, with one thread of torch and files in the page cache.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import tensordict_core as ours
from benchmarks.store_redis import Server
from benchmarks.stores import data, random_rows
from tensordict_memmap import MemmapDataset

ROWS, ROUNDS = 5_000, 9


def main() -> None:
    torch.set_num_threads(1)
    td, index, new = data(ours, ROWS), random_rows(ROWS), data(ours, 256)
    load = ours.TensorDict
    server = Server()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        td.save(folder / "files")
        td.save(folder / "one.tda", archive=True)
        td.to_h5(folder / "plain.h5").close()
        td.to_h5(folder / "gzip.h5", compression="gzip", compression_opts=1).close()
        td.to_zarr(folder / "plain.zarr").close()
        td.to_zarr(folder / "small.zarr", chunks=64).close()
        stores: dict[str, Any] = {
            "mapped files": load.load(folder / "files"),
            "one file": load.load(folder / "one.tda"),
            "HDF5": load.from_h5(folder / "plain.h5"),
            "HDF5, gzip": load.from_h5(folder / "gzip.h5"),
            "zarr": load.from_zarr(folder / "plain.zarr"),
            "zarr, chunks of 64 rows": load.from_zarr(folder / "small.zarr"),
            "Redis": td.to_store(port=server.port),
        }
        reads = {
            "one row": lambda store: store[77].clone(),
            "256 random rows": lambda store: store[index].clone(),
            "256 rows in order": lambda store: store[1000:1256].clone(),
            "all rows": lambda store: store.clone(),
        }
        appends = {
            "mapped files": MemmapDataset.open(folder / "files", "r+"),
            "HDF5, gzip": td.to_h5(folder / "grow.h5", maxshape=True, compression="gzip", compression_opts=1),
            "zarr": td.to_zarr(folder / "grow.zarr"),
            "zarr, chunks of 64 rows": td.to_zarr(folder / "grow64.zarr", chunks=64),
        }
        times: dict[str, dict[str, float]] = {store: {} for store in stores}
        for _ in range(ROUNDS):
            for store, one in stores.items():
                for case, read in reads.items():
                    start = perf_counter()
                    read(one)
                    times[store][case] = min(times[store].get(case, 1e9), perf_counter() - start)
            for store, grows in appends.items():
                start = perf_counter()
                grows.extend(new) if isinstance(grows, MemmapDataset) else grows.append(new)
                case = "append 256 rows"
                times[store][case] = min(times[store].get(case, 1e9), perf_counter() - start)
        cases = [*reads, "append 256 rows"]
        print("| store |", " | ".join(cases), "|")
        base = times["mapped files"]
        for store, found in times.items():
            print("|", store, "|", " | ".join(f"{found[c] / base[c]:.1f}" if c in found else "-" for c in cases), "|")
    server.stop()


if __name__ == "__main__":
    main()
