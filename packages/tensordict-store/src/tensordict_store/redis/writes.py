"""Writes: the commands that change parts of values on the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict_core.extension import Index, Meta, Node
from tensordict_store.arrays.selection import select
from tensordict_store.redis.layout import Record, tensor_record
from tensordict_store.redis.ranges import Request, as_bytes
from tensordict_store.redis.scripts import Content, Ranges, gather, scatter
from tensordict_store.redis.tree import Change, Path, Tree

__all__ = ["add_zeros", "facts_of", "write_all"]


def write_all(tree: Tree, parts: Sequence[tuple[Any, str, Index | None, Tensor]]) -> None:
    """Write parts of several leaves in one atomic request; parts of rows are read first, in one request too.

    Raises:
        KeyError: An entry is gone from the server.
    """
    connection = tree.connection
    writes: list[tuple[str, Ranges, Content]] = []
    kept: list[tuple[Any, Request, Any, Tensor]] = []
    for node, key, index, value in parts:
        record = node._record(key)
        selection = select(index, record.shape)
        rest = zip(selection.box[1:], record.shape[1:], strict=True)
        if not selection.dim and selection.covers and all(side == (0, n) for side, n in rest):
            writes.append((tree.data((*node._path, key)), *_rows(record, selection, value)))
        else:  # parts of rows: the rows are read, changed and written
            start, stop = selection.box[0]
            whole = Index(slice(start, stop), record.shape[:1])
            kept.append((whole, node._request(key, record, whole), index, value))
    if kept:
        contents, _ = gather(connection, [wanted.wanted for _, wanted, _, _ in kept])
        for (whole, wanted, index, value), content in zip(kept, contents, strict=True):
            rows = wanted.result(content)
            shape = wanted.record.shape
            assert shape is not None
            _put_part(rows, wanted.selection.box[0][0], shape, index, value)
            writes.append((wanted.data, *_rows(wanted.record, select(whole, shape), rows)))
    gone = scatter(connection, writes)
    if gone is not None:
        raise KeyError(
            f"the entry {gone!r} that is written is gone from the server: it was deleted, or its time to live is over; "
            "nothing was written, store the entry again"
        )


def facts_of(meta: Meta) -> dict[str, Any]:
    """Return what the server says of a node."""
    facts: dict[str, Any] = {"batch_size": list(meta.batch_size)}
    return facts if meta.names is None else facts | {"names": list(meta.names)}


def add_zeros(path: Path, node: Any, change: Change) -> None:
    """Add the entries of a node, whose values are zeros that the server makes, to a change."""
    change.nodes[path] = {**facts_of(node._meta), "keys": list(node._keys())}
    for key, value in node._items():
        if isinstance(value, Node):
            add_zeros((*path, key), value, change)
        else:
            change.puts.append(((*path, key), tensor_record(key, value), None))


def _rows(record: Record, selection: Any, value: Tensor) -> tuple[Ranges, Content]:
    """Return the ranges of the rows that a selection covers, and what goes there."""
    assert record.shape is not None and record.dtype is not None
    if selection.residual is not None:
        rows = torch.empty(selection.shape, dtype=value.dtype)
        rows[selection.residual] = value.to("cpu")
        value = rows
    row = record.shape[1:].numel() * record.dtype.itemsize
    runs = selection.runs if record.shape else [(0, 1)]
    return [(start * row, (stop - start) * row) for start, stop in runs], as_bytes(value)


def _put_part(rows: Tensor, start: int, shape: torch.Size, index: Index | None, value: Tensor) -> None:
    """Write into the rows from ``start`` on of a tensor what an index of the whole tensor selects."""
    assert index is not None
    chosen = select(index, shape)
    inner = rows.narrow(0, chosen.box[0][0] - start, chosen.box[0][1] - chosen.box[0][0]) if shape else rows
    for dim, (low, high) in enumerate(chosen.box):
        if dim and dim != chosen.dim:
            inner = inner.narrow(dim, low, high - low)
    places = torch.cat([torch.arange(low, high) for low, high in chosen.runs])
    if not chosen.dim:
        places -= chosen.box[0][0]
    part = inner.index_select(chosen.dim, places)
    part[chosen.residual] = value.to("cpu")
    inner.index_copy_(chosen.dim, places, part)
