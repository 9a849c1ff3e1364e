"""Parts: datasets that the tasks of an engine write independently, and that become one dataset in one commit.

Engines repeat failed tasks, so each attempt of a task writes to its own folder, and only the folder that the last
attempt returned is used. The parts are stored beside the dataset, on storage that all machines of the cluster share,
until they are committed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensordict_memmap.dataset.dataset import MemmapDataset
from tensordict_memmap.dataset.schema import Key
from tensordict_memmap.dataset.tables import columns_of, example_of, table_to_rows
from tensordict_memmap.remote.urls import is_remote, local_path
from tensordict_memmap.storage.removal import remove_tree

_BATCH_ROWS = 4096
_BEGUN = "begun"
"""The file of the folder of the parts by which a task recognizes the folder of `Parts.begin`."""


class Parts:
    """The parts of a dataset that tasks write.

    Args:
        path: The folder of the dataset.
        like: One row; the first row that is written if None.
        ragged: The keys of ragged columns, with ``like``.
        append: Whether to append to an existing dataset; otherwise the folder must be new.
        durable: Whether the commit is synced to disk.

    Raises:
        ValueError: The path is a URL.
        FileExistsError: The folder is not new.
        FileNotFoundError: There is no dataset to append to.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        like: Any = None,
        ragged: Sequence[Key] = (),
        append: bool = False,
        durable: bool = False,
    ) -> None:
        path = local_path(path)
        if is_remote(path):
            raise ValueError(f"{path} is remote; write to a local or shared folder and call MemmapDataset.upload")
        self.path = os.path.realpath(path)
        self.like, self.ragged, self.append, self.durable = like, list(ragged), append, durable
        if not append and os.path.isdir(self.path) and os.listdir(self.path):
            raise FileExistsError(f"{self.path} exists; pass append=True to add rows to it, or choose another folder")
        if append:
            with MemmapDataset.open(self.path, "r+") as saved:  # there is a dataset, and no other writer
                if len(saved):
                    self.like, self.ragged = saved[0].clone(), stored_ragged(saved)
        self.folder = f"{self.path}.parts-{secrets.token_hex(8)}"

    def begin(self) -> None:
        """Make the folder of the parts, before the first task; tasks that are still at work after `remove` fail."""
        os.makedirs(self.folder)
        Path(self.folder, _BEGUN).touch()

    def write(self, batches: Iterable[Any]) -> str | None:
        """Write the batches of one task; return the name of the part, or None if there were no rows.

        A task that goes on after `remove` makes the folder again, by the part it creates, the rows it adds or the
        commit at its end, and may fail at any of them, so the folder goes at the end of the task.
        """
        try:
            return self._write_part(batches)
        finally:
            if not self._has_begun():
                remove_tree(self.folder, ignore_errors=True)

    def _write_part(self, batches: Iterable[Any]) -> str | None:
        dataset: MemmapDataset | None = None
        name = secrets.token_hex(8)
        try:
            for rows in batches:
                if not len(rows):
                    continue
                if dataset is None:
                    os.mkdir(os.path.join(self.folder, name))
                    like, ragged = (self.like, self.ragged) if self.like is not None else example_of(rows)
                    dataset = MemmapDataset.create(os.path.join(self.folder, name), like, ragged=ragged)
                if not self._has_begun():
                    raise FileNotFoundError(
                        f"the parts in {self.folder} were removed, because another task failed; write again"
                    )
                dataset.extend(rows, commit=False)
        finally:
            if dataset is not None:
                dataset.close()
        return None if dataset is None else name

    def _has_begun(self) -> bool:
        """Return whether the folder is the one that `begin` made, which `remove` has not removed."""
        return os.path.exists(os.path.join(self.folder, _BEGUN))

    def rows(self, table: Mapping[str, Any]) -> Any:
        """Return arrays by column as rows, whose keys are those of ``like`` if there is one."""
        keys = None if self.like is None else {".".join(path): path for path, _ in columns_of(self.like)}
        return table_to_rows(table, keys)

    def join(self, names: Sequence[str | None]) -> MemmapDataset:
        """Append the rows of parts in order, in one commit; return the dataset, open for reading.

        Raises:
            ValueError: There are no rows, and neither ``like`` nor a dataset determines the columns.
        """
        found = [name for name in names if name is not None]
        try:
            if self.append:
                dataset = MemmapDataset.open(self.path, "r+", durable=self.durable)
            else:
                dataset = self._created(found)
            with dataset:
                for name in found:
                    part = MemmapDataset.open(os.path.join(self.folder, name))
                    for start in range(0, len(part), _BATCH_ROWS):
                        dataset.extend(part[start : start + _BATCH_ROWS], commit=False)
        finally:
            self.remove()
        return MemmapDataset.open(self.path)

    def _created(self, names: Sequence[str]) -> MemmapDataset:
        like, ragged = self.like, self.ragged
        if like is None:
            if not names:
                raise ValueError(f"there are no rows to write to {self.path}; pass like= to create an empty dataset")
            part = MemmapDataset.open(os.path.join(self.folder, names[0]))
            like, ragged = part[0], stored_ragged(part)
        return MemmapDataset.create(self.path, like, ragged=ragged, durable=self.durable)

    def remove(self) -> None:
        """Remove all parts, those that tasks still write too."""
        gone = f"{self.folder}.gone"
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.folder, gone)  # what has its path cannot add files to it any more
        remove_tree(gone, ignore_errors=True)


def stored_ragged(dataset: MemmapDataset) -> list[Key]:
    """Return the keys of the ragged columns of a dataset."""
    return list(getattr(dataset._rows, "ragged", {}))
