"""Storage reader of ``torch.distributed.checkpoint``: loads of state dicts from saves of any format.

A save is described to DCP as if one rank had written each tensor as a whole. The default planner then requests for each
rank the boxes that it needs, independent of the mesh of the writers.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from typing import Any

import orjson
import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from tensordict_core.extension import annotation
from tensordict_memmap.dcp.items import LISTS, LISTS_FILE, StatePath
from tensordict_memmap.dcp.values import stream_of
from tensordict_memmap.distributed.load import BoxReader
from tensordict_memmap.distributed.placements import awaited
from tensordict_memmap.distributed.plan import Box
from tensordict_memmap.engine.sources import batches
from tensordict_memmap.engine.syscalls import read_file
from tensordict_memmap.loading.open import open_any
from tensordict_memmap.loading.request import LoadRequest
from tensordict_memmap.remote.urls import is_remote, local_path
from tensordict_memmap.schema.node import Dense, Leaf, Path, Value, nodes, show
from tensordict_memmap.schema.plan import plan as schema_of
from tensordict_memmap.storage.verify import check_level

_STAGED = 256 << 20
"""Bytes that are read to host memory at once, on their way to another device or dtype."""


class TensorDictReader(StorageReader):
    """Storage reader for ``torch.distributed.checkpoint.load`` that reads saves of any format.

    The save was written by `TensorDictWriter` or ``TensorDict.save``, or is a published safetensors file or folder of
    shards. Each rank reads the ranges that its planner requests. Keys are the nested keys of the save joined with
    ``.``, as in DCP.

    Args:
        path: The save, or a URL of one.
        allow_pickle: Whether pickled values in the save may be unpickled.
        verify: How much of the save is compared with its manifest or checksums, as in ``TensorDict.load``.

    Raises:
        ValueError: There is no such level of verification.

    >>> import warnings
    >>> import torch.distributed.checkpoint as dcp
    >>> warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # DCP says so without ranks
    >>> _ = TensorDict({"model": {"weight": torch.ones(2, 3)}, "name": "net"}).save("run.safetensors")
    >>> state = {"model": {"weight": torch.zeros(2, 3)}, "name": ""}
    >>> dcp.load(state, storage_reader=TensorDictReader("run.safetensors"), no_dist=True)
    >>> state["model"]["weight"].sum(), state["name"]
    (tensor(6.), 'net')
    """

    def __init__(self, path: str | os.PathLike[str], *, allow_pickle: bool = False, verify: str = "size") -> None:
        super().__init__()
        check_level(verify)
        self._allow_pickle = allow_pickle
        self._verify = verify
        self._path = ""
        self.reset(path)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Start a new load, of another path if one is given.

        >>> reader = TensorDictReader("run")
        >>> reader.reset("other")
        >>> reader.checkpoint_id
        'other'
        """
        if checkpoint_id is not None:
            self._path = local_path(os.fspath(checkpoint_id))
        self._load_id = str(uuid.uuid4())
        self._loaded: Any = None
        self._entries: dict[str, Leaf | Value] = {}

    @property
    def checkpoint_id(self) -> str:
        """The path of the save.

        >>> TensorDictReader("run").checkpoint_id
        'run'
        """
        return self._path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return True: any path or URL may hold a save.

        >>> TensorDictReader.validate_checkpoint_id("run")
        True
        """
        return bool(os.fspath(checkpoint_id))

    # --- the steps of a load, in the order in which DCP calls them

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Describe the save as DCP's metadata.

        Raises:
            FileNotFoundError: There is no save.
            ValueError: The save is damaged, or two of its nested keys are the same once joined.

        >>> _ = TensorDict({"a": torch.ones(2)}).save("run")
        >>> reader = TensorDictReader("run")
        >>> reader.read_metadata().state_dict_metadata["a"].size
        torch.Size([2])
        """
        device = torch.device("meta") if is_remote(self._path) else None
        request = LoadRequest(mode="r", device=device, allow_pickle=self._allow_pickle, verify=self._verify)
        self._loaded = open_any(self._path, request)
        self._entries = _entries(self._loaded, self._path)
        lists = _lists(self._path, self._loaded)
        described: dict[str, Any] = {}
        paths: dict[str, StatePath] = {}
        for name, entry in self._entries.items():
            paths[name] = _path(entry.key, lists)
            described[name] = BytesStorageMetadata() if isinstance(entry, Value) else _tensor(entry)
        meta = StorageMeta(checkpoint_id=self._path, load_id=self._load_id)
        return Metadata(described, planner_data=paths, storage_data={}, storage_meta=meta)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Start a load; `read_metadata` has opened the save.

        >>> _ = TensorDict({"a": torch.ones(2)}).save("run")
        >>> reader = TensorDictReader("run")
        >>> reader.set_up_storage_reader(reader.read_metadata(), is_coordinator=True)
        """
        if self._loaded is None:
            self.read_metadata()

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan.

        >>> TensorDictReader("run").prepare_local_plan(LoadPlan([]))
        LoadPlan(items=[], storage_data=None, planner_data=None)
        """
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans: ranks read on their own.

        >>> len(TensorDictReader("run").prepare_global_plan([LoadPlan([]), LoadPlan([])]))
        2
        """
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the items of this rank.

        Returns:
            A future that is done.

        Raises:
            ValueError: A file is too short, or an entry is pickled and that is not allowed; the error names the key.

        >>> from torch.distributed.checkpoint import DefaultLoadPlanner
        >>> _ = TensorDict({"a": torch.ones(2)}).save("run")
        >>> reader = TensorDictReader("run")
        >>> state, planner = {"a": torch.zeros(2)}, DefaultLoadPlanner()
        >>> planner.set_up_planner(state, reader.read_metadata(), is_coordinator=True)
        >>> reader.read_data(planner.create_local_plan(), planner).wait()
        >>> state["a"].tolist()
        [1.0, 1.0]
        """
        tensors = [item for item in plan.items if item.type != LoadItemType.BYTE_IO]
        if is_remote(self._path):
            self._fetch(tensors)
        for group in batches(tensors, self._nbytes, most_bytes=_STAGED):
            self._read(group, planner)
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                name = item.storage_index.fqn
                entry = self._entries[name]
                assert isinstance(entry, Value)
                planner.load_bytes(item, stream_of(name, entry.content(), allow_pickle=self._allow_pickle))
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _nbytes(self, item: ReadItem) -> int:
        entry = self._entries[item.storage_index.fqn]
        assert isinstance(entry, Leaf)
        return _box(item).volume * entry.dtype.itemsize

    def _read(self, items: list[ReadItem], planner: LoadPlanner) -> None:
        reader = BoxReader()
        targets = []
        for item in items:
            target = awaited(planner.resolve_tensor(item))
            box = _box(item)
            if tuple(target.shape) != box.size:
                raise ValueError(
                    f"key {item.storage_index.fqn!r} is read in a part of the shape {list(box.size)}, and the planner "
                    f"gives {list(target.shape)} to read it to; return a tensor of that shape from resolve_tensor()"
                )
            entry = self._entries[item.storage_index.fqn]
            assert isinstance(entry, Leaf)
            reader.add(entry, box, target)
            targets.append((item, target))
        reader.read()
        for item, target in targets:
            planner.commit_tensor(item, target)

    def _fetch(self, items: list[ReadItem]) -> None:
        """Read the parts of remote files that items need into memory."""

        def parts(loaded: Any) -> Iterator[torch.Tensor]:
            entries = _entries(loaded, self._path)
            for item in items:
                entry = entries[item.storage_index.fqn]
                assert isinstance(entry, Leaf) and entry.source is not None
                yield entry.source[_box(item).slices()]

        request = LoadRequest(mode="r", allow_pickle=self._allow_pickle, verify=self._verify, parts=parts)
        self._loaded = open_any(self._path, request)
        self._entries = _entries(self._loaded, self._path)


