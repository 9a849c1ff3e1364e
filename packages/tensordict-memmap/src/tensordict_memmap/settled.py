"""Loads that overlap saves: a folder is opened file by file, and another save may take its place in the meantime.

What is loaded must be of one save. A load therefore looks, before and after, at what every kind of save changes: which
folder has the name, the description in it, and whether a journal says that files are being moved. Where that differs,
it begins again. Rows that are appended to a dataset change none of it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tensordict_memmap.commit import JOURNAL
from tensordict_memmap.formats.names import META
from tensordict_memmap.manifest import NAME

__all__ = ["settled"]

_T = TypeVar("_T")
_MOST_ATTEMPTS = 200


def settled(folder: str | os.PathLike[str], load: Callable[[], _T]) -> _T:
    """What ``load`` gives of a folder that no save replaced while it ran.

    Args:
        folder: the folder that it opens.
        load: may be called several times; its errors count only where nothing was replaced.

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
        except (OSError, ValueError, KeyError):
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
    found: list[Any] = []
    for place in (path, f"{path}/{META}", f"{path}/{NAME}"):
        try:
            info = os.stat(place)
        except OSError:
            found.append(None)
            continue
        found.append((info.st_dev, info.st_ino) if place == path else (info.st_ino, info.st_mtime_ns, info.st_size))
        if len(found) == 2:
            break  # the manifest of what has a description says nothing more, and changes with each append
    above = path
    while True:
        found.append(os.path.lexists(f"{above}/{JOURNAL}"))
        if above == os.path.dirname(above):
            return found
        above = os.path.dirname(above)
