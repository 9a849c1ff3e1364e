"""Exchange: replaces a target by a complete staging folder, and removes the earlier save."""

from __future__ import annotations

import functools
import os

from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.mounts import is_mount
from tensordict_memmap.engine.tuning import is_long_removal
from tensordict_memmap.storage import cleanup, journal, locks, ownership
from tensordict_memmap.storage.manifest import Manifest
from tensordict_memmap.storage.ownership import Save


def put_in_place(stage: str, target: str, manifest: Manifest, durable: bool) -> Save | None:
    """Commit a complete staging folder to its target, in one of the ways that `transaction` describes.

    Returns:
        The replaced save, if it is now in the staging folder.
    """
    parent = os.path.dirname(target)
    committed, replaced = False, None
    if os.path.dirname(stage) == parent:
        if not os.path.lexists(target):
            os.rename(stage, target)
            committed = True
        elif not _is_pinned(target):
            if (earlier := ownership.find_save(target)) is not None:
                if ownership.owns_all(target, earlier.owned):
                    committed = syscalls.exchange(stage, target)
                    replaced = earlier if committed else None
            elif not os.listdir(target):
                if os.name != "posix":
                    os.rmdir(target)
                os.rename(stage, target)
                committed = True
    if not committed:
        journal.commit_save(stage, target, manifest, durable)
    elif durable:
        syscalls.sync_folder(parent)
    return replaced


def _is_pinned(target: str) -> bool:
    """Return whether the target cannot be renamed or exchanged: it is a mount point, or holds the working directory."""
    if is_mount(target):
        return True
    try:
        here = os.getcwd() if syscalls.POSIX else os.path.realpath(os.getcwd())
    except OSError:
        return False
    return here == target or here.startswith(target + os.sep)


def retire(folder: str, target: str, replaced: Save) -> bool:
    """Schedule a long removal of a replaced save in the background; return False if the caller has to remove it."""
    files = replaced.manifest.files
    if not is_long_removal(sum(one.size for one in files.values()), len(files)):
        return False
    try:
        lock = locks.open_locked(folder, wait=False)  # so that other savers do not remove it as abandoned
    except OSError:
        return False
    if lock is None:
        return False
    try:
        ownership.move_foreign(folder, replaced.owned, target)
    except BaseException:
        locks.close(lock)
        raise
    cleanup.later(target, functools.partial(ownership.remove_owned, folder, replaced.owned), [lock])
    return True
