"""Committed rows: the number of rows of a growing dataset, as its manifest records it. This module opens no file.

A writer appends rows to the files first and commits them by replacing the manifest, in one step. So the files may hold
more rows than are committed, and the number in the manifest applies to all leaves and nested nodes at once. The writer
then updates the ``meta.json`` files one by one, deepest first, for programs that do not read manifests; a load takes
the shapes from ``meta.json`` and the number of rows from the manifest. If another program has written ``meta.json``
since, as a hash in the manifest shows, the load takes its shapes unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import xxhash

from tensordict_memmap.schema import nontensor

LOCK = "tensordict.lock"
"""The name of the empty file that writers of a dataset lock; no manifest lists it."""

_ROOM = 19
"""The maximum number of digits of a number of rows."""


@dataclass(frozen=True, slots=True)
class Part:
    """A range of rows, ``start`` to ``stop``, that one of several writers fills; ``done`` is the next row to write."""

    start: int
    stop: int
    done: int


@dataclass(frozen=True, slots=True)
class Ring:
    """A dataset whose files are a ring of slots: row number ``p`` is in slot ``p % slots``.

    Args:
        capacity: The number of rows that are kept.
        slots: The number of rows that each file holds, more than the capacity.
        head: The number of rows that were committed since the dataset was created.
    """

    capacity: int
    slots: int
    head: int

    @property
    def rows(self) -> int:
        """The number of valid rows."""
        return min(self.head, self.capacity)

    @property
    def first(self) -> int:
        """The number of the oldest valid row; a row with a lower number may be overwritten."""
        return self.head - self.rows


@dataclass(frozen=True, slots=True)
class RaggedState:
    """The committed elements of a ragged column, one whose rows differ in length.

    Args:
        nbytes: The number of committed bytes of the file of its elements.
        shown: The largest number so far; the file is not truncated below it, as readers may have mapped it.
        row: The shape of a row without its first dimension.
        kind: ``"tensor"``, or what the bytes of a row encode (``dataset/encoding.py``).
    """

    nbytes: int
    shown: int
    row: tuple[int, ...] = ()
    kind: str = "tensor"


@dataclass(frozen=True, slots=True)
class RowsCommitted:
    """The committed rows of a dataset, and the ranges that writers have begun.

    Args:
        rows: The number of committed rows.
        shown: The largest number so far; files are not truncated below it, as readers may have mapped them.
        meta: Fingerprints of the previous and the current ``meta.json`` of the root.
        parts: The ranges after ``rows`` that writers have begun.
        ragged: The ragged columns, by the paths of the files of their elements.
        ring: The ring of slots, whose rows do not count in ``rows``; None for files with one row after the other.

    >>> RowsCommitted(3, 3).with_part(Part(5, 8, 8)).rows
    3
    >>> RowsCommitted(3, 3).with_part(Part(5, 8, 8)).with_part(Part(3, 5, 5))
    RowsCommitted(rows=8, shown=8, meta=(), parts=(), ragged={}, ring=None)
    """

    rows: int
    shown: int
    meta: tuple[str, ...] = ()
    parts: tuple[Part, ...] = field(default=())
    ragged: dict[str, RaggedState] = field(default_factory=dict)
    ring: Ring | None = None

    def record(self) -> dict[str, Any]:
        """Return the object that the manifest stores as JSON."""
        parts = [[part.start, part.stop, part.done] for part in self.parts]
        ragged = {path: [one.nbytes, one.shown, list(one.row), one.kind] for path, one in self.ragged.items()}
        record: dict[str, Any] = {"rows": self.rows, "shown": self.shown, "meta": list(self.meta)}
        record |= ({"parts": parts} if parts else {}) | ({"ragged": ragged} if ragged else {})
        return record | ({} if self.ring is None else {"ring": [self.ring.capacity, self.ring.slots, self.ring.head]})

    @classmethod
    def read(cls, record: Any) -> RowsCommitted:
        """Parse and validate the object from the manifest.

        Raises:
            ValueError: The object is not valid.
        """
        try:
            rows, shown, meta = record["rows"], record["shown"], record["meta"]
            parts = [Part(*part) for part in record.get("parts", ())]
            ragged = {path: _read_ragged(*about) for path, about in record.get("ragged", {}).items()}
            ring = _read_ring(*record["ring"]) if "ring" in record else None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{record!r:.100} is not a valid record of committed rows") from error
        numbers = [0, rows, shown]
        for part in parts:
            numbers += [part.start, part.done, part.stop]
        if (
            not _are_counts(*numbers)
            or shown < rows
            or any(not part.start <= part.done <= part.stop or part.done < rows for part in parts)
            or not isinstance(meta, list)
            or not all(isinstance(mark, str) for mark in meta)
        ):
            raise ValueError(f"{record!r:.100} is not a valid record of committed rows")
        return cls(rows, shown, tuple(meta), tuple(parts), ragged, ring)

    def with_part(self, part: Part) -> RowsCommitted:
        """Return the state after a range is filled up to ``part.done``; a row counts once all rows before it do."""
        parts = sorted([*(other for other in self.parts if other.start != part.start), part], key=lambda p: p.start)
        rows, open_parts = self.rows, []
        for other in parts:
            if other.start <= rows:
                rows = max(rows, other.done)
            if other.done < other.stop or other.start > rows:
                open_parts.append(other)
        return replace(self, rows=rows, shown=max(rows, self.shown), parts=tuple(open_parts))


def _are_counts(*numbers: Any) -> bool:
    """Return whether numbers from a file are those of rows or bytes."""
    return all(type(number) is int and 0 <= number < 1 << 62 for number in numbers)


def _read_ring(capacity: Any, slots: Any, head: Any) -> Ring:
    if not _are_counts(capacity, slots, head) or not 0 < capacity < slots:
        raise ValueError("not a ring of slots")
    return Ring(capacity, slots, head)


def _read_ragged(nbytes: Any, shown: Any, row: Any, kind: Any) -> RaggedState:
    if not _are_counts(nbytes, shown, *row) or type(kind) is not str:
        raise ValueError("not the state of a ragged column")
    return RaggedState(nbytes, max(nbytes, shown), tuple(row), kind)


def fingerprint(document: bytes) -> str:
    """Return a hash of a ``meta.json``.

    >>> fingerprint(b"{}")
    'xxh64:...'
    """
    return f"xxh64:{xxhash.xxh64_hexdigest(document)}"


def resized(document: bytes, rows: int) -> bytes:
    """Return a ``meta.json`` with ``rows`` as the first dimension of the node and of its leaves.

    The result is padded with spaces, so its length does not depend on ``rows``. An invalid document is returned
    unchanged; its parser raises the error.

    >>> resized(b'{"a":{"shape":[3,2],"dtype":"torch.uint8"},"shape":[3]}', 12).rstrip()
    b'{"a":{"shape":[12,2],"dtype":"torch.uint8"},"shape":[12]}'
    """
    try:
        record = nontensor.quick_loads(document)
    except ValueError:
        return document
    kind = record.get("_type") if isinstance(record, dict) else None
    if not isinstance(record, dict) or "shape" not in record or (isinstance(kind, str) and "NonTensor" in kind):
        return document
    tables = [record, record["_entries"]] if isinstance(record.get("_entries"), dict) else [record]
    leaves = [about for table in tables for about in table.values() if isinstance(about, dict) and "dtype" in about]
    found = [record["shape"], *(about.get("shape") for about in leaves)]
    shapes = [shape for shape in found if isinstance(shape, list) and shape]
    for shape in shapes:
        shape[0] = rows
    try:
        written = nontensor.quick_dumps(record)
    except RecursionError:
        return document
    return written + b" " * (len(shapes) * (_ROOM - len(str(rows))))
