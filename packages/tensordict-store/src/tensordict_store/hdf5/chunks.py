"""Options: how a new dataset is stored, so that rows of the batch are stored together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensordict_store.arrays.chunks import given_chunks, row_chunks

_TARGET = 1 << 16
"""Bytes of a chunk that is chosen here: large enough to compress, small enough for the chunk cache of HDF5."""
_FILTERS = ("compression", "compression_opts", "shuffle", "fletcher32", "scaleoffset", "maxshape")


def creation_options(options: dict[str, Any], shape: Sequence[int], itemsize: int) -> dict[str, Any]:
    """Return the arguments of ``create_dataset`` for an array of a shape.

    ``chunks`` is ``True`` for chunks of whole rows, a number of rows, or a shape, as `given_chunks` takes it.
    ``maxshape=True`` lets the rows grow. Arrays without elements or dimensions have no chunks.

    >>> creation_options({"chunks": (2, 3), "compression": "gzip"}, [4], 4)
    {'chunks': (2,), 'compression': 'gzip'}
    """
    chosen = dict(options)
    chunks = chosen.pop("chunks", None)
    if chosen.get("maxshape") is True:
        chosen["maxshape"] = (None, *shape[1:])
    if not len(shape) or 0 in shape:
        return {key: value for key, value in chosen.items() if key not in _FILTERS}
    if isinstance(chunks, (int, tuple, list)) and not isinstance(chunks, bool):
        return {"chunks": given_chunks(chunks, shape), **chosen}
    if chunks is False:
        return {"chunks": False, **chosen}
    if chunks or any(chosen.get(name) for name in _FILTERS):
        return {"chunks": row_chunks(shape, itemsize, _TARGET), **chosen}
    return chosen
