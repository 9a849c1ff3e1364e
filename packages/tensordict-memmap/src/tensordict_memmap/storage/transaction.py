"""Commits: a save is all or nothing, whatever stops it.

Everything is written to a staging folder first, on the file system of the target, and then takes the target's place:

- an absent or empty target: the staging folder is renamed to it;
- a target that holds nothing but an earlier save, as its manifest tells: the two are exchanged in one atomic step, and
  the earlier one is removed after that, in the background where that takes long (``removal.py``);
- anything else (files that are not ours, the current folder, a mount point, a system without the exchange): file by
  file under a journal (``journal.py``). Once that is in place the save counts as made; before, it never happened.

A file that no manifest lists is never removed (``owned.py``). Savers lock the folder above the target while they
publish, and each holds a lock on its own staging folder, which tells the next save whose leftovers may go, since locks
vanish with their process.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tensordict_memmap.engine import syscalls as system
from tensordict_memmap.engine.tuning import WORTH_SCATTERING, is_long_removal
from tensordict_memmap.storage import cleanup as removal
from tensordict_memmap.storage import journal
from tensordict_memmap.storage import locks as flock
from tensordict_memmap.storage import manifest as manifests
from tensordict_memmap.storage import ownership as owned
from tensordict_memmap.storage.manifest import Manifest
from tensordict_memmap.storage.parents import made_above
from tensordict_memmap.storage.staging_names import drafts_among, drafts_in, new_draft


def save_folder(
    target: str | os.PathLike[str],
    write: Callable[[str], Manifest],
    *,
    durable: bool = False,
    atomic: bool = True,
    existsok: bool = True,
    size: int = 1 << 62,
    count: int = 0,
    files: Iterable[str] = (),
) -> Manifest:
    """Makes a folder hold what ``write`` writes, all of it or, if anything fails, what it held before.

    Args:
        target: the folder; those above it are made where they are absent. A symbolic link is followed.
        write: called with a folder to write files into; returns the manifest of them. It syncs its files itself where
            the save is to be durable.
        durable: whether the save survives a power failure once this returns.
        atomic: False overwrites in place, which keeps inodes for those who share live mappings; a save that is stopped
            then leaves a folder whose manifest says so.
        existsok: whether an earlier save may be replaced; otherwise of several that are made at once, one is.
        size: about how many bytes will be written, where that is known: with room for them on the disk nothing waits
            for the removal of what an earlier save replaced.
        count: about how many files will be written.
        files: paths of what will be written. With ``atomic=False`` they are listed before, so that what a save that is
            stopped leaves is known as its own.

    Returns:
        What ``write`` returned.

    Raises:
        RuntimeError: The folder holds something and ``existsok`` is False.
        OSError: if the system refuses; the earlier content is whole.

    >>> def write(folder):
    ...     with open(os.path.join(folder, "x"), "wb") as file:
    ...         return Manifest({"x": manifests.Entry(file.write(b"data"))})
    >>> saved = save_folder("somewhere", write)
    >>> sorted(os.listdir("somewhere"))
    ['tensordict.manifest.json', 'x']
    """
    path = os.path.realpath(target)
    if os.path.lexists(path) and not os.path.isdir(path):
        raise FileExistsError(errno.EEXIST, "a save needs a folder, and a file has this name; remove it first", path)
    removal.make_room(path, size)
    with made_above(path, durable=durable):
        with flock.locked(path):
            journal.finish(path)
            _remove_leftovers(path)
            stage = _new_stage(path, count) if atomic else None
        if stage is None:
            manifest = _overwrite(path, write, durable, files)
        else:
            manifest = _publish_staged(stage, path, write, durable, existsok)
    _tell_folders_above(path, manifest, durable)
    return manifest


def add_files(folder: str | os.PathLike[str], write: Callable[[str], Manifest | None]) -> bool:
    """Adds files to a saved folder, or to one inside, and replaces descriptions there: all of it, or nothing.

    Args:
        folder: the folder.
        write: called with a folder to write the files into, while nobody else saves; returns the manifest of them, or
            None where they cannot just be added.

    Returns:
        Whether they were added. They are not where several manifests say what is there, or one says more than sizes.
    """
    path = os.path.realpath(folder)
    above = [(root, inside) for root, manifest, inside in owned.manifests_above(path) if manifest.under(inside).files]
    root, inside = above[0] if above else (path, "")
    with flock.locked(path), flock.locked(root) if above else contextlib.nullcontext():
        journal.finish(root)
        manifest = owned.read_if_valid(root)
        if manifest is None or not manifest.complete or manifest.rows_committed is not None or manifest.is_sealed():
            return False
        if len(above) > 1 or (above and os.path.lexists(os.path.join(path, manifests.NAME))):
            return False
        stage = _new_stage(root, 0)
        try:
            into = os.path.join(stage.path, *inside.split("/"))
            os.makedirs(into, exist_ok=True)
            added = write(into)
            if added is None:
                return False
            start = inside and inside + "/"
            files = {start + name: entry for name, entry in added.files.items()}
            manifest.files |= files
            system.write_file(os.path.join(stage.path, manifests.NAME), manifest.dumps(), durable=False)
            journal.move(stage.path, root, [*files, manifests.NAME])
            return True
        finally:
            if not os.path.lexists(os.path.join(root, owned.JOURNAL)):  # then what is staged is still needed
                shutil.rmtree(stage.path, ignore_errors=True)
            stage.close()


def check_new(target: str) -> None:
    """Refuses a folder that holds something.

    Raises:
        RuntimeError: It does.

    >>> check_new("absent")
    """
    held = os.listdir(target) if os.path.isdir(target) else []
    if len(drafts_among(held)) < len(held):
        raise RuntimeError(
            f"a save goes to a new or empty folder with existsok=False, and {target} holds something; choose another "
            "folder or pass existsok=True"
        )


def recover(target: str | os.PathLike[str]) -> None:
    """Finishes a save that was stopped while it was published, to the folder or to one that it is a part of.

    Loading calls this first. A journal in a folder above counts only if it is this user's: anybody may write to some.

    >>> recover("anywhere")
    """
    path = os.path.realpath(target)
    folder = path
    while True:
        found = os.path.join(folder, owned.JOURNAL)
        if os.path.lexists(found) and (folder == path or _is_mine(found)):
            with flock.locked(folder):
                journal.finish(folder)
        if folder == os.path.dirname(folder):
            return
        folder = os.path.dirname(folder)


def _is_mine(path: str) -> bool:
    try:
        return os.name != "posix" or os.lstat(path).st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def drop_checksums(folder: str | os.PathLike[str], files: Iterable[str]) -> None:
    """Forgets, durably, the checksums of files that may now be written to, in every manifest that has them.

    Args:
        folder: the saved folder, or one inside.
        files: paths under it. Files that are the same content as one of them lose theirs too.

    Raises:
        OSError: if the system refuses, as where the folder may not be written to.
    """
    path = os.path.realpath(folder)
    places = [(path, "")] + [(above, inside + "/") for above, _, inside in owned.manifests_above(path)]
    for place, prefix in places:
        with flock.locked(place):
            manifest = owned.read_if_valid(place)
            if manifest is None:
                continue
            dropped = {prefix + name for name in files}
            dropped |= {manifest.aliases[name] for name in dropped & manifest.aliases.keys()}
            dropped |= {name for name, first in manifest.aliases.items() if first in dropped}
            changed = {name: manifests.Entry(entry.size) for name, entry in manifest.files.items() if name in dropped}
            if any(manifest.files[name].checksum is not None for name in changed):
                manifest.files |= changed
                system.replace_file(os.path.join(place, manifests.NAME), manifest.dumps(), durable=True)


# --- staging


@dataclass(slots=True)
class _Stage:
    path: str
    lock: int

    def close(self) -> None:
        if self.lock >= 0:
            flock.close(self.lock)
            self.lock = -1


def _new_stage(target: str, count: int) -> _Stage:
    """Makes a staging folder beside the target, or in it where that is another file system or may not be written to."""
    inside = os.path.join(target, new_draft())
    path = inside if os.path.ismount(target) else _beside(target)
    try:
        os.mkdir(path)
    except OSError:
        if path == inside or not os.path.isdir(target):
            raise
        path = inside
        os.mkdir(path)
    if path != inside and count >= WORTH_SCATTERING and removal.was_recent() and system.scatter(path):
        path = _scattered(path, target)
    return _Stage(path, flock.open_locked(path, wait=False))


def _beside(target: str) -> str:
    """A new name of a staging folder beside the target."""
    parent, name = os.path.split(target)
    return os.path.join(parent, new_draft(name))


def _scattered(folder: str, target: str) -> str:
    """A staging folder that was made in another, which lies elsewhere on the disk for it, and moved out of that."""
    path = _beside(target)
    made = os.path.join(folder, os.path.basename(path))  # a place is chosen by the name
    try:
        os.mkdir(made)
        os.rename(made, path)
    finally:
        shutil.rmtree(folder)
    return path


def _publish_staged(
    stage: _Stage, target: str, write: Callable[[str], Manifest], durable: bool, existsok: bool
) -> Manifest:
    journalled = retired = False
    try:
        manifest = write(stage.path)
        system.write_file(os.path.join(stage.path, manifests.NAME), manifest.dumps(), durable)
        if durable:
            for folder in manifests.folders(manifest.files):
                system.sync_folder(os.path.join(stage.path, *folder.split("/")))
            system.sync_folder(stage.path)
        removal.wait(target)  # before other savers are kept out, as they would wait too
        with flock.locked(target):
            journal.finish(target)
            if not existsok:  # again, for others may have saved since the first look
                check_new(target)
            try:
                _publish(stage.path, target, manifest, durable)
            except BaseException:
                journalled = os.path.lexists(os.path.join(target, owned.JOURNAL))  # then what is staged is still needed
                raise
            retired = _retire(stage.path, target)
        return manifest
    finally:
        try:
            if os.path.lexists(stage.path):
                removal.remember()
            if not journalled and not retired:
                with contextlib.suppress(OSError):  # what is left is what was staged, or the save that was replaced
                    owned.remove_save(stage.path, keep_in=target)
        finally:
            stage.close()  # an interrupt comes at any moment, and the next save finds by the lock what it left


def _retire(folder: str, target: str) -> bool:
    """Leaves the removal of a replaced save to the background where it takes long; False where it is the caller's."""
    replaced = owned.read_if_valid(folder)
    if replaced is None or not is_long_removal(sum(one.size for one in replaced.files.values()), len(replaced.files)):
        return False
    try:
        lock = flock.open_locked(folder, wait=False)  # which other savers take for a sign of life
    except OSError:
        return False
    listed = owned.listed_in(folder)
    if lock < 0 or listed is None:
        return False
    try:
        owned.rescue(folder, listed, target)
    except BaseException:
        flock.close(lock)
        raise
    removal.later(target, functools.partial(owned.remove_listed, folder, listed), [lock])
    return True


