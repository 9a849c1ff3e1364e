"""A saved folder as parsing reads it: without following links out of it, and a dataset as its manifest counts it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from typing import TypeVar

from tensordict_memmap.engine import syscalls as system
from tensordict_memmap.formats.names import META
from tensordict_memmap.formats.tree import WRAPPED
from tensordict_memmap.schema import nontensor as values
from tensordict_memmap.storage import ownership as owned
from tensordict_memmap.storage import transaction as commit
from tensordict_memmap.storage.manifest import Manifest
from tensordict_memmap.storage.rows_committed import fingerprint, resized
from tensordict_memmap.storage.snapshot import Replaced, settled

__all__ = ["SavedFolder", "described_in", "read_folder"]

_T = TypeVar("_T")


def read_folder(path: str | os.PathLike[str], read: Callable[[SavedFolder], _T]) -> _T:
    """What ``read`` gives of a saved folder that no save changed meanwhile, and that no save left half published.

    Args:
        path: the folder.
        read: may be called several times.
    """

    def load() -> _T:
        root = os.path.abspath(path)
        commit.recover(root)
        folder = SavedFolder(root)
        try:
            found = read(folder)
        except Exception:
            if folder.is_as_read():
                raise
        else:
            if folder.is_as_read():
                return found
        raise Replaced

    return settled(path, load)


def described_in(root: str) -> str:
    """The path of the ``meta.json`` that says how many rows there are: that of a tensorclass lies one level below."""
    wrapped = f"{WRAPPED}/{META}"
    if not os.path.lexists(f"{root}/{wrapped}"):
        return META
    document = system.read_file(f"{root}/{META}")
    with contextlib.suppress(ValueError):
        if document is not None and "shape" in values.loads(document):  # a tensordict with an entry of that name
            return META
    return wrapped


class SavedFolder:
    """The files of a saved folder.

    Args:
        root: its absolute path.

    Attributes:
        rows: how many rows a dataset that grows has; None for other folders. ``meta.json`` files are read accordingly.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.rows: int | None = None
        self._read: dict[str, system.Stamp] = {}

    def count(self, manifest: Manifest | None) -> Manifest | None:
        """Takes the number of rows from the manifest, and gives the one that it went by: a writer may be at work.

        Raises:
            ValueError: if the manifest is not valid.
        """
        while manifest is not None and manifest.rows_committed is not None:
            growth = manifest.rows_committed
            document = system.read_file(f"{self.root}/{described_in(self.root)}") if growth.meta else None
            if document is None or fingerprint(document) in growth.meta:
                self.rows = growth.rows
                break
            latest = owned.manifest_for(self.root)
            if latest is not None and latest.rows_committed == growth:
                break  # another program wrote the description, and knows
            manifest = latest
        return manifest

    def read(self, path: str) -> bytes | None:
        """The content of a regular file; None where there is none."""
        inside = path.endswith("/" + META)
        document = system.read_file(f"{self.root}/{path}", self._read if inside else None)
        if self.rows is None or document is None or not (inside or path == META):
            return document
        return resized(document, self.rows)

    def is_as_read(self) -> bool:
        """Whether no other save was made into a folder inside since its description was read.

        One that was stopped in the middle is finished now, and the folder is then another one. Descriptions of a
        dataset change with its rows, and say nothing about that.
        """
        for path, read in self._read.items():
            inside = path[: -len(META)]
            if os.path.lexists(inside + owned.JOURNAL):
                commit.recover(inside)
                return False
            if self.rows is None and system.stamp(path) != read:
                return False
        return True

    def has(self, path: str) -> bool:
        """Whether a file or folder has that path."""
        try:
            mode = os.lstat(f"{self.root}/{path}").st_mode
        except (OSError, ValueError):
            return False
        return stat.S_ISDIR(mode) or stat.S_ISREG(mode)

    def names(self, path: str) -> list[str]:
        """The names in a folder."""
        return os.listdir(f"{self.root}/{path}" if path else self.root)

    def numbered(self, path: str) -> list[int]:
        """The numbers that name folders in a folder, in order."""
        with os.scandir(f"{self.root}/{path}" if path else self.root) as entries:
            return sorted(
                int(entry.name)
                for entry in entries
                if entry.name.isascii() and entry.name.isdigit() and entry.is_dir(follow_symlinks=False)
            )
