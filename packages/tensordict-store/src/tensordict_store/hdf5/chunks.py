"""Chunks: the layout of a new dataset, so that rows of the batch are stored together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_TARGET = 1 << 16
"""Bytes of a chunk that is chosen here: large enough to compress, small enough for the chunk cache of HDF5."""
_FILTERS = ("compression", "compression_opts", "shuffle", "fletcher32", "scaleoffset", "maxshape")


def row_chunks(shape: Sequence[int], itemsize: int, rows: int | None = None) -> tuple[int, ...]:
    """Return chunks of whole rows, of about 64 KiB or of the given number of rows.

    >>> row_chunks([1000, 32], 4), row_chunks([1000, 32], 4, rows=10)
    ((512, 32), (10, 32))
    >>> row_chunks([100_000, 32], 4)
    (512, 32)
    """
    row = max(int(np.prod(shape[1:], dtype=np.int64)) * itemsize, 1)
    rows = max(_TARGET // row, 1) if rows is None else rows
    return (max(min(rows, shape[0]), 1), *(max(n, 1) for n in shape[1:]))


def creation_options(options: dict[str, Any], shape: Sequence[int], itemsize: int) -> dict[str, Any]:
    """Return the arguments of ``create_dataset`` for an array of a shape.

    ``chunks`` is ``True`` for chunks of whole rows, a number of rows, or a shape; a shape with too few dimensions takes
    the others whole, and one with too many is cut. ``maxshape=True`` lets the
    rows grow. Arrays without elements or dimensions have no chunks.

    >>> creation_options({"chunks": (2, 3), "compression": "gzip"}, [4], 4)
    {'chunks': (2,), 'compression': 'gzip'}
    """
    chosen = dict(options)
    chunks = chosen.pop("chunks", None)
    if chosen.get("maxshape") is True:
        chosen["maxshape"] = (None, *shape[1:])
    if not len(shape) or 0 in shape:
        return {key: value for key, value in chosen.items() if key not in _FILTERS}
    if isinstance(chunks, int) and not isinstance(chunks, bool):
        return {"chunks": row_chunks(shape, itemsize, chunks), **chosen}
    if isinstance(chunks, (tuple, list)):
        full = (*chunks, *shape[len(chunks) :])[: len(shape)]
        return {"chunks": tuple(min(one, n) for one, n in zip(full, shape, strict=True)), **chosen}
    if chunks is False:
        return {"chunks": False, **chosen}
    if chunks or any(chosen.get(name) for name in _FILTERS):
        return {"chunks": row_chunks(shape, itemsize), **chosen}
    return chosen
