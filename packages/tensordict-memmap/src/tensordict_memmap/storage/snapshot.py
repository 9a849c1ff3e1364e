"""Loads that overlap saves: a folder is opened file by file, and another save may take its place in the meantime.

What is loaded must be of one save. A load therefore looks, before and after, at what every kind of save changes: which
folder has the name, the description in it, and whether a journal says that files are being moved. Where that differs,
it begins again. Rows that are appended make no load of a dataset begin again, once its manifest says that it grows:
another save is told by the lock then, which goes with the dataset. Saves into a folder inside change none of this; the
load itself tells by the descriptions that it read, and raises `Replaced`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tensordict_memmap.engine import syscalls as system
from tensordict_memmap.formats.names import META
from tensordict_memmap.storage.manifest import NAME
from tensordict_memmap.storage.ownership import JOURNAL
from tensordict_memmap.storage.rows_committed import LOCK

__all__ = ["Replaced", "settled"]

_T = TypeVar("_T")
_MOST_ATTEMPTS = 200


class Replaced(Exception):
    """A part of what is loaded was saved again meanwhile: the load has to begin again."""


def settled(folder: str | os.PathLike[str], load: Callable[[], _T]) -> _T:
    """What ``load`` gives of a folder that no save replaced while it ran.

    Args:
        folder: the folder that it opens.
        load: may be called several times; its errors count only where nothing was replaced. It raises `Replaced` where
            it saw that something was.

    Raises:
        BlockingIOError: The folder was replaced again and again.

    >>> settled("anywhere", lambda: 1)
    1
    """
    path = os.path.abspath(folder)
    for attempt in range(_MOST_ATTEMPTS):
        before = _witness(path)
        try:
            loaded = load()
        except Replaced:
            pass
        except Exception:  # parts of two saves may fit together in any way or in none
            if _witness(path) == before:
                raise
        else:
            if _witness(path) == before:
                return loaded
        time.sleep(random.random() * min(attempt, 10) / 1000)
    raise BlockingIOError(
        f"a load needs a moment in which nothing is saved to {path}, and it was replaced {_MOST_ATTEMPTS} times; load "
        "it when fewer saves are made, or save to another folder"
    )


def _witness(path: str) -> Any:
    found: list[Any] = [_place(path)]
    growing = False
    above = path
    while True:
        lock = _place(f"{above}/{LOCK}")
        growing = growing or (lock is not None and _grows(above))
        found += os.path.lexists(f"{above}/{JOURNAL}"), lock
        if above == os.path.dirname(above):
            break
        above = os.path.dirname(above)
    if not growing:  # descriptions of datasets change with each append, and are read as of one moment
        # the manifest of what has a description says nothing more
        found.append(system.stamp(f"{path}/{META}") or system.stamp(f"{path}/{NAME}"))
    return found


def _grows(folder: str) -> bool:
    try:
        return b'"growing":' in (system.read_file(f"{folder}/{NAME}") or b"")
    except OSError:
        return False


def _place(path: str) -> Any:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino
