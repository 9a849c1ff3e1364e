"""Chunks: the blocks in which the rows of an array are stored, for HDF5 and zarr."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def row_chunks(shape: Sequence[int], itemsize: int, target: int) -> tuple[int, ...]:
    """Return chunks of whole rows that have about ``target`` bytes, and at least one row.

    >>> row_chunks([1000, 32], 4, 1 << 16), row_chunks([100, 32], 4, 1 << 16)
    ((512, 32), (100, 32))
    """
    row = max(int(np.prod(shape[1:], dtype=np.int64)) * itemsize, 1)
    return given_chunks(max(target // row, 1), shape)


def given_chunks(given: int | Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the chunks that a number of rows or a shape states, at most as large as the array.

    A shape with too few dimensions takes the others whole, and one with too many is cut.

    >>> given_chunks(10, [1000, 32]), given_chunks((10, 16), [1000, 32, 3]), given_chunks((2, 3), [4])
    ((10, 32), (10, 16, 3), (2,))
    """
    given = (given,) if isinstance(given, int) else given
    full = (*given, *shape[len(given) :])[: len(shape)]
    return tuple(max(min(one, n), 1) for one, n in zip(full, shape, strict=True))
