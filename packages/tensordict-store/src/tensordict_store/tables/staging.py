"""Staging: a file is written beside its target and renamed, so that a reader sees the earlier file or the new one."""

from __future__ import annotations

import os
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
