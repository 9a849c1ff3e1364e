"""Which store when: random rows, a slice, all rows and appended rows of one data set in every store.

``python -m benchmarks.store.which`` prints the table of docs/stores.md: how many times as long as mapped files each
store takes, the least of several interleaved rounds, with one thread of torch and files in the page cache.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import tensordict_core as ours
from benchmarks.store.redis import Server
from benchmarks.store.rounds import data, random_rows
from tensordict_memmap import MemmapDataset

ROWS, ROUNDS = 5_000, 9
STORES = (
    *("mapped files", "one file", "safetensors", "HDF5", "HDF5, gzip", "zarr, default chunks"),
    *("zarr, chunks of 64 rows", "Parquet", "Redis"),
)


PLACES = (
    *("files", "one.tda", "one.safetensors", "plain.h5", "gzip.h5", "plain.zarr"),
    *("small.zarr", "rows.parquet"),
)
"""The file or folder of each store, in the same order; a server has none."""


def write_all(td: Any, folder: Path) -> None:
    """Writes a tensordict to all stores but the server."""
    td.save(folder / "files")
    td.save(folder / "one.tda", archive=True)
    td.save(folder / "one.safetensors")
    td.to_h5(folder / "plain.h5").close()
    td.to_h5(folder / "gzip.h5", compression="gzip", compression_opts=1).close()
    td.to_zarr(folder / "plain.zarr").close()
    td.to_zarr(folder / "small.zarr", chunks=64).close()
    td.to_parquet(folder / "rows.parquet")


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())


def sizes(folder: Path) -> dict[str, int]:
    """Return how many bytes each store takes for data with four different numbers, which compress well."""
    td = data(ours, ROWS)
    td["obs"], td["picture"] = torch.randint(4, (ROWS, 64)).float(), torch.randint_like(td["picture"], 4)
    write_all(td, folder)
    return {store: size_of(folder / place) for store, place in zip(STORES, PLACES, strict=False)}


def main() -> None:
    torch.set_num_threads(1)
    td, index, new = data(ours, ROWS), random_rows(ROWS), data(ours, 256)
    load = ours.TensorDict
    server = Server()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_all(td, folder)
        stores: dict[str, Any] = {
            "mapped files": load.load(folder / "files"),
            "one file": load.load(folder / "one.tda"),
            "safetensors": load.load(folder / "one.safetensors"),
            "HDF5": load.from_h5(folder / "plain.h5"),
            "HDF5, gzip": load.from_h5(folder / "gzip.h5"),
            "zarr, default chunks": load.from_zarr(folder / "plain.zarr"),
            "zarr, chunks of 64 rows": load.from_zarr(folder / "small.zarr"),
            "Parquet": folder / "rows.parquet",
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
            "zarr, default chunks": td.to_zarr(folder / "grow.zarr"),
            "zarr, chunks of 64 rows": td.to_zarr(folder / "grow64.zarr", chunks=64),
        }
        times: dict[str, dict[str, float]] = {store: {} for store in stores}
        for _ in range(ROUNDS):
            for store, one in stores.items():
                for case, read in reads.items():
                    if isinstance(one, Path):  # a table is read as a whole
                        if case != "all rows":
                            continue
                        read = load.from_parquet
                    start = perf_counter()
                    read(one)
                    times[store][case] = min(times[store].get(case, 1e9), perf_counter() - start)
            for store, grows in appends.items():
                start = perf_counter()
                grows.extend(new) if isinstance(grows, MemmapDataset) else grows.append(new)
                case = "append 256 rows"
                times[store][case] = min(times[store].get(case, 1e9), perf_counter() - start)
        cases = [*reads, "append 256 rows"]
        print("| store |", " | ".join(cases), "| bytes |")
        base = times["mapped files"]
        (folder / "sizes").mkdir()
        taken = sizes(folder / "sizes")
        for store, found in times.items():
            ratios = [f"{found[case] / base[case]:.1f}" if case in found else "-" for case in cases]
            bytes_ = f"{taken[store] / taken['mapped files']:.2f}" if store in taken else "-"
            print("|", " | ".join([store, *ratios, bytes_]), "|")
    server.stop()


if __name__ == "__main__":
    main()
