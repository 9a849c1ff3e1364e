"""Tensordicts over HDF5 files, zarr stores and Redis servers, and their conversion from and to tables."""

from __future__ import annotations

from tensordict_core.extension import register_type
from tensordict_store.persistent.container import PersistentTensorDict
from tensordict_store.persistent.functions import from_h5, from_zarr, to_h5, to_zarr
from tensordict_store.redis.container import TensorDictStore
from tensordict_store.redis.functions import to_store
from tensordict_store.redis.lazy import LazyStackedTensorDictStore
from tensordict_store.schemas import from_schema
from tensordict_store.streams.pipe import TensorDictPipe, TensorDictServer
from tensordict_store.tables.frames import from_pandas, to_pandas
from tensordict_store.tables.from_arrow import from_arrow
from tensordict_store.tables.mds import to_mds
from tensordict_store.tables.parquet import from_parquet, iter_parquet, to_parquet
from tensordict_store.tables.text import from_csv, from_json, to_csv, to_json
from tensordict_store.tables.to_arrow import to_arrow

register_type(PersistentTensorDict, name="PersistentTensorDict")
register_type(TensorDictStore, name="TensorDictStore")
register_type(LazyStackedTensorDictStore, name="LazyStackedTensorDictStore")

__version__ = "0.1.0"

__all__ = [
    "LazyStackedTensorDictStore",
    "PersistentTensorDict",
    "TensorDictPipe",
    "TensorDictServer",
    "TensorDictStore",
    "from_arrow",
    "from_csv",
    "from_h5",
    "from_json",
    "from_pandas",
    "from_parquet",
    "from_schema",
    "from_zarr",
    "iter_parquet",
    "to_arrow",
    "to_csv",
    "to_h5",
    "to_json",
    "to_mds",
    "to_pandas",
    "to_parquet",
    "to_store",
    "to_zarr",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
