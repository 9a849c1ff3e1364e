"""Creation: writes a new zarr store in few round trips to the event loop of zarr, with all arrays at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_store.arrays.dtypes import DTYPE, as_array, numpy_dtype
from tensordict_store.arrays.group import FACTS, Target
from tensordict_store.arrays.selection import Range
from tensordict_store.arrays.values import VALUE, Encoded
from tensordict_store.extras import require
from tensordict_store.zarr.layout import array_options
from tensordict_store.zarr.store import check_name, consolidated, open_store, to_keep

_QUEUED = 1 << 26
"""Bytes that wait at most before they are written."""
_METADATA = "zarr.json"


class Requests:
    """The groups, arrays and boxes of arrays that are written to a new store together.

    zarr creates the metadata in memory first, where its many lookups need no thread. The store receives each key once,
    and those of the root last.

    Args:
        location: A path, a URL, or a store of zarr.
        storage_options: The options of fsspec for a URL.
    """

    def __init__(self, location: Any, storage_options: Any) -> None:
        self._location = location
        self._storage_options = storage_options
        self._root: Any = None
        self._groups: dict[str, dict[str, Any]] = {"": {}}
        self._arrays: dict[str, dict[str, Any]] = {}
        self._boxes: dict[str, list[tuple[Any, np.ndarray[Any, Any]]]] = {}
        self._queued = 0
        self._made: dict[str, Any] = {}
        self._staged: dict[str, Any] = {}
        self._sent: set[str] = set()

    def add_group(self, path: str, attributes: dict[str, Any]) -> None:
        """Create a group with these attributes, or give one that waits other attributes."""
        self._groups[path] = attributes

    def add_array(self, path: str, options: dict[str, Any]) -> None:
        """Create an array."""
        self._arrays[path] = options

    def add_box(self, path: str, box: Any, values: np.ndarray[Any, Any]) -> None:
        """Write a box of an array; boxes that wait are written first if they are large."""
        self._boxes.setdefault(path, []).append((box, values))
        self._queued += values.nbytes
        if self._queued >= _QUEUED:
            self.send()

    def send(self, last: bool = False) -> None:
        """Write everything that waits; ``last`` also writes the metadata of the root, which has those of all others."""
        if self._root is None:
            _, self._root = open_store(self._location, "w", self._storage_options)
        require("zarr", "to_zarr").core.sync.sync(self._send(last))

    async def _send(self, last: bool) -> None:
        zarr = require("zarr", "to_zarr")
        memory, create = zarr.storage.MemoryStore(self._staged), zarr.api.asynchronous
        store, prefix = self._root.store, self._root.path
        for path in sorted(self._groups):  # a group before those inside it
            attributes = self._groups[path]
            await create.create_group(store=memory, path=path, attributes=attributes, zarr_format=3, overwrite=True)
        for path, options in self._arrays.items():
            metadata = (await create.create_array(store=memory, name=path, **options)).metadata
            place = zarr.storage.StorePath(store, f"{prefix}/{path}" if prefix else path)
            self._made[path] = zarr.AsyncArray(metadata, place)
        if last:
            await consolidated(create.consolidate_metadata(memory))
        root = self._staged[_METADATA]
        new = [key for key in self._staged if key not in self._sent and key != _METADATA]
        self._sent.update(new)
        boxes, self._groups, self._arrays, self._boxes, self._queued = self._boxes, {}, {}, {}, 0
        await asyncio.gather(
            *(self._put(key, self._staged[key]) for key in new),
            *(self._write(self._made[path], parts) for path, parts in boxes.items()),
        )
        if last:
            await self._put(_METADATA, root)

    async def _write(self, array: Any, boxes: list[tuple[Any, np.ndarray[Any, Any]]]) -> None:
        for box, values in boxes:  # neighbours may share a chunk, so one after the other
            await array.setitem(box, to_keep(array.store, values))

    async def _put(self, key: str, value: Any) -> None:
        prefix = self._root.path
        await self._root.store.set(f"{prefix}/{key}" if prefix else key, value)


class NewArray:
    """An array of a new store.

    Attributes:
        unit: The rows of a chunk, or of a shard.
    """

    __slots__ = ("_path", "_requests", "unit")

    def __init__(self, requests: Requests, path: str, unit: int) -> None:
        self._requests = requests
        self._path = path
        self.unit = unit

    def write(self, box: Sequence[Range], value: Tensor) -> None:
        """Write a tensor of the shape and dtype of a box into it."""
        if value.numel():
            self._requests.add_box(self._path, tuple(slice(*side) for side in box) or ..., as_array(value))


class NewGroup(Target):
    """A group of a new store, which is filled and then opened again.

    Args:
        requests: The requests, which all groups of the store share.
        path: The path of the group in the store.
        options: The options with which arrays are stored.
    """

    __slots__ = ("_facts", "_options", "_path", "_requests")

    def __init__(self, requests: Requests, path: str, options: dict[str, Any]) -> None:
        self._requests = requests
        self._path = path
        self._options = options
        self._facts: dict[str, Any] = {}

    def _place(self, name: str) -> str:
        check_name(name)
        return f"{self._path}/{name}" if self._path else name

    def create_group(self, name: str) -> NewGroup:
        """Create an empty group."""
        path = self._place(name)
        self._requests.add_group(path, {})
        return NewGroup(self._requests, path, self._options)

    def put_array(self, name: str, shape: torch.Size, dtype: torch.dtype) -> NewArray:
        """Create an array of a shape and dtype."""
        path = self._place(name)
        stored, other = numpy_dtype(dtype)
        options = array_options(self._options, name, shape, stored.itemsize, self._facts)
        attributes = {} if other is None else {DTYPE: other}
        self._requests.add_array(path, {"shape": tuple(shape), "dtype": stored, "attributes": attributes, **options})
        return NewArray(self._requests, path, (options.get("shards") or options.get("chunks") or (1,))[0])

    def put_value(self, name: str, value: Encoded) -> None:
        """Create an array with encoded non-tensor data."""
        path = self._place(name)
        array, options = value_array(value)
        self._requests.add_array(path, options)
        if array.size:
            self._requests.add_box(path, ..., array)

    def set_facts(self, facts: dict[str, Any]) -> None:
        """Write the metadata of the group."""
        self._facts = facts
        self._requests.add_group(self._path, {FACTS: facts})


def value_array(value: Encoded) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    """Return the content of encoded non-tensor data as an array, and the arguments of ``create_array`` for it."""
    content, attributes = value
    if isinstance(content, str):
        content, attributes = json.dumps(content).encode(), {VALUE: {"encoding": "json"}}
    array = np.frombuffer(content, dtype=np.uint8) if isinstance(content, bytes) else content
    return array, {
        "shape": array.shape,
        "dtype": array.dtype if isinstance(content, bytes) else "string",
        "chunks": tuple(max(n, 1) for n in array.shape),
        "compressors": None,
        "attributes": attributes,
    }
