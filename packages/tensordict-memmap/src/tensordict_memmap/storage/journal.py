"""Journals: a save that cannot take its folder's place in one step is moved there file by file, and surely to its end.

The journal lists what is moved from the staging folder and what is removed. Once it is in the target the save counts as
made, and whoever comes next, the same process, another save or a load, finishes it. A journal may come from anybody, so
it is checked to name nothing outside.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Set

from tensordict_memmap.engine import syscalls as system
from tensordict_memmap.storage import manifest as manifests
from tensordict_memmap.storage.manifest import Manifest
from tensordict_memmap.storage.ownership import DRAFT, JOURNAL, listed_anywhere, remove_files
from tensordict_memmap.storage.staging_names import drafts_among

__all__ = ["finish", "move", "publish"]


def publish(stage: str, target: str, manifest: Manifest, durable: bool) -> None:
    """Moves what was staged to the target, one file after the other, and removes what else the target held of ours."""
    files = [*sorted(manifest.files), manifests.NAME]
    move(stage, target, files, listed_anywhere(target) - set(files), durable=durable)


def move(stage: str, target: str, files: list[str], stale: Set[str] = frozenset(), *, durable: bool = False) -> None:
    """Moves files of a staging folder to their target, one after the other, once a journal says which.

    Args:
        stage: the staging folder.
        target: the folder.
        files: what is moved, by paths under both, in this order.
        stale: what is removed first, by paths under the target.
        durable: whether all of that survives a power failure.
    """
    os.makedirs(target, exist_ok=True)
    _check_free(target, files, stale)
    record = {"version": 1, "stage": os.path.relpath(stage, target), "files": files, "remove": sorted(stale)}
    draft = os.path.join(stage, DRAFT)
    system.write_file(draft, json.dumps(record).encode(), durable)
    os.rename(draft, os.path.join(target, JOURNAL))
    if durable:
        system.sync_folder(target)
    finish(target, durable=durable)


def _check_free(target: str, files: list[str], stale: Set[str]) -> None:
    """Refuses, before anything is changed, a save for which something foreign is in the way."""
    for name in files:
        path = os.path.join(target, *name.split("/"))
        if os.path.isdir(path) and not os.path.islink(path):
            raise FileExistsError(errno.EEXIST, "a leaf needs a file, and a folder has its name; remove it first", path)
    for name in manifests.folders(files):
        path = os.path.join(target, *name.split("/"))
        if name not in stale and os.path.lexists(path) and not (os.path.isdir(path) and not os.path.islink(path)):
            raise FileExistsError(errno.EEXIST, "a node needs a folder, and a file has its name; remove it first", path)


def finish(target: str, *, durable: bool = True) -> None:
    """Does what the journal in a folder lists; may be repeated from any point at which it was stopped."""
    journal = os.path.join(target, JOURNAL)
    data = system.read_file(journal)
    if data is None:
        return
    stage, files, stale = _read_journal(target, data)
    _check_real(journal, [stage])
    remove_files(target, stale)
    inner = [inside.split("/") for inside in manifests.folders(files)]
    _check_real(journal, [os.path.join(base, *parts) for parts in inner for base in (stage, target)])
    for name in files:
        source = os.path.join(stage, *name.split("/"))
        destination = os.path.join(target, *name.split("/"))
        if os.path.lexists(source):
            os.makedirs(os.path.dirname(destination), exist_ok=True)
            os.replace(source, destination)
        elif not os.path.lexists(destination):
            raise ValueError(
                f"a journal finishes what was staged, and {name!r} is not in {stage}; restore it, or remove {journal} "
                "and save again"
            )
    if durable:
        for inside in manifests.folders(files):
            system.sync_folder(os.path.join(target, *inside.split("/")))
        system.sync_folder(target)
    os.unlink(journal)
    shutil.rmtree(stage, ignore_errors=True)


def _check_real(journal: str, folders: list[str]) -> None:
    """Refuses to move files through links: they could come from, or go, anywhere."""
    for folder in folders:
        if os.path.islink(folder):
            raise ValueError(f"a journal moves files between folders, and {folder} is a link; remove it, or {journal}")


def _read_journal(target: str, data: bytes) -> tuple[str, list[str], set[str]]:
    """Checks that a journal names nothing but the staging folder of this target and paths inside the target."""
    try:
        record = json.loads(data)
        stage, files, stale = record["stage"], record["files"], record["remove"]
        is_beside = stage[:3] in ("../", "..\\") and drafts_among([stage[3:]], os.path.basename(target))
        if not (is_beside or drafts_among([stage])):
            raise ValueError(f"{stage!r} is no staging folder of it")
        for path in (*files, *stale):
            if path.split("/")[-1] != manifests.NAME:
                manifests.check_path(path)
            elif "/" in path:
                manifests.check_path(path.rpartition("/")[0])
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the journal in {target} is not one of ours: {error}; remove it if it is foreign") from error
    return os.path.join(target, stage), list(files), set(stale)
