"""Text of the commands: entries as a nested tree or one per line, and sizes in KiB, MiB and GiB."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tensordict_memmap_cli.quick import Entry


def size_of(nbytes: int) -> str:
    """Return a number of bytes for people.

    >>> size_of(12), size_of(1536), size_of(90 << 20)
    ('12 B', '1.5 KiB', '90.0 MiB')
    """
    if nbytes < 1024:
        return f"{nbytes} B"
    size, unit = nbytes / 1024, "KiB"
    for larger in ("MiB", "GiB", "TiB"):
        if size < 1023.95:  # what is rounded to 1024.0
            break
        size, unit = size / 1024, larger
    return f"{size:.1f} {unit}"


def dotted(key: Sequence[str]) -> str:
    r"""Return a nested key as one text, without characters that a terminal would obey or that nobody sees.

    >>> dotted(("a", "b")), dotted(("a", chr(27))), dotted((" ", "b"))
    ('a.b', "a.'\\x1b'", "' '.b")
    """
    return ".".join(part if part.isprintable() and part and part == part.strip() else repr(part) for part in key)


def total(entries: Sequence[Entry]) -> str:
    """Return the number of entries, and their size.

    >>> total([Entry(("a",), "float32", [3], 12)])
    '1 entry, 12 B'
    """
    count = len(entries)
    return f"{count} {'entry' if count == 1 else 'entries'}, {size_of(sum(one.nbytes or 0 for one in entries))}"


def lines(entries: Iterable[Entry]) -> list[str]:
    """Return one line for each entry: key, dtype, shape and size.

    >>> lines([Entry(("a", "b"), "float32", [3], 12), Entry(("s",))])
    ['a.b  float32  [3]  12 B', 's    value']
    """
    return _table([(dotted(one.key), *_columns(one)) for one in entries])


@dataclass
class _Node:
    entry: Entry | None = None
    below: dict[str, _Node] = field(default_factory=dict)

    def all(self) -> list[Entry]:
        own = [] if self.entry is None else [self.entry]
        return own + [entry for node in self.below.values() for entry in node.all()]


def tree(entries: Iterable[Entry], depth: int | None = None) -> list[str]:
    r"""Return the entries as a nested tree; a node shows the number and the size of the entries below it.

    Args:
        entries: The entries in the order of the save.
        depth: The number of levels to show; None is all.

    >>> print("\n".join(tree([Entry(("a", "b"), "float32", [3], 12), Entry(("a", "c")), Entry(("s",))])))
    ├─ a     2 entries       12 B
    │  ├─ b  float32    [3]  12 B
    │  └─ c  value
    └─ s     value
    """
    root = _Node()
    for entry in entries:
        node = root
        for part in entry.key:
            node = node.below.setdefault(part, _Node())
        node.entry = entry
    return _table(_rows(root, "", depth))


def _rows(node: _Node, indent: str, depth: int | None) -> list[tuple[str, str, str, str]]:
    if depth == 0:
        return []
    rows: list[tuple[str, str, str, str]] = []
    for number, (name, one) in enumerate(node.below.items(), 1):
        last = number == len(node.below)
        label = f"{indent}{'└─' if last else '├─'} {dotted((name,))}"
        if one.below:
            count, _, size = total(one.all()).partition(", ")
            rows.append((label, count, "", size))
        elif one.entry is not None:
            rows.append((label, *_columns(one.entry)))
        rows += _rows(one, indent + ("   " if last else "│  "), None if depth is None else depth - 1)
    return rows


def _columns(entry: Entry) -> tuple[str, str, str]:
    return (
        entry.dtype or "value",
        "" if entry.shape is None else str(entry.shape),
        "" if entry.nbytes is None else size_of(entry.nbytes),
    )


def _table(rows: Sequence[tuple[str, str, str, str]]) -> list[str]:
    widths = [max((_width(row[column]) for row in rows), default=0) for column in range(4)]
    lines = []
    for *cells, size in rows:
        padded = [cell + " " * (width - _width(cell)) for cell, width in zip(cells, widths, strict=False)]
        lines.append("  ".join([*padded, size.rjust(widths[3])]).rstrip())  # sizes end in one column
    return lines


def _width(text: str) -> int:
    """Return the columns that a terminal gives a text: two for each wide character, none for combining ones."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(sign) else 1 + (unicodedata.east_asian_width(sign) in "WF") for sign in text)


_ASCII = str.maketrans({"├": "|", "└": "`", "│": "|", "─": "-"})


def encodable(text: str, encoding: str) -> str:
    r"""Return a text that can be written in an encoding: plain lines for those of a tree, escapes for the rest.

    >>> encodable("├─ é", "ascii"), encodable("├─ é", "latin-1") == "|- é", encodable("├─ é", "utf-8") == "├─ é"
    ('|- \\xe9', True, True)
    """
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    return text
