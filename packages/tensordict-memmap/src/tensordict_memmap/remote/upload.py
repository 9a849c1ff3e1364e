"""Saves to elsewhere: folders and files under addresses such as ``s3://bucket/run``, through fsspec.

Objects cannot be renamed, so a folder is all or nothing another way. The files of each save go under a name of its own
in the local layout, manifest included, so any tool that copies that folder has a saved folder. The manifest at the
address itself, which names it and lists its files, is written last, as one object: until then the earlier save is what
loads, and after that its files are removed. What a killed save left is removed by the next one (``generations.py``).
One file is one object, which object stores replace as a whole.

A save is staged in a temporary folder here, in the same pass as any save, and goes out from there in parallel.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

from tensordict_memmap.engine.future import SaveFuture
from tensordict_memmap.remote.ranges import Store, in_groups
from tensordict_memmap.remote.snapshots import Generation, remove_orphans
from tensordict_memmap.storage.manifest import NAME, Entry, Manifest
from tensordict_memmap.storage.staging import temporary_folder

__all__ = ["save_remote"]


def save_remote(
    url: str,
    save: Callable[[str], Any],
    *,
    total: int = 0,
    existsok: bool = True,
    early: bool = False,
    result: Any = None,
) -> Any:
    """Saves to an address, all or nothing.

    Args:
        url: the address.
        save: saves to a path here, in the format that its ending or its own arguments say.
        total: bytes of the tensors, to show progress by.
        existsok: whether an earlier save may be replaced.
        early: whether to return a `SaveFuture` at once.
        result: what is returned.

    Raises:
        ImportError: fsspec is not installed.
        RuntimeError: Something is there, and ``existsok`` is False.
    """
    store = Store(url)
    if not existsok and (store.is_file() or store.sizes()):
        raise RuntimeError(f"with existsok=False a save goes where nothing is, and there is {url}; choose another name")

    def work(progress: Callable[[int], None] | None, cancelled: Callable[[], bool] | None) -> Any:
        with temporary_folder() as place:
            path = os.path.join(place, store.root.rpartition("/")[2] or "save")
            save(path)
            _upload(path, store, progress, cancelled)
        return result

    return SaveFuture(work, total) if early else work(None, None)


def _upload(
    path: str, store: Store, progress: Callable[[int], None] | None, cancelled: Callable[[], bool] | None
) -> None:
    if os.path.isfile(path):
        store.fs.put_file(path, store.root)
        if progress is not None:
            progress(os.path.getsize(path))
        return
    files = {}
    for place, _, names in os.walk(path):
        for name in names:
            whole = os.path.join(place, name)
            files[os.path.relpath(whole, path).replace(os.sep, "/")] = os.path.getsize(whole)
    remove_orphans(store)
    generation = Generation(store)
    try:
        for group in in_groups(files):
            if cancelled is not None and cancelled():
                raise CancelledError("the save was cancelled")
            sources = [os.path.join(path, *name.split("/")) for name in group]
            store.fs.put(sources, [store.at(f"{generation.name}/{name}") for name in group])
            generation.renew()
            if progress is not None:
                progress(sum(files[name] for name in group))
        manifest = Manifest({name: Entry(size) for name, size in files.items() if name != NAME})
        if NAME in files:
            with open(os.path.join(path, NAME), "rb") as file:
                manifest = Manifest.loads(file.read())
        generation.publish(manifest)
    except BaseException:
        generation.remove()
        raise
