"""Remote datasets: the rows of a dataset at a URL, read through a local cache of the blocks that were needed so far.

The cache holds a saved folder of the same layout: descriptions are downloaded when the dataset is opened, and the files
of columns are sparse (``remote/block_cache.py``). So rows are read like those of a local dataset once their blocks are
there. Cached blocks belong to one save: the name of the folder in the cache is a hash of the URL and of the versions of
the remote files, and a remote file that is replaced afterwards raises an error.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from functools import partial
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import orjson
import torch

from tensordict_core import cat
from tensordict_memmap.dataset.mirror import (
    BLOCKS,
    INFO,
    SAVE,
    changed,
    check_versions,
    explained,
    identity_of,
    mirror,
)
from tensordict_memmap.dataset.row_numbers import RowReader
from tensordict_memmap.dataset.rows import Rows, open_rows
from tensordict_memmap.loading.remote import RemoteSave
from tensordict_memmap.remote.block_cache import BLOCK_BYTES, BlockCache, CachedFile, Spans
from tensordict_memmap.remote.store import Store
from tensordict_memmap.schema.node import Path
from tensordict_memmap.storage.staging import temporary_folder

DEFAULT_CACHE_BYTES = 1 << 32


class RemoteRows(RowReader):
    """The rows of a dataset at a URL.

    Args:
        url: The URL.
        cache: The folder of the cache; None for a temporary one, which is removed with this object.
        cache_bytes: The number of bytes that cached blocks may take.
        allow_pickle: Whether non-tensor values without a JSON form may be unpickled.
        folder: The folder of the save in the cache of another process.

    Raises:
        FileNotFoundError: There is no saved tensordict.
        PermissionError: The store refused the request.
        ValueError: The save is damaged, is one file, or has rows that do not fit into the cache.
    """

    def __init__(
        self, url: str, cache: str | None, cache_bytes: int, allow_pickle: bool | None, folder: str | None = None
    ) -> None:
        self.url, self.cache, self.cache_bytes, self.allow_pickle = url, cache, cache_bytes, allow_pickle
        self.folder = self._mirrored() if folder is None else folder
        self._attach()

    def _mirrored(self) -> str:
        """Return the folder of the save in the cache, which is made if it is not there."""
        if self.cache is None:
            stack = contextlib.ExitStack()
            weakref.finalize(self, _close, stack, os.getpid())
            root = stack.enter_context(temporary_folder())
        else:
            root = os.path.abspath(self.cache)
        with explained(self.url):
            return mirror(self.url, root)

    @classmethod
    def attached(cls, *state: Any) -> RemoteRows:
        """Return the rows over the cache of another process, or over a new one on another machine."""
        url, cache, cache_bytes, allow_pickle, folder, identity = state
        if os.path.exists(os.path.join(folder, INFO)):
            return cls(url, cache, cache_bytes, allow_pickle, folder)
        opened = cls(url, cache, cache_bytes, allow_pickle)  # on another machine, or the cache was removed
        if opened.identity != identity:
            raise changed(url)
        return opened

    def __reduce__(self) -> Any:
        """Pickle the name of the cache, which processes of the same machine share."""
        state = (self.url, self.cache, self.cache_bytes, self.allow_pickle, self.folder, self.identity)
        return RemoteRows.attached, state

    def _attach(self) -> None:
        info = orjson.loads(FilePath(self.folder, INFO).read_bytes())
        self.identity: Any = info["identity"]
        files = [CachedFile(*one) for one in info["files"]]
        place = os.path.join(self.folder, SAVE)
        self.blocks = BlockCache(
            place,
            os.path.join(self.folder, BLOCKS),
            files,
            self.cache_bytes,
            partial(Store, self.url),
            partial(check_versions, self.url, info["versions"]),
        )
        rows = open_rows(place, "r", self.allow_pickle)
        self.rows = rows if isinstance(rows, Rows) else Rows(rows, {})
        numbers = {file.path: number for number, file in enumerate(files)}
        columns = [(tuple(key), numbers[file], width) for key, file, width in info["columns"] if file in numbers]
        ragged = self.rows.ragged
        self._fixed = [(number, width) for key, number, width in columns if key not in ragged]
        self._ragged = [(number, ragged[key]) for key, number, _ in columns if key in ragged]
        self._row_blocks = sum(-(-width // BLOCK_BYTES) + 1 for _, width in self._fixed)
        self._most_rows = 0 if self._ragged else self.blocks.most_blocks // max(self._row_blocks, 1)
        if all(width <= BLOCK_BYTES for _, width in self._fixed):
            self.blocks.expect_rows(len(self.rows), self._fixed)
        else:
            self._most_rows = 0
        if self.blocks.is_bounded and self._row_blocks > self.blocks.most_blocks:
            raise ValueError(
                f"cache_bytes={self.cache_bytes} does not hold the blocks of one row of {self.url}; pass at least "
                f"{self._row_blocks * BLOCK_BYTES}"
            )

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def is_current(self) -> bool:
        """Return whether the URL still has the save that was opened."""
        with explained(self.url):
            return bool(identity_of(RemoteSave(self.url)) == self.identity)

    # --- rows

    def _column(self, key: str | tuple[str, ...]) -> Any:
        raise RuntimeError(
            f"{key!r} is a column of the remote dataset {self.url}, which is read by rows; index it with rows "
            f"first, or load the column with load_memmap({self.url!r}, keys=[{key!r}])"
        )

    def _row(self, number: int) -> Any:
        with explained(self.url):
            return self._read(torch.tensor([number], device="cpu"), partial(self._copy_row, number))

    def __getitems__(self, indices: Any) -> Any:
        """Return the rows of a batch."""
        if self.blocks.is_complete and not self._ragged:
            return self.rows.fixed.__getitems__(indices)
        if 0 < len(indices) <= self._most_rows:
            numbers = np.asarray(indices, np.int64)
            found = self.blocks.read_present(numbers, partial(self.rows.fixed.__getitems__, numbers))
            if found is not None:
                return found
        return super().__getitems__(indices)

    def _batch(self, rows: torch.Tensor) -> Any:
        with explained(self.url):
            pieces = self._pieces(rows)
        if len(pieces) == 1:
            fixed, columns = pieces[0]
        else:
            fixed = cat([piece[0] for piece in pieces])
            columns = {key: [row for piece in pieces for row in piece[1][key]] for key in self.rows.ragged}
        return Rows.joined(fixed, {key: self.rows.ragged[key].batch(found) for key, found in columns.items()})

    def _pieces(self, rows: torch.Tensor) -> list[Any]:
        """Copy the rows of a batch, in several pieces if it needs more blocks than the cache holds."""
        if len(rows) > 1 and self.blocks.is_bounded:
            few = not self._ragged and len(rows) * self._row_blocks <= self.blocks.most_blocks
            if not few and not self.blocks.fits(self._spans(rows)):
                return [piece for half in rows.chunk(2) for piece in self._pieces(half)]
        return [self._read(rows, partial(self._copy, rows))]

    def _read(self, rows: torch.Tensor, copy: Any) -> Any:
        if self.blocks.is_complete:
            return copy()
        spans = self._spans(rows)
        if len(rows) == 1 and not self.blocks.fits(spans):
            raise ValueError(
                f"cache_bytes={self.cache_bytes} does not hold the blocks of row {int(rows[0])} of {self.url}; open it "
                "with a larger cache"
            )
        return self.blocks.read(spans, copy)

    def _spans(self, rows: torch.Tensor) -> list[Spans]:
        numbers = rows.numpy()
        spans = []
        if len(numbers):
            for file, width in self._fixed:
                starts = numbers * width
                spans.append(Spans(file, starts, starts + width))
        for file, column in self._ragged:
            starts, ends = (column.offsets[numbers + n] * column.element_bytes for n in (0, 1))
            filled = ends > starts
            if filled.any():
                spans.append(Spans(file, starts[filled], ends[filled]))
        return spans

    def _copy(self, rows: torch.Tensor) -> tuple[Any, dict[Path, list[Any]]]:
        columns = {}
        for key, column in self.rows.ragged.items():
            parts = column.parts(rows)
            columns[key] = [part.clone() if isinstance(part, torch.Tensor) else part for part in parts]
        return self.rows.fixed[rows], columns

    def _copy_row(self, number: int) -> Any:
        row = self.rows[number]
        return row.clone()  # of the mapped files, whose blocks may be removed later


def _close(folder: contextlib.ExitStack, pid: int) -> None:
    if os.getpid() == pid:  # and not in a forked worker
        folder.close()
