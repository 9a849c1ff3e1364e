"""What is whose: a save owns the files that its manifest lists, and nothing else is ever removed.

Other files in a saved folder came from elsewhere. They stay where they are, or move to the save that takes the folder's
place. Only the names below are ours without being listed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator

from tensordict_memmap.engine import syscalls as system
from tensordict_memmap.formats.names import LEAF, META
from tensordict_memmap.storage import manifest as manifests
from tensordict_memmap.storage.manifest import Manifest
from tensordict_memmap.storage.rows_committed import LOCK

__all__ = [
    "DRAFT",
    "JOURNAL",
    "is_ours_alone",
    "listed_anywhere",
    "listed_in",
    "manifest_for",
    "manifests_above",
    "read_if_valid",
    "read_manifest",
    "remove_drafts",
    "remove_files",
    "remove_listed",
    "remove_save",
    "rescue",
]

JOURNAL = "tensordict.journal.json"
"""The name of the journal, in the target, while a save is published file by file."""

DRAFT = JOURNAL + ".draft"
"""The name of the journal, in the staging folder, before it is in place."""

_REPLACEMENT = re.compile(rf"(?:{re.escape(manifests.NAME)}|{re.escape(META)}|.+{re.escape(LEAF)})\.[0-9a-f]{{16}}")
"""What a file is called that is about to take the place of another in a saved folder."""


def read_manifest(folder: str | os.PathLike[str]) -> Manifest | None:
    """The manifest of a folder, None where it has none.

    Raises:
        ValueError: if it is not valid.
    """
    path = os.path.join(folder, manifests.NAME)
    data = system.read_file(path)
    return None if data is None else Manifest.loads(data, where=path)


def manifest_for(folder: str | os.PathLike[str]) -> Manifest | None:
    """The manifest of a folder, or what that of the nearest folder above says about it; None where nothing does."""
    own = read_manifest(folder)
    if own is not None:
        return own
    for _, manifest, inside in manifests_above(os.path.realpath(folder)):
        part = manifest.under(inside)
        if part.files:
            return part
    return None


def manifests_above(folder: str) -> Iterator[tuple[str, Manifest, str]]:
    """The manifests of the folders above, nearest first, each with its folder and the path from there."""
    above = os.path.dirname(folder)
    while above != os.path.dirname(above):
        manifest = read_if_valid(above)
        if manifest is not None:
            yield above, manifest, os.path.relpath(folder, above).replace(os.sep, "/")
        above = os.path.dirname(above)


def listed_in(folder: str) -> set[str] | None:
    """The files that a save put into a folder, its manifests included; None where it has no valid manifest."""
    try:
        manifest = read_manifest(folder)
    except ValueError:
        return None
    if manifest is None:
        return None
    files = {*manifest.files, manifests.NAME, LOCK}
    for inside in manifests.folders(manifest.files):  # another save may have been made into a part of this one
        path = os.path.join(folder, *inside.split("/"))
        if os.path.lexists(os.path.join(path, manifests.NAME)):
            part = read_if_valid(path)
            files.add(f"{inside}/{manifests.NAME}")
            files.update(f"{inside}/{name}" for name in (part.files if part is not None else ()))
    return files


def listed_anywhere(folder: str) -> set[str]:
    """The files of the save that a folder holds, or is a part of."""
    listed = listed_in(folder)
    if listed is None:
        with contextlib.suppress(ValueError):
            part = manifest_for(folder)
            return set(part.files) if part is not None else set()
    return listed or set()


def read_if_valid(folder: str | os.PathLike[str]) -> Manifest | None:
    """The manifest of a folder, None where it has none or a broken one."""
    with contextlib.suppress(ValueError):
        return read_manifest(folder)
    return None


def is_ours_alone(folder: str) -> bool:
    """Whether a folder holds a save and nothing else, so that all of it may be exchanged."""
    listed = listed_in(folder)
    if listed is None:
        return False
    known, device = manifests.folders(listed), os.lstat(folder).st_dev
    for name, entry in _inside(folder):
        if entry.is_dir(follow_symlinks=False):
            if name not in known or entry.stat(follow_symlinks=False).st_dev != device:  # something is mounted there
                return False
        elif name not in listed or not entry.is_file(follow_symlinks=False):
            return False
    return True


def _inside(folder: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """What is in a folder and in those inside, by its path there; each folder comes before what it holds."""
    stack = [("", folder)]
    while stack:
        prefix, path = stack.pop()
        try:
            with os.scandir(path) as found:
                entries = list(found)
        except FileNotFoundError:  # another saver removes it too
            continue
        for entry in entries:
            name = prefix + entry.name
            yield name, entry
            if entry.is_dir(follow_symlinks=False):
                stack.append((name + "/", entry.path))


def remove_save(folder: str, *, keep_in: str) -> None:
    """Removes an earlier save; files that are not its own, which came while it was replaced, move to its successor."""
    if not os.path.lexists(folder):
        return
    listed = listed_in(folder)
    if listed is None:
        shutil.rmtree(folder)  # a staging folder that was never finished: all of it is ours
        return
    rescue(folder, listed, keep_in)
    remove_listed(folder, listed)


def rescue(folder: str, listed: set[str], keep_in: str) -> None:
    """Moves what is not listed to another folder, unless that has something under its name."""
    own = {*listed, DRAFT, JOURNAL}
    for name, entry in _inside(folder):
        if name not in own and not entry.is_dir(follow_symlinks=False):
            destination = os.path.join(keep_in, *name.split("/"))
            if not os.path.lexists(destination):
                os.makedirs(os.path.dirname(destination), exist_ok=True)
                os.rename(entry.path, destination)


def remove_listed(folder: str, listed: set[str]) -> None:
    """Removes the files of a save, those that say which they are last, and the folders that are empty then."""
    remove_files(folder, listed - {manifests.NAME})
    for place, _, _ in os.walk(folder, topdown=False):
        if place != folder:
            with contextlib.suppress(OSError):
                os.rmdir(place)
    remove_files(folder, {DRAFT, manifests.NAME})
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def remove_drafts(folder: str) -> None:
    """Removes what was about to replace a file of a save when its process was killed; the lock of savers is held.

    Manifests are replaced in any save, other files where a dataset grows.
    """
    places = [folder]
    if os.path.lexists(os.path.join(folder, LOCK)):
        manifest = read_if_valid(folder)
        inside = manifests.folders(manifest.files) if manifest is not None else set()
        places += [os.path.join(folder, *one.split("/")) for one in inside]
    for place in places:
        with contextlib.suppress(OSError):
            for name in filter(_REPLACEMENT.fullmatch, os.listdir(place)):
                os.unlink(os.path.join(place, name))


def remove_files(folder: str, files: set[str]) -> None:
    """Removes files by their paths in a folder, and folders inside it that are empty then; what cannot go stays."""
    inner = {inside: os.path.join(folder, *inside.split("/")) for inside in manifests.folders(files)}
    ours = {inside for inside, path in inner.items() if os.path.realpath(path) == path}  # not through symbolic links
    for name in files:
        inside = name.rpartition("/")[0]
        if not inside or inside in ours:
            with contextlib.suppress(OSError):  # what cannot be removed stays, as what is foreign does
                os.unlink(os.path.join(folder, *name.split("/")))
    for inside in sorted(ours, key=len, reverse=True):
        with contextlib.suppress(OSError):  # it holds something else, and stays
            os.rmdir(os.path.join(folder, *inside.split("/")))