def _publish(stage: str, target: str, manifest: Manifest, durable: bool) -> None:
    parent = os.path.dirname(target)
    beside = os.path.dirname(stage) == parent
    if beside and not os.path.lexists(target):
        os.rename(stage, target)
    elif beside and not _is_pinned(target) and not os.listdir(target):
        shutil.copymode(target, stage)
        if os.name != "posix":
            os.rmdir(target)
        os.rename(stage, target)
    elif beside and not _is_pinned(target) and owned.is_ours_alone(target):
        shutil.copymode(target, stage)
        if not system.exchange(stage, target):
            journal.publish(stage, target, manifest, durable)
            return
    else:
        journal.publish(stage, target, manifest, durable)
        return
    if durable:
        system.sync_folder(parent)


def _is_pinned(target: str) -> bool:
    """Whether another folder cannot take the target's place: it is a mount point, or this process works in it."""
    if os.path.ismount(target):
        return True
    try:
        here = os.path.realpath(os.getcwd())
    except OSError:
        return False
    return here == target or here.startswith(target + os.sep)


def _remove_leftovers(target: str) -> None:
    """Removes the staging folders of saves to this target whose process is gone, and what such had not replaced yet."""
    parent, name = os.path.split(target)
    places = [(parent, name)]
    if os.path.isdir(target):
        places.append((target, ""))
        owned.remove_drafts(target)
    for folder, of in places:
        with contextlib.suppress(OSError):
            for leftover in drafts_in(folder, of):
                path = os.path.join(folder, leftover)
                with contextlib.suppress(OSError):
                    lock = flock.open_locked(path, wait=False)
                    if lock >= 0:  # else nobody can tell whether its process is gone
                        try:
                            owned.remove_save(path, keep_in=target)
                        finally:
                            flock.close(lock)


