"""``_repr_html_``: the entries as folding tables for notebooks, with shape, dtype, device, size and storage.

Nothing is read or copied: shapes come from the containers, sizes from shapes and dtypes. All text that users choose is
escaped, and the page gets no script and no style sheet, so notebooks show it whether they are trusted or not.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from torch import Tensor

from tensordict_core.base.node import Node, has_entries, is_leaf_tensor
from tensordict_core.base.predicates import in_shared_memory

_COLUMNS = ("key", "shape", "dtype", "device", "bytes", "stored in")
_LONGEST = 100
_MOST_ROWS = 200
"""The most entries of a node that are shown: a browser stalls on tables of many thousand rows."""
_MOST_OPEN = 12
"""The most entries of a tensordict whose nested tables are unfolded."""

# Notebooks have rules of their own for tables, which an attribute overrides; `opacity` suits light and dark pages.
_CELL = "text-align:left;padding:1px 1.2em 1px 0;white-space:nowrap"
_WIDE = "text-align:left;padding:1px 0;white-space:normal"
_HEAD = f"{_CELL};border-bottom:1px solid;font-weight:normal;opacity:0.65"

Cells = tuple[str, ...]
"""The texts of a row: one for each column, or the key and one text for all other columns."""


class Section(NamedTuple):
    """One folding table.

    Args:
        title: The text of its heading.
        rows: The rows of its own entries.
        below: The tables of the nodes in it.
        entries: The number of entries, those below included.
        nbytes: Their size.
    """

    title: str
    rows: Sequence[Cells]
    below: Sequence[Section]
    entries: int
    nbytes: int


def size_text(nbytes: int) -> str:
    """Return a number of bytes for people.

    >>> size_text(12), size_text(90 << 20)
    ('12 B', '90.0 MiB')
    """
    size, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{nbytes} B" if unit == "B" else f"{size:.1f} {unit}"


def section(node: Any, title: str, keys: Any) -> Section:
    """Describe a node and those below it.

    Args:
        node: The node.
        title: The heading: the key of the node, or the name of its class.
        keys: A function of a node that returns its keys in the order to print.
    """
    rows: list[Cells] = []
    below: list[Section] = []
    names = keys(node)
    for key in names:
        entry = node._peek(key)
        if has_entries(entry):
            below.append(section(entry, f"{key} · {type(entry).__name__}", keys))
        else:
            rows.append((key, *_cells(node, key, entry)))
    title = ", ".join([title, *node._repr_short()])
    if (stack := node._lazy_stack) is not None:
        title += f", stack_dim={stack.stack_dim}"
        exclusive = stack._exclusive_keys()
        rows += [("", f"exclusive_fields={exclusive}")] if exclusive else []
    count = len(names) - len(below) + sum(one.entries for one in below)
    return Section(title, rows, below, count, _bytes_below(node))


def _cells(node: Any, key: str, entry: Any) -> Cells:
    """Return the cells behind the key."""
    if not is_leaf_tensor(entry):
        text = _value(node, key, entry)
        return (text if len(text) <= _LONGEST else text[:_LONGEST] + "…",)
    try:
        shape = str(list(node._shape_of(key))).replace("-1", "*")
    except RuntimeError:  # the elements of a lazy stack do not agree on the number of dimensions
        shape = "ragged"
    device = node._meta.device or entry.device
    dtype = str(entry.dtype).removeprefix("torch.")
    return shape, dtype, str(device), size_text(_bytes(node, key, entry)), _stored(node, entry)


def _value(node: Any, key: str, entry: Any) -> str:
    """Return the text of an entry that is no tensor: a value with its type."""
    if not (isinstance(entry, Node) and entry._is_non_tensor) or node._lazy_stack is not None:
        return str(node._describe(key))
    value = entry._entry_value()
    kind = "list" if isinstance(value, list) else type(value).__name__
    try:
        return f"{kind} {value!r}"
    except Exception as error:  # one value must not hide the other entries
        return f"{kind} whose repr raises {type(error).__name__}"


def _bytes(node: Any, key: str, entry: Any) -> int:
    if (stack := node._lazy_stack) is not None:
        return sum(_bytes(td, key, one) for td in stack.tensordicts if is_leaf_tensor(one := td._peek(key)))
    if isinstance(entry, Tensor) and entry.is_nested:
        return sum(part.nbytes for part in entry.unbind())
    return int(prod(node._shape_of(key)) * entry.dtype.itemsize)


def _bytes_below(node: Any) -> int:
    """Return the size of all tensors of a node; elements of a lazy stack also have entries that others lack."""
    if (stack := node._lazy_stack) is not None:
        return sum(map(_bytes_below, stack.tensordicts))
    total = 0
    for key in node._keys():
        entry = node._peek(key)
        if is_leaf_tensor(entry):
            total += _bytes(node, key, entry)
        elif has_entries(entry):
            total += _bytes_below(entry)
    return total


def _stored(node: Any, entry: Any) -> str:
    """Return a text for the storage of an entry: memory, a file or a server."""
    if not isinstance(entry, Tensor):
        return type(node).__name__  # a store, which reads the entry on access
    file = getattr(entry, "filename", None)  # of a memory-mapped tensor
    if file:
        return f"file {os.path.basename(file)}"
    if entry.device.type != "cpu":
        return entry.device.type
    return "shared memory" if in_shared_memory(entry) else "memory"


def page(root: Section) -> str:
    """Return the HTML of a section.

    >>> page(Section("<T>", [("a", "[2]", "float32", "cpu", "8 B", "memory")], [], 1, 8)).count("<td")
    6
    """
    return (
        f'<div style="font-family:monospace;overflow-x:auto">{_details(root, True, root.entries <= _MOST_OPEN)}</div>'
    )


def _details(one: Section, is_open: bool, opens_inner: bool) -> str:
    from html import escape  # only notebooks need it, and its table of entities takes a millisecond to import

    entries = "1 entry" if one.entries == 1 else f"{one.entries} entries"
    heading = f"<summary><strong>{escape(one.title)}</strong>: {entries}, {size_text(one.nbytes)}</summary>"
    parts = [f"<details{' open' if is_open else ''} style='margin-left:1em'>{heading}"]
    if one.rows:
        parts.append(table(_COLUMNS, one.rows))
    parts += [_details(inner, opens_inner, opens_inner) for inner in one.below[:_MOST_ROWS]]
    if len(one.below) > _MOST_ROWS:
        parts.append(f"<p>and {len(one.below) - _MOST_ROWS} more nodes</p>")
    return "".join([*parts, "</details>"])


def table(columns: Sequence[str], rows: Sequence[Cells]) -> str:
    """Return a table for a notebook, with at most 200 rows; all text is escaped.

    Args:
        columns: The names of the columns.
        rows: For each row one text for each column, or two: that of the first column, and one for all others.

    >>> table(("key", "shape", "dtype"), [("a", "[2]", "float32"), ("<b>", "text")]).count("<td")
    5
    """
    from html import escape

    def cells(texts: Cells) -> str:
        if len(texts) == 2 < len(columns):
            wide = f'<td colspan="{len(columns) - 1}" style="{_WIDE}">{escape(texts[1])}</td>'
            return f'<td style="{_CELL}">{escape(texts[0])}</td>{wide}'
        return "".join(f'<td style="{_CELL}">{escape(text)}</td>' for text in texts)

    lines = [f"<tr>{cells(row)}</tr>" for row in rows[:_MOST_ROWS]]
    if len(rows) > _MOST_ROWS:
        lines.append(f"<tr>{cells(('', f'and {len(rows) - _MOST_ROWS} more entries'))}</tr>")
    head = "".join(f'<th style="{_HEAD}">{escape(name)}</th>' for name in columns)
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<table style="border-collapse:collapse;margin:2px 0 6px 1em">{body}</table>'
