"""File ownership: a save owns the files that its manifest lists; no other file is ever removed.

Foreign files in a saved folder stay in place, or are moved to the save that replaces the folder.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tensordict_memmap.engine import syscalls
from tensordict_memmap.formats.names import LEAF, META
from tensordict_memmap.storage.manifest import NAME, Manifest, folders
from tensordict_memmap.storage.removal import remove_tree
from tensordict_memmap.storage.rows_committed import LOCK, RowsCommitted

JOURNAL = "tensordict.journal.json"
"""The file name of the journal in the target folder, while a transaction is committed file by file."""

STAGED_JOURNAL = JOURNAL + ".draft"
"""The file name of the journal in the staging folder, before it is moved to the target."""

_REPLACEMENT = re.compile(rf"(?:{re.escape(NAME)}|{re.escape(META)}|.+{re.escape(LEAF)})\.[0-9a-f]{{16}}")
"""The names of the temporary files that `staging.replacing` writes in a saved folder."""


def inside(folder: str, path: str) -> str:
    """Join a folder and a relative path that has ``/`` between names.

    >>> inside("saved", "b/c.memmap") == os.path.join("saved", "b", "c.memmap")
    True
    """
    return os.path.join(folder, *path.split("/"))


def sync_folders(folder: str, files: Iterable[str]) -> None:
    """Sync every folder that holds one of the files to disk, the root last, so that the file names are durable."""
    for part in folders(files):
        syscalls.sync_folder(inside(folder, part))
    syscalls.sync_folder(folder)


# --- manifests


def read_manifest(folder: str | os.PathLike[str]) -> Manifest | None:
    """Read the manifest of a folder; return None if it has none.

    Raises:
        ValueError: The manifest is not valid.
    """
    path = os.path.join(folder, NAME)
    data = syscalls.read_file(path)
    return None if data is None else Manifest.loads(data, where=path)


def rows_committed(folder: str | os.PathLike[str]) -> RowsCommitted | None:
    """Return the committed rows of a growing dataset; None for other saves.

    Raises:
        ValueError: The manifest is damaged.
    """
    manifest = read_manifest(folder)
    return None if manifest is None else manifest.rows_committed


def read_valid_manifest(folder: str | os.PathLike[str]) -> Manifest | None:
    """Read the manifest of a folder; return None if it has none or an invalid one."""
    with contextlib.suppress(ValueError):
        return read_manifest(folder)
    return None


def manifest_for(folder: str | os.PathLike[str]) -> Manifest | None:
    """Return the manifest of a folder, else the part about it in that of the nearest ancestor, else None."""
    own = read_manifest(folder)
    if own is not None:
        return own
    parts = (manifest.under(path) for _, manifest, path in ancestor_manifests(os.path.realpath(folder)))
    return next((part for part in parts if part.files), None)


def ancestor_manifests(folder: str) -> Iterator[tuple[str, Manifest, str]]:
    """Yield each ancestor that has a manifest, nearest first: its path, the manifest, and the path from there."""
    for above in list(with_ancestors(folder))[1:-1]:
        manifest = read_valid_manifest(above) if syscalls.is_there(os.path.join(above, NAME)) else None
        if manifest is not None:
            yield above, manifest, os.path.relpath(folder, above).replace(os.sep, "/")


def with_ancestors(folder: str) -> Iterator[str]:
    """Yield a folder and its ancestors, the root last.

    >>> list(with_ancestors(os.path.join(os.sep, "a", "b")))[-1] == os.sep
    True
    """
    while True:
        yield folder
        above = os.path.dirname(folder)
        if above == folder:
            return
        folder = above


# --- the files of a save


class Save(NamedTuple):
    """A save in a folder: its manifest, and the files that it and saves inside it own, manifests included."""

    manifest: Manifest
    owned: set[str]


def find_save(folder: str) -> Save | None:
    """Return the save in a folder; None if it has no valid manifest."""
    manifest = read_valid_manifest(folder)
    if manifest is None:
        return None
    files = {*manifest.files, NAME, LOCK}
    for part in folders(manifest.files):  # a folder inside may have been saved again, with its own manifest
        path = inside(folder, part)
        if os.path.lexists(os.path.join(path, NAME)):
            listed = read_valid_manifest(path)
            files.add(f"{part}/{NAME}")
            files.update(f"{part}/{name}" for name in (listed.files if listed is not None else ()))
    return Save(manifest, files)


def owned_or_listed_above(folder: str) -> set[str]:
    """Return the files in a folder that its own manifest, or else that of an ancestor, lists."""
    found = find_save(folder)
    if found is not None:
        return found.owned
    with contextlib.suppress(ValueError):
        part = manifest_for(folder)
        return set(part.files) if part is not None else set()
    return set()


def owns_all(folder: str, owned: set[str]) -> bool:
    """Return whether a folder holds no other files than those, so that the whole folder may be exchanged."""
    known, device = folders(owned), os.lstat(folder).st_dev
    for name, entry in _walk(folder):
        if entry.is_dir(follow_symlinks=False):
            if name not in known or entry.stat(follow_symlinks=False).st_dev != device:  # foreign, or a mount point
                return False
        elif name not in owned or not entry.is_file(follow_symlinks=False):
            return False
    return True


def _walk(folder: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield all entries below a folder with their relative paths; each folder comes before its entries."""
    stack = [("", folder)]
    while stack:
        prefix, path = stack.pop()
        try:
            with os.scandir(path) as found:
                entries = list(found)
        except FileNotFoundError:  # another saver has removed it
            continue
        for entry in entries:
            name = prefix + entry.name
            yield name, entry
            if entry.is_dir(follow_symlinks=False):
                stack.append((name + "/", entry.path))


