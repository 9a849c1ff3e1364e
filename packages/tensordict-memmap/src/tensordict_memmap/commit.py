"""Commits: a save is all or nothing, whatever stops it.

Everything is written to a staging folder first, on the file system of the target, and then takes the target's place:

- an absent or empty target: the staging folder is renamed to it;
- a target that holds nothing but an earlier save, as its manifest tells: the two are exchanged in one atomic step, and
  the earlier one is removed after that, in the background where that takes long (``removal.py``);
- anything else (files that are not ours, the current folder, a mount point, a system without the exchange): file by
  file under a journal. Once the journal is in place the save counts as made, and whoever comes next, the same process,
  another save or a load, finishes what it lists. Before, it never happened.

A file that no manifest lists is never removed. Savers lock the folder above the target while they publish, and each
holds a lock on its own staging folder, which tells the next save whose leftovers may go, since locks vanish with
their process.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tensordict_memmap import flock, removal, system
from tensordict_memmap import manifest as manifests
from tensordict_memmap.growth import LOCK
from tensordict_memmap.manifest import Manifest
from tensordict_memmap.parents import made_above
from tensordict_memmap.ways import is_long_removal

JOURNAL = "tensordict.journal.json"
"""The name of the journal, in the target, while a save is published file by file."""

_DRAFT = JOURNAL + ".draft"
_TOKEN = r"[0-9a-f]{16}"


def save_folder(
    target: str | os.PathLike[str],
    write: Callable[[str], Manifest],
    *,
    durable: bool = False,
    atomic: bool = True,
    size: int = 1 << 62,
) -> Manifest:
    """Makes a folder hold what ``write`` writes, all of it or, if anything fails, what it held before.

    Args:
        target: the folder; those above it are made where they are absent. A symbolic link is followed.
        write: called with a folder to write files into; returns the manifest of them. It syncs its files itself where
            the save is to be durable.
        durable: whether the save survives a power failure once this returns.
        atomic: False overwrites in place, which keeps inodes for those who share live mappings; a save that is stopped
            then leaves a folder whose manifest says so.
        size: about how many bytes will be written, where that is known: with room for them on the disk nothing waits
            for the removal of what an earlier save replaced.

    Returns:
        What ``write`` returned.

    Raises:
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
        with locked(path):
            _finish_journal(path)
            _remove_leftovers(path)
            stage = _new_stage(path) if atomic else None
        manifest = _overwrite(path, write, durable) if stage is None else _publish_staged(stage, path, write, durable)
    _tell_folders_above(path, manifest, durable)
    return manifest


def recover(target: str | os.PathLike[str]) -> None:
    """Finishes a save that was stopped while it was published, to the folder or to one that it is a part of.

    Loading calls this first. A journal in a folder above counts only if it is this user's: anybody may write to some.

    >>> recover("anywhere")
    """
    path = os.path.realpath(target)
    folder = path
    while True:
        journal = os.path.join(folder, JOURNAL)
        if os.path.lexists(journal) and (folder == path or _is_mine(journal)):
            with locked(folder):
                _finish_journal(folder)
        if folder == os.path.dirname(folder):
            return
        folder = os.path.dirname(folder)


def _is_mine(path: str) -> bool:
    try:
        return os.name != "posix" or os.lstat(path).st_uid == os.geteuid()
    except FileNotFoundError:
        return False


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
    for _, manifest, inside in _manifests_above(os.path.realpath(folder)):
        part = manifest.under(inside)
        if part.files:
            return part
    return None


def drop_checksums(folder: str | os.PathLike[str], files: Iterable[str]) -> None:
    """Forgets, durably, the checksums of files that may now be written to, in every manifest that has them.

    Args:
        folder: the saved folder, or one inside.
        files: paths under it. Files that are the same content as one of them lose theirs too.

    Raises:
        OSError: if the system refuses, as where the folder may not be written to.
    """
    path = os.path.realpath(folder)
    places = [(path, "")] + [(above, inside + "/") for above, _, inside in _manifests_above(path)]
    for place, prefix in places:
        with locked(place):
            manifest = _read_if_valid(place)
            if manifest is None:
                continue
            dropped = {prefix + name for name in files}
            dropped |= {manifest.aliases[name] for name in dropped & manifest.aliases.keys()}
            dropped |= {name for name, first in manifest.aliases.items() if first in dropped}
            changed = {name: manifests.Entry(entry.size) for name, entry in manifest.files.items() if name in dropped}
            if any(manifest.files[name].checksum is not None for name in changed):
                manifest.files |= changed
                replace_file(os.path.join(place, manifests.NAME), manifest.dumps(), durable=True)


