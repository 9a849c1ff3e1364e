"""Mirror: the folder in a cache that has the layout of a remote save, with sparse files for its columns.

The name of the folder is a hash of the URL and of the versions of the remote files, so blocks of two saves never mix.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import orjson
import xxhash

from tensordict_memmap.engine.syscalls import system_text
from tensordict_memmap.formats.detect import TREE
from tensordict_memmap.formats.names import META
from tensordict_memmap.formats.parse_tree import parse
from tensordict_memmap.loading.remote import RemoteFolder, RemoteSave
from tensordict_memmap.remote.block_cache import CachedFile
from tensordict_memmap.remote.snapshots import current_snapshot
from tensordict_memmap.remote.store import Store
from tensordict_memmap.schema.node import WRAPPED, Leaf, Node, Value, leaves, nodes
from tensordict_memmap.storage.manifest import NAME, Manifest
from tensordict_memmap.storage.rows_committed import fingerprint
from tensordict_memmap.storage.staging import temporary_folder

SAVE, INFO, BLOCKS = "save", "cache.json", "blocks"
"""The names in a folder of a cache: the saved folder, its description by the cache, and the states of its blocks."""


def mirror(url: str, root: str) -> str:
    """Return the folder of a save in a cache; make it if it is not there."""
    save = RemoteSave(url)
    if save.format != TREE or save.is_file:
        raise ValueError(
            f"{url} is one file, and a dataset is a folder; save the tensordict to a URL without an ending"
        )
    identity = identity_of(save)
    name = xxhash.xxh3_128_hexdigest(orjson.dumps([url, identity, _boot()]))
    folder = os.path.join(root, f"tensordict-{name}")
    if not os.path.exists(os.path.join(folder, INFO)):
        os.makedirs(root, exist_ok=True)
        with temporary_folder(root) as staged:
            _fill(save, staged, identity)
            with contextlib.suppress(OSError):  # another process has made it
                os.rename(staged, folder)
    return folder


def _fill(save: RemoteSave, staged: str, identity: Any) -> None:
    """Download the descriptions of a save, and make sparse files for its columns."""
    place = os.path.join(staged, SAVE)
    folder = save.folder()
    assert folder is not None
    folder.prefetch()
    document = save.store.read(save.stored_path(NAME))
    manifest = None if document is None else Manifest.loads(document, where=f"{save.url}/{NAME}")
    node = parse(folder)
    sparse = _sparse_files(save, node, manifest, None if manifest is None else _committed_rows(manifest, folder))
    for name in sorted(_small_files(save, node)):
        Path(save.target(place, name)).write_bytes(folder.read(name) or b"")
    for one in sparse:
        with open(save.target(place, one.path), "wb") as file:
            file.truncate(one.size)
    if document is not None:
        Path(save.target(place, NAME)).write_bytes(document)
    versions = {} if save.snapshot else _versions(save.store)
    info = {
        "url": save.url,
        "identity": identity,
        "files": [list(one) for one in sparse],
        "columns": [(leaf.key, leaf.file, _row_bytes(leaf)) for leaf in leaves(node)],
        "versions": {one.remote: versions.get(one.remote) for one in sparse} if versions else {},
    }
    Path(staged, INFO).write_bytes(orjson.dumps(info))


def _small_files(save: RemoteSave, node: Node) -> set[str]:
    """Return the paths of the descriptions, shapes and pickled values of a save, which are downloaded whole."""
    small = {name for name in save.files if name.rpartition("/")[2] == META}
    small |= {one.pickle for one in nodes(node) if isinstance(one, Value) and one.pickle is not None}
    small |= {leaf.shapes_file for leaf in leaves(node) if leaf.layout != "strided"}
    return small - {""}


def _sparse_files(save: RemoteSave, node: Node, manifest: Manifest | None, rows: int | None) -> list[CachedFile]:
    """Return the files of the leaves, whose blocks are downloaded when they are read, without the empty ones."""
    sparse = []
    for leaf in leaves(node):
        listed = None if manifest is None else manifest.files.get(leaf.file)
        size = save.files.get(leaf.file, 0) if listed is None else listed.size
        if rows is not None and leaf.layout == "strided":
            size = rows * _row_bytes(leaf)
        if size:
            sparse.append(CachedFile(leaf.file, save.stored_path(leaf.file), size))
    return sparse


def _row_bytes(leaf: Leaf) -> int:
    return prod(leaf.shape[1:]) * leaf.dtype.itemsize


def _committed_rows(manifest: Manifest, folder: RemoteFolder) -> int | None:
    """Return the number of committed rows; None if none is recorded, or if another program wrote the shapes since."""
    growth = manifest.rows_committed
    documents = [folder.read(name) for name in (META, f"{WRAPPED}/{META}")]
    known = {fingerprint(document) for document in documents if document is not None}
    return growth.rows if growth is not None and (not growth.meta or known & set(growth.meta)) else None


def identity_of(save: RemoteSave) -> Any:
    """Return the identity of the save at a URL: the name of its snapshot, or the versions of its files."""
    if save.snapshot:
        return save.snapshot
    return xxhash.xxh3_128_hexdigest(orjson.dumps(sorted(_versions(save.store).items())))


def _versions(store: Store) -> dict[str, str]:
    return {path: repr(version) for path, version in store.versions().items()}


def check_versions(url: str, versions: dict[str, str], store: Store, paths: set[str]) -> None:
    """Raise an error if files that were just read were replaced since the dataset was opened."""
    if versions:  # the files of a snapshot are never replaced
        found = _versions(store)
        for path in sorted(paths):
            if found.get(path) != versions[path]:
                raise changed(url)


def changed(url: str) -> RuntimeError:
    """Return the error for a save that was replaced since it was opened."""
    return RuntimeError(
        f"{url} was replaced by another save since this dataset was opened; open it again, or call refresh()"
    )


@contextlib.contextmanager
def explained(url: str) -> Iterator[None]:
    """Explain the errors of a store: refused credentials, and files that another save removed."""
    try:
        yield
    except FileNotFoundError as error:
        if _has_save(url):
            raise changed(url) from error
        raise
    except Exception as error:
        if not isinstance(error, PermissionError) and "Credential" not in type(error).__name__:
            raise
        raise PermissionError(
            f"{url} refused the request ({error}); check the credentials, for s3:// those of the AWS configuration or "
            "of fsspec.config.conf['s3']"
        ) from error


def _has_save(url: str) -> bool:
    with contextlib.suppress(Exception):  # the first error is the informative one
        return current_snapshot(Store(url)) is not None
    return False


def _boot() -> str:
    """Return an id of the last boot: after a crash, blocks that count as present may not have reached the disk."""
    return system_text("/proc/sys/kernel/random/boot_id") or str(os.getpid())