# --- removal


def remove_save(folder: str, *, keep_in: str, known: Save | None = None) -> None:
    """Remove a replaced or unfinished save; move files that it does not own to the folder ``keep_in``."""
    if not os.path.lexists(folder):
        return
    found = known or find_save(folder)
    if found is None:
        remove_tree(folder)  # a staging folder without a manifest was not finished, and holds no foreign files
        return
    move_foreign(folder, found.owned, keep_in)
    remove_owned(folder, found.owned)


def move_foreign(folder: str, owned: set[str], keep_in: str) -> None:
    """Move files that a save does not own to another folder, except those whose name exists there."""
    own = {*owned, STAGED_JOURNAL, JOURNAL}
    for name, entry in _walk(folder):
        if name not in own and not entry.is_dir(follow_symlinks=False):
            destination = inside(keep_in, name)
            if not os.path.lexists(destination):
                os.makedirs(os.path.dirname(destination), exist_ok=True)
                os.rename(entry.path, destination)


def remove_owned(folder: str, owned: set[str]) -> None:
    """Remove the files of a save, its manifest last, and folders that become empty."""
    places = []
    for name, entry in _walk(folder):  # one walk, since a save that replaces another one waits for it
        with contextlib.suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                places.append(entry.path)
            elif name in owned and name != NAME:
                os.unlink(entry.path)
    for place in reversed(places):
        with contextlib.suppress(OSError):
            os.rmdir(place)
    remove_files(folder, {STAGED_JOURNAL, NAME})
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def remove_replacements(folder: str, names: Sequence[str]) -> None:
    """Remove the temporary files that a killed process left in `staging.replacing`; the caller holds the lock.

    Any save replaces manifests; a writer of a growing dataset replaces other files too.

    Args:
        folder: The folder.
        names: The names in it.
    """
    _remove_replacements(folder, names)
    if LOCK in names:
        manifest = read_valid_manifest(folder)
        for part in folders(manifest.files if manifest is not None else ()):
            with contextlib.suppress(OSError):
                place = inside(folder, part)
                _remove_replacements(place, os.listdir(place))


def _remove_replacements(folder: str, names: Iterable[str]) -> None:
    for name in names:
        if name[-17:-16] == "." and _REPLACEMENT.fullmatch(name):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))


def remove_files(folder: str, files: Iterable[str]) -> None:
    """Remove files by their relative paths, and folders that become empty; ignore errors."""
    files = set(files)
    paths = {part: inside(folder, part) for part in folders(files)}
    ours = {part for part, path in paths.items() if os.path.realpath(path) == path}  # not through symbolic links
    for name in files:
        part = name.rpartition("/")[0]
        if not part or part in ours:
            with contextlib.suppress(OSError):
                os.unlink(inside(folder, name))
    for part in sorted(ours, key=len, reverse=True):
        with contextlib.suppress(OSError):  # it is not empty
            os.rmdir(paths[part])
