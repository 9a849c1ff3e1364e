"""Layout: chunks, shards and names of dimensions of a new array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

from tensordict_store.arrays.chunks import given_chunks, row_chunks

_TARGET = 1 << 20
"""Bytes of a chunk that is chosen here: a request of a remote store carries about so much in the time it waits."""
_OURS = ("chunks", "shards", "storage_options")


def array_options(
    options: dict[str, Any], name: str, shape: Sequence[int], itemsize: int, facts: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of ``create_array`` for an array of a shape.

    ``chunks`` and ``shards`` are a number of rows or a shape, which is cut or filled up to the dimensions of the array.
    Arrays are not compressed unless ``compressors`` is given. Dimensions are named, as xarray needs it.

    >>> made = array_options({"chunks": 100, "shards": 1000}, "x", [4000, 32], 4, {"batch_size": [4000]})
    >>> made["chunks"], made["shards"], made["dimension_names"]
    ((100, 32), (1000, 32), ['dim_0', 'x_0'])
    """
    chosen = {key: value for key, value in options.items() if key not in _OURS}
    chosen.setdefault("compressors", None)
    size = facts.get("batch_size") or []
    names = facts.get("names") or [None] * len(size)
    chosen["dimension_names"] = [
        (names[i] or f"dim_{i}") if i < len(size) else f"{name}_{i - len(size)}" for i in range(len(shape))
    ]
    if not len(shape):
        return chosen
    chunks, shards = options.get("chunks"), options.get("shards")
    chunks = given_chunks(chunks, shape) if _is_given(chunks) else row_chunks(shape, itemsize, _TARGET)
    chosen["chunks"] = chunks
    if _is_given(shards):  # a shard holds whole chunks
        chosen["shards"] = tuple(-(-n // one) * one for n, one in zip(given_chunks(shards, shape), chunks, strict=True))
    return chosen


def _is_given(blocks: Any) -> TypeGuard[int | Sequence[int]]:
    return blocks is not None and blocks is not True and blocks != "auto"
