"""Groups and arrays of zarr: all boxes of a read are requested at once, and their chunks are decoded in parallel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_store.arrays.dtypes import DTYPE, as_array, as_bits, dtype_named, numpy_dtype, torch_dtype
from tensordict_store.arrays.group import FACTS, Array, Group, check_facts, visible_shape
from tensordict_store.arrays.selection import Range, Selection
from tensordict_store.arrays.values import STACK, TEXT, VALUE, Encoded
from tensordict_store.extras import require
from tensordict_store.zarr.creation import NewGroup, Requests, value_array
from tensordict_store.zarr.layout import array_options
from tensordict_store.zarr.store import Store, check_name, consolidate, open_store, replace_folder, to_keep


class ZarrArray(Array):
    """An array of a zarr store."""

    __slots__ = ("array", "attributes", "dtype", "shape", "store")

    def __init__(self, store: Store, array: Any, rows: int | None) -> None:
        self.store = store
        self.array = array
        self.shape = visible_shape(array.shape, rows)
        self.attributes = array.attrs.asdict()
        marked = any(name in self.attributes for name in (VALUE, STACK, TEXT))
        stored = np.dtype(array.dtype)
        self.dtype = None if marked or stored.kind in "OSTUV" else torch_dtype(stored)
        if self.dtype is not None and DTYPE in self.attributes:
            self.dtype = dtype_named(self.attributes[DTYPE])

    @property
    def gap(self) -> int:
        """Rows of a chunk, because a chunk is decoded as a whole."""
        return int(self.array.chunks[0]) if self.array.chunks else 0

    @property
    def unit(self) -> int:
        """The rows of a chunk, or of a shard."""
        return int((self.array.shards or self.array.chunks or (1,))[0])

    def read(self, selection: Selection) -> Tensor:
        """Return the values of the boxes of a selection, side by side."""
        return read_all([(self, selection)])[0]

    def write(self, box: Sequence[Range], value: Tensor) -> None:
        """Write a tensor of the shape and dtype of a box into it."""
        self.store.check_writable()
        if value.numel():
            self.array[tuple(slice(*side) for side in box) or ...] = to_keep(self.array.store, as_array(value))

    def resize(self, rows: int) -> None:
        """Change the number of rows."""
        self.store.check_writable()
        self.array.resize((rows, *self.array.shape[1:]))
        self.shape = torch.Size(self.array.shape)

    def value(self) -> Encoded:
        """Return the encoded non-tensor data."""
        self.store.check_open()
        content = self.array[...]
        if VALUE in self.attributes:
            marks = {name: self.attributes[name] for name in (VALUE, STACK) if name in self.attributes}
            return Encoded(np.asarray(content).tobytes(), marks)
        array = np.asarray(content, dtype=object)
        return Encoded(array if array.ndim else str(array[()]), {})


def read_all(pairs: Sequence[tuple[Any, Selection]]) -> list[Tensor]:
    """Return the values of several selections; all boxes are requested at once.

    Raises:
        OSError: A chunk is damaged.
    """
    if not pairs:
        return []
    zarr = require("zarr", "PersistentTensorDict")
    pairs[0][0].store.check_open()
    places = [(array, box) for array, selection in pairs for box, _ in selection.boxes()]
    keys = [tuple(slice(*side) for side in box) or ... for _, box in places]
    if len(places) == 1:
        parts = [_item(places[0][0], lambda: places[0][0].array[keys[0]])]
    else:

        async def gather() -> list[Any]:
            requests = [array.array.async_array.getitem(key) for (array, _), key in zip(places, keys, strict=True)]
            return list(await asyncio.gather(*requests))

        parts = _item(places[0][0], lambda: zarr.core.sync.sync(gather()))
    out, used = [], 0
    for array, selection in pairs:
        count = len(selection.boxes())
        out.append(_joined(array, selection, parts[used : used + count]))
        used += count
    return out


async def _end_of_writes() -> None:
    """Wait for the tasks of zarr's thread: after an error, writes of other chunks go on and bring folders back."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=30)