# --- overwriting in place, and saves inside saves


def _overwrite(target: str, write: Callable[[str], Manifest], durable: bool, files: Iterable[str]) -> Manifest:
    os.makedirs(target, exist_ok=True)
    path = os.path.join(target, manifests.NAME)
    stale = owned.listed_anywhere(target)
    earlier = owned.read_if_valid(target) or Manifest({})  # files have their sizes before they have their bytes
    files = set(files)
    if not earlier.complete:  # what a save that was stopped left is worth nothing, and the disk may be full of it
        owned.remove_files(target, stale - {*files, manifests.NAME})
        stale &= files
        earlier = Manifest({})
    for name in files:  # what has such a name and is not ours is not made ours before it is written over
        if name in stale or not os.path.lexists(os.path.join(target, *name.split("/"))):
            earlier.files.setdefault(name, manifests.Entry(0))
    earlier.complete = False
    with flock.locked(target):
        system.replace_file(path, earlier.dumps(), durable)
    manifest = write(target)
    owned.remove_files(target, stale - {*manifest.files, manifests.NAME})
    if durable:
        for inside in manifests.folders(manifest.files):
            system.sync_folder(os.path.join(target, *inside.split("/")))
    with flock.locked(target):
        system.replace_file(path, manifest.dumps(), durable)
    return manifest


def _tell_folders_above(target: str, manifest: Manifest, durable: bool) -> None:
    """Brings the manifests up to date of which this save is a part. Its own speaks for it until that is done."""
    for above, _, inside in list(owned.manifests_above(target)):
        with flock.locked(above):
            current = owned.read_if_valid(above)
            if current is not None and current.under(inside).files:
                changed = current.replaced_under(inside, manifest)
                system.replace_file(os.path.join(above, manifests.NAME), changed.dumps(), durable)
