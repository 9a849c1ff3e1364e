"""Adding an entry to a saved folder: its files and the changed descriptions are committed in one transaction.

Other files are neither read nor written, so the cost is that of a new description. A folder that lacks entries of the
tensordict, or that several manifests list, is saved again as a whole.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson
import torch

from tensordict_core import TensorDict
from tensordict_core.extension import annotation
from tensordict_memmap.engine import syscalls
from tensordict_memmap.formats import tree
from tensordict_memmap.formats.names import META, RESERVED_FIELDS
from tensordict_memmap.saving.job import Run, SaveJob
from tensordict_memmap.saving.options import SaveOptions
from tensordict_memmap.saving.tree import TreeWriter
from tensordict_memmap.schema.build import build
from tensordict_memmap.schema.node import Dense, Leaf, Node, leaves
from tensordict_memmap.storage import transaction
from tensordict_memmap.storage.manifest import Entry, Manifest
from tensordict_memmap.tensor.memmap import MemoryMappedTensor

__all__ = ["add_entry"]


def add_entry(td: Any, place: Path, path: tuple[str, ...], tensor: torch.Tensor, *, copy_data: bool) -> Any:
    """Saves one more entry to the folder of a tensordict, and returns the entry, mapped.

    Args:
        td: the tensordict, which is not changed.
        place: its folder.
        path: the key of the tensor; with several names the result is the tensordict under the first.
        tensor: the tensor.
        copy_data: whether its values are saved; otherwise zeros.
    """
    entry: Any = tensor
    for name in reversed(path[1:]):
        entry = TensorDict({name: entry}, td.batch_size)
    alone = TensorDict({}, td.batch_size)
    alone._set(path[0], entry)
    writer, added = _plan(alone, place, path[0], copy_data)
    if not (_is_saved(td, place) and _add(writer, td)):
        twin = td._clone(False)
        twin._set(path[0], entry)
        writer, added = _plan(twin, place, path[0], copy_data)
        SaveJob(writer).run()
    if isinstance(added, Leaf):
        return writer.opener()(added)
    return build(added, writer.opener(), saved=place, device=torch.device("cpu"))


def _plan(td: Any, place: Path, name: str, copy_data: bool) -> tuple[TreeWriter, Leaf | Node]:
    """The plan of a save of a tensordict, and the schema of one of its entries."""
    writer = TreeWriter(td, place, SaveOptions())
    assert isinstance(writer.schema, Dense)
    added = writer.schema.entries[name]
    if not copy_data:
        for leaf in [added] if isinstance(added, Leaf) else leaves(added):
            leaf.source = None
    return writer, added


def _is_saved(td: Any, place: Path) -> bool:
    """Whether all entries of a node are mapped onto files in its folder, as far as the node itself can tell."""
    start = f"{place}{os.sep}"
    for _, value in td._items():
        if isinstance(value, MemoryMappedTensor):
            if not (value.handler.filename or "").startswith(start):
                return False
        elif isinstance(value, torch.Tensor) or annotation(value, "saved_path") is None:
            return False
    return True


def _add(writer: TreeWriter, td: Any) -> bool:
    """Whether the files of a save could be added to what its folder holds."""

    def write(stage: str) -> Manifest | None:
        document = syscalls.read_file(f"{writer.path}/{META}")
        merged = None if document is None else _merged(document, writer.schema, td)
        if merged is None:
            return None
        manifest = SaveJob(writer).write(stage, Run())
        assert manifest is not None
        new = manifest.files.keys() - {META}
        if manifest.names or any(os.path.lexists(f"{writer.path}/{name.split('/')[0]}") for name in new):
            return None
        syscalls.write_file(f"{stage}/{META}", merged, durable=False)
        manifest.files[META] = Entry(len(merged))
        return manifest

    return transaction.add_files(writer.path, write)


def _merged(document: bytes, node: Node, td: Any) -> bytes | None:
    """The description of a node with one more entry; None where it lacks others of the node, or is no usual one.

    Args:
        document: the description.
        node: a node of that entry alone.
        td: the node as it is.
    """
    try:
        record, addition = orjson.loads(document), orjson.loads(tree.describe(node)[META])
    except ValueError:
        return None
    if not isinstance(record, dict) or {"_entries", "_key_order"} & (record.keys() | addition.keys()):
        return None
    keys = [key for key in record if key not in RESERVED_FIELDS]
    (new,) = addition.keys() - RESERVED_FIELDS
    alike = all(record.get(name) == addition[name] for name in ("shape", "_type", "_format_version"))
    if not alike or new in record or not set(keys).issuperset(td._keys()):  # others may have added some
        return None
    fields = {name: about for name, about in record.items() if name in RESERVED_FIELDS}
    return orjson.dumps({key: record[key] for key in keys} | {new: addition[new]} | fields)
