"""Snapshots: each save to a remote folder writes its files under a new name, and the manifest names the current one.

``tensordict-<16 hex digits>/`` holds the files of a snapshot. ``tensordict-<16 hex digits>.json`` beside it is its
lease: a save writes it first and again every ten minutes. The manifest at the URL names the current snapshot. Object
stores have no locks that end with a process, so a save that was killed is recognized by its lease: the snapshot is not
the current one, and its lease is older than a day. The next save removes such snapshots, and also the one that the
manifest names as replaced. A folder without a lease is a copy that a user made, and stays.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import re
import secrets
import time
from typing import NamedTuple

import orjson

from tensordict_memmap.remote.store import Store
from tensordict_memmap.storage.manifest import NAME, Manifest

_SNAPSHOT_NAME = re.compile(r"tensordict-[0-9a-f]{16}")

RENEW_SECONDS = 600.0
"""Seconds after which a save renews its lease."""

LEASE_SECONDS = 24 * 3600.0
"""Seconds without renewal after which a lease has expired."""


class SnapshotWriter:
    """The snapshot of a save in progress.

    Args:
        store: The store of the URL.

    Attributes:
        name: The folder of the files.

    >>> store = Store("memory://snapshots")
    >>> writer = SnapshotWriter(store)
    >>> sorted(store.sizes()) == [f"{writer.name}.json"]
    True
    >>> writer.remove()
    >>> store.sizes()
    {}
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.name = f"tensordict-{secrets.token_hex(8)}"
        self._write_lease()

    def _write_lease(self) -> None:
        saver = {"machine": platform.node(), "process": os.getpid()}
        self.store.write(f"{self.name}.json", orjson.dumps({"saved_by": saver}))
        self._renewed = time.monotonic()

    def renew_lease(self) -> None:
        """Renew the lease if it was not renewed for a while."""
        if time.monotonic() - self._renewed > RENEW_SECONDS:
            self._write_lease()

    def publish(self, manifest: Manifest) -> None:
        """Make this the current snapshot and remove the one that it replaces.

        Raises:
            FileNotFoundError: The lease expired, as after a day of sleep, and another save removed this snapshot.
        """
        if self.store.read(f"{self.name}.json") is None:
            raise FileNotFoundError(
                f"the files that this save uploaded to {self.store.url} are gone: the save paused for more than a day, "
                "and another one removed them; save again"
            )
        sealed = Manifest({}).replaced_under(self.name, manifest).dumps()  # the seal covers exactly these bytes
        replaces = ""
        with contextlib.suppress(ValueError):  # a damaged manifest is replaced like any other
            earlier = current_snapshot(self.store)
            replaces = "" if earlier is None else earlier.name
        own = orjson.dumps({"generation": self.name, "replaces": replaces})
        self.store.write(NAME, sealed[:-1] + b"," + own[1:])
        if replaces:
            _remove(self.store, replaces)

    def remove(self) -> None:
        """Remove the files and the lease."""
        _remove(self.store, self.name)


class Snapshot(NamedTuple):
    """The current snapshot, as the manifest at a URL describes it.

    Args:
        name: The folder of the files; ``""`` if the files are beside the manifest, as in a copied local save.
        manifest: The manifest of the files.
        replaces: The name of the snapshot that it replaced; ``""`` for none.
    """

    name: str
    manifest: Manifest
    replaces: str = ""


def current_snapshot(store: Store) -> Snapshot | None:
    """Return the current snapshot; None if there is no manifest.

    Raises:
        ValueError: The manifest is damaged.
    """
    document = store.read(NAME)
    if document is None:
        return None
    where = f"{store.url}/{NAME}"
    manifest = Manifest.loads(document, where=where)
    record = json.loads(document)
    name, replaces = record.get("generation", ""), record.get("replaces", "")
    if name == "":
        return Snapshot("", manifest)
    if not all(isinstance(text, str) and _SNAPSHOT_NAME.fullmatch(text) for text in (name, replaces or name)):
        raise ValueError(f"{where} is damaged: it does not name the folder of the files of a save; save again")
    return Snapshot(name, manifest.under(name), replaces)


def remove_orphans(store: Store) -> None:
    """Remove the snapshots that killed saves did not publish, and the replaced one that they did not remove."""
    names = [path.removesuffix(".json") for path in store.sizes() if path.endswith(".json")]
    found = [name for name in names if _SNAPSHOT_NAME.fullmatch(name) and _is_lease(store.read(f"{name}.json"))]
    expired = {name for name in found if _has_expired(store, name)}
    try:
        current = current_snapshot(store)  # read after the leases: a save may have published in the meantime
    except ValueError:  # a damaged manifest has no current snapshot
        return
    kept, replaced = ("", "") if current is None else (current.name, current.replaces)
    for name in found:
        if name != kept and (name in expired or name == replaced):
            _remove(store, name)


def _remove(store: Store, name: str) -> None:
    with contextlib.suppress(Exception):  # the next save removes the rest
        with contextlib.suppress(FileNotFoundError):
            store.fs.rm(store.full_path(name), recursive=True)
        store.fs.rm(store.full_path(f"{name}.json"))  # last, so that an interrupted removal is found again
    store.fs.invalidate_cache()


def _is_lease(document: bytes | None) -> bool:
    """Return whether a file is a lease, and not a user's file of the same name."""
    try:
        record = orjson.loads(document or b"")
    except ValueError:
        return False
    return isinstance(record, dict) and isinstance(record.get("saved_by"), dict)


def _has_expired(store: Store, name: str) -> bool:
    with contextlib.suppress(Exception):  # a store that keeps no modification times
        renewed: datetime.datetime = store.fs.modified(store.full_path(f"{name}.json"))
        if renewed.tzinfo is None:
            renewed = renewed.replace(tzinfo=datetime.UTC)
        return time.time() - renewed.timestamp() > LEASE_SECONDS
    return False
