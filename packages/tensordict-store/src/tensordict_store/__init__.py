"""Tensordicts over HDF5 files, zarr stores and Redis servers, and their conversion from and to tables."""

from __future__ import annotations

from tensordict_core.extension import register_type
from tensordict_store.persistent.container import PersistentTensorDict
from tensordict_store.persistent.functions import from_h5, to_h5

register_type(PersistentTensorDict, name="PersistentTensorDict")

__all__ = ["PersistentTensorDict", "from_h5", "to_h5"]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
