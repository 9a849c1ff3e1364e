"""Stores: opens zarr stores of format 3 with clear errors, and replaces a folder as a whole."""

from __future__ import annotations

import os
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from tensordict_store import errors
from tensordict_store.extras import require
from tensordict_store.staging import staged_folder

MODES = ("r", "r+", "w", "w-", "x", "a")


class Store:
    """An open zarr store, shared by the groups of one tensordict.

    Attributes:
        location: The path, URL or store that was opened.
        mode: The mode in which another process opens it again.
        storage_options: The options of fsspec for a URL.
        changed: Whether metadata were written since they were consolidated.
        closed: Whether it was closed.
    """

    __slots__ = ("changed", "closed", "location", "mode", "storage_options")

    def __init__(self, location: Any, mode: str, storage_options: Any) -> None:
        self.location = location
        self.mode = "r" if mode == "r" else "r+"
        self.storage_options = storage_options
        self.changed = False
        self.closed = False

    def check_open(self) -> None:
        """Raise an error if the store was closed.

        Raises:
            RuntimeError: It was.
        """
        if self.closed:
            raise RuntimeError(f"the zarr store {self.location!r} is closed; open it again with TensorDict.from_zarr")

    def check_writable(self) -> None:
        """Raise an error if the store must not be written.

        Raises:
            RuntimeError: The store is closed.
            ReadOnlyError: The store was opened for reading.
        """
        self.check_open()
        if self.mode == "r":
            raise errors.ReadOnlyError(
                f"the zarr store {self.location!r} is open for reading only; open it with mode='r+'"
            )


def check_name(name: str) -> None:
    """Raise an error if a key cannot be the name of an array or a group.

    Raises:
        KeyError: It cannot.
    """
    if not name or "/" in name or name in (".", "..") or name.startswith("__") or name == "zarr.json":
        raise KeyError(
            f"key {name!r} cannot be a name in a zarr store, where '/' separates groups and names that start with "
            "'__' are reserved; rename the entry first"
        )


def open_store(
    location: Any, mode: str, storage_options: Any = None, zarr_format: int | None = None
) -> tuple[Store, Any]:
    """Open a zarr store, and return it with its root group.

    Args:
        location: A path, a URL, or a store of zarr.
        mode: ``"r"``, ``"r+"``, ``"w"``, ``"w-"``, ``"x"`` (the same as ``"w-"``) or ``"a"``, as in zarr.
        storage_options: The options of fsspec for a URL.
        zarr_format: The format of a store that is opened, if it is known, which saves requests.

    Raises:
        ValueError: The mode is unknown.
        FileNotFoundError: There is nothing.
        OSError: It is not a zarr group.
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is unknown; pass one of {', '.join(map(repr, MODES))}")
    mode = "w-" if mode == "x" else mode
    zarr = require("zarr", "PersistentTensorDict")
    where = os.fspath(location) if isinstance(location, os.PathLike) else location
    options = {} if storage_options is None else {"storage_options": storage_options}
    if mode != "r":
        # a writer changes the metadata of arrays, and consolidated copies of them would be stale
        options["use_consolidated"] = False
    try:
        group = zarr.open_group(where, mode=mode, zarr_format=3 if mode in ("w", "w-") else zarr_format, **options)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no zarr group at {where!r}; write one with to_zarr ({error})") from error
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, FileExistsError) or "Contains" in type(error).__name__:
            raise
        raise OSError(
            f"the zarr store {where!r} cannot be opened; its metadata may be damaged: restore it from a copy ({error})"
        ) from error
    return Store(where, mode, storage_options), group


def to_keep(store: Any, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return values that a store of zarr may keep: stores in memory hold the very arrays that they are given."""
    memory: type = require("zarr", "PersistentTensorDict").storage.MemoryStore
    return values.copy() if isinstance(store, memory) else values


def consolidate(group: Any) -> None:
    """Write the metadata of all arrays into the root, so that readers open them with one request."""
    zarr = require("zarr", "PersistentTensorDict")
    zarr.core.sync.sync(consolidated(zarr.api.asynchronous.consolidate_metadata(group.store, path=group.path)))


async def consolidated(request: Awaitable[Any]) -> None:
    """Wait for a request of zarr that consolidates metadata, without the warning that the format has no such thing."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Consolidated metadata is currently not part")
        await request


def replace_folder(location: Any, write: Callable[[Any], None]) -> None:
    """Write a store; a folder is written beside its place and moved there, so an earlier one is kept until then.

    Args:
        location: A path, a URL, or a store of zarr.
        write: A function that writes the store at the location that it is given.
    """
    where = os.fspath(location) if isinstance(location, os.PathLike) else location
    if not isinstance(where, str) or "://" in where:
        write(where)
        return
    try:
        with staged_folder(where, replaces=True) as new:
            write(new)
    except OSError as error:
        raise OSError(
            error.errno, f"the zarr store {where!r} could not be written and is unchanged: {error}"
        ) from error
