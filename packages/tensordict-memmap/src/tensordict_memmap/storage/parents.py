"""Folders above what is saved: made where they are absent, and taken back where the save does not come about."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from tensordict_memmap.engine import syscalls as system

__all__ = ["made_above"]


@contextlib.contextmanager
def made_above(path: str, *, durable: bool = False) -> Iterator[None]:
    """Makes the folders above a path for as long as something is done there, and for good if that succeeds.

    Args:
        path: an absolute path.
        durable: whether the folders survive a power failure.

    >>> with made_above(os.path.abspath("x/y/z")):
    ...     os.path.isdir("x/y")
    True
    """
    new = []
    folder = os.path.dirname(path)
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        new.append(folder)
        folder = os.path.dirname(folder)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if durable:
        for one in reversed(new):
            system.sync_folder(os.path.dirname(one))
    try:
        yield
    except BaseException:
        for one in new:
            with contextlib.suppress(OSError):  # somebody else uses it by now
                os.rmdir(one)
        raise
