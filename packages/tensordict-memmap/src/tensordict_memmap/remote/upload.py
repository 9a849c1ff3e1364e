"""Remote saves: uploads a tensordict to a URL such as ``s3://bucket/run``, through fsspec.

Objects cannot be renamed, so a remote folder is replaced in another way than a local one. The files of each save are
uploaded as a new snapshot in the local layout, manifest included, so a tool that downloads that folder gets a saved
folder. The manifest at the URL, which names the snapshot and lists its files, is written last, as one object: until
then loads see the earlier save, and afterwards its files are removed. The next save removes the files of a save that
was killed (``snapshots.py``). A single file is one object, which object stores replace as a whole.

A save is staged in a local temporary folder, in the same pass as a local save, and uploaded from there in parallel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from tensordict_memmap.engine.executor import check_cancelled
from tensordict_memmap.engine.future import SaveFuture
from tensordict_memmap.engine.sources import batches
from tensordict_memmap.remote.snapshots import SnapshotWriter, remove_orphans
from tensordict_memmap.remote.store import Store
from tensordict_memmap.storage.manifest import Entry, Manifest
from tensordict_memmap.storage.ownership import read_manifest
from tensordict_memmap.storage.staging import temporary_folder

_MOST_GROUP_BYTES = 1 << 26
"""The maximum number of bytes of a group of files to upload at once; a larger file forms a group alone."""

_MOST_GROUP_FILES = 1000


def save_remote(
    url: str,
    save: Callable[[str], Any],
    *,
    total: int = 0,
    existsok: bool = True,
    early: bool = False,
    result: Callable[[], Any] = lambda: None,
) -> Any:
    """Save to a URL; readers see all of it or nothing.

    Args:
        url: The URL.
        save: A function that saves to a local path.
        total: The number of bytes of the tensors, for the progress.
        existsok: Whether an existing save may be replaced.
        early: Whether to return a `SaveFuture` immediately.
        result: A function that returns the result once everything is uploaded.

    Raises:
        ImportError: fsspec is not installed.
        RuntimeError: The URL is in use, and ``existsok`` is False.
    """
    store = Store(url)
    if not existsok:
        store.check_new()

    def work(progress: Callable[[int], None] | None, cancelled: Callable[[], bool] | None) -> Any:
        with temporary_folder() as folder:
            path = os.path.join(folder, store.name)
            save(path)
            if os.path.isfile(path):
                store.fs.put_file(path, store.root)
                if progress is not None:
                    progress(os.path.getsize(path))
            else:
                _upload(path, store, progress, cancelled)
        return result()

    return SaveFuture(work, total, url) if early else work(None, None)


def _upload(
    path: str, store: Store, progress: Callable[[int], None] | None, cancelled: Callable[[], bool] | None
) -> None:
    files = {}
    for folder, _, names in os.walk(path):
        for name in names:
            whole = os.path.join(folder, name)
            files[os.path.relpath(whole, path).replace(os.sep, "/")] = os.path.getsize(whole)
    remove_orphans(store)
    snapshot = SnapshotWriter(store)
    try:
        for group in _groups(files):
            check_cancelled(cancelled)
            sources = [os.path.join(path, *name.split("/")) for name in group]
            store.fs.put(sources, [store.full_path(f"{snapshot.name}/{name}") for name in group])
            snapshot.renew_lease()
            if progress is not None:
                progress(sum(files[name] for name in group))
        snapshot.publish(read_manifest(path) or Manifest({name: Entry(size) for name, size in files.items()}))
    except BaseException:
        snapshot.remove()
        raise


def _groups(files: dict[str, int]) -> Iterator[list[str]]:
    """Split files, given as sizes by path, into groups to upload at once.

    >>> list(_groups({"small": 1, "huge": 1 << 30, "tiny": 0}))
    [['huge'], ['small', 'tiny']]
    """
    largest_first = sorted(files, key=files.__getitem__, reverse=True)
    return batches(largest_first, files.__getitem__, most_bytes=_MOST_GROUP_BYTES, most=_MOST_GROUP_FILES)
