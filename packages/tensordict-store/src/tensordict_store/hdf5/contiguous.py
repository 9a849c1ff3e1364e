"""Contiguous datasets: rows are read with positioned reads of the system, bypassing HDF5 and its global lock.

A dataset without chunks is one range of the file. While this process does not write the file, that range has the values
that HDF5 would return. A selection of whole rows is one read per run; reads past the end of the file raise an error.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from tensordict_store.arrays.selection import Selection


def read_rows(handle: Any, offset: int, selection: Selection, out: np.ndarray[Any, Any]) -> bool:
    """Read runs of whole rows into an array; return whether the selection has that form.

    Args:
        handle: The file of h5py.
        offset: The position of the dataset in the file, in bytes.
        selection: The runs.
        out: An array of the shape of the selection, with the byte order of the dataset.

    Raises:
        OSError: The file ends before the rows do.
    """
    if not selection.whole_rows:
        return False
    number = handle.id.get_vfd_handle()
    buffer = out.reshape(-1).view(np.uint8).data
    row = out.nbytes // out.shape[0] if out.ndim else out.nbytes
    place = 0
    for start, stop in selection.runs:
        end = place + (stop - start) * row
        run = buffer[place:end]
        if (count := os.preadv(number, (run,), offset + start * row)) < end - place:
            _read_rest(number, run, count, offset + start * row, handle)
        place = end
    return True


def _read_rest(number: int, run: memoryview, done: int, offset: int, handle: Any) -> None:
    """Read the bytes that one call did not read: the system reads at most 2 GiB at a time."""
    while done < len(run):
        count = os.preadv(number, (run[done:],), offset + done)
        if not count:
            raise OSError(
                f"the HDF5 file {handle.filename!r} ends {len(run) - done} bytes before the rows do, so it was "
                "truncated after it was opened; restore it from a copy"
            )
        done += count
