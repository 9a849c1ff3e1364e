"""Detection of the format at a path, by the first and last bytes of the file, independent of its name.

The format is detected first, and then the path is opened in that format. Another save may replace it in between, so an
error is raised only if the path is still unchanged.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import TypeVar

from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.formats.detect import SAFETENSORS, TREE, format_by_content, format_by_name
from tensordict_memmap.formats.names import META
from tensordict_memmap.formats.oldest import META_PT
from tensordict_memmap.formats.safetensors.header import ENDING, INDEX_NAME, SINGLE_NAME

_T = TypeVar("_T")
_Witness = tuple[int, int, int, int] | None
_MOST_ATTEMPTS = 200


def format_of(path: str | os.PathLike[str]) -> str:
    """Return the format of the save at a path; if there is none, the format that a save would have there.

    >>> _ = TensorDict({"a": torch.zeros(3)}).consolidate("any.name")
    >>> format_of("any.name"), format_of("nothing.tdz"), format_of("nothing")
    ('consolidated', 'archive', 'tree')
    """
    return _look(path)[0]


def opened(path: str | os.PathLike[str], open_as: Callable[[str], _T]) -> _T:
    """Open a path in the format that it has when it is opened.

    Args:
        path: The path.
        open_as: A function that opens it in a format; may be called several times.

    >>> opened("nothing.tdz", lambda kind: kind)
    'archive'
    """
    found = _presumed(path) or _look(path)
    for _ in range(_MOST_ATTEMPTS):
        try:
            return open_as(found[0])
        except Exception:
            earlier, found = found, _look(path)
            if found == earlier:
                raise
    return open_as(found[0])


def _presumed(path: str | os.PathLike[str]) -> tuple[str, _Witness] | None:
    """Return the result of `_look` for nearly every file with the ending of safetensors, but do not open the file."""
    if not str(path).endswith(ENDING):
        return None
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return None
    return (SAFETENSORS, _witness(info)) if stat.S_ISREG(info.st_mode) else None


def _witness(info: os.stat_result) -> _Witness:
    return info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size


def _look(path: str | os.PathLike[str]) -> tuple[str, _Witness]:
    """Return the format at a path, and the identity of the file."""
    try:
        file = Descriptor(os.open, path, os.O_RDONLY | syscalls.NO_WAIT | syscalls.BINARY)
    except (OSError, ValueError):
        return format_by_name(os.fspath(path)), None
    with file:
        fd = file.fileno()
        info = os.fstat(fd)
        witness = _witness(info)
        if stat.S_ISDIR(info.st_mode):
            return SAFETENSORS if _holds_safetensors(path) else TREE, witness
        if not stat.S_ISREG(info.st_mode):
            return SAFETENSORS, witness  # whose reader refuses pipes and devices

        def read(offset: int, nbytes: int) -> bytes:
            os.lseek(fd, offset, os.SEEK_SET)
            return os.read(fd, nbytes)

        return format_by_content(info.st_size, read), witness


def _holds_safetensors(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds one safetensors file or shards, and no tree."""
    found = [path for name in (INDEX_NAME, SINGLE_NAME) if syscalls.is_there(path := os.path.join(folder, name))]
    return any(map(os.path.isfile, found)) and not any(
        os.path.lexists(os.path.join(folder, name)) for name in (META, META_PT)
    )
