"""Snapshots: loads of a saved folder that is saved to at the same time.

A folder is opened file by file, and another save may take its place in the meantime, while all that is loaded must be
of one save. A load therefore looks, before and after, at what every kind of save changes: which folder has the name,
the description in it, and whether a journal says that files are being moved. Where that differs, it begins again.

Rows that are appended do not make a load of a growing dataset begin again: another save is told by the lock file then,
which goes with the dataset. Saves into a folder inside change none of this; the load itself compares the descriptions
that it read, and raises `Replaced`.
"""

from __future__ import annotations

import contextlib
import os
import random
import stat
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tensordict_memmap.engine import syscalls
from tensordict_memmap.formats.names import META
from tensordict_memmap.schema import nontensor
from tensordict_memmap.schema.node import WRAPPED
from tensordict_memmap.storage import transaction
from tensordict_memmap.storage.manifest import NAME, Manifest, folders
from tensordict_memmap.storage.ownership import JOURNAL, manifest_for
from tensordict_memmap.storage.rows_committed import LOCK, fingerprint, resized

__all__ = ["ListedFolder", "Replaced", "SavedFolder", "read_folder", "row_description", "unreplaced"]

_T = TypeVar("_T")
_MOST_ATTEMPTS = 200


class Replaced(Exception):
    """A part of a saved folder was saved again during a load, which has to begin again."""


def unreplaced(folder: str | os.PathLike[str], load: Callable[[], _T]) -> _T:
    """The result of ``load`` for a folder that no save replaced while it ran.

    Args:
        folder: the folder that it opens.
        load: may be called several times; its errors count only where nothing was replaced. It raises `Replaced` where
            it finds a replaced part.

    Raises:
        BlockingIOError: The folder was replaced again and again.

    >>> unreplaced("anywhere", lambda: 1)
    1
    """
    path = os.path.abspath(folder)
    for attempt in range(_MOST_ATTEMPTS):
        before = _witness(path)
        try:
            loaded = load()
        except Replaced:
            pass
        except Exception:  # parts of two saves may fit together in any way or in none
            if _witness(path) == before:
                raise
        else:
            if _witness(path) == before:
                return loaded
        time.sleep(random.random() * min(attempt, 10) / 1000)
    raise BlockingIOError(
        f"{path} was replaced {_MOST_ATTEMPTS} times while it was loaded; load it when fewer saves are made, or save "
        "to another folder"
    )


def read_folder(path: str | os.PathLike[str], read: Callable[[SavedFolder], _T]) -> _T:
    """The result of ``read`` for a saved folder that no save changed meanwhile, and that no save left half committed.

    Args:
        path: the folder.
        read: may be called several times.
    """

    def load() -> _T:
        root = os.path.abspath(path)
        transaction.recover(root)
        folder = SavedFolder(root)
        try:
            found = read(folder)
        except Exception:
            if folder.is_unchanged():
                raise
        else:
            if folder.is_unchanged():
                return found
        raise Replaced

    return unreplaced(path, load)


def _witness(path: str) -> Any:
    found: list[Any] = [_identity(path)]
    growing = False
    above = path
    while True:
        lock = _identity(f"{above}/{LOCK}")
        growing = growing or (lock is not None and _is_growing(above))
        found += os.path.lexists(f"{above}/{JOURNAL}"), lock
        if above == os.path.dirname(above):
            break
        above = os.path.dirname(above)
    if not growing:  # descriptions of datasets change with each append, and are read as of one moment
        # where there is a description, the manifest adds nothing
        found.append(syscalls.stamp(f"{path}/{META}") or syscalls.stamp(f"{path}/{NAME}"))
    return found


def _is_growing(folder: str) -> bool:
    try:
        return b'"growing":' in (syscalls.read_file(f"{folder}/{NAME}") or b"")
    except OSError:
        return False


def _identity(path: str) -> Any:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino


# --- folders


def row_description(root: str) -> str:
    """The path of the ``meta.json`` with the number of rows: for a tensorclass it is one level below the root."""
    wrapped = f"{WRAPPED}/{META}"
    if not os.path.lexists(f"{root}/{wrapped}"):
        return META
    document = syscalls.read_file(f"{root}/{META}")
    with contextlib.suppress(ValueError):
        if document is not None and "shape" in nontensor.loads(document):  # a tensordict with an entry of that name
            return META
    return wrapped


class SavedFolder:
    """The files of a saved folder: links out of it are not followed, and a dataset has the rows of its manifest.

    Args:
        root: its absolute path.

    Attributes:
        rows: how many rows a growing dataset has; None for other folders. ``meta.json`` files are read accordingly.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.rows: int | None = None
        self._stamps: dict[str, syscalls.Stamp] = {}

    def count(self, manifest: Manifest | None) -> Manifest | None:
        """Takes the number of rows from the manifest, or from a later one where a writer is at work; returns that one.

        Raises:
            ValueError: The manifest is not valid.
        """
        while manifest is not None and manifest.rows_committed is not None:
            growth = manifest.rows_committed
            document = syscalls.read_file(f"{self.root}/{row_description(self.root)}") if growth.meta else None
            if document is None or fingerprint(document) in growth.meta:
                self.rows = growth.rows
                break
            latest = manifest_for(self.root)
            if latest is not None and latest.rows_committed == growth:
                break  # another program wrote the description, which counts then
            manifest = latest
        return manifest

    def read(self, path: str) -> bytes | None:
        """The content of a regular file; None where there is none."""
        nested = path.endswith("/" + META)
        document = syscalls.read_file(f"{self.root}/{path}", self._stamps if nested else None)
        if self.rows is None or document is None or not (nested or path == META):
            return document
        return resized(document, self.rows)

    def is_unchanged(self) -> bool:
        """Whether no other save was made into a folder inside since its description was read.

        A save that was stopped while it was committed is finished now, and has changed the folder. Descriptions of a
        dataset change with its rows, and tell nothing about that.
        """
        for path, stamp in self._stamps.items():
            folder = path[: -len(META)]
            if os.path.lexists(folder + JOURNAL):
                transaction.recover(folder)
                return False
            if self.rows is None and syscalls.stamp(path) != stamp:
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


class ListedFolder:
    """A saved folder known by the list of its files: an archive, or a save behind an address.

    Args:
        files: the paths of its files, with ``/`` between folders.

    >>> folder = ListedFolder(["meta.json", "stack/0/a.memmap", "stack/1/a.memmap"])
    >>> folder.has("stack/1"), folder.names(""), folder.numbered("stack")
    (True, ['meta.json', 'stack'], [0, 1])
    """

    def __init__(self, files: Iterable[str]) -> None:
        self.paths = frozenset(files)
        self.folders = folders(self.paths)

    def has(self, path: str) -> bool:
        """Whether a file, or a folder of files, has that path."""
        return path in self.paths or path in self.folders

    def names(self, path: str) -> list[str]:
        """The names of the files and folders in a folder."""
        start = path + "/" if path else ""
        return sorted({name[len(start) :].split("/")[0] for name in self.paths if name.startswith(start)})

    def numbered(self, path: str) -> list[int]:
        """The numbers that name folders in a folder, in order."""
        start = path + "/" if path else ""
        names = {name for name in self.names(path) if start + name in self.folders}
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())
