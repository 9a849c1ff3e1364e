"""Transactions: a save replaces an earlier one completely or not at all, even if the process is killed.

A save of one file is staged beside its target and renamed. A save of a folder is staged on the file system of the
target, and then committed in one of three ways:

- The target is absent or empty: the staging folder is renamed to it.
- The target holds only an earlier save, according to its manifest: the two folders are exchanged in one atomic step.
  The earlier one is removed afterwards, in the background if that takes long (`cleanup`).
- Otherwise (foreign files, the current folder, a mount point, a system without the exchange): files are moved one by
  one under a redo log (`journal`).

A file that no manifest lists is never removed (`ownership`). Savers lock the parent of the target while they commit,
and each holds a lock on its own staging folder. Existing mappings of the earlier save keep its content.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.engine.mapped_range import keep_open
from tensordict_memmap.engine.mounts import is_mount
from tensordict_memmap.engine.tuning import SCATTER_MIN_FILES, is_long_removal
from tensordict_memmap.formats.names import MOST_PARTS
from tensordict_memmap.storage import cleanup, exchange, journal, locks, ownership
from tensordict_memmap.storage.manifest import NAME, Entry, Manifest
from tensordict_memmap.storage.modes import PRIVATE_FOLDER, copy_mode, copy_modes
from tensordict_memmap.storage.removal import remove_tree
from tensordict_memmap.storage.staging import (
    file_exists,
    make_parents,
    put_in_place,
    refuse_special,
    remove_abandoned,
    replace_file,
    staged_file,
    staged_names,
    staging_name,
)


@contextlib.contextmanager
def _saving_file(target: str | os.PathLike[str], durable: bool, existsok: bool, size: int) -> Iterator[str]:
    path = os.path.realpath(target)
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, "a folder has the name of the file to save; remove it first", path)
    refuse_special(path)
    if not existsok and os.path.lexists(path):
        raise file_exists(path)
    cleanup.make_room(path, size)
    with make_parents(path, durable=durable), staged_file(path) as staged:
        yield staged
        copy_mode(path, staged)
        with _blocks_kept(path):
            put_in_place(staged, path, existsok=existsok)
        if durable:
            syscalls.sync_folder(os.path.dirname(path))


@contextlib.contextmanager
def _blocks_kept(path: str) -> Iterator[None]:
    """Leave freeing the blocks of a large replaced file to the background."""
    earlier = None
    if os.name == "posix":  # Windows cannot replace an open file
        with contextlib.suppress(OSError):
            if is_long_removal(os.stat(path).st_size):
                fd = locks.open_for_lock(path, os.O_RDONLY)
                try:
                    earlier = keep_open(fd.fileno())
                finally:
                    locks.close(fd)
    try:
        yield
    finally:
        if earlier is not None:
            cleanup.later(path, earlier.close)


@contextlib.contextmanager
def saving(
    target: str | os.PathLike[str],
    *,
    is_folder: bool,
    durable: bool = False,
    atomic: bool = True,
    existsok: bool = True,
    size: int = 1 << 62,
    count: int = 0,
    files: Iterable[str] = (),
) -> Iterator[Stage]:
    """Yield a staged file or folder, which replaces the target at the end of the block unless that raises.

    The block writes the staged file, or files into the staged folder, whose ``manifest`` it sets. In a durable save it
    syncs these files itself.

    Args:
        target: The file or folder. Missing parent folders are created, and a symbolic link is followed.
        is_folder: Whether the target is a folder.
        durable: Whether to sync the save, or the name of the new file, to disk before the block ends.
        atomic: False overwrites the files of a folder in place, which keeps inodes for processes that share live
            mappings. If such a save is interrupted, the manifest marks the folder as incomplete.
        existsok: Whether an earlier save may be replaced; if False, only one of several concurrent saves succeeds.
        size: The approximate number of bytes to write. If the disk has room for them, the save does not wait for the
            removal of an earlier one. The default always waits.
        count: The approximate number of files to write.
        files: The paths to write, for ``atomic=False``. The manifest lists them before they are written, so that the
            files of an interrupted save are owned by it.

    Raises:
        IsADirectoryError: A folder has the name of the file.
        FileExistsError: A file has the name of the folder.
        RuntimeError: The file exists, or the folder is not empty, and ``existsok`` is False.
        OSError: Writing fails; the earlier save is unchanged.

    >>> with saving("greeting.txt", is_folder=False) as stage, open(stage.path, "w") as file:
    ...     _ = file.write("hello")
    >>> with saving("somewhere", is_folder=True) as stage, open(os.path.join(stage.path, "x"), "wb") as file:
    ...     stage.manifest = Manifest({"x": Entry(file.write(b"data"))})
    >>> os.path.getsize("greeting.txt"), sorted(os.listdir("somewhere"))
    (5, ['tensordict.manifest.json', 'x'])
    """
    if not is_folder:
        with _saving_file(target, durable, existsok, size) as staged:
            yield Stage(staged, None)
        return
    if not existsok:
        check_new(os.path.realpath(target))
    with (
        _prepared(target, durable, size, count if atomic else None) as (path, stage),
        _committed(stage, path, durable, existsok) if atomic else _overwritten(stage, durable, files),
    ):
        yield stage
    assert stage.manifest is not None
    _update_ancestors(path, stage.manifest, durable)


@contextlib.contextmanager
def _prepared(
    target: str | os.PathLike[str], durable: bool, size: int, count: int | None
) -> Iterator[tuple[str, Stage]]:
    """Recover the target, and yield its path and a staging folder for some files, or itself if there is no count."""
    path = os.path.realpath(target)
    if os.path.lexists(path) and not os.path.isdir(path):
        raise FileExistsError(errno.EEXIST, "a file has the name of the folder to save to; remove it first", path)
    cleanup.make_room(path, size)
    with make_parents(path, durable=durable):
        with locks.locked(path):
            journal.redo(path)
            _remove_abandoned(path)
            stage = Stage(path, None) if count is None else _new_stage(path, count)
        yield path, stage


def add_files(folder: str | os.PathLike[str], write: Callable[[str], Manifest | None]) -> bool:
    """Add files to a saved folder, or to a folder inside one, and replace files of the same names, atomically.

    Args:
        folder: The folder.
        write: A function that is called with a folder to write the files into, while other savers are kept out; returns
            their manifest, or None if they cannot be added.

    Returns:
        Whether the files were added. They are not if several manifests list the folder, or if the manifest has
        checksums.
    """
    path = os.path.realpath(folder)
    above = [(root, part) for root, manifest, part in ownership.ancestor_manifests(path) if manifest.under(part).files]
    root, part = above[0] if above else (path, "")
    with locks.locked(path), locks.locked(root) if above else contextlib.nullcontext():
        journal.redo(root)
        manifest = ownership.read_valid_manifest(root)
        if manifest is None or not manifest.complete or manifest.rows_committed is not None or manifest.is_sealed():
            return False
        if len(above) > 1 or (above and os.path.lexists(os.path.join(path, NAME))):
            return False
        stage = _new_stage(root, 0)
        try:
            into = ownership.inside(stage.path, part) if part else stage.path
            os.makedirs(into, exist_ok=True)
            added = write(into)
            if added is None:
                return False
            start = part and part + "/"
            files = {start + name: entry for name, entry in added.files.items()}
            manifest.files |= files
            syscalls.write_file(os.path.join(stage.path, NAME), manifest.dumps(), durable=False)
            copy_modes(root, stage.path, files)
            journal.commit(stage.path, root, [*files, NAME])
            return True
        finally:
            if not os.path.lexists(os.path.join(root, ownership.JOURNAL)):  # a journal still needs the staged files
                remove_tree(stage.path, ignore_errors=True)
            stage.close()


def check_new(target: str) -> None:
    """Refuse a folder that is not empty.

    Raises:
        RuntimeError: The folder is not empty.

    >>> check_new("absent")
    """
    names = os.listdir(target) if os.path.isdir(target) else []
    if len(staged_names(names)) < len(names):
        raise RuntimeError(
            f"{target} already exists and is not empty, and existsok=False requires a new or empty folder; choose "
            "another folder or pass existsok=True"
        )


def recover(target: str | os.PathLike[str]) -> None:
    """Finish a save that was interrupted during its commit to a folder or to one of its ancestors.

    A load calls this first. A journal in an ancestor is ignored unless this user owns it, since other users may write
    to some ancestors.

    >>> recover("anywhere")
    """
    path = os.path.realpath(target)
    for folder in ownership.with_ancestors(path):
        found = os.path.join(folder, ownership.JOURNAL)
        if syscalls.is_there(found) and (folder == path or _is_mine(found)):
            with locks.locked(folder):
                journal.redo(folder)


def _is_mine(path: str) -> bool:
    try:
        return os.name != "posix" or os.lstat(path).st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def drop_checksums(folder: str | os.PathLike[str], files: Iterable[str]) -> None:
    """Drop the checksums of files from every manifest that lists them, before they are opened for writing.

    The changed manifests are synced to disk.

    Args:
        folder: The saved folder, or one inside.
        files: Paths relative to it. The checksums of their aliases are dropped too.

    Raises:
        OSError: A manifest cannot be written, for example because the folder is read-only.
    """
    path = os.path.realpath(folder)
    places = [(path, "")] + [(above, part + "/") for above, _, part in ownership.ancestor_manifests(path)]
    for place, prefix in places:
        with locks.locked(place):
            manifest = ownership.read_valid_manifest(place)
            if manifest is None:
                continue
            dropped = {prefix + name for name in files}
            dropped |= {manifest.aliases[name] for name in dropped & manifest.aliases.keys()}
            dropped |= {name for name, first in manifest.aliases.items() if first in dropped}
            changed = {name: Entry(entry.size) for name, entry in manifest.files.items() if name in dropped}
            if any(manifest.files[name].checksum is not None for name in changed):
                manifest.files |= changed
                replace_file(os.path.join(place, NAME), manifest.dumps(), durable=True)


# --- staging


@dataclass(slots=True)
class Stage:
    """A staging folder, the descriptor that holds its lock, if there are locks, and the manifest of its files."""

    path: str
    lock: Descriptor | None
    manifest: Manifest | None = None

    def close(self) -> None:
        """Release the lock."""
        if self.lock is not None:
            locks.close(self.lock)


def _new_stage(target: str, count: int) -> Stage:
    """Create a staging folder beside the target, or inside it if it is a mount point or the parent is read-only."""
    exists = os.path.lexists(target)
    inside = os.path.join(target, staging_name())
    path = inside if exists and is_mount(target) else _beside(target)
    mode = PRIVATE_FOLDER if exists else 0o777
    try:
        os.mkdir(path, mode)
    except OSError:
        if path == inside or not os.path.isdir(target):
            raise
        path = inside
        os.mkdir(path, mode)
    if path != inside and count >= SCATTER_MIN_FILES and cleanup.was_recent() and syscalls.scatter(path):
        path = _scattered(path, target, mode)
    return Stage(path, locks.open_locked(path, wait=False))


def _beside(target: str) -> str:
    parent, name = os.path.split(target)
    return os.path.join(parent, staging_name(name))


def _scattered(folder: str, target: str, mode: int) -> str:
    """Create a staging folder in another block group, which ext4 chooses by the flags of the parent folder."""
    path = _beside(target)
    made = os.path.join(folder, os.path.basename(path))
    try:
        os.mkdir(made, mode)
        os.rename(made, path)
    finally:
        remove_tree(folder)
    return path


def _remove_abandoned(target: str) -> None:
    """Remove the staging folders of killed processes, and replaced saves that they had not removed yet."""
    remove = functools.partial(ownership.remove_save, keep_in=target)
    remove_abandoned(*os.path.split(target), remove)
    if os.path.isdir(target):
        with contextlib.suppress(OSError):  # it may not be listed
            names = os.listdir(target)
            ownership.remove_replacements(target, names)
            remove_abandoned(target, "", remove, names=names)


# --- commit


@contextlib.contextmanager
def _committed(stage: Stage, target: str, durable: bool, existsok: bool) -> Iterator[None]:
    retired, replaced = False, None
    try:
        yield
        manifest = stage.manifest
        assert manifest is not None
        _check_depth_above(target, manifest)
        syscalls.write_file(os.path.join(stage.path, NAME), manifest.dumps(), durable)
        if durable:
            ownership.sync_folders(stage.path, manifest.files)
        cleanup.wait(target)  # before taking the lock, so that other savers do not wait for the removal
        with locks.locked(target):
            journal.redo(target)
            if not existsok:  # again, since another process may have saved after the first check
                check_new(target)
            copy_modes(target, stage.path, manifest.files)
            replaced = exchange.put_in_place(stage.path, target, manifest, durable)
            retired = replaced is not None and exchange.retire(stage.path, target, replaced)
    finally:
        try:
            if os.path.lexists(stage.path):  # it holds the staged files, or after an exchange the replaced save
                cleanup.remember()
                # a journal still needs the staged files
                if not retired and not os.path.lexists(os.path.join(target, ownership.JOURNAL)):
                    with contextlib.suppress(OSError):
                        ownership.remove_save(stage.path, keep_in=target, known=replaced)
        finally:
            stage.close()  # last: after an interrupt, the next save finds an unlocked folder and removes it


def _check_depth_above(target: str, manifest: Manifest) -> None:
    """Refuse a save inside another one whose manifest could not list the files, because they are nested too deeply.

    Raises:
        ValueError: There is such a save around the target.
    """
    deepest = max(manifest.files, key=lambda path: path.count("/"), default="")
    if deepest.count("/") + target.count(os.sep) < MOST_PARTS:
        return
    for above, current, part in ownership.ancestor_manifests(target):
        if current.under(part).files and part.count("/") + deepest.count("/") + 2 > MOST_PARTS:
            raise ValueError(
                f"{target} is in the save {above}, which would be nested more than {MOST_PARTS} levels deep; "
                "save to another folder"
            )


@contextlib.contextmanager
def _overwritten(stage: Stage, durable: bool, files: Iterable[str]) -> Iterator[None]:
    """Mark a save as incomplete in its manifest while the block overwrites its files in place."""
    target = stage.path
    os.makedirs(target, exist_ok=True)
    path = os.path.join(target, NAME)
    stale = ownership.owned_or_listed_above(target)
    earlier = ownership.read_valid_manifest(target) or Manifest({})
    files = set(files)
    if not earlier.complete:  # files of an interrupted save are unusable, and may fill the disk
        ownership.remove_files(target, stale - {*files, NAME})
        stale &= files
        earlier = Manifest({})
    for name in files:  # a foreign file is not listed as owned before it is overwritten
        if name in stale or not os.path.lexists(ownership.inside(target, name)):
            earlier.files.setdefault(name, Entry(0))
    earlier.complete = False
    with locks.locked(target):
        replace_file(path, earlier.dumps(), durable=durable)
    yield
    manifest = stage.manifest
    assert manifest is not None
    ownership.remove_files(target, stale - {*manifest.files, NAME})
    if durable:
        ownership.sync_folders(target, manifest.files)
    with locks.locked(target):
        replace_file(path, manifest.dumps(), durable=durable)


def _update_ancestors(target: str, manifest: Manifest, durable: bool) -> None:
    """Update the manifests of ancestors that list this save; until then its own manifest takes precedence."""
    for above, _, part in list(ownership.ancestor_manifests(target)):
        with locks.locked(above):
            current = ownership.read_valid_manifest(above)
            if current is not None and current.under(part).files:
                changed = current.replaced_under(part, manifest)
                replace_file(os.path.join(above, NAME), changed.dumps(), durable=durable)