# --- staging


@dataclass(slots=True)
class _Stage:
    path: str
    lock: int

    def close(self) -> None:
        if self.lock >= 0:
            flock.close(self.lock)
            self.lock = -1


def _new_stage(target: str) -> _Stage:
    """Makes a staging folder beside the target, or in it where that is another file system or may not be written to."""
    token = secrets.token_hex(8)
    beside = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.tensordict-{token}")
    inside = os.path.join(target, f".tensordict-{token}")
    path = inside if os.path.ismount(target) else beside
    try:
        os.mkdir(path)
    except OSError:
        if path == inside or not os.path.isdir(target):
            raise
        path = inside
        os.mkdir(path)
    return _Stage(path, _open_locked(path, wait=False))


def _publish_staged(stage: _Stage, target: str, write: Callable[[str], Manifest], durable: bool) -> Manifest:
    journalled = retired = False
    try:
        manifest = write(stage.path)
        _write_file(os.path.join(stage.path, manifests.NAME), manifest.dumps(), durable)
        if durable:
            for folder in manifests.folders(manifest.files):
                system.sync_folder(os.path.join(stage.path, *folder.split("/")))
            system.sync_folder(stage.path)
        removal.wait(target)  # before other savers are kept out, as they would wait too
        with locked(target):
            _finish_journal(target)
            try:
                _publish(stage.path, target, manifest, durable)
            except BaseException:
                journalled = os.path.lexists(os.path.join(target, JOURNAL))  # then what is staged is still needed
                raise
            retired = _retire(stage.path, target)
        return manifest
    finally:
        if not journalled and not retired:
            with contextlib.suppress(OSError):  # what is left is what was staged, or the save that was replaced
                _remove_save(stage.path, keep_in=target)
        stage.close()


def _retire(folder: str, target: str) -> bool:
    """Leaves the removal of a replaced save to the background where it takes long; False where it is the caller's."""
    replaced = _read_if_valid(folder)
    if replaced is None or not is_long_removal(sum(one.size for one in replaced.files.values()), len(replaced.files)):
        return False
    try:
        lock = _open_locked(folder, wait=False)  # which other savers take for a sign of life
    except OSError:
        return False
    listed = _listed(folder)
    if lock < 0 or listed is None:
        return False
    try:
        _rescue(folder, listed, target)
    except BaseException:
        flock.close(lock)
        raise
    removal.later(target, functools.partial(_remove_listed, folder, listed), [lock])
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
    elif beside and not _is_pinned(target) and _is_ours_alone(target):
        shutil.copymode(target, stage)
        if not system.exchange(stage, target):
            _publish_by_file(stage, target, manifest, durable)
            return
    else:
        _publish_by_file(stage, target, manifest, durable)
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


# --- what is whose


def _listed(folder: str) -> set[str] | None:
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
            part = _read_if_valid(path)
            files.add(f"{inside}/{manifests.NAME}")
            files.update(f"{inside}/{name}" for name in (part.files if part is not None else ()))
    return files


def _listed_anywhere(folder: str) -> set[str]:
    """The files of the save that a folder holds, or is a part of."""
    listed = _listed(folder)
    if listed is None:
        with contextlib.suppress(ValueError):
            part = manifest_for(folder)
            return set(part.files) if part is not None else set()
    return listed or set()


def _read_if_valid(folder: str | os.PathLike[str]) -> Manifest | None:
    """The manifest of a folder, None where it has none or a broken one."""
    with contextlib.suppress(ValueError):
        return read_manifest(folder)
    return None


