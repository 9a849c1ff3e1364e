"""Layout: chunks, shards and names of dimensions of a new array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

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
    row = max(int(np.prod(shape[1:], dtype=np.int64)) * itemsize, 1)
    chunks = _blocks(options.get("chunks"), shape)
    chosen["chunks"] = chunks = chunks or _rows(max(_TARGET // row, 1), shape)
    shards = _blocks(options.get("shards"), shape)
    if shards:  # a shard holds whole chunks
        chosen["shards"] = tuple(-(-n // one) * one for n, one in zip(shards, chunks, strict=True))
    return chosen


def _rows(rows: int, shape: Sequence[int]) -> tuple[int, ...]:
    return (max(min(rows, shape[0]), 1), *(max(n, 1) for n in shape[1:]))


def _blocks(given: Any, shape: Sequence[int]) -> tuple[int, ...] | None:
    if given is None or given == "auto" or given is True:
        return None
    if isinstance(given, int):
        return _rows(given, shape)
    full = (*given, *shape[len(given) :])[: len(shape)]
    return tuple(max(min(one, n), 1) for one, n in zip(full, shape, strict=True))
