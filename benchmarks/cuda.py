"""Compares operations, transfers, graphs and files on a GPU: ``python -m benchmarks.cuda``.

Ours, the reference and plain torch run one after another in every round. Times are wall times from an idle device to an
idle device, medians over the rounds; ratios are medians of the ratios of the rounds. Files are in the page cache.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn

import tensordict as reference
import tensordict.nn  # the reference imports it on request
import tensordict_core
import tensordict_memmap
import tensordict_nn

SMALL, LARGE, MEGABYTE = 1000, 8, 1 << 20
Run = Callable[[], Any]


class Row(NamedTuple):
    """One workload: what it is, and the function of ours, of the reference and of plain torch."""

    name: str
    ours: Run
    reference: Run | None
    plain: Run | None


def seconds(run: Run) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    kept = run()
    torch.cuda.synchronize()
    end = time.perf_counter()
    del kept
    return end - start


def measure(row: Row, rounds: int) -> str:
    """Returns a row of the table."""
    runs = [run for run in (row.ours, row.reference, row.plain) if run is not None]
    for run in runs:
        seconds(run), seconds(run)
    times = [[seconds(run) for run in runs] for _ in range(rounds)]
    columns = iter(zip(*times, strict=True))
    ours = next(columns)
    cells = [f"{median(ours) * 1e3:.3f}"]
    ratios = []
    for run in (row.reference, row.plain):
        if run is None:
            cells.append("")
            ratios.append("")
            continue
        theirs = next(columns)
        cells.append(f"{median(theirs) * 1e3:.3f}")
        ratios.append(f"{median(a / b for a, b in zip(theirs, ours, strict=True)):.2f}")
    return f"| {row.name} | {' | '.join(cells + ratios)} |"


def leaves(count: int, nbytes: int, device: str) -> dict[str, torch.Tensor]:
    return {f"key{i}": torch.rand(nbytes // 4, device=device) for i in range(count)}


def operations() -> Iterator[Row]:
    """Operations on many small leaves, whose time is that of launches."""
    source, other = leaves(SMALL, 4096, "cuda"), leaves(SMALL, 4096, "cuda")
    ours, theirs = tensordict_core.TensorDict(source), reference.TensorDict(source)
    pairs: list[tuple[str, Callable[[Any], Any], Run]] = [
        ("td + td", lambda td: td + td, lambda: {k: v + v for k, v in source.items()}),
        ("td * 2", lambda td: td * 2, lambda: {k: v * 2 for k, v in source.items()}),
        ("td.clone()", lambda td: td.clone(), lambda: {k: v.clone() for k, v in source.items()}),
        ("td.apply(torch.sin)", lambda td: td.apply(torch.sin), lambda: {k: v.sin() for k, v in source.items()}),
        ("td.zero_()", lambda td: td.zero_(), lambda: [v.zero_() for v in source.values()]),
        ("td.update_(dict)", lambda td: td.update_(other), lambda: [source[k].copy_(v) for k, v in other.items()]),
        ("td.to(torch.float16)", lambda td: td.to(torch.float16), lambda: {k: v.half() for k, v in source.items()}),
        (
            "torch.stack of 4",
            lambda td: torch.stack([td] * 4),
            lambda: {k: torch.stack([v] * 4) for k, v in source.items()},
        ),
        ("td[:8] of 1,000", lambda td: td.auto_batch_size_()[:8], lambda: {k: v[:8] for k, v in source.items()}),
    ]
    for name, run, plain in pairs:
        yield Row(name, lambda run=run: run(ours), lambda run=run: run(theirs), plain)


def transfers() -> Iterator[Row]:
    """Copies between host and device."""
    for label, count, nbytes in [("1,000 x 4 KiB", SMALL, 4096), ("8 x 64 MiB", LARGE, 64 * MEGABYTE)]:
        host, device = leaves(count, nbytes, "cpu"), leaves(count, nbytes, "cuda")
        pinned = {k: v.pin_memory() for k, v in host.items()}
        moves = [("to GPU", host, "cuda"), ("pinned to GPU", pinned, "cuda"), ("to CPU", device, "cpu")]
        for name, source, target in moves:
            made = [partial(library.TensorDict(source).to, target) for library in (tensordict_core, reference)]
            yield Row(f"{name}, {label}", *made, partial(moved, source, target))
        made = [partial(library.TensorDict(host).consolidate().to, "cuda") for library in (tensordict_core, reference)]
        yield Row(f"consolidated to GPU, {label}", *made, partial(moved, host, "cuda"))


def moved(source: dict[str, torch.Tensor], target: str) -> dict[str, torch.Tensor]:
    return {key: value.to(target) for key, value in source.items()}


def files(folder: Path, megabytes: int) -> Iterator[Row]:
    """Saves from and loads to the GPU."""
    from safetensors.torch import load_file, save_file

    source = leaves(LARGE, megabytes * MEGABYTE // LARGE, "cuda")
    ours, theirs = tensordict_core.TensorDict(source), reference.TensorDict(source)
    label = f"{LARGE} leaves, {megabytes} MiB"
    ours.save(folder / "ours"), ours.save(folder / "ours.safetensors"), theirs.memmap(folder / "theirs")
    torch.save(source, folder / "plain.pt"), save_file(source, folder / "plain.safetensors")
    yield Row(
        f"save a folder, {label}; plain: torch.save",
        lambda: ours.save(folder / "ours"),
        lambda: theirs.memmap(folder / "theirs", num_threads=8),
        lambda: torch.save(source, folder / "plain.pt"),
    )
    yield Row(
        f"save .safetensors, {label}; plain: safetensors",
        lambda: ours.save(folder / "ours.safetensors"),
        None,
        lambda: save_file(source, folder / "plain.safetensors"),
    )
    yield Row(
        f"load a folder to GPU, {label}; plain: torch.load",
        lambda: tensordict_core.TensorDict.load(folder / "ours", device="cuda"),
        lambda: reference.TensorDict.load_memmap(folder / "theirs").to("cuda"),
        lambda: torch.load(folder / "plain.pt", map_location="cuda"),
    )
    yield Row(
        f"load .safetensors to GPU, {label}; plain: safetensors",
        lambda: tensordict_core.TensorDict.load(folder / "ours.safetensors", device="cuda"),
        None,
        lambda: load_file(folder / "plain.safetensors", device="cuda"),
    )
    buffers = {k: torch.empty(v.shape, dtype=v.dtype, pin_memory=True) for k, v in source.items()}

    def stall() -> float:
        start = time.perf_counter()
        future = tensordict_memmap.save_checkpoint(folder / "checkpoint", tensors=ours, rng=False, return_early=True)
        elapsed = time.perf_counter() - start
        future.result()
        return elapsed

    def copy() -> float:
        start = time.perf_counter()
        for key, value in source.items():
            buffers[key].copy_(value, non_blocking=True)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    stall(), copy()
    stalls, copies = zip(*[(stall(), copy()) for _ in range(5)], strict=True)
    print(
        f"Stall of a background checkpoint of {megabytes} MiB: {median(stalls) * 1e3:.1f} ms; a copy to pinned memory: "
        f"{median(copies) * 1e3:.1f} ms; ratio {median(a / b for a, b in zip(stalls, copies, strict=True)):.2f}."
    )


def graphs() -> Iterator[Row]:
    """A small policy: eager, and recorded as a graph."""

    def policy(library: Any) -> Any:
        torch.manual_seed(0)
        layers = [nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)]
        return library.TensorDictModule(nn.Sequential(*layers).cuda().requires_grad_(False), ["x"], ["y"])

    x = torch.rand(128, 32, device="cuda")
    modules = [policy(tensordict_nn), policy(reference.nn)]
    tds = [tensordict_core.TensorDict({"x": x}, [128]), reference.TensorDict({"x": x}, [128])]
    bare = modules[0].module
    yield Row("policy, eager", lambda: modules[0](tds[0]), lambda: modules[1](tds[1]), lambda: bare(x))
    recorded = [tensordict_nn.CudaGraphModule(modules[0]), reference.nn.CudaGraphModule(modules[1])]
    static = x.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = bare(static)

    def plain() -> torch.Tensor:
        static.copy_(x)
        graph.replay()
        return out.clone()

    for _ in range(5):
        for module, td in zip(recorded, tds, strict=True):
            module(td)
    yield Row("policy, CUDA graph", lambda: recorded[0](tds[0]), lambda: recorded[1](tds[1]), plain)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--megabytes", type=int, default=1024, help="size of the saved files")
    parser.add_argument("--folder", type=Path, help="where files are saved; by default a temporary folder")
    parser.add_argument("--only", default="operations,transfers,graphs,files", help="tables, separated by commas")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    tables = {"operations": operations, "transfers": transfers, "graphs": graphs}
    # replaced saves may still be removed in the background
    with tempfile.TemporaryDirectory(dir=options.folder, ignore_cleanup_errors=True) as folder:
        tables["files"] = lambda: files(Path(folder), options.megabytes)
        for name in options.only.split(","):
            print("| workload | ours, ms | reference, ms | plain, ms | reference / ours | plain / ours |")
            print("|---|---:|---:|---:|---:|---:|")
            for row in tables[name]():
                print(measure(row, max(options.rounds // 3, 3) if name == "files" else options.rounds), flush=True)
            print()
    print(f"{torch.cuda.get_device_name()}, Python {platform.python_version()}, torch {torch.__version__}.")


if __name__ == "__main__":
    main()
