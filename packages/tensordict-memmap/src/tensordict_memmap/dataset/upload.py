"""Upload of datasets: the committed rows of a local dataset become a new snapshot at a URL.

Files of a dataset may be longer than their committed rows, and another process may append to them; so the files are
staged in a folder that links to those that hold committed rows only, and has copies of the start of the others. Of a
ring it has copies of the valid rows in their order: at a URL, no row is appended, and the snapshot is no ring.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensordict_memmap.dataset.ring import latest
from tensordict_memmap.formats.names import META
from tensordict_memmap.remote.upload import save_remote
from tensordict_memmap.schema.node import WRAPPED
from tensordict_memmap.storage import ownership
from tensordict_memmap.storage.manifest import NAME, Entry
from tensordict_memmap.storage.removal import remove_tree
from tensordict_memmap.storage.rows_committed import Ring, RowsCommitted, fingerprint
from tensordict_memmap.storage.snapshot import SavedFolder, read_folder

_MOST_ATTEMPTS = 5


def upload(root: str, url: str, *, existsok: bool) -> None:
    """Upload the committed rows of a local dataset, as a new snapshot at a URL."""

    def stage(path: str) -> None:
        for _ in range(_MOST_ATTEMPTS):
            if read_folder(root, lambda folder: _stage(folder, path)):
                return
        raise RuntimeError(
            f"rows of the ring {root} were overwritten during each of {_MOST_ATTEMPTS} attempts to copy them; upload "
            "it from the process that appends, or while none does"
        )

    save_remote(url, stage, existsok=existsok)


def _stage(folder: SavedFolder, path: str) -> bool:
    """Make a folder of the committed part of a dataset, with links to files that hold nothing else.

    Returns:
        Whether it is valid: False if rows of a ring were overwritten meanwhile.
    """
    remove_tree(path, ignore_errors=True)
    folder.shows_slots = True
    manifest = folder.count(ownership.read_manifest(folder.root))
    if manifest is None or not manifest.files:
        raise ValueError(f"{folder.root} has no manifest, which lists the files to upload; save it with this package")
    ring = None if manifest.rows_committed is None else manifest.rows_committed.ring
    if ring is not None:
        folder.rows = ring.rows
    documents = {name: folder.read(name) for name in manifest.files if name.rpartition("/")[2] == META}
    growth = manifest.rows_committed
    for name, entry in manifest.files.items():
        target, source = os.path.join(path, *name.split("/")), os.path.join(folder.root, *name.split("/"))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        document = documents.get(name)
        if document is not None:
            Path(target).write_bytes(document)
            manifest.files[name] = Entry(len(document), entry.checksum)
        elif not os.path.exists(source):
            continue  # a leaf without elements has no file
        elif ring is not None:
            manifest.files[name] = Entry(entry.size // ring.slots * ring.rows)
            if manifest.files[name].size:
                _copy_rows(source, target, entry.size // ring.slots, ring)
        elif os.path.getsize(source) == entry.size:
            os.symlink(source, target)
        else:
            with open(source, "rb") as opened, open(target, "wb") as file:
                _copy_start(opened, file, entry.size)
    if growth is not None:
        marks = [fingerprint(document) for name in (META, f"{WRAPPED}/{META}") if (document := documents.get(name))]
        manifest.rows_committed = replace(growth, meta=tuple(marks), parts=())
        if ring is not None:
            manifest.rows_committed = RowsCommitted(ring.rows, ring.rows, tuple(marks))
    Path(path, NAME).write_bytes(manifest.dumps())
    return ring is None or latest(folder.root).first <= ring.first


def _copy_rows(source: str, target: str, width: int, ring: Ring) -> None:
    """Copy the valid rows of a file of a ring, oldest first; each has ``width`` bytes."""
    first = ring.first % ring.slots
    with open(source, "rb") as opened, open(target, "wb") as file:
        opened.seek(first * width)
        _copy_start(opened, file, min(ring.rows, ring.slots - first) * width)
        opened.seek(0)
        _copy_start(opened, file, max(first + ring.rows - ring.slots, 0) * width)


def _copy_start(source: Any, target: Any, nbytes: int) -> None:
    while nbytes and (data := source.read(min(nbytes, 1 << 24))):
        target.write(data)
        nbytes -= len(data)