def _is_ours_alone(folder: str) -> bool:
    listed = _listed(folder)
    if listed is None:
        return False
    known = manifests.folders(listed)
    stack = [("", folder)]
    while stack:
        place, path = stack.pop()
        with os.scandir(path) as entries:
            for entry in entries:
                name = place + entry.name
                if entry.is_dir(follow_symlinks=False):
                    if name not in known or os.path.ismount(entry.path):
                        return False
                    stack.append((name + "/", entry.path))
                elif name not in listed or not entry.is_file(follow_symlinks=False):
                    return False
    return True


def _remove_save(folder: str, *, keep_in: str) -> None:
    """Removes an earlier save; files that are not its own, which came while it was replaced, move to its successor."""
    if not os.path.lexists(folder):
        return
    listed = _listed(folder)
    if listed is None:
        shutil.rmtree(folder)  # a staging folder that was never finished: all of it is ours
        return
    _rescue(folder, listed, keep_in)
    _remove_listed(folder, listed)


def _rescue(folder: str, listed: set[str], keep_in: str) -> None:
    """Moves what is not listed to another folder, unless that has something under its name."""
    own = {*listed, _DRAFT, JOURNAL}
    for place, _, names in os.walk(folder):
        inside = os.path.relpath(place, folder).replace(os.sep, "/") + "/" if place != folder else ""
        for name in names:
            if inside + name not in own:
                destination = os.path.join(keep_in, *f"{inside}{name}".split("/"))
                if not os.path.lexists(destination):
                    os.makedirs(os.path.dirname(destination), exist_ok=True)
                    os.rename(os.path.join(place, name), destination)


def _remove_listed(folder: str, listed: set[str]) -> None:
    """Removes the files of a save, those that say which they are last, and the folders that are empty then."""
    _remove_files(folder, listed - {manifests.NAME})
    for place, _, _ in os.walk(folder, topdown=False):
        if place != folder:
            with contextlib.suppress(OSError):
                os.rmdir(place)
    _remove_files(folder, {_DRAFT, manifests.NAME})
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _remove_files(folder: str, files: set[str]) -> None:
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


def _remove_leftovers(target: str) -> None:
    """Removes the staging folders of saves to this target whose process is gone."""
    parent, name = os.path.split(target)
    places = [(parent, re.compile(re.escape(f".{name}.tensordict-") + _TOKEN))]
    if os.path.isdir(target):
        places.append((target, re.compile(r"\.tensordict-" + _TOKEN)))
    for folder, pattern in places:
        with contextlib.suppress(OSError):
            for leftover in filter(pattern.fullmatch, os.listdir(folder)):
                path = os.path.join(folder, leftover)
                with contextlib.suppress(OSError):
                    lock = _open_locked(path, wait=False)
                    if lock >= 0:  # else nobody can tell whether its process is gone
                        try:
                            _remove_save(path, keep_in=target)
                        finally:
                            flock.close(lock)


# --- publishing file by file


def _publish_by_file(stage: str, target: str, manifest: Manifest, durable: bool) -> None:
    os.makedirs(target, exist_ok=True)
    files = [*sorted(manifest.files), manifests.NAME]
    stale = sorted(_listed_anywhere(target) - set(files))
    _check_free(target, files, set(stale))
    record = {"version": 1, "stage": os.path.relpath(stage, target), "files": files, "remove": stale}
    draft = os.path.join(stage, _DRAFT)
    _write_file(draft, json.dumps(record).encode(), durable)
    os.rename(draft, os.path.join(target, JOURNAL))
    if durable:
        system.sync_folder(target)
    _finish_journal(target, durable=durable)


def _check_free(target: str, files: list[str], stale: set[str]) -> None:
    """Refuses, before anything is changed, a save for which something foreign is in the way."""
    for name in files:
        path = os.path.join(target, *name.split("/"))
        if os.path.isdir(path) and not os.path.islink(path):
            raise FileExistsError(errno.EEXIST, "a leaf needs a file, and a folder has its name; remove it first", path)
    for name in manifests.folders(files):
        path = os.path.join(target, *name.split("/"))
        if name not in stale and os.path.lexists(path) and not (os.path.isdir(path) and not os.path.islink(path)):
            raise FileExistsError(errno.EEXIST, "a node needs a folder, and a file has its name; remove it first", path)


