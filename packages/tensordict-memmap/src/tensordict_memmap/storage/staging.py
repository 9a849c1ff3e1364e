"""Staging: writes files and folders under a temporary name beside their target, and renames them once complete.

A process holds a lock on each file and folder that it stages. A lock ends with its process, so one that is not locked
was left by a killed process, and the next save to the same target removes it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator

from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.formats.names import LEAF, STAGING
from tensordict_memmap.storage import locks
from tensordict_memmap.storage.modes import PRIVATE_FILE, copy_mode
from tensordict_memmap.storage.removal import remove_tree

_TOKEN = re.compile("[0-9a-f]{16}")

_LONGEST = 255
"""The number of bytes of the longest file name."""

_CACHED_LISTING_MIN = 200
"""Number of names in a folder from which its listing is cached, since listing it takes as long as a short save."""

_CACHED_LISTING_FACTOR = 20
"""For how long a listing is cached, as a multiple of the time that it took."""

_listings: dict[str, tuple[float, list[str]]] = {}
"""The cached listings: for each folder, the time at which the entry expires, and the staging names in the folder."""


# --- names


def staging_name(target: str = "") -> str:
    """Return a new temporary name for a file or folder that will be renamed to ``target``.

    Without a target it is the name of a staging folder inside the target folder.

    >>> name = staging_name("run")
    >>> name.startswith(".run.tensordict-"), staged_names([name, "run", staging_name("other")], "run") == [name]
    (True, True)
    """
    return _prefix(target) + secrets.token_hex(8)


def staged_names(names: Iterable[str], target: str = "") -> list[str]:
    """Return those of the names that have the form of `staging_name` for ``target``."""
    prefix = _prefix(target)
    return [name for name in names if name.startswith(prefix) and _TOKEN.fullmatch(name, len(prefix))]


def list_staged(folder: str, target: str = "") -> list[str]:
    """List the staging names for ``target`` in a folder.

    Listing a folder for each save takes quadratic time in total over thousands of saves into one folder, so the
    listing of a large folder is cached for a while.

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
        if len(names) >= _CACHED_LISTING_MIN:
            end = time.monotonic()
            _listings[folder] = end + _CACHED_LISTING_FACTOR * (end - start), known
        else:
            _listings.pop(folder, None)
    return staged_names(known, target)


def _prefix(target: str) -> str:
    return f".{_shortened(target, len(STAGING) + 17)}{STAGING}" if target else STAGING


def _shortened(name: str, more: int) -> str:
    """Return a file name, or a hash of it if it is too long with ``more`` bytes, which keeps the suffix of leaves."""
    encoded = os.fsencode(name)
    if len(encoded) + more <= _LONGEST:
        return name
    return hashlib.blake2b(encoded, digest_size=16).hexdigest() + (LEAF if name.endswith(LEAF) else "")


# --- files


@contextlib.contextmanager
def staged_file(path: str) -> Iterator[str]:
    """Create and lock an empty temporary file beside ``path``; remove it afterwards unless it was renamed."""
    folder, name = os.path.split(path)
    remove_abandoned(folder, name, os.unlink, locks.FILE)
    staged, lock = _new_file(folder, name, PRIVATE_FILE if os.path.lexists(path) else 0o666)
    try:
        yield staged
    finally:
        locks.close(lock)  # before the unlink: closing an unlinked file frees its blocks while `locks` is blocked
        with contextlib.suppress(FileNotFoundError):
            os.unlink(staged)


def _new_file(folder: str, name: str, mode: int) -> tuple[str, Descriptor]:
    while True:
        staged = os.path.join(folder, staging_name(name))
        fd = locks.open_for_lock(staged, locks.FILE | os.O_CREAT | os.O_EXCL, mode)
        if not locks.lock(fd, wait=True, path=staged):
            return staged, fd
        # another saver may have removed it as abandoned before it was locked
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(fd.fileno()), os.stat(staged)):
                return staged, fd
        locks.close(fd)


def put_in_place(staged: str, path: str, *, existsok: bool = True) -> None:
    """Rename a complete file to its target; with ``existsok=False`` only one of several concurrent calls succeeds.

    Raises:
        RuntimeError: The target exists and ``existsok`` is False.
    """
    try:
        if existsok or not syscalls.rename_new(staged, path):
            os.replace(staged, path)
    except FileExistsError:
        raise file_exists(path) from None


