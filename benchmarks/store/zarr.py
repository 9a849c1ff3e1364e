"""Zarr: rows read and written by index, and stores written, beside the reference's container.

``python -m benchmarks.store.zarr`` prints the table: every round runs ours and the reference's once, in random order,
with one thread of torch, on folders in the page cache.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

import tensordict as reference
import tensordict_core as ours
from benchmarks.store.rounds import compare, data, random_rows

MODULES = {"ours": ours, "reference": reference}
LAYOUTS: dict[str, dict[str, Any]] = {"as it comes": {}}


class Rows:
    """A store in two layouts, read by slice and by random rows, and written by slice."""

    params = (list(LAYOUTS), list(MODULES))
    param_names = ("layout", "module")
    rows = 5_000

    def setup(self, layout: str, module: str) -> None:
        torch.set_num_threads(1)
        self.folder = Path(tempfile.mkdtemp())
        td = data(MODULES[module], self.rows)
        self.writable = td.to_zarr(str(self.folder / "write.zarr"), **LAYOUTS[layout])
        td.to_zarr(str(self.folder / "read.zarr"), **LAYOUTS[layout]).close()
        self.td = MODULES[module].TensorDict.from_zarr(str(self.folder / "read.zarr"), batch_size=[self.rows])
        self.index = random_rows(self.rows).sort().values  # the reference asks for sorted rows
        self.new = data(MODULES[module], 256)

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
        path = self.folder / "new.zarr"
        self.new.to_zarr(str(path), **LAYOUTS[layout]).close()
        shutil.rmtree(path)


def compare_layout(layout: str, rounds: int) -> None:
    both = {module: Rows() for module in MODULES}
    for module, one in both.items():
        one.setup(layout, module)
    names = [name for name in dir(Rows) if name.startswith("time_")]
    compare(
        {
            f"{layout}: {name[5:]}": {m: (lambda m=m, n=name: getattr(both[m], n)(layout, m)) for m in MODULES}
            for name in names
        },
        rounds,
    )
    for module, one in both.items():
        one.teardown(layout, module)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=Rows.rows)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    Rows.rows = args.rows
    for layout in LAYOUTS:
        compare_layout(layout, args.rounds)


if __name__ == "__main__":
    main()
