"""Rows of a dataset as a reader has them mapped: a tensordict of the columns of one shape, and the ragged columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tensordict_core import NonTensorStack
from tensordict_memmap.calls.load import load_memmap
from tensordict_memmap.dataset.ragged import RaggedReader
from tensordict_memmap.dataset.ring import read_ring
from tensordict_memmap.dataset.row_numbers import RowReader
from tensordict_memmap.engine import syscalls
from tensordict_memmap.formats.parse_tree import parse
from tensordict_memmap.loading.open import open_any
from tensordict_memmap.loading.request import LoadRequest
from tensordict_memmap.schema.node import Path, leaves
from tensordict_memmap.schema.select import Selection
from tensordict_memmap.storage import ownership
from tensordict_memmap.storage.manifest import NAME
from tensordict_memmap.storage.snapshot import SavedFolder, read_folder


class _Without(Selection):
    """All keys but some."""

    def __init__(self, keys: Sequence[Path]) -> None:
        self.left_out = frozenset(keys)

    def takes(self, key: Path) -> bool:
        return key not in self.left_out

    def check(self, known: Any) -> None:
        return


class Rows(RowReader):
    """The rows of a dataset with ragged columns.

    Args:
        fixed: The columns of one shape, locked.
        ragged: The ragged columns by key.
    """

    def __init__(self, fixed: Any, ragged: dict[Path, RaggedReader]) -> None:
        self.fixed, self.ragged = fixed, ragged

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.fixed)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Refuse to overwrite rows."""
        raise RuntimeError(
            "rows with ragged columns cannot be overwritten, since they have the place of their first size only; "
            "append new rows"
        )

    def tensordict(self) -> Any:
        """Return all rows as a locked tensordict over the files."""
        td = self.fixed.copy()
        for key, column in self.ragged.items():
            td.set(key, column.whole())
        return td.lock_()

    def _column(self, key: str | tuple[str, ...]) -> Any:
        ragged = self.ragged.get((key,) if isinstance(key, str) else key)
        if ragged is None:
            return self.fixed[key]
        column = ragged.take(torch.arange(len(self), device="cpu"))
        return column.tolist() if isinstance(column, NonTensorStack) else column

    def _row(self, number: int) -> Any:
        return self.joined(self.fixed[number], {key: one.row(number) for key, one in self.ragged.items()})

    def _batch(self, rows: torch.Tensor) -> Any:
        return self.joined(self.fixed[rows], {key: one.take(rows) for key, one in self.ragged.items()})

    @staticmethod
    def joined(batch: Any, columns: dict[Path, Any]) -> Any:
        """Return a batch of the columns of one shape with the same rows of ragged columns."""
        if batch.is_locked:
            batch = batch.copy()
        for key, value in columns.items():
            batch.set(key, value)
        return batch


def open_rows(root: str, mode: str, allow_pickle: bool | None) -> Any:
    """Return the rows of a folder: a tensordict, `RingRows` of a ring, or `Rows` with ragged columns."""
    document = syscalls.read_file(f"{root}/{NAME}") or b""
    if b'"ring":' in document and _is_ring(root):
        return read_folder(root, lambda folder: read_ring(folder, mode, allow_pickle))
    if b'"ragged":' in document:
        return read_folder(root, lambda folder: _read_ragged(folder, mode, allow_pickle))
    return load_memmap(root, mode=mode, allow_pickle=allow_pickle).lock_()


def _read_ragged(folder: SavedFolder, mode: str, allow_pickle: bool | None) -> Any:
    manifest = folder.count(ownership.read_manifest(folder.root))
    committed = manifest.rows_committed if manifest is not None else None
    states = {} if committed is None else committed.ragged
    found = [leaf for leaf in leaves(parse(folder)) if leaf.file in states]
    if not found:
        return load_memmap(folder.root, mode=mode, allow_pickle=allow_pickle).lock_()
    selection = _Without([leaf.key for leaf in found])
    fixed = open_any(folder.root, LoadRequest(selection=selection, mode=mode, allow_pickle=allow_pickle)).lock_()
    # Rows are only appended, so the files hold at least as many as the tensordict, whatever was committed since.
    return Rows(fixed, {leaf.key: RaggedReader(folder.root, leaf, states[leaf.file], len(fixed)) for leaf in found})


def _is_ring(root: str) -> bool:
    growth = ownership.rows_committed(root)
    return growth is not None and growth.ring is not None
