"""What the benchmarks of stores share: one data set, and rounds that interleave ours with the reference."""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

import tensordict as reference
import tensordict_core as ours

BATCH = 256
MODULES = {"ours": ours, "reference": reference}


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


class _FileRows(ABC):  # (asv runs every public class with such methods)
    """Files of one format in some layouts: rows read by slice and at random, and written by slice."""

    layouts: dict[str, dict[str, Any]]
    rows = 5_000

    @property
    @abstractmethod
    def form(self) -> str:
        """The format, as in ``to_h5``."""

    def path(self, name: str) -> str:
        return str(self.folder / f"{name}.{self.form}")

    def write(self, td: Any, name: str, layout: str) -> Any:
        return getattr(td, f"to_{self.form}")(self.path(name), **self.layouts[layout])

    def setup(self, layout: str, module: str) -> None:
        torch.set_num_threads(1)
        self.folder = Path(tempfile.mkdtemp())
        td = data(MODULES[module], self.rows)
        self.writable = self.write(td, "write", layout)
        self.write(td, "read", layout).close()
        opened = getattr(MODULES[module].TensorDict, f"from_{self.form}")
        self.td = opened(self.path("read"), batch_size=[self.rows])
        self.index = random_rows(self.rows).sort().values  # the reference asks for sorted rows
        self.new = data(MODULES[module], BATCH)

    def teardown(self, layout: str, module: str) -> None:
        self.td.close()
        self.writable.close()
        shutil.rmtree(self.folder)

    def time_one_row(self, layout: str, module: str) -> None:
        self.td[77].to_tensordict()

    def time_slice(self, layout: str, module: str) -> None:
        self.td[1000:1256].to_tensordict()

    def time_random_rows(self, layout: str, module: str) -> None:
        self.td[self.index].to_tensordict()

    def time_write_slice(self, layout: str, module: str) -> None:
        self.writable[1000:1256] = self.new

    def time_whole(self, layout: str, module: str) -> None:
        self.td.to_tensordict()

    def time_convert(self, layout: str, module: str) -> None:
        self.write(self.new, "new", layout).close()
        path = Path(self.path("new"))
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def compare_files(kind: type[_FileRows]) -> None:
    """Prints a table for the options of the command line."""
    parser = argparse.ArgumentParser(description=kind.__doc__)
    parser.add_argument("--rows", type=int, default=kind.rows)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    kind.rows = args.rows
    names = [name for name in dir(kind) if name.startswith("time_")]
    for layout in kind.layouts:
        both = {module: kind() for module in MODULES}
        for module, one in both.items():
            one.setup(layout, module)
        cases = {
            f"{layout}: {name[5:]}": {m: partial(getattr(one, name), layout, m) for m, one in both.items()}
            for name in names
        }
        compare(cases, args.rounds)
        for module, one in both.items():
            one.teardown(layout, module)
