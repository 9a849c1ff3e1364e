"""Staging: files and folders are written under a temporary name beside their target, and renamed when they are whole.

A process holds a lock on everything that it stages. Locks vanish with their process, so a staged file or folder that is
not locked belongs to a process that was killed, and the next save to the same target removes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator

from tensordict_memmap.engine import syscalls
from tensordict_memmap.formats.names import STAGING
from tensordict_memmap.storage import locks

__all__ = [
    "file_exists",
    "list_staged",
    "make_parents",
    "put_in_place",
    "remove_abandoned",
    "replace_file",
    "replacing",
    "staged_file",
    "staged_names",
    "staging_name",
    "temporary_folder",
]

_TOKEN = re.compile("[0-9a-f]{16}")

_MANY = 200
"""Names in a folder from which on listing them counts beside a short save."""

_REST = 20
"""How many times as long as listing such a folder took its listing stays in use."""

_listings: dict[str, tuple[float, list[str]]] = {}
"""For each folder of many names: until when its listing stays in use, and the staging names in it."""


# --- names


def staging_name(target: str = "") -> str:
    """A new name for what is to become the file or folder called ``target``.

    Without a target it is the name of a folder that is staged within its own target.

    >>> name = staging_name("run")
    >>> name.startswith(".run.tensordict-"), staged_names([name, "run", staging_name("other")], "run") == [name]
    (True, True)
    """
    return _prefix(target) + secrets.token_hex(8)


def staged_names(names: Iterable[str], target: str = "") -> list[str]:
    """Those of some names that `staging_name` gives for ``target``."""
    prefix = _prefix(target)
    return [name for name in names if name.startswith(prefix) and _TOKEN.fullmatch(name, len(prefix))]


def list_staged(folder: str, target: str = "") -> list[str]:
    """The staging names for ``target`` in a folder.

    Thousands of saves into one folder would take a time that grows with the square of their number, so the listing of
    a folder of many names is kept for a while.

    Raises:
        OSError: The folder cannot be listed.

    >>> name = staging_name("run")
    >>> os.makedirs(os.path.join("runs", name))
    >>> list_staged("runs", "run") == [name], list_staged("runs", "other")
    (True, [])
    """
    until, known = _listings.get(folder, (0.0, []))
    start = time.monotonic()
    if start >= until:
        names = os.listdir(folder)
        known = [name for name in names if STAGING in name]
        if len(names) >= _MANY:
            end = time.monotonic()
            _listings[folder] = end + _REST * (end - start), known
        else:
            _listings.pop(folder, None)
    return staged_names(known, target)


def _prefix(target: str) -> str:
    return f".{target}{STAGING}" if target else STAGING


# --- files


@contextlib.contextmanager
def staged_file(path: str) -> Iterator[str]:
    """An empty file beside ``path``, locked, and removed afterwards unless it was renamed."""
    folder, name = os.path.split(path)
    remove_abandoned(folder, name, os.unlink, locks.FILE)
    staged, lock = _new_file(folder, name)
    try:
        yield staged
    finally:
        locks.close(lock)  # first: closing a file without a name frees its blocks, and keeps all locks waiting
        with contextlib.suppress(FileNotFoundError):
            os.unlink(staged)


def _new_file(folder: str, name: str) -> tuple[str, int]:
    while True:
        staged = os.path.join(folder, staging_name(name))
        fd = locks.open_for_lock(staged, locks.FILE | os.O_CREAT | os.O_EXCL, 0o666)
        if not locks.lock(fd, wait=True):
            return staged, fd
        # another saver may have taken it for an abandoned file before it was locked
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(fd), os.stat(staged)):
                return staged, fd
        locks.close(fd)


def put_in_place(staged: str, path: str, *, existsok: bool = True) -> None:
    """Renames a whole file to its target; of several at once with ``existsok=False`` one succeeds.

    Raises:
        RuntimeError: The target exists and ``existsok`` is False.
    """
    try:
        if existsok or not syscalls.rename_new(staged, path):
            os.replace(staged, path)
    except FileExistsError:
        raise file_exists(path) from None


def file_exists(path: str) -> RuntimeError:
    """The error of a save with ``existsok=False`` to a file that exists."""
    return RuntimeError(f"{path} exists, and a save with existsok=False makes a new file; choose another name")


@contextlib.contextmanager
def replacing(path: str, *, existsok: bool = True) -> Iterator[str]:
    """A name beside a file; what is written there takes the place of the file in one step, unless the block raises.

    >>> from pathlib import Path
    >>> with replacing("new.txt") as staged:
    ...     _ = Path(staged).write_text("hello")
    >>> Path("new.txt").read_text(), [name for name in os.listdir() if name.startswith("new.txt.")]
    ('hello', [])
    """
    staged = f"{path}.{secrets.token_hex(8)}"
    try:
        yield staged
        put_in_place(staged, path, existsok=existsok)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(staged)
        raise


def replace_file(path: str, data: bytes, *, durable: bool) -> None:
    """Gives a small file new content in one step; readers never see a part of it."""
    with replacing(path) as staged:
        syscalls.write_file(staged, data, durable)
    if durable:
        syscalls.sync_folder(os.path.dirname(path))


# --- folders


@contextlib.contextmanager
def make_parents(path: str, *, durable: bool = False) -> Iterator[None]:
    """Makes the folders above an absolute path, and removes those that are new if the block raises.

    Args:
        path: the path.
        durable: whether the folders survive a power failure.

    >>> with make_parents(os.path.abspath("x/y/z")):
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
            syscalls.sync_folder(os.path.dirname(one))
    try:
        yield
    except BaseException:
        for one in new:
            with contextlib.suppress(OSError):  # another save uses it by now
                os.rmdir(one)
        raise


def remove_abandoned(folder: str, target: str, remove: Callable[[str], object], flags: int = locks.FOLDER) -> None:
    """Removes what killed processes staged for a target.

    Args:
        folder: where it was staged.
        target: the name of the target.
        remove: removes a staged file or folder.
        flags: how those are opened.
    """
    with contextlib.suppress(OSError):
        for name in list_staged(folder, target):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError), locks.try_locked(path, flags) as is_abandoned:
                if is_abandoned:
                    remove(path)


_TEMPORARY = "tensordict"


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """A new folder in the system's temporary folder for the time of a block, for saves that are uploaded afterwards.

    The next one removes what killed processes of this user left.

    >>> with temporary_folder() as folder:
    ...     os.listdir(folder)
    []
    >>> os.path.exists(folder)
    False
    """
    base = tempfile.gettempdir()
    with locks.locked(os.path.join(base, STAGING)):  # no other process finds the folder before it is locked
        remove_abandoned(base, _TEMPORARY, _remove_mine)
        folder = os.path.join(base, staging_name(_TEMPORARY))
        os.mkdir(folder, 0o700)
        lock = locks.open_locked(folder, wait=False)
    inside = os.path.join(folder, "content")  # a saver locks the folder above its target
    os.mkdir(inside)
    try:
        yield inside
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock >= 0:
            locks.close(lock)


def _remove_mine(folder: str) -> None:
    if os.lstat(folder).st_uid == os.geteuid():
        shutil.rmtree(folder, ignore_errors=True)
