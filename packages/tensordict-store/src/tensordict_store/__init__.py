"""Tensordicts over HDF5 files, zarr stores and Redis servers, and their conversion from and to tables."""

from __future__ import annotations

from tensordict_core.extension import register_type
from tensordict_store.persistent.container import PersistentTensorDict
from tensordict_store.persistent.functions import from_h5, from_zarr, to_h5, to_zarr
from tensordict_store.redis.container import TensorDictStore
from tensordict_store.redis.functions import to_store
from tensordict_store.redis.lazy import LazyStackedTensorDictStore

register_type(PersistentTensorDict, name="PersistentTensorDict")
register_type(TensorDictStore, name="TensorDictStore")
register_type(LazyStackedTensorDictStore, name="LazyStackedTensorDictStore")

__all__ = [
    "LazyStackedTensorDictStore",
    "PersistentTensorDict",
    "TensorDictStore",
    "from_h5",
    "from_zarr",
    "to_h5",
    "to_store",
    "to_zarr",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
