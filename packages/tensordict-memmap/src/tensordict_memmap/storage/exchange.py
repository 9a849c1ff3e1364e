"""Exchange: replaces a target by a complete staging folder, and removes the earlier save."""

from __future__ import annotations

import functools
import os

from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.tuning import is_long_removal
from tensordict_memmap.storage import cleanup, journal, locks, ownership
from tensordict_memmap.storage.manifest import Manifest

__all__ = ["put_in_place", "retire"]


def put_in_place(stage: str, target: str, manifest: Manifest, durable: bool) -> None:
    """Commit a complete staging folder to its target, in one of the ways that `transaction` describes."""
    parent = os.path.dirname(target)
    committed = False
    if os.path.dirname(stage) == parent:
        if not os.path.lexists(target):
            os.rename(stage, target)
            committed = True
        elif not _is_pinned(target):
            if not os.listdir(target):
                if os.name != "posix":
                    os.rmdir(target)
                os.rename(stage, target)
                committed = True
            elif ownership.owns_all(target):
                committed = syscalls.exchange(stage, target)
    if not committed:
        journal.commit_save(stage, target, manifest, durable)
    elif durable:
        syscalls.sync_folder(parent)


def _is_pinned(target: str) -> bool:
    """Return whether the target cannot be renamed or exchanged: it is a mount point, or holds the working directory."""
    if os.path.ismount(target):
        return True
    try:
        here = os.path.realpath(os.getcwd())
    except OSError:
        return False
    return here == target or here.startswith(target + os.sep)


def retire(folder: str, target: str) -> bool:
    """Schedule a long removal of a replaced save in the background; return False if the caller has to remove it."""
    replaced = ownership.read_valid_manifest(folder)
    if replaced is None or not is_long_removal(sum(one.size for one in replaced.files.values()), len(replaced.files)):
        return False
    try:
        lock = locks.open_locked(folder, wait=False)  # so that other savers do not remove it as abandoned
    except OSError:
        return False
    owned = ownership.owned_files(folder)
    if lock is None or owned is None:
        return False
    try:
        ownership.move_foreign(folder, owned, target)
    except BaseException:
        locks.close(lock)
        raise
    cleanup.later(target, functools.partial(ownership.remove_owned, folder, owned), [lock])
    return True