def _item(array: Any, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (RuntimeError, ValueError) as error:
        raise OSError(
            f"chunks of {array.array.name!r} in the zarr store {array.store.location!r} cannot be decoded, they may be "
            f"damaged; restore them from a copy ({error})"
        ) from error


def _joined(array: Any, selection: Selection, parts: list[Any]) -> Tensor:
    """Return the boxes side by side as a tensor that owns its memory."""
    first = np.asarray(parts[0])
    if len(parts) == 1:
        plain = np.require(first, dtype=first.dtype.newbyteorder("="), requirements=["C", "W", "O"])
        tensor = torch.from_numpy(plain)
        return tensor if tensor.dtype == array.dtype else tensor.view(array.dtype)
    out = torch.empty(selection.shape, dtype=array.dtype, device="cpu")
    np.concatenate([np.asarray(part) for part in parts], axis=selection.dim, out=as_bits(out).numpy())
    return out


class ZarrGroup(Group):
    """A group of a zarr store; nested groups share the store."""

    __slots__ = ("_cache", "_names", "group", "options", "store")

    backend = "zarr"

    def __init__(self, store: Store, group: Any, options: dict[str, Any]) -> None:
        self.store = store
        self.group = group
        self.options = options
        self._cache: dict[str, Any] = {}
        self._names: list[str] | None = None

    @property
    def handle(self) -> Any:
        """The group of zarr."""
        return self.group

    @property
    def location(self) -> Any:
        """The path, URL or store that was opened."""
        return self.store.location

    @property
    def writable(self) -> bool:  # type: ignore[override]  # an attribute of other groups
        """Whether the store was opened for writing."""
        return self.store.mode != "r"

    def names(self) -> Iterable[str]:
        """Return the names in the group, in the order in which they were written."""
        if self._names is None:
            self.store.check_open()
            found = set(self.group.keys())
            first = [name for name in self.facts.get("keys", ()) if name in found]
            self._names = [*first, *sorted(found.difference(first))]
        return self._names

    def find(self, name: str) -> Array | Group | None:
        """Return the array or group under a name."""
        found = self._cache.get(name)
        if found is None:
            if name not in self.names():
                return None
            found = self._cache[name] = self._made(self.group[name])
        return found

    def _made(self, item: Any) -> Array | Group:
        if not hasattr(item, "shape"):
            return ZarrGroup(self.store, item, self.options)
        size = self.facts.get("batch_size")
        return ZarrArray(self.store, item, size[0] if size else None)

    def _free(self, name: str) -> None:
        """Make room for a new array or group."""
        self._change()
        check_name(name)
        if name in self.names():
            self.remove(name)

    def _change(self) -> None:
        self.store.check_writable()
        self.store.changed = True

    def _added(self, name: str, item: Any) -> Any:
        self._cache[name] = made = self._made(item)
        if self._names is not None:
            self._names.append(name)
        return made

    def create_group(self, name: str) -> Group:
        """Create an empty group replacing an existing object of that name."""
        self._free(name)
        group: Group = self._added(name, self.group.create_group(name))
        return group

    def put_array(self, name: str, shape: torch.Size, dtype: torch.dtype) -> Array:
        """Return an array of a shape and dtype: the one that has the name, or a new one in place of another object."""
        stored, other = numpy_dtype(dtype)
        old = self.find(name)
        if isinstance(old, ZarrArray) and old.dtype == dtype and old.shape == shape:
            return old
        self._free(name)
        options = array_options(self.options, name, shape, stored.itemsize, self.facts)
        attributes = {} if other is None else {DTYPE: other}
        made = self.group.create_array(name, shape=tuple(shape), dtype=stored, attributes=attributes, **options)
        array: Array = self._added(name, made)
        return array

    def put_value(self, name: str, value: Encoded) -> None:
        """Create an array with encoded non-tensor data."""
        self._free(name)
        array, options = value_array(value)
        made = self.group.create_array(name, **options)
        if array.size:
            made[...] = array
        self._added(name, made)

    @contextmanager
    def undone_by_errors(self, name: str) -> Iterator[None]:
        """If the block that stores an entry raises, remove what it stored, once writes of other chunks have ended."""
        with super().undone_by_errors(name):
            try:
                yield
            except BaseException:
                with suppress(Exception):  # the first error is the informative one
                    require("zarr", "PersistentTensorDict").core.sync.sync(_end_of_writes())
                raise

    def remove(self, name: str) -> None:
        """Remove an array or a group."""
        self._change()
        del self.group[name]
        self._cache.pop(name, None)
        if self._names is not None:
            self._names.remove(name)

    def rename(self, old: str, new: str) -> None:
        """Rename an array or a group: stores can only copy it."""
        self._free(new)
        self._copy(self.find(old), new)
        self.remove(old)

    def _copy(self, source: Array | Group | None, name: str) -> None:
        """Store a copy of an array or a group under a name, in the chunks and with the codecs of the source."""
        if isinstance(source, ZarrArray):
            array = source.array
            made = self.group.create_array(
                name,
                shape=array.shape,
                dtype="string" if np.dtype(array.dtype).kind in "OT" else array.dtype,
                chunks=array.chunks,
                shards=array.shards,
                compressors=array.compressors or None,
                filters=array.filters or None,
                attributes=source.attributes,
                dimension_names=array.metadata.to_dict().get("dimension_names"),
            )
            if array.size:
                made[...] = array[...]
            self._added(name, made)
        elif isinstance(source, ZarrGroup):
            target = self.create_group(name)
            assert isinstance(target, ZarrGroup)
            target.group.update_attributes(source.group.attrs.asdict())
            for one in list(source.names()):
                target._copy(source.find(one), one)

    @property
    def facts(self) -> dict[str, Any]:
        """The metadata of the group in the store; empty if another program wrote it."""
        self.store.check_open()
        return check_facts(self.group.attrs.get(FACTS, {}), self.group.name, self.store.location)

    def set_facts(self, facts: dict[str, Any]) -> None:
        """Replace the metadata of the group in the store."""
        self._change()
        self.group.update_attributes({FACTS: facts})

    def read_all(self, pairs: Sequence[tuple[Array, Selection]]) -> list[Tensor]:
        """Return the values of several selections; all boxes are requested at once."""
        return read_all(pairs)

    def flush(self) -> None:
        """Consolidate metadata that changed; values are in the store when a write returns."""
        if self.store.changed and not self.store.closed:
            consolidate(self.group)
            self.store.changed = False

    def close(self) -> None:
        """Close the store."""
        self.flush()
        self.store.closed = True

    def recipe(self) -> tuple[Any, ...]:
        """Return a function and its arguments with which another process opens this group."""
        self.store.check_open()
        store = self.store
        return _open_again, (store.location, store.mode, store.storage_options, self.group.path, self.options)


def open_group(filename: Any, group: Any, mode: str, locking: Any, options: dict[str, Any]) -> ZarrGroup:
    """Open a store and return its root group; or return a group that is open.

    Raises:
        TypeError: ``group`` is not a zarr group.
    """
    if group is None:
        store, root = open_store(filename, mode, options.get("storage_options"))
        return ZarrGroup(store, root, options)
    zarr = require("zarr", "PersistentTensorDict")
    if not isinstance(group, zarr.Group):
        raise TypeError(f"group should be a group of zarr, got {type(group).__name__}; pass a path as filename")
    return ZarrGroup(Store(group.store, "r" if group.read_only else "r+", None), group, options)


def create_store(filename: Any, locking: Any, options: dict[str, Any], fill: Callable[[NewGroup], None]) -> ZarrGroup:
    """Write a new store, put it in place of an earlier one, and return its root group, open for reading and writing."""

    def write(location: Any) -> None:
        requests = Requests(location, options.get("storage_options"))
        fill(NewGroup(requests, "", options))
        requests.send(last=True)

    replace_folder(filename, write)
    store, root = open_store(filename, "r+", options.get("storage_options"), zarr_format=3)
    return ZarrGroup(store, root, options)


def _open_again(location: Any, mode: str, storage_options: Any, path: str, options: dict[str, Any]) -> ZarrGroup:
    store, root = open_store(location, mode, storage_options)
    return ZarrGroup(store, root[path] if path else root, options)
