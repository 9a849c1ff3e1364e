"""Rows of a dataset in an object store: random batches through a warm cache, compared with the local dataset.

``python -m benchmarks.memmap.remote_dataset`` starts a local server of the S3 protocol (moto), uploads a million rows
to it, reads all of them once, and prints medians and ratios, with one thread as in a worker of a loader; every round
runs every variant once, in random order. Reads with an empty cache are not measured: this server takes longer for a
range of a large object than a real one does.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from tensordict_core import TensorDict
from tensordict_memmap import MemmapDataset

BATCH = 256
KEYS = {"key": "test", "secret": "test", "client_kwargs": {"region_name": "eu-west-1"}}


def fill(path: Path, rows: int, width: int) -> None:
    """Writes the dataset in blocks."""
    row = TensorDict({"image": torch.zeros(width, dtype=torch.uint8), "label": torch.tensor(0)})
    with MemmapDataset.create(path, row) as dataset:
        for first in range(0, rows, 50_000):
            count = min(50_000, rows - first)
            image = torch.randint(256, (count, width), dtype=torch.uint8)
            label = torch.arange(first, first + count)
            dataset.extend(TensorDict({"image": image, "label": label}, [count]), commit=False)


def compare(local: MemmapDataset, remote: MemmapDataset, rounds: int, rows: int) -> dict[str, list[float]]:
    """Microseconds of random batches by variant; both are warm, as after an epoch."""
    variants: dict[str, Callable[[list[int]], object]] = {"local": local.__getitems__, "remote": remote.__getitems__}
    for part in torch.arange(rows).split(100_000):
        for read in variants.values():
            read(part.tolist())
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        index = torch.randint(rows, (BATCH,)).tolist()
        found = {}
        for name in random.sample(list(variants), len(variants)):
            start = perf_counter()
            found[name] = variants[name](index)
            times[name].append(1e6 * (perf_counter() - start))
        assert (found["local"] == found["remote"]).all()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=256, help="bytes of the larger of the two columns")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument(
        "--bounded", action="store_true", help="a cache smaller than the dataset, which holds the rows that are read"
    )
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()

    import logging

    import fsspec
    from moto.server import ThreadedMotoServer

    torch.set_num_threads(1)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    fsspec.config.conf["s3"] = {**KEYS, "endpoint_url": f"http://{host}:{port}"}
    folder = Path(tempfile.mkdtemp(prefix="remote-rows-", dir=options.folder))
    try:
        fsspec.filesystem("s3").mkdir("bench")
        fill(folder / "data", options.rows, options.width)
        local = MemmapDataset.open(folder / "data")
        local.upload("s3://bench/data")
        size = {"cache_bytes": options.rows * options.width * 9 // 10} if options.bounded else {}
        shown = options.rows // 2 if options.bounded else options.rows
        remote = MemmapDataset.open("s3://bench/data", cache=folder / "cache", **size)
        times = compare(local, remote, options.rounds, shown)
    finally:
        server.stop()
        shutil.rmtree(folder)
    for name, taken in times.items():
        fast = sorted(taken)[len(taken) // 10]
        print(f"{name:8} {median(taken):9.0f} us a batch of {BATCH}, fastest tenth {fast:9.0f}")
    fast_ratio = sorted(times["local"])[options.rounds // 10] / sorted(times["remote"])[options.rounds // 10]
    print(
        f"remote speed of local: {median(times['local']) / median(times['remote']):.2f}, fastest tenth {fast_ratio:.2f}"
    )


if __name__ == "__main__":
    main()
