"""Files: opens HDF5 files with clear errors; a file is not closed while another process still writes it."""

from __future__ import annotations

import errno
import os
import weakref
from typing import Any

from tensordict_store import errors
from tensordict_store.extras import require

MODES = ("r", "r+", "w", "w-", "x", "a")

_open: weakref.WeakSet[File] = weakref.WeakSet()


class File:
    """An open HDF5 file, shared by the groups of one tensordict.

    Attributes:
        handle: The file of h5py.
        path: The path.
        mode: The mode in which another process opens it again.
        locking: The option ``locking`` of h5py.
    """

    __slots__ = ("__weakref__", "direct", "handle", "locking", "mode", "path", "pid", "read_only")

    def __init__(self, handle: Any, path: str, mode: str, locking: Any) -> None:
        self.handle = handle
        self.path = path
        self.mode = "r" if mode == "r" else "r+"
        self.locking = locking
        self.pid = os.getpid()
        # HDF5 opens one file once in a process: a second handle for reading shares it with one for writing
        h5py = require("h5", "PersistentTensorDict")
        self.read_only = not handle.id.get_intent() & h5py.h5f.ACC_RDWR
        self.direct = self.read_only and handle.driver == "sec2"
        """Whether the operating system may read the data of the file past HDF5."""
        if not self.read_only:
            _open.add(self)

    def check_open(self) -> None:
        """Raise an error if the file was closed.

        Raises:
            RuntimeError: The file is closed.
        """
        if not self.handle:
            raise RuntimeError(f"the HDF5 file {self.path!r} is closed; open it again with TensorDict.from_h5")

    def check_writable(self) -> None:
        """Raise an error if the file must not be written.

        Raises:
            RuntimeError: The file is closed, or was opened before this process was forked.
            ReadOnlyError: The file was opened for reading.
        """
        self.check_open()
        if self.mode == "r":
            raise errors.ReadOnlyError(f"the HDF5 file {self.path!r} is open for reading only; open it with mode='r+'")
        if self.pid != os.getpid():
            raise RuntimeError(
                f"the HDF5 file {self.path!r} was opened for writing before this process was forked, and two processes "
                "that write through one open file damage it; open it again in the process that writes"
            )

    def flush(self) -> None:
        """Pass written data to the operating system."""
        if self.handle and not self.read_only and self.pid == os.getpid():
            self.handle.flush()


def _flush_all() -> None:
    for file in list(_open):
        file.flush()


if hasattr(os, "register_at_fork"):
    # a forked process has a copy of the unwritten data, and must not write it
    os.register_at_fork(before=_flush_all)


def open_file(path: Any, mode: str, locking: Any = None, **options: Any) -> File:
    """Open an HDF5 file.

    Args:
        path: The path of the file.
        mode: ``"r"``, ``"r+"``, ``"w"``, ``"w-"``, ``"x"`` or ``"a"``, as in h5py.
        locking: The option of h5py: whether the file is locked.
        **options: More options of ``h5py.File``.

    Raises:
        ValueError: The mode is unknown.
        FileNotFoundError: There is no file.
        FileExistsError: There is a file, and the mode creates one.
        OSError: The file is damaged, or another process has locked it.
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is unknown; pass one of {', '.join(map(repr, MODES))}")
    h5py = require("h5", "PersistentTensorDict")
    where = os.fspath(path)
    where = where.decode() if isinstance(where, bytes) else where
    # the order of entries is kept: groups that are created here remember it
    options = {"track_order": True, **options} if mode != "r" and mode != "r+" else options
    try:
        handle = h5py.File(where, mode, locking=locking, **options)
    except (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError):
        raise
    except OSError as error:
        raise _explained(where, error) from error
    return File(handle, os.path.abspath(where), mode, locking)


def _explained(path: str, error: OSError) -> OSError:
    """Return an error with a remedy."""
    text = str(error)
    if "file exists" in text:
        return FileExistsError(
            errno.EEXIST, "a file exists, and mode='w-' writes a new one; choose another path, or pass mode='a'", path
        )
    if isinstance(error, BlockingIOError) or "unable to lock" in text:
        remedy = "another process has it open; close it there, or pass locking=False if nobody writes"
    elif "already open" in text:
        remedy = "this process has it open; close it first"
    elif "truncated" in text:
        remedy = "it is shorter than its header says, so its end is missing; restore it from a copy"
    elif "signature not found" in text:
        remedy = "it is no HDF5 file, or its writer was killed before it wrote the header; write it again"
    else:
        remedy = "it may be damaged; restore it from a copy"
    return type(error)(f"the HDF5 file {path!r} cannot be opened: {remedy} ({text})")
