"""Staging: a file or folder is written beside its target and renamed: a reader sees the earlier one or the new one."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def staged(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the path of a file to write; it takes the place of ``path`` when the block ends without an error.

    >>> with staged("rows.txt") as file:
    ...     with open(file, "w") as stream:
    ...         _ = stream.write("text")
    >>> from pathlib import Path
    >>> Path("rows.txt").read_text()
    'text'
    """
    target = os.path.realpath(path)  # a link keeps naming its target
    if os.path.exists(target) and not os.path.isfile(target):
        raise OSError(f"{target!r} is not a regular file; name a file")
    folder, name = os.path.split(target)
    beside = os.path.join(folder, f".{name[:100]}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        yield beside
        if os.path.exists(target):
            os.chmod(beside, os.stat(target).st_mode & 0o7777)
        os.replace(beside, target)
    finally:
        with suppress(FileNotFoundError):
            os.remove(beside)


@contextmanager
def staged_folder(path: str | os.PathLike[str], *, replaces: bool = False) -> Iterator[str]:
    """Yield the path of a folder to write; it takes the place of ``path`` when the block ends without an error.

    Args:
        path: The folder; it is absent or empty, unless the new one replaces it.
        replaces: Whether what is at the path is removed then.

    >>> with staged_folder("rows") as folder:
    ...     os.mkdir(folder)
    >>> os.listdir(), os.listdir("rows")
    (['rows'], [])
    """
    place = os.path.abspath(path)
    beside = f"{place}.{os.getpid()}-{secrets.token_hex(4)}"
    new, old = f"{beside}.tmp", f"{beside}.old"
    try:
        yield new
        if replaces and os.path.lexists(place):
            os.rename(place, old)
        os.rename(new, place)
    finally:
        if os.path.lexists(old) and not os.path.lexists(place):
            os.rename(old, place)
        for one in (new, old):
            shutil.rmtree(one, ignore_errors=True)
        with suppress(OSError):
            os.unlink(old)  # where it was a file or a link