def file_exists(path: str) -> RuntimeError:
    """Return the error of a save with ``existsok=False`` to a file that exists."""
    return RuntimeError(f"The file {path} already exists, and existsok=False replaces none; choose another name")


def refuse_special(path: str) -> None:
    """Refuse to save a file in the place of a pipe, a device or a socket.

    Raises:
        FileExistsError: The path is one of them.

    >>> refuse_special("absent.txt")
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        mode = os.stat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise FileExistsError(
                errno.EEXIST, "a pipe, device or socket has the name of the file to save; choose another name", path
            )


@contextlib.contextmanager
def replacing(path: str, *, existsok: bool = True) -> Iterator[str]:
    """Yield a temporary path; a file written there replaces ``path`` in one step, unless the block raises.

    The file gets the mode of the one that it replaces, and until then only this user may read it.

    >>> from pathlib import Path
    >>> with replacing("new.txt") as staged:
    ...     _ = Path(staged).write_text("hello")
    >>> Path("new.txt").read_text(), [name for name in os.listdir() if name.startswith("new.txt.")]
    ('hello', [])
    """
    refuse_special(path)
    folder, name = os.path.split(path)
    staged = os.path.join(folder, f"{_shortened(name, 17)}.{secrets.token_hex(8)}")
    replaces = os.path.lexists(path)
    try:
        if replaces:
            Descriptor(os.open, staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE).close()
        yield staged
        if replaces:
            copy_mode(path, staged)
        put_in_place(staged, path, existsok=existsok)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(staged)
        raise


def replace_file(path: str, data: bytes, *, durable: bool) -> None:
    """Replace the content of a small file in one step; readers never see a partial file."""
    with replacing(path) as staged:
        syscalls.write_file(staged, data, durable)
    if durable:
        syscalls.sync_folder(os.path.dirname(path))


# --- folders


@contextlib.contextmanager
def make_parents(path: str, *, durable: bool = False) -> Iterator[None]:
    """Create the parent folders of an absolute path, and remove the new ones if the block raises.

    Args:
        path: The path.
        durable: Whether to sync the folders to disk.

    >>> with make_parents(os.path.abspath("x/y/z")):
    ...     os.path.isdir("x/y")
    True
    """
    new = []
    folder = os.path.dirname(path)
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        new.append(folder)
        folder = os.path.dirname(folder)
    try:
        if new:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        if durable:
            for one in reversed(new):
                syscalls.sync_folder(os.path.dirname(one))
        yield
    except BaseException:
        for one in new:
            with contextlib.suppress(OSError):  # another save has used it
                os.rmdir(one)
        raise


def remove_abandoned(
    folder: str,
    target: str,
    remove: Callable[[str], object],
    flags: int = locks.FOLDER,
    names: Iterable[str] | None = None,
) -> None:
    """Remove the staged files and folders that killed processes left for a target.

    Args:
        folder: The folder that holds them.
        target: The name of the target.
        remove: A function that removes a staged file or folder.
        flags: The flags for opening them.
        names: The names in the folder, if the caller has listed it.
    """
    with contextlib.suppress(OSError):
        for name in list_staged(folder, target) if names is None else staged_names(names, target):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError), locks.try_locked(path, flags) as is_abandoned:
                if is_abandoned:
                    remove(path)


_TEMPORARY = "tensordict"


@contextlib.contextmanager
def temporary_folder(base: str | None = None) -> Iterator[str]:
    """Create a folder for the duration of a block, which only this user may read; the block may rename it.

    It first removes such folders that killed processes of this user left.

    Args:
        base: The folder in which it is created; by default the system's temporary folder.

    >>> with temporary_folder() as folder:
    ...     os.listdir(folder)
    []
    >>> os.path.exists(folder)
    False
    """
    base = base or tempfile.gettempdir()
    folder, lock = os.path.join(base, staging_name(_TEMPORARY)), None
    inside = os.path.join(folder, "content")  # a saver locks the parent of its target, which is locked here already
    try:
        with locks.locked(os.path.join(base, STAGING)):  # other processes must not find the folder before it is locked
            remove_abandoned(base, _TEMPORARY, _remove_mine)
            os.mkdir(folder, 0o700)
            lock = locks.open_locked(folder, wait=False)
        os.mkdir(inside, 0o700)
        yield inside
    finally:
        remove_tree(folder, ignore_errors=True)
        if lock is not None:
            locks.close(lock)


def _remove_mine(folder: str) -> None:
    if os.lstat(folder).st_uid == os.geteuid():
        remove_tree(folder, ignore_errors=True)