def _entries(loaded: Any, path: str) -> dict[str, Leaf | Value]:
    """Return the strided tensors and the values of a loaded save, by joined name."""
    found: dict[str, Leaf | Value] = {}
    for entry in _rows(loaded):
        name = ".".join(entry.key)
        if found.setdefault(name, entry) is not entry:
            raise ValueError(
                f"keys {show(found[name].key)} and {show(entry.key)} of {path} are the same once joined with dots, as "
                "DCP joins them; load it with TensorDict.load"
            )
    return found


def _rows(loaded: Any) -> Iterator[Leaf | Value]:
    for node in nodes(schema_of(loaded)):
        if isinstance(node, Value):
            yield node
        elif isinstance(node, Dense):
            for entry in node.entries.values():
                if isinstance(entry, Leaf) and entry.layout == "strided":
                    yield entry


def _tensor(leaf: Leaf) -> TensorStorageMetadata:
    size = torch.Size(leaf.shape)
    chunk = ChunkStorageMetadata(offsets=torch.Size([0] * len(size)), sizes=size)
    return TensorStorageMetadata(TensorProperties(dtype=leaf.dtype), size, [chunk])


def _box(item: ReadItem) -> Box:
    return Box(tuple(item.storage_offsets), tuple(item.lengths))


# --- lists


def _path(key: Path, lists: set[Path]) -> StatePath:
    """Return the path in a state dict of a nested key, with numbers for the elements of lists."""
    if not lists:
        return key
    return tuple(int(name) if key[:n] in lists and name.isdecimal() else name for n, name in enumerate(key))


def _lists(path: str, loaded: Any) -> set[Path]:
    """Return the nested keys of nodes that were lists in the state dict, as `TensorDictWriter` notes them."""
    if is_remote(path):
        return set()
    text = (annotation(loaded, "metadata") or {}).get(LISTS) or read_file(os.path.join(path, LISTS_FILE))
    return set() if not text else {tuple(map(str, key)) for key in orjson.loads(text)}
