"""One file, all or nothing: it is written beside its target under a name of its own, and renamed when it is whole.

Whoever has the earlier file mapped keeps its content. A saver holds a lock on what it writes, and locks vanish with
their process, so the next save to the same target knows which drafts nobody is writing any more and removes them.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
from collections.abc import Callable, Iterator

from tensordict_memmap.engine import syscalls as system
from tensordict_memmap.engine.tuning import is_long_removal
from tensordict_memmap.remote.urls import is_remote
from tensordict_memmap.storage import cleanup as removal
from tensordict_memmap.storage import locks as flock
from tensordict_memmap.storage.parents import made_above
from tensordict_memmap.storage.staging_names import drafts_in, new_draft

__all__ = ["draft_beside", "put_in_place", "save_file"]

_FLAGS = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)


def save_file(
    target: str | os.PathLike[str],
    write: Callable[[str], None],
    *,
    durable: bool = False,
    existsok: bool = True,
    size: int = 1 << 62,
) -> None:
    """Makes a file hold what ``write`` writes, all of it or, if anything fails, what it held before.

    Args:
        target: the file; folders above it are made where they are absent. A symbolic link is followed.
        write: called with the path of an empty file to write to. It syncs what it wrote where that is wanted.
        durable: whether the new name survives a power failure once this returns.
        existsok: whether an earlier file may be replaced.
        size: about how many bytes will be written, as ``commit.save_folder`` takes it.

    Raises:
        ValueError: The target is an address.
        IsADirectoryError: A folder has that name.
        RuntimeError: There is such a file and ``existsok`` is False.
        OSError: The system refuses; the earlier file is whole.

    >>> import pathlib
    >>> save_file("greeting.txt", lambda draft: pathlib.Path(draft).write_text("hello") and None)
    >>> pathlib.Path("greeting.txt").read_text()
    'hello'
    """
    if is_remote(target):
        raise ValueError(f"a file is written here, and {target!r} is an address; pass it to save or convert")
    path = os.path.realpath(target)
    if os.path.isdir(path):
        raise IsADirectoryError(
            errno.EISDIR, "one file is to be saved, and a folder has its name; remove it first", path
        )
    if not existsok and os.path.lexists(path):
        raise _exists(path)
    removal.make_room(path, size)
    with made_above(path, durable=durable), draft_beside(path) as draft:
        write(draft)
        if os.path.lexists(path):
            with contextlib.suppress(OSError):
                shutil.copymode(path, draft)
        with _kept_open(path):
            put_in_place(draft, path, existsok=existsok)
        if durable:
            system.sync_folder(os.path.dirname(path))


def put_in_place(draft: str, path: str, *, existsok: bool) -> None:
    """Gives a file that is whole the name that it is for; of several with ``existsok=False`` one gets it.

    Raises:
        RuntimeError: There is such a file and ``existsok`` is False.
    """
    try:
        if existsok or not system.rename_new(draft, path):
            os.replace(draft, path)
    except FileExistsError:
        raise _exists(path) from None


def _exists(path: str) -> RuntimeError:
    return RuntimeError(f"with existsok=False a save makes a new file, and there is {path}; choose another name")


@contextlib.contextmanager
def _kept_open(path: str) -> Iterator[None]:
    """Keeps the blocks of a file that is replaced until the background gives them back, where that takes long."""
    earlier = None
    if os.name == "posix":  # elsewhere a file that is open cannot be replaced
        with contextlib.suppress(OSError):
            if is_long_removal(os.stat(path).st_size):
                fd = flock.open_for_lock(path, os.O_RDONLY)
                try:
                    earlier = system.keep_open(fd)
                finally:
                    flock.close(fd)
    try:
        yield
    finally:
        if earlier is not None:
            removal.later(path, functools.partial(system.unmap, earlier, system.PAGE))


@contextlib.contextmanager
def draft_beside(path: str) -> Iterator[str]:
    """An empty file beside ``path``, locked, and removed afterwards unless it was renamed."""
    folder, name = os.path.split(path)
    _remove_leftovers(folder, name)
    draft, lock = _new_draft(folder, name)
    try:
        yield draft
    finally:
        flock.close(lock)  # first: who closes what has no name gives its blocks back, and keeps all locks waiting
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)


def _new_draft(folder: str, name: str) -> tuple[str, int]:
    while True:
        draft = os.path.join(folder, new_draft(name))
        fd = flock.open_for_lock(draft, _FLAGS | os.O_CREAT | os.O_EXCL, 0o666)
        if _lock(fd, wait=True):
            # another saver may have taken it for a leftover before it was locked
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(fd), os.stat(draft)):
                    return draft, fd
            flock.close(fd)
            continue
        return draft, fd


def _lock(fd: int, *, wait: bool) -> bool:
    """Whether the file is locked now; False where there are no locks, or another has it."""
    try:
        return flock.lock(fd, wait=wait)
    except BlockingIOError:
        return False


def _remove_leftovers(folder: str, name: str) -> None:
    with contextlib.suppress(OSError):
        for leftover in drafts_in(folder, name):
            path = os.path.join(folder, leftover)
            with contextlib.suppress(OSError):
                fd = flock.open_for_lock(path, _FLAGS)
                try:
                    if _lock(fd, wait=False):
                        os.unlink(path)
                finally:
                    flock.close(fd)
