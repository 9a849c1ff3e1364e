"""Which store when: random rows, a slice, all rows and appended rows of one data set in every store.

``python -m benchmarks.store.which`` prints the table of docs/stores.md: how many times as long as mapped files each
store takes, the least of several interleaved rounds, with one thread of torch and files in the page cache.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch

import tensordict_core as ours
from benchmarks.store.redis import Server
from benchmarks.store.rounds import data, random_rows
from tensordict_memmap import MemmapDataset

ROWS, ROUNDS = 5_000, 9


class Store(NamedTuple):
    """A file or folder, and how a tensordict is written to it and opened from it."""

    place: str
    write: Callable[[Any, Path], Any]
    open: Callable[[Path], Any] = ours.TensorDict.load


STORES = {
    "mapped files": Store("files", lambda td, path: td.save(path)),
    "one file": Store("one.tda", lambda td, path: td.save(path, archive=True)),
    "safetensors": Store("one.safetensors", lambda td, path: td.save(path)),
    "HDF5": Store("plain.h5", lambda td, path: td.to_h5(path).close(), ours.TensorDict.from_h5),
    "HDF5, gzip": Store(
        "gzip.h5",
        lambda td, path: td.to_h5(path, compression="gzip", compression_opts=1).close(),
        ours.TensorDict.from_h5,
    ),
    "zarr, default chunks": Store("plain.zarr", lambda td, path: td.to_zarr(path).close(), ours.TensorDict.from_zarr),
    "zarr, chunks of 64 rows": Store(
        "small.zarr", lambda td, path: td.to_zarr(path, chunks=64).close(), ours.TensorDict.from_zarr
    ),
    "Parquet": Store("rows.parquet", lambda td, path: td.to_parquet(path), lambda path: path),  # is read as a whole
}
"""The stores of files; a server comes to them."""


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())


def sizes(folder: Path) -> dict[str, int]:
    """Return how many bytes each store takes for data with four different numbers, which compress well."""
    td = data(ours, ROWS)
    td["obs"], td["picture"] = torch.randint(4, (ROWS, 64)).float(), torch.randint_like(td["picture"], 4)
    for store in STORES.values():
        store.write(td, folder / store.place)
    return {name: size_of(folder / store.place) for name, store in STORES.items()}


def main() -> None:
    torch.set_num_threads(1)
    td, index, new = data(ours, ROWS), random_rows(ROWS), data(ours, 256)
    server = Server()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for store in STORES.values():
            store.write(td, folder / store.place)
        stores = {name: store.open(folder / store.place) for name, store in STORES.items()}
        stores["Redis"] = td.to_store(port=server.port)
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
        times: dict[str, dict[str, float]] = {name: {} for name in stores}
        for _ in range(ROUNDS):
            for name, one in stores.items():
                for case, read in reads.items():
                    if isinstance(one, Path):  # a table is read as a whole
                        if case != "all rows":
                            continue
                        read = ours.TensorDict.from_parquet
                    start = perf_counter()
                    read(one)
                    times[name][case] = min(times[name].get(case, 1e9), perf_counter() - start)
            for name, grows in appends.items():
                start = perf_counter()
                grows.extend(new) if isinstance(grows, MemmapDataset) else grows.append(new)
                case = "append 256 rows"
                times[name][case] = min(times[name].get(case, 1e9), perf_counter() - start)
        cases = [*reads, "append 256 rows"]
        print("| store |", " | ".join(cases), "| bytes |")
        base = times["mapped files"]
        (folder / "sizes").mkdir()
        taken = sizes(folder / "sizes")
        for name, found in times.items():
            ratios = [f"{found[case] / base[case]:.1f}" if case in found else "-" for case in cases]
            bytes_ = f"{taken[name] / taken['mapped files']:.2f}" if name in taken else "-"
            print("|", " | ".join([name, *ratios, bytes_]), "|")
    server.stop()


if __name__ == "__main__":
    main()