def _finish_journal(target: str, *, durable: bool = True) -> None:
    """Does what the journal in a folder lists; may be repeated from any point at which it was stopped."""
    journal = os.path.join(target, JOURNAL)
    data = system.read_file(journal)
    if data is None:
        return
    stage, files, stale = _read_journal(target, data)
    _check_real(journal, [stage])
    _remove_files(target, stale)
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
        name = re.escape(os.path.basename(target))
        if not re.fullmatch(rf"\.tensordict-{_TOKEN}|\.\.[/\\]\.{name}\.tensordict-{_TOKEN}", stage):
            raise ValueError(f"{stage!r} is no staging folder of it")
        for path in (*files, *stale):
            if path.split("/")[-1] != manifests.NAME:
                manifests.check_path(path)
            elif "/" in path:
                manifests.check_path(path.rpartition("/")[0])
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the journal in {target} is not one of ours: {error}; remove it if it is foreign") from error
    return os.path.join(target, stage), list(files), set(stale)


# --- overwriting in place, and saves inside saves


def _overwrite(target: str, write: Callable[[str], Manifest], durable: bool) -> Manifest:
    os.makedirs(target, exist_ok=True)
    path = os.path.join(target, manifests.NAME)
    stale = _listed_anywhere(target)
    earlier = _read_if_valid(target) or Manifest({})  # files have their sizes before they have their bytes
    earlier.complete = False
    replace_file(path, earlier.dumps(), durable)
    manifest = write(target)
    _remove_files(target, stale - {*manifest.files, manifests.NAME})
    if durable:
        for inside in manifests.folders(manifest.files):
            system.sync_folder(os.path.join(target, *inside.split("/")))
    replace_file(path, manifest.dumps(), durable)
    return manifest


def _manifests_above(folder: str) -> Iterator[tuple[str, Manifest, str]]:
    """The manifests of the folders above, nearest first, each with its folder and the path from there."""
    above = os.path.dirname(folder)
    while above != os.path.dirname(above):
        manifest = _read_if_valid(above)
        if manifest is not None:
            yield above, manifest, os.path.relpath(folder, above).replace(os.sep, "/")
        above = os.path.dirname(above)


def _tell_folders_above(target: str, manifest: Manifest, durable: bool) -> None:
    """Brings the manifests up to date of which this save is a part. Its own speaks for it until that is done."""
    for above, _, inside in list(_manifests_above(target)):
        with locked(above):
            current = _read_if_valid(above)
            if current is not None and current.under(inside).files:
                changed = current.replaced_under(inside, manifest)
                replace_file(os.path.join(above, manifests.NAME), changed.dumps(), durable)


# --- files and locks


def _write_file(path: str, data: bytes, durable: bool) -> None:
    with open(path, "wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def replace_file(path: str, data: bytes, durable: bool) -> None:
    """Makes a small file hold other bytes, in one step; others never see a part of them."""
    draft = f"{path}.{secrets.token_hex(8)}"
    try:
        _write_file(draft, data, durable)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
    if durable:
        system.sync_folder(os.path.dirname(path))


@contextlib.contextmanager
def locked(target: str) -> Iterator[None]:
    """Keeps other savers to this target out, by the folder above it, which stays while the target is exchanged."""
    lock = -1
    for folder in (os.path.dirname(target), target):
        with contextlib.suppress(OSError):
            lock = _open_locked(folder, wait=True)
            break
    try:
        yield
    finally:
        if lock >= 0:
            flock.close(lock)


def _open_locked(folder: str, *, wait: bool) -> int:
    """A descriptor that holds the lock of a folder, -1 where there are no locks.

    Raises:
        BlockingIOError: if another holds it and ``wait`` is False.
    """
    if os.name != "posix":
        return -1
    fd = flock.open_for_lock(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if flock.lock(fd, wait=wait):
            return fd
    except BlockingIOError:
        flock.close(fd)
        raise
    flock.close(fd)
    return -1
