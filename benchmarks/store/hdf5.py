"""HDF5: rows read and written by index, and files written, beside the reference's container.

``python -m benchmarks.store.hdf5`` prints the table: every round runs ours and the reference's once, in random order,
with one thread of torch, on files in the page cache.
"""

from __future__ import annotations

# (asv takes a module called rounds for its option of that name)
from benchmarks.store.rounds import MODULES, _FileRows, compare_files


class Rows(_FileRows):
    form = "h5"
    layouts = {"contiguous": {}, "gzip": {"compression": "gzip", "compression_opts": 1}}  # noqa: RUF012 (that of the class)
    params = (list(layouts), list(MODULES))
    param_names = ("layout", "module")


if __name__ == "__main__":
    compare_files(Rows)
