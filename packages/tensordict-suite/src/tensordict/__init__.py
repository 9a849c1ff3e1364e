"""The import name ``tensordict``: the public names of tensordict-core and of its installed satellites.

This package defines nothing. A name is imported from the distribution that owns it when it is first used, so that
``import tensordict`` loads neither torch nor numba, and a program needs only the distributions that it uses.
In ``_serve``, ``names.py`` lists the owner of each name, ``lazy.py`` imports it, and ``aliases.py`` lists module paths
and private names that published programs import, each with its public name.

>>> from tensordict import TensorDict
>>> import tensordict_core
>>> TensorDict is tensordict_core.TensorDict
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict._serve.lazy import refuse_beside_reference, serve

refuse_beside_reference()

if TYPE_CHECKING:
    from tensordict_class import *
    from tensordict_core import *
    from tensordict_memmap import MemmapDataset as MemmapDataset
    from tensordict_memmap import MemoryMappedTensor as MemoryMappedTensor
    from tensordict_memmap import append_memmap as append_memmap
    from tensordict_memmap import compare as compare
    from tensordict_memmap import convert as convert
    from tensordict_memmap import from_consolidated as from_consolidated
    from tensordict_memmap import from_safetensors as from_safetensors
    from tensordict_memmap import is_memmap_archive as is_memmap_archive
    from tensordict_memmap import load as load
    from tensordict_memmap import load_into as load_into
    from tensordict_memmap import load_memmap as load_memmap
    from tensordict_memmap import memmap as memmap
    from tensordict_memmap import pack_memmap as pack_memmap
    from tensordict_memmap import refresh_archive_checksums as refresh_archive_checksums
    from tensordict_memmap import save as save
    from tensordict_memmap import to_safetensors as to_safetensors
    from tensordict_memmap import unpack_memmap as unpack_memmap
    from tensordict_nn import TensorClassModuleBase as TensorClassModuleBase
    from tensordict_nn import TensorClassModuleWrapper as TensorClassModuleWrapper
    from tensordict_nn import TensorDictParams as TensorDictParams
    from tensordict_nn import as_tensordict_module as as_tensordict_module
    from tensordict_nn import from_module as from_module
    from tensordict_nn import from_modules as from_modules
    from tensordict_store import LazyStackedTensorDictStore as LazyStackedTensorDictStore
    from tensordict_store import PersistentTensorDict as PersistentTensorDict
    from tensordict_store import TensorDictStore as TensorDictStore
    from tensordict_store import from_arrow as from_arrow
    from tensordict_store import from_csv as from_csv
    from tensordict_store import from_h5 as from_h5
    from tensordict_store import from_json as from_json
    from tensordict_store import from_pandas as from_pandas
    from tensordict_store import from_parquet as from_parquet
    from tensordict_store import from_zarr as from_zarr
    from tensordict_store import to_arrow as to_arrow

    MemmapTensor = MemoryMappedTensor
else:
    # `memmap` and `tensorclass` are both a function and a submodule. Python binds a submodule on its package when it
    # is first imported, and never again: importing both now and deleting the names leaves the names to the functions.
    from tensordict import memmap, tensorclass

    del memmap, tensorclass

    __getattr__, __dir__ = serve(__name__)
