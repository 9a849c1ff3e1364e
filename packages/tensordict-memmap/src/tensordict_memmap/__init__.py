"""Memory-mapped tensors, and tensordicts on disk.

Core's methods of the same names (``td.memmap``, ``TensorDict.load_memmap``, ...) call these functions. The package
imports the module of a public name when the name is first used, so that importing the package takes little time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tensordict_core.extension import register_pickle_names, register_value_writer
from tensordict_memmap.tensor import pickling
from tensordict_memmap.tensor.memmap import MemoryMappedTensor

if TYPE_CHECKING:
    from tensordict_memmap.calls.compare import compare, load_into
    from tensordict_memmap.calls.load import (
        from_safetensors,
        load,
        load_memmap,
        load_memmap_,
    )
    from tensordict_memmap.calls.save import memmap, memmap_, memmap_like, save
    from tensordict_memmap.checkpoint.delta import save_delta
    from tensordict_memmap.checkpoint.rotation import latest
    from tensordict_memmap.checkpoint.training import Checkpoint, load_checkpoint, save_checkpoint
    from tensordict_memmap.cli.convert import convert
    from tensordict_memmap.cli.print_tree import print_directory_tree
    from tensordict_memmap.dataset.dataset import MemmapDataset, append_memmap
    from tensordict_memmap.dataset.sampler import RowSampler, RowStream
    from tensordict_memmap.dcp.reader import TensorDictReader
    from tensordict_memmap.dcp.writer import TensorDictWriter
    from tensordict_memmap.engine.future import SaveFuture
    from tensordict_memmap.loading.consolidated import from_consolidated
    from tensordict_memmap.loading.eager import prefetch
    from tensordict_memmap.loading.mapped import is_memmap, memmap_refresh_
    from tensordict_memmap.saving.archive import (
        is_memmap_archive,
        pack_memmap,
        refresh_archive_checksums,
        unpack_memmap,
    )
    from tensordict_memmap.saving.consolidated import consolidate, is_consolidated
    from tensordict_memmap.saving.make_entries import make_memmap, make_memmap_from_storage, make_memmap_from_tensor
    from tensordict_memmap.saving.safetensors import to_safetensors
    from tensordict_memmap.schema.diff import Report
    from tensordict_memmap.storage.locks import lock_timeout

MemmapTensor = MemoryMappedTensor
"""The old name of `MemoryMappedTensor`."""

__version__ = "0.1.0"

__all__ = [
    "Checkpoint",
    "MemmapDataset",
    "MemmapTensor",
    "MemoryMappedTensor",
    "Report",
    "RowSampler",
    "RowStream",
    "SaveFuture",
    "TensorDictReader",
    "TensorDictWriter",
    "append_memmap",
    "compare",
    "consolidate",
    "convert",
    "from_consolidated",
    "from_safetensors",
    "is_consolidated",
    "is_memmap",
    "is_memmap_archive",
    "latest",
    "load",
    "load_checkpoint",
    "load_into",
    "load_memmap",
    "load_memmap_",
    "lock_timeout",
    "make_memmap",
    "make_memmap_from_storage",
    "make_memmap_from_tensor",
    "memmap",
    "memmap_",
    "memmap_like",
    "memmap_refresh_",
    "pack_memmap",
    "prefetch",
    "print_directory_tree",
    "refresh_archive_checksums",
    "save",
    "save_checkpoint",
    "save_delta",
    "to_safetensors",
    "unpack_memmap",
]

_MODULES = {
    "calls.compare": "compare load_into",
    "calls.load": "from_safetensors load load_memmap load_memmap_",
    "calls.save": "memmap memmap_ memmap_like save",
    "checkpoint.delta": "save_delta",
    "checkpoint.rotation": "latest",
    "checkpoint.training": "Checkpoint load_checkpoint save_checkpoint",
    "cli.convert": "convert",
    "cli.print_tree": "print_directory_tree",
    "dataset.dataset": "MemmapDataset append_memmap",
    "dataset.sampler": "RowSampler RowStream",
    "dcp.reader": "TensorDictReader",
    "dcp.writer": "TensorDictWriter",
    "engine.future": "SaveFuture",
    "loading.consolidated": "from_consolidated",
    "loading.eager": "prefetch",
    "loading.mapped": "is_memmap memmap_refresh_",
    "saving.archive": "is_memmap_archive pack_memmap refresh_archive_checksums unpack_memmap",
    "saving.consolidated": "consolidate is_consolidated",
    "saving.make_entries": "make_memmap make_memmap_from_storage make_memmap_from_tensor",
    "saving.safetensors": "to_safetensors",
    "schema.diff": "Report",
    "storage.locks": "lock_timeout",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Return a public name from its module, which is imported now."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    return found


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)


def _write_back(old: Any, new: Any) -> None:
    from tensordict_memmap.saving.value_writeback import write_back

    write_back(old, new)


register_value_writer(_write_back)
register_pickle_names(
    {
        "tensordict_memmap.tensor.MemoryMappedTensor": MemoryMappedTensor,
        "tensordict_memmap.travel._from_file": pickling._from_file,
        "tensordict_memmap.travel._from_values": pickling._from_values,
    }
)
