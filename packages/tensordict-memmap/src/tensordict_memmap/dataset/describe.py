"""``repr`` of a dataset: its columns with dtypes, shapes and sizes, as text and as HTML for notebooks."""

from __future__ import annotations

from html import escape
from math import prod
from typing import Any, NamedTuple

from tensordict_core.extension import html_table
from tensordict_memmap.dataset.encoding import TENSOR
from tensordict_memmap.dataset.remote import RemoteRows
from tensordict_memmap.dataset.ring import RingRows
from tensordict_memmap.dataset.rows import Rows
from tensordict_memmap.schema.node import leaves
from tensordict_memmap.schema.plan import plan


class _Column(NamedTuple):
    key: str
    dtype: str
    shape: str
    nbytes: int


def _columns(rows: Any) -> list[_Column]:
    """Return the columns of the rows of a dataset; no row is read."""
    count = len(rows)
    held = rows.rows if isinstance(rows, RemoteRows) else rows
    fixed = held.fixed if isinstance(held, Rows) else held.slots if isinstance(held, RingRows) else held
    found = []
    for leaf in leaves(plan(fixed)):
        row = leaf.shape[1:]
        dtype, nbytes = str(leaf.dtype).removeprefix("torch."), count * prod(row) * leaf.dtype.itemsize
        found.append(_Column(".".join(leaf.key), dtype, str(list(row)), nbytes))
    for key, reader in held.ragged.items() if isinstance(held, Rows) else ():
        is_tensor = reader.state.kind == TENSOR
        dtype = str(reader.leaf.dtype).removeprefix("torch.") if is_tensor else reader.state.kind
        shape = str(["*", *reader.state.row]).replace("'", "") if is_tensor else ""
        found.append(_Column(".".join(key), dtype, shape, reader.values.nbytes))
    return found


def as_text(name: str, path: str, rows: Any) -> str:
    """Return one line for each column, then the path, the size and the number of rows."""
    columns = _columns(rows)
    lines = [f"    {one.key}: {one.dtype}{one.shape}, {one.nbytes:,} bytes,\n" for one in columns]
    total = sum(one.nbytes for one in columns)
    return f"{name}(\n{''.join(lines)}    path={path!r}, bytes={total}, rows={len(rows)})"


def as_html(name: str, path: str, rows: Any) -> str:
    """Return a folding table of the columns."""
    columns = _columns(rows)
    total = sum(one.nbytes for one in columns)
    cells = [(one.key, one.shape, one.dtype, f"{one.nbytes:,}") for one in columns]
    title = f"<strong>{escape(name)}</strong>: {len(rows):,} rows, {total:,} bytes in {escape(path)}"
    table = html_table(("key", "shape of a row", "dtype", "bytes"), cells)
    folded = f"<details open><summary>{title}</summary>{table}</details>"
    return f'<div style="font-family:monospace;overflow-x:auto">{folded}</div>'
