"""Groups and arrays of HDF5: reads go through the low-level calls of h5py, one a box, into the tensor itself."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensordict_store.arrays.dtypes import DTYPE, as_array, as_bits, dtype_named, numpy_dtype, torch_dtype
from tensordict_store.arrays.group import FACTS, Array, Group, check_facts, visible_shape
from tensordict_store.arrays.selection import Range, Selection
from tensordict_store.arrays.values import BYTES, PLAIN, STACK, TEXT, VALUE, Encoded, text_of
from tensordict_store.extras import require
from tensordict_store.hdf5.chunks import creation_options
from tensordict_store.hdf5.contiguous import read_rows
from tensordict_store.hdf5.file import File, open_file
from tensordict_store.hdf5.lowlevel import address, create_contiguous, is_plain_name, memory_type, put_text
from tensordict_store.staging import staged


class H5Array(Array):
    """A dataset of an HDF5 file."""

    __slots__ = ("_kind", "_offset", "dataset", "dtype", "file", "shape")

    def __init__(self, file: File, dataset: Any, rows: int | None = None) -> None:
        self.file = file
        self.dataset = dataset
        stored = dataset.dtype
        self.shape = visible_shape(dataset.shape or (), rows)
        self._kind = stored
        self._offset: int | None = None
        h5py = require("h5", "PersistentTensorDict")
        attributes = dataset.attrs if h5py.h5a.get_num_attrs(dataset.id) else ()
        marked = VALUE in attributes or STACK in attributes or TEXT in attributes or h5py.check_opaque_dtype(stored)
        self.dtype = None if marked else torch_dtype(stored)
        if self.dtype is not None and stored.kind == "u" and DTYPE in attributes:
            self.dtype = dtype_named(text_of(dataset.attrs[DTYPE]))
        if self.dtype is not None and file.direct and stored.isnative and dataset.chunks is None:
            self._offset = dataset.id.get_offset()

    @classmethod
    def _created(cls, file: File, dataset: Any, stored: Any, dtype: torch.dtype, shape: torch.Size) -> H5Array:
        """Return the array of a dataset that was just created, whose properties are known."""
        self = object.__new__(cls)
        self.file, self.dataset, self.dtype, self.shape = file, dataset, dtype, shape
        self._kind, self._offset = stored, None
        return self

    @property
    def gap(self) -> int:
        """Rows between two runs that are read with them: less than a chunk, or a page of a contiguous dataset."""
        row = max(math.prod(self.shape[1:]) * self._kind.itemsize, 1)
        chunks = None if self._offset is not None else self.dataset.chunks
        if chunks is None:
            # (a page costs about as much as one more read, which takes a whole one from disk in any case)
            return int(max(4096 // row, 1))
        rows = int(chunks[0])
        # chunks that the cache of HDF5 holds are decoded once, however many runs they are read in
        return rows if rows * row > 1 << 20 else min(rows, max(65536 // row, 1))

    @property
    def unit(self) -> int:
        """The rows of a chunk."""
        return int((self.dataset.chunks or (1,))[0])

    def read(self, selection: Selection) -> Tensor:
        """Return the values of the boxes of a selection, side by side."""
        self.file.check_open()
        assert self.dtype is not None
        out = torch.empty(selection.shape, dtype=self.dtype, device="cpu")
        if not out.numel():
            return out
        array = as_bits(out).numpy()
        if self._offset is None or not read_rows(self.file.handle, self._offset, selection, array):
            self._read_boxes(selection, array)
        return out

    def _read_boxes(self, selection: Selection, array: np.ndarray[Any, Any]) -> None:
        h5py = require("h5", "PersistentTensorDict")
        identity = self.dataset.id
        kind = memory_type(array.dtype)
        if not array.ndim:
            identity.read(h5py.h5s.ALL, h5py.h5s.ALL, array, kind)
            return
        space = identity.get_space()
        memory = h5py.h5s.create_simple(array.shape)
        sizes = list(array.shape)
        zeros = [0] * array.ndim
        for box, place in selection.boxes():
            starts = tuple(start for start, _ in box)
            counts = tuple(stop - start for start, stop in box)
            space.select_hyperslab(starts, counts)
            zeros[selection.dim], sizes[selection.dim] = place, counts[selection.dim]
            memory.select_hyperslab(tuple(zeros), tuple(sizes))
            identity.read(memory, space, array, kind)

    def write(self, box: Sequence[Range], value: Tensor) -> None:
        """Write a tensor of the shape and dtype of a box into it."""
        self.file.check_writable()
        if not value.numel():
            return
        # (the calls of h5py below its classes: those select, broadcast and convert, which takes longer than the write)
        h5py = require("h5", "PersistentTensorDict")
        array = as_array(value)
        identity, kind = self.dataset.id, memory_type(array.dtype)
        if all(start == 0 and stop == n for (start, stop), n in zip(box, identity.shape, strict=True)):
            identity.write(h5py.h5s.ALL, h5py.h5s.ALL, array, kind)
            return
        space = identity.get_space()
        space.select_hyperslab(tuple(start for start, _ in box), array.shape)
        identity.write(h5py.h5s.create_simple(array.shape), space, array, kind)

    def resize(self, rows: int) -> None:
        """Change the number of rows.

        Raises:
            RuntimeError: The dataset was created without ``maxshape``.
        """
        self.file.check_writable()
        if self.dataset.chunks is None or (self.dataset.maxshape[0] or rows) < rows:
            raise RuntimeError(
                f"the dataset {self.dataset.name!r} has a fixed number of rows; "
                "write the file with maxshape=True to append"
            )
        self.dataset.resize(rows, axis=0)
        self.shape = torch.Size(self.dataset.shape)

    def value(self) -> Encoded:
        """Return the encoded non-tensor data."""
        self.file.check_open()
        attributes: dict[str, Any] = dict(self.dataset.attrs)
        content = self.dataset[()]
        if STACK not in attributes and require("h5", "PersistentTensorDict").check_opaque_dtype(self._kind):
            return Encoded(content, {VALUE: {"encoding": PLAIN}})
        if VALUE in attributes:
            facts = json.loads(text_of(attributes[VALUE]))
            marks = {VALUE: facts, **({STACK: facts["stack"]} if "stack" in facts else {})}
            return Encoded(content.tobytes() if isinstance(content, np.ndarray) else bytes(content), marks)
        if isinstance(content, np.ndarray):
            return Encoded(content, {STACK: list(content.shape)})
        return Encoded(content, {TEXT: True})


class H5Group(Group):
    """A group of an HDF5 file; nested groups share the file."""

    __slots__ = ("_cache", "_names", "file", "group", "options")

    backend = "h5"

    def __init__(self, file: File, group: Any, options: dict[str, Any]) -> None:
        self.file = file
        self.group = group
        self.options = options
        self._cache: dict[str, Any] = {}
        self._names: list[str] | None = None

    @property
    def handle(self) -> Any:
        """The file of h5py."""
        return self.file.handle

    @property
    def location(self) -> str:
        """The path of the file."""
        return self.file.path

    @property
    def writable(self) -> bool:  # type: ignore[override]  # an attribute of other groups
        """Whether the file was opened for writing."""
        return self.file.mode != "r"

    def names(self) -> Iterable[str]:
        """Return the names in the group, in order."""
        if self._names is None:
            self.file.check_open()
            found = list(self.group)
            if not self.file.read_only:
                return found
            self._names = found
        return self._names

    def find(self, name: str) -> Array | Group | None:
        """Return the array or group under a name; it is kept until the file has another object there."""
        found = self._cache.get(name)
        if found is not None and (self.file.read_only or self._is_current(name, found)):
            kept: Array | Group = found[0]
            return kept
        self.file.check_open()
        if not name or "/" in name or name == ".":
            return None
        try:
            item = self.group[name]
        except KeyError:
            return None
        result: Array | Group
        if hasattr(item, "chunks"):
            resizable = item.chunks is not None and item.maxshape[0] is None
            size = self.facts.get("batch_size") if resizable else None
            result = H5Array(self.file, item, size[0] if size else None)
        else:
            result = H5Group(self.file, item, self.options)
        fixed = isinstance(result, H5Group) or (result.dtype is not None and item.chunks is None)
        if self.file.read_only or (fixed and is_plain_name(name)):
            self._cache[name] = result, None if self.file.read_only else address(item)
        return result

    def _is_current(self, name: str, found: tuple[Any, Any]) -> bool:
        """Return whether an object that was found still has the name: programs may write the file through h5py too.

        HDF5 gives the address of an object to no other one while the object is open.
        """
        self.file.check_open()
        links = self.group.id.links
        encoded = name.encode()
        if links.exists(encoded):
            info = links.get_info(encoded)
            if info.type == 0 and info.u == found[1]:  # a hard link
                return True
        del self._cache[name]
        return False

    def _replaced(self, name: str) -> None:
        self.file.check_writable()
        if not name or "/" in name or name == ".":
            raise KeyError(
                f"key {name!r} cannot be a name in an HDF5 file, where '/' separates groups; rename the entry first"
            )
        self._cache.pop(name, None)
        if self._has(name):
            del self.group[name]

    def _has(self, name: str) -> bool:
        return bool(self.group.id.links.exists(name.encode())) if is_plain_name(name) else name in self.group

    def create_group(self, name: str) -> Group:
        """Create an empty group replacing an existing object of that name."""
        self._replaced(name)
        return H5Group(self.file, self.group.create_group(name, track_order=True), self.options)

    def put_array(self, name: str, shape: torch.Size, dtype: torch.dtype) -> Array:
        """Return a dataset of a shape and dtype: the one that has the name, or a new one in place of another object."""
        stored, other = numpy_dtype(dtype)
        old = self.find(name) if self._has(name) else None
        if isinstance(old, H5Array) and old.dtype == dtype and old.shape == shape:
            return old
        self._replaced(name)
        options = creation_options(self.options, shape, stored.itemsize)
        if not options and is_plain_name(name):
            dataset = create_contiguous(self.group, name, shape, stored)
        else:
            dataset = self.group.create_dataset(name, shape=tuple(shape), dtype=stored, **options)
        if other is not None:
            dataset.attrs[DTYPE] = other
        return H5Array._created(self.file, dataset, stored, dtype, shape)

    def put_value(self, name: str, value: Encoded) -> None:
        """Create a dataset with encoded non-tensor data."""
        self._replaced(name)
        h5py = require("h5", "PersistentTensorDict")
        content, attributes = value
        if isinstance(content, bytes) and attributes[VALUE]["encoding"] == "json":
            numbers = _numbers(content, attributes.get(STACK))
            if numbers is not None:
                dataset = self.group.create_dataset(name, data=numbers.astype(h5py.opaque_dtype(numbers.dtype)))
                if STACK in attributes:
                    dataset.attrs[STACK] = attributes[STACK]
                return
            # JSON is text (ASCII), which other readers show unchanged
            content, attributes = content.decode(), attributes | {TEXT: True}
        if isinstance(content, bytes) and attributes[VALUE]["encoding"] == BYTES and content[-1:] not in (b"", b"\0"):
            array = np.array(content)  # which ends at a null byte
            self.group.create_dataset(name, data=array.astype(h5py.opaque_dtype(array.dtype)))
            return
        if isinstance(content, bytes):
            dataset = self.group.create_dataset(name, data=np.frombuffer(content, dtype=np.uint8))
        else:
            dataset = self.group.create_dataset(name, data=content, dtype=h5py.string_dtype())
        if VALUE in attributes and STACK in attributes:  # (the other implementation takes the text for an array)
            attributes = {**attributes, VALUE: {**attributes[VALUE], "stack": attributes[STACK]}}
            del attributes[STACK]
        for key, fact in attributes.items():
            dataset.attrs[key] = json.dumps(fact) if isinstance(fact, dict) else fact

    def remove(self, name: str) -> None:
        """Remove an array or a group."""
        self.file.check_writable()
        self._cache.pop(name, None)
        del self.group[name]

    @contextlib.contextmanager
    def undone_by_errors(self, name: str) -> Iterator[None]:
        """If the block that stores an entry raises, put back the earlier object; HDF5 keeps an object that is open."""
        old = self.group.get(name) if name and "/" not in name and self._has(name) else None
        try:
            with super().undone_by_errors(name):
                yield
        except BaseException:
            if old is not None:
                with contextlib.suppress(Exception):
                    if name not in self.group:
                        self.group[name] = old
            raise

    def rename(self, old: str, new: str) -> None:
        """Rename an array or a group."""
        self._replaced(new)
        self._cache.pop(old, None)
        self.group.move(old, new)

    @property
    def facts(self) -> dict[str, Any]:
        """The metadata of the group in the file; empty if another program wrote it."""
        self.file.check_open()
        found = self.group.attrs.get(FACTS)
        if found is None:
            return {}
        try:
            facts = json.loads(text_of(found))
        except ValueError:
            facts = None
        return check_facts(facts, self.group.name, self.file.path)

    def set_facts(self, facts: dict[str, Any]) -> None:
        """Replace the metadata of the group in the file."""
        self.file.check_writable()
        # (the file keeps the order of keys itself)
        put_text(self.group, FACTS, json.dumps({key: fact for key, fact in facts.items() if key != "keys"}))

    def flush(self) -> None:
        """Write all buffered data to the operating system."""
        self.file.flush()

    def close(self) -> None:
        """Close the file."""
        if self.file.handle:
            self.file.handle.close()

    def recipe(self) -> tuple[Any, ...]:
        """Return a function and its arguments with which another process opens this group."""
        self.file.check_open()
        self.file.flush()
        return _open_again, (self.file.path, self.file.mode, self.file.locking, self.group.name, self.options)


def _numbers(text: bytes, size: list[int] | None) -> np.ndarray[Any, Any] | None:
    """Return numbers of one type in JSON as an array, as the reference implementation stores them; or ``None``."""
    loaded = json.loads(text)
    flat = [loaded] if size is None else loaded
    if len({type(one) for one in flat}) != 1 or not isinstance(flat[0], int | float):
        return None
    array = np.array(flat)
    return array.reshape(size or ()) if array.dtype in (np.bool_, np.int64, np.float64) else None


def open_group(filename: Any, group: Any, mode: str, locking: Any, options: dict[str, Any]) -> H5Group:
    """Open a file and return its root group; or return a group that is open.

    Raises:
        TypeError: ``group`` is not an h5py group.
    """
    if group is None:
        file = open_file(filename, mode, locking)
        return H5Group(file, file.handle, options)
    h5py = require("h5", "PersistentTensorDict")
    if not isinstance(group, h5py.Group):
        raise TypeError(f"group should be a group of h5py, got {type(group).__name__}; pass a path as filename")
    handle = group.file
    return H5Group(File(handle, handle.filename, handle.mode, locking), group, options)


def create_file(filename: Any, locking: Any, options: dict[str, Any], fill: Callable[[H5Group], None]) -> H5Group:
    """Write a new file, put it in place of an earlier one, and return its root group, open for reading and writing.

    Args:
        filename: The path.
        locking: The option of h5py.
        options: The options with which entries are stored.
        fill: A function that writes the entries; if it raises, an earlier file stays as it is.
    """
    path = os.path.abspath(os.fspath(filename))
    try:
        with staged(path) as beside:
            file = open_file(beside, "w", locking)
            try:
                fill(H5Group(file, file.handle, options))
                file.handle.flush()
            except BaseException:
                with contextlib.suppress(Exception):  # what was not written cannot be written now
                    file.handle.close()
                raise
    except OSError as error:
        said = f"the HDF5 file {path!r} could not be written and is unchanged: {error}"
        raise (OSError(said) if error.errno is None else OSError(error.errno, said)) from error
    file.path = path  # the open file has moved, and stays open
    return H5Group(file, file.handle, options)


def _open_again(path: str, mode: str, locking: Any, name: str, options: dict[str, Any]) -> H5Group:
    file = open_file(path, mode, locking)
    return H5Group(file, file.handle[name], options)
