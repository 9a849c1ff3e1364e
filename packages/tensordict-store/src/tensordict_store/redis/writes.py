"""Writes: the commands that change parts of values on the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict_core.extension import Index
from tensordict_store.arrays.selection import Range, Selector, select
from tensordict_store.redis.commands import Writes
from tensordict_store.redis.layout import Record
from tensordict_store.redis.ranges import Request, as_bytes
from tensordict_store.redis.transfer import gather, scatter
from tensordict_store.redis.tree import Tree


def write_all(tree: Tree, parts: Sequence[tuple[Any, str, Index | None, Tensor]]) -> None:
    """Write parts of several leaves in one atomic request; parts of rows are read first, in one request too.

    Raises:
        KeyError: An entry was deleted on the server.
    """
    writes: list[Writes] = []
    kept: list[tuple[Any, str, Index | None, Tensor, int, Request]] = []
    selectors: dict[int, Selector] = {}
    for node, key, index, value in parts:
        record = node._record(key)
        rows = selectors.get(id(index))
        if rows is None:
            rows = selectors[id(index)] = Selector(index)
        order = rows.in_order(record.shape)
        if order is not None:
            writes += whole_rows(tree.data((*node._path, key)), record, order, value)
            continue
        selection = rows.select(record.shape)
        if selection.covers and selection.whole_rows:
            if not selection.ordered:
                boxes = torch.empty(selection.shape, dtype=value.dtype, device="cpu")
                boxes[selection.residual] = value.to("cpu")
                value = boxes
            writes += whole_rows(tree.data((*node._path, key)), record, selection.runs, value)
        else:  # parts of rows: the rows are read, changed and written
            start, stop = selection.box[0]
            whole = Selector(Index(slice(start, stop), record.shape[:1]))
            kept.append((node, key, index, value, start, node._request(key, record, whole)))
    if kept:
        contents, _ = gather(tree.connection, [wanted.reads for *_, wanted in kept])
        for (node, key, index, value, start, wanted), content in zip(kept, contents, strict=True):
            record, changed = node._record(key), wanted.result(content)
            _put_part(changed, start, record.shape, index, value)
            writes += whole_rows(wanted.reads.name, record, [(start, start + len(changed))], changed)
    scatter(tree, writes)


def whole_rows(name: str, record: Record, runs: Sequence[Range], value: Tensor) -> list[Writes]:
    """Return the command that writes rows; none where they have no bytes."""
    return [Writes(name, runs, record.row, as_bytes(value))] if record.row and value.numel() else []


def _put_part(rows: Tensor, start: int, shape: torch.Size, index: Index | None, value: Tensor) -> None:
    """Write into the rows from ``start`` on of a tensor what an index of the whole tensor selects."""
    assert index is not None
    chosen = select(index, shape)
    inner = rows.narrow(0, chosen.box[0][0] - start, chosen.box[0][1] - chosen.box[0][0]) if shape else rows
    for dim, (low, high) in enumerate(chosen.box):
        if dim and dim != chosen.dim:
            inner = inner.narrow(dim, low, high - low)
    places = torch.cat([torch.arange(low, high, device="cpu") for low, high in chosen.runs])
    if not chosen.dim:
        places -= chosen.box[0][0]
    part = inner.index_select(chosen.dim, places)
    part[chosen.residual] = value.to("cpu")
    inner.index_copy_(chosen.dim, places, part)
