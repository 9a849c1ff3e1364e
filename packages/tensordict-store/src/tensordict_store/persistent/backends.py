"""Backends: the formats of persistent tensordicts, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tensordict_store.hdf5.group import create_file
from tensordict_store.hdf5.group import open_group as open_h5
from tensordict_store.zarr.group import create_store
from tensordict_store.zarr.group import open_group as open_zarr


class Backend(NamedTuple):
    """A format of persistent tensordicts.

    Attributes:
        open: The function that opens a file or a store; it returns its root group.
        create: The function that writes a new file or store in place of another one; it returns its root group.
    """

    open: Callable[..., Any]
    create: Callable[..., Any]


_BACKENDS = {"h5": Backend(open_h5, create_file), "zarr": Backend(open_zarr, create_store)}


def backend_of(name: str) -> Backend:
    """Return the backend of a name.

    Raises:
        ValueError: The name is unknown.
    """
    if name not in _BACKENDS:
        raise ValueError(f"backend={name!r} is unknown; pass {' or '.join(map(repr, _BACKENDS))}")
    return _BACKENDS[name]
