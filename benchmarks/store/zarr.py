"""Zarr: rows read and written by index, and stores written, beside the reference's container.

``python -m benchmarks.store.zarr`` prints the table: every round runs ours and the reference's once, in random order,
with one thread of torch, on folders in the page cache.
"""

from __future__ import annotations

# (asv takes a module called rounds for its option of that name)
from benchmarks.store.rounds import MODULES, _FileRows, compare_files


class Rows(_FileRows):
    form = "zarr"
    layouts = {"as it comes": {}}  # noqa: RUF012 (that of the class)
    params = (list(layouts), list(MODULES))
    param_names = ("layout", "module")


if __name__ == "__main__":
    compare_files(Rows)
