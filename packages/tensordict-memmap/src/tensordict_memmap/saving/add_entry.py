"""Add an entry to a saved folder: commits its files and the changed ``meta.json`` in one transaction.

Other files are neither read nor written, so the cost does not depend on their size. If the folder lacks entries of the
tensordict, or if several manifests list it, the whole tensordict is saved again.
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
from tensordict_memmap.formats.names import LEAF, META, RESERVED_FIELDS
from tensordict_memmap.saving.options import SaveOptions
from tensordict_memmap.saving.tree import TreeWriter
from tensordict_memmap.saving.writer import Run
from tensordict_memmap.schema.build import build
from tensordict_memmap.schema.node import Dense, Leaf, Node, leaves, show
from tensordict_memmap.storage import transaction
from tensordict_memmap.storage.manifest import Entry, Manifest
from tensordict_memmap.tensor.memmap import MemoryMappedTensor


def add_entry(td: Any, place: Path, path: tuple[str, ...], tensor: torch.Tensor, *, copy_data: bool) -> Any:
    """Save one more entry to the folder of a tensordict and return the mapped entry.

    Args:
        td: The tensordict, which is not changed.
        place: Its folder.
        path: The key of the tensor. For a nested key the result is the tensordict under the first name.
        tensor: The tensor.
        copy_data: Whether to save its values; if False the file holds zeros.

    Raises:
        RuntimeError: An entry of the folder was replaced in memory, and saving the whole tensordict would overwrite it.
    """
    entry: Any = tensor
    for name in reversed(path[1:]):
        entry = TensorDict({name: entry}, td.batch_size)
    alone = TensorDict({}, td.batch_size)
    alone._set(path[0], entry)
    writer, added = _plan(alone, place, path[0], copy_data)
    if not (_is_saved(td, place) and _add(writer, td)):
        _check_replaced(td, place)
        twin = td._clone(False)
        twin._set(path[0], entry)
        writer, added = _plan(twin, place, path[0], copy_data)
        writer.run()
    if isinstance(added, Leaf):
        return writer.opener()(added)
    return build(added, writer.opener(), saved=place, device=torch.device("cpu"))


def _plan(td: Any, place: Path, name: str, copy_data: bool) -> tuple[TreeWriter, Leaf | Node]:
    """Return the writer of a tensordict, and the schema of one of its entries."""
    writer = TreeWriter(td, place, SaveOptions())
    assert isinstance(writer.schema, Dense)
    added = writer.schema.entries[name]
    if not copy_data:
        for leaf in [added] if isinstance(added, Leaf) else leaves(added):
            leaf.source = None
    return writer, added


def _is_saved(td: Any, place: Path) -> bool:
    """Return whether all entries of a node appear to be mapped onto files in its folder; no file is opened."""
    start = f"{place}{os.sep}"
    for _, value in td._items():
        if isinstance(value, MemoryMappedTensor):
            if not (value.handler.filename or "").startswith(start):
                return False
        elif isinstance(value, torch.Tensor) or annotation(value, "saved_path") is None:
            return False
    return True


def _check_replaced(td: Any, place: Path) -> None:
    """Raise an error if a tensor in memory replaces a saved one, which would be lost."""
    for name, value in td._items():
        is_plain = isinstance(value, torch.Tensor) and not isinstance(value, MemoryMappedTensor)
        if is_plain and not value.is_nested and os.path.lexists(f"{place}/{name}{LEAF}"):
            raise RuntimeError(
                f"key {show(name)} was replaced in memory, and {place} holds the earlier values, which adding an entry "
                "would overwrite; write values in place with set_, or save the tensordict with memmap_"
            )


def _add(writer: TreeWriter, td: Any) -> bool:
    """Add the files of a save to its folder; return False if the folder has to be saved as a whole."""

    def write(stage: str) -> Manifest | None:
        document = syscalls.read_file(f"{writer.path}/{META}")
        merged = None if document is None else _merged(document, writer.schema, td)
        if merged is None:
            return None
        manifest = writer.write_and_map(stage, Run())
        assert manifest is not None
        new = manifest.files.keys() - {META}
        if manifest.names or any(os.path.lexists(f"{writer.path}/{name.split('/')[0]}") for name in new):
            return None
        syscalls.write_file(f"{stage}/{META}", merged, durable=False)
        manifest.files[META] = Entry(len(merged))
        return manifest

    return transaction.add_files(writer.path, write)


def _merged(document: bytes, node: Node, td: Any) -> bytes | None:
    """Return the ``meta.json`` of a node with one more entry, or None if the entry cannot be added to it.

    That is so if the ``meta.json`` lacks other entries of the node, or uses the fields for escaped keys.

    Args:
        document: The ``meta.json``.
        node: The schema of a node that holds the new entry alone.
        td: The tensordict without the new entry.
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
    if not alike or new in record or not set(keys).issuperset(td._keys()):  # other processes may have added keys
        return None
    fields = {name: about for name, about in record.items() if name in RESERVED_FIELDS}
    return orjson.dumps({key: record[key] for key in keys} | {new: addition[new]} | fields)
