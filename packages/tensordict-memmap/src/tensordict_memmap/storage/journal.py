"""Journal: redo log that makes a multi-file commit atomic.

A save that cannot replace its folder in one step is moved there file by file. The journal lists the files to move
from the staging folder and the files to remove. Once it is in the target folder the save is committed, and the same
process, another save or a load applies it. A journal may come from an untrusted source, so it is refused if it names
anything outside the two folders.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Set

from tensordict_memmap.engine import syscalls
from tensordict_memmap.formats.names import check_path
from tensordict_memmap.storage.manifest import NAME, Manifest, folders
from tensordict_memmap.storage.ownership import (
    JOURNAL,
    STAGED_JOURNAL,
    inside,
    owned_or_listed_above,
    read_valid_manifest,
    remove_files,
    sync_folders,
)
from tensordict_memmap.storage.removal import remove_tree
from tensordict_memmap.storage.staging import staged_names


class LinkInTheWay(FileExistsError, RuntimeError):
    """A symbolic link has the name of a folder that a save writes to."""


def commit_save(stage: str, target: str, manifest: Manifest, durable: bool) -> None:
    """Move a staged save to the target file by file, and remove the other files of the earlier save."""
    files = [*sorted(manifest.files), NAME]
    commit(stage, target, files, owned_or_listed_above(target) - set(files), durable=durable)


def commit(stage: str, target: str, files: list[str], stale: Set[str] = frozenset(), *, durable: bool = False) -> None:
    """Write a journal, then move the files that it lists from a staging folder to the target one by one.

    Args:
        stage: The staging folder.
        target: The folder.
        files: The files to move, in this order, by their paths relative to both folders.
        stale: The files to remove first, by their paths relative to the target.
        durable: Whether to sync files and folders to disk.

    Raises:
        FileExistsError: A folder has the name of a file, or a file the name of a folder; nothing is changed.
    """
    os.makedirs(target, exist_ok=True)
    _check_free(target, files, stale)
    record = {"version": 1, "stage": os.path.relpath(stage, target), "files": files, "remove": sorted(stale)}
    staged = os.path.join(stage, STAGED_JOURNAL)
    syscalls.write_file(staged, json.dumps(record).encode(), durable)
    if durable:  # once the journal counts, the staging folder is needed
        syscalls.sync_folder(os.path.dirname(stage))
    os.rename(staged, os.path.join(target, JOURNAL))
    if durable:
        syscalls.sync_folder(target)
    redo(target, durable=durable)


def _check_free(target: str, files: list[str], stale: Set[str]) -> None:
    """Refuse a save if a foreign file or folder is in the way, before anything is changed."""
    for name in files:
        path = inside(target, name)
        if os.path.isdir(path) and not os.path.islink(path):
            raise FileExistsError(errno.EEXIST, "a folder has the name of the file of a leaf; remove it first", path)
    for name in folders(files):
        path = inside(target, name)
        if name in stale or not os.path.lexists(path):
            continue
        if os.path.islink(path):
            raise LinkInTheWay(errno.EEXIST, "a link has the name of the folder of a node; remove it first", path)
        if not os.path.isdir(path):
            raise FileExistsError(errno.EEXIST, "a file has the name of the folder of a node; remove it first", path)


def redo(target: str, *, durable: bool = True) -> None:
    """Apply the journal in a folder, if there is one; safe to repeat after it stopped at any point.

    Raises:
        ValueError: The journal is not valid, or a staged file is missing; nothing is changed.
    """
    journal = os.path.join(target, JOURNAL)
    data = syscalls.read_file(journal) if syscalls.is_there(journal) else None
    if data is None:
        return
    stage, files, stale = _parse(target, data)
    parts = folders(files)
    _check_real(journal, [stage, *(inside(stage, part) for part in parts)])
    _check_real(journal, [inside(target, part) for part in parts - stale])
    moved = _moved(journal, stage, target, files)
    remove_files(target, stale)
    for name in files:
        if name not in moved:
            destination = inside(target, name)
            os.makedirs(os.path.dirname(destination), exist_ok=True)
            os.replace(inside(stage, name), destination)
    if durable:
        sync_folders(target, files)
    os.unlink(journal)
    if durable:  # a journal that came back after a power failure would look for the staging folder
        syscalls.sync_folder(target)
    remove_tree(stage, ignore_errors=True)


def _moved(journal: str, stage: str, target: str, files: list[str]) -> set[str]:
    """Return the files that were moved to the target before the commit was interrupted.

    Raises:
        ValueError: The staging folder, or a file that was not moved, is missing.
    """
    if not os.path.isdir(stage):
        raise ValueError(
            f"the folder {stage} is missing, and the journal {journal} moves files from it; restore that folder, or "
            "remove the journal and save again"
        )
    moved = {name for name in files if not os.path.lexists(inside(stage, name))}
    if not moved:
        return moved
    # The manifest is moved last. A file of the earlier save may have the name of one that is missing.
    manifest = read_valid_manifest(target if NAME in moved else stage)
    may_grow = manifest is not None and manifest.rows_committed is not None
    for name in sorted(moved):
        place = inside(target, name)
        size = os.lstat(place).st_size if os.path.lexists(place) else -1
        entry = manifest.files.get(name) if manifest is not None else None
        if size < 0 or (entry is not None and (size < entry.size or (size > entry.size and not may_grow))):
            raise ValueError(
                f"{name!r} is missing in {stage}, and the journal {journal} lists it; restore it, or remove the "
                "journal and save again"
            )
    return moved


def _check_real(journal: str, places: list[str]) -> None:
    """Refuse to move files through symbolic links, which may lead out of the folder."""
    for folder in places:
        if os.path.islink(folder):
            raise ValueError(
                f"{folder} is a symbolic link, and a journal moves files between real folders; remove it, or {journal}"
            )


def _parse(target: str, data: bytes) -> tuple[str, list[str], set[str]]:
    """Parse a journal and check that it names only the staging folder of this target and paths inside the target."""
    try:
        record = json.loads(data)
        stage, files, stale = record["stage"], record["files"], record["remove"]
        is_beside = stage[:3] in ("../", "..\\") and staged_names([stage[3:]], os.path.basename(target))
        if not (is_beside or staged_names([stage])):
            raise ValueError(f"{stage!r} is not a staging folder of this target")
        for path in (*files, *stale):
            if path.split("/")[-1] != NAME:
                check_path(path)
            elif "/" in path:
                check_path(path.rpartition("/")[0])
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the journal in {target} is not valid: {error}; remove it if it is foreign") from error
    return os.path.join(target, stage), list(files), set(stale)
