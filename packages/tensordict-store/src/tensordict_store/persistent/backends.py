"""Backends: the formats of persistent tensordicts, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict_store.hdf5.group import create_file
from tensordict_store.hdf5.group import open_group as open_h5
from tensordict_store.zarr.group import create_store
from tensordict_store.zarr.group import open_group as open_zarr

BACKENDS: dict[str, Callable[..., Any]] = {"h5": open_h5, "zarr": open_zarr}
"""Functions that open a file or a store; they return its root group."""
CREATORS: dict[str, Callable[..., Any]] = {"h5": create_file, "zarr": create_store}
"""Functions that write a new file or store in place of another one; they return its root group."""
