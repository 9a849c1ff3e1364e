"""Consistent reads of a saved folder while other processes save to it: a load that a save interrupts is repeated.

A load opens a folder file by file, and another save may replace the folder in between, but all files must come from one
save. So before and after the load this module compares what every save changes: the identity of the folder, its
``meta.json``, and whether a journal exists. If they differ, the load is repeated.

Appended rows do not repeat the load of a growing dataset: for those the identity of the lock file is compared instead
of ``meta.json``. A save into a folder inside changes nothing in the root, so the load itself compares the ``meta.json``
files that it read, and raises `Replaced`.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import random
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from tensordict_memmap.engine import syscalls
from tensordict_memmap.formats.names import META
from tensordict_memmap.schema import nontensor
from tensordict_memmap.schema.node import WRAPPED
from tensordict_memmap.storage import transaction
from tensordict_memmap.storage.manifest import NAME, Manifest
from tensordict_memmap.storage.ownership import JOURNAL, manifest_for, with_ancestors
from tensordict_memmap.storage.rows_committed import LOCK, fingerprint, resized

_T = TypeVar("_T")
_MOST_ATTEMPTS = 200


class Replaced(Exception):
    """A part of a saved folder was saved again during a load, which has to be repeated."""


def unreplaced(folder: str | os.PathLike[str], load: Callable[[], _T]) -> _T:
    """Call ``load`` until no save replaces the folder during the call, and return its result.

    Args:
        folder: The folder that ``load`` opens.
        load: A function that may be called several times. Its errors are raised only if nothing was replaced. It
            raises `Replaced` if it finds a replaced part.

    Raises:
        BlockingIOError: The folder was replaced again and again.

    >>> unreplaced("anywhere", lambda: 1)
    1
    """
    path = os.path.abspath(folder)
    for attempt in range(_MOST_ATTEMPTS):
        before = _witness(path)
        with contextlib.suppress(Replaced):
            return _if_unchanged(load, lambda: _witness(path) == before)  # noqa: B023  # called at once
        time.sleep(random.random() * min(attempt, 10) / 1000)
    raise BlockingIOError(
        f"{path} was replaced during each of {_MOST_ATTEMPTS} attempts to load it; save there less often, or elsewhere"
    )


def read_folder(path: str | os.PathLike[str], read: Callable[[SavedFolder], _T]) -> _T:
    """Recover a saved folder, then call ``read`` until no save changes the folder during the call.

    Args:
        path: The folder.
        read: A function that may be called several times.

    Returns:
        The result of ``read``.
    """

    def load() -> _T:
        root = os.path.abspath(path)
        transaction.recover(root)
        folder = SavedFolder(root)
        return _if_unchanged(lambda: read(folder), folder.is_unchanged)

    return unreplaced(path, load)


def _if_unchanged(load: Callable[[], _T], is_unchanged: Callable[[], bool]) -> _T:
    """Return the result of a load, or raise its error, unless something was replaced meanwhile.

    Raises:
        Replaced: Something was: files of two saves may not match, which raises errors of any type.
    """
    try:
        loaded = load()
    except Exception:
        if is_unchanged():
            raise
    else:
        if is_unchanged():
            return loaded
    raise Replaced


def _witness(path: str) -> Any:
    found: list[Any] = [_identity(path)]
    growing = False
    for folder in with_ancestors(path):
        lock = f"{folder}/{LOCK}"
        held = _identity(lock) if syscalls.is_there(lock) else None
        growing = growing or (held is not None and _is_growing(folder))
        found += syscalls.is_there(f"{folder}/{JOURNAL}"), held
    if not growing:  # an append changes the meta.json of a dataset, but replaces nothing
        # the manifest is compared only if there is no meta.json
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
    """Return the path of the ``meta.json`` with the number of rows, one level below the root for a tensorclass."""
    wrapped = f"{WRAPPED}/{META}"
    if not os.path.lexists(f"{root}/{wrapped}"):
        return META
    document = syscalls.read_file(f"{root}/{META}")
    with contextlib.suppress(ValueError):
        if document is not None and "shape" in nontensor.loads(document):  # a tensordict with an entry of that name
            return META
    return wrapped


class SavedFolder:
    """Reads the files of a saved folder; symbolic links are not followed.

    Args:
        root: Its absolute path.

    Attributes:
        rows: The number of committed rows of a growing dataset, which replaces that in the ``meta.json`` files; None
            for other folders.
        shows_slots: Whether the rows of a ring are its slots; else a ring is refused, since its slots are in no order.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.rows: int | None = None
        self.shows_slots = False
        self._stamps: dict[str, syscalls.Stamp] = {}

    def count(self, manifest: Manifest | None) -> Manifest | None:
        """Set ``rows`` from the manifest of a growing dataset, or from a newer one if a writer has just replaced it.

        Returns:
            The manifest with that number of rows.

        Raises:
            ValueError: The manifest is not valid.
        """
        while manifest is not None and manifest.rows_committed is not None:
            growth = manifest.rows_committed
            if growth.ring is not None:
                if not self.shows_slots:
                    raise ValueError(
                        f"{self.root} is a ring of slots that are overwritten, and no save of rows in order; open it "
                        "with MemmapDataset.open, and index that"
                    )
                self.rows = growth.ring.slots
                break
            document = syscalls.read_file(f"{self.root}/{row_description(self.root)}") if growth.meta else None
            if document is None or fingerprint(document) in growth.meta:
                self.rows = growth.rows
                break
            latest = manifest_for(self.root)
            if latest is not None and latest.rows_committed == growth:
                break  # another program wrote the meta.json, and its shapes apply
            manifest = latest
        return manifest

    def read(self, path: str) -> bytes | None:
        """Return the content of a regular file; None if it does not exist."""
        nested = path.endswith("/" + META)
        document = syscalls.read_file(f"{self.root}/{path}", self._stamps if nested else None)
        if self.rows is None or document is None or not (nested or path == META):
            return document
        return resized(document, self.rows)

    def is_unchanged(self) -> bool:
        """Return whether no folder inside was saved again since its ``meta.json`` was read.

        If a save into one was interrupted during its commit, this method finishes it and returns False. The
        ``meta.json`` files of a growing dataset are not compared, since appends change them.
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
        """Return whether there is a file or folder at a relative path."""
        try:
            mode = os.lstat(f"{self.root}/{path}").st_mode
        except (OSError, ValueError):
            return False
        return stat.S_ISDIR(mode) or stat.S_ISREG(mode)

    def names(self, path: str) -> list[str]:
        """Return the names in a folder."""
        return os.listdir(f"{self.root}/{path}" if path else self.root)

    def numbered(self, path: str) -> list[int]:
        """Return the numbers that are names of subfolders, in order."""
        with os.scandir(f"{self.root}/{path}" if path else self.root) as entries:
            return sorted(
                int(entry.name)
                for entry in entries
                if entry.name.isascii() and entry.name.isdigit() and entry.is_dir(follow_symlinks=False)
            )


class ListedFolder:
    """A saved folder given by the list of its files: an archive, or a save at a URL.

    Args:
        files: The paths of its files, with ``/`` between folders.

    >>> folder = ListedFolder(["meta.json", "stack/0/a.memmap", "stack/1/a.memmap"])
    >>> folder.has("stack/1"), folder.names(""), folder.numbered("stack")
    (True, ['meta.json', 'stack'], [0, 1])
    """

    def __init__(self, files: Iterable[str]) -> None:
        self.paths = sorted(files)

    def has(self, path: str) -> bool:
        """Return whether there is a file or folder at a relative path."""
        return self._at(path) == path or self._at(path + "/").startswith(path + "/")

    def _at(self, start: str) -> str:
        """Return the first path that is not before one, by a search: the set of their folders may be large."""
        position = bisect.bisect_left(self.paths, start)
        return self.paths[position] if position < len(self.paths) else ""

    def _below(self, path: str) -> Iterator[str]:
        """Yield the paths in a folder, relative to it."""
        start = path + "/" if path else ""
        for position in range(bisect.bisect_left(self.paths, start), len(self.paths)):
            if not self.paths[position].startswith(start):
                return
            yield self.paths[position][len(start) :]

    def names(self, path: str) -> list[str]:
        """Return the names of the files and folders in a folder."""
        return sorted({name.partition("/")[0] for name in self._below(path)})

    def numbered(self, path: str) -> list[int]:
        """Return the numbers that are names of subfolders, in order."""
        names = {name.partition("/")[0] for name in self._below(path) if "/" in name}
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())
