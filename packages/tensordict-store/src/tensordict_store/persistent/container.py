"""`PersistentTensorDict`: a tensordict whose entries are arrays of an HDF5 file or a zarr store.

Indexing reads only the selected rows, and in-place writes change the file. The container holds a `Group` of the format
and one child for each nested group; it keeps no tensor. Results of operations are plain tensordicts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Self, TypeGuard

import torch
from torch import Tensor

from tensordict_core import TensorDict
from tensordict_core.extension import CustomContainer, Index, Meta, Node, as_batch_size, as_device, dense
from tensordict_store.arrays.group import Array, Group, Target
from tensordict_store.arrays.selection import Selection, Selector, select
from tensordict_store.arrays.values import decode, encode
from tensordict_store.errors import PlaceError
from tensordict_store.nodes import around, child_meta, inside, locked_if, names_of, save_by, unwrapped, wrapped
from tensordict_store.persistent.append import append_rows
from tensordict_store.persistent.backends import backend_of
from tensordict_store.persistent.opened import Opened
from tensordict_store.persistent.view import PersistentView, PiecesAreCopies
from tensordict_store.persistent.writing import facts_of, memmap_in_blocks, prepared_tensor, reader


class Options(NamedTuple):
    """The state that all nodes of one persistent tensordict share."""

    device: torch.device | None
    as_stack: bool
    allow_pickle: bool
    kwargs: dict[str, Any]


class PersistentTensorDict(PiecesAreCopies, Opened, CustomContainer):
    """A tensordict whose entries are arrays of an HDF5 file or a zarr store.

    Args:
        batch_size: The batch size; by default the one that is stored in the file, or none if another program wrote it.
        filename: The file, or with ``backend="zarr"`` anything that zarr opens: a folder, a URL, a store.
        group: An open group of h5py or zarr, in place of ``filename``.
        mode: ``"r"`` for reading, ``"r+"`` for reading and writing, ``"w"`` for a new file that replaces an existing
            one, ``"w-"`` or ``"x"`` for a new file only, ``"a"`` for an existing or a new file.
        backend: ``"h5"`` or ``"zarr"``.
        device: The device of tensors that are read.
        validate_batch_size: Whether the shapes in the file are compared with ``batch_size``.
        non_tensor_as_stack: Whether one non-tensor value of a batch is read as a value for each position.
        allow_pickle: Whether non-tensor values that JSON cannot hold may be pickled and loaded; a pickle runs code
            when it is loaded.
        **kwargs: How new entries are stored, such as ``chunks=`` and ``compression=``, as in ``create_dataset`` of h5py
            and ``create_array`` of zarr. ``chunks`` may be a number of rows.

    Raises:
        ImportError: The library of the backend is not installed.
        ValueError: An entry does not start with the batch size, or an argument is unknown.
        OSError: The file cannot be opened.

    >>> from tensordict_store import PersistentTensorDict
    >>> td = PersistentTensorDict(filename="data.h5", batch_size=[10], mode="w")
    >>> td["x"] = torch.arange(20).view(10, 2)
    >>> td[3:5] = TensorDict({"x": torch.zeros(2, 2, dtype=torch.int64)}, [2])
    >>> td[2:4]["x"]
    tensor([[4, 5],
            [0, 0]])
    >>> td.close()
    """

    _reads_copy = True
    _indexes_entries = True

    LOCKING: bool | str | None = None
    """Whether HDF5 files are locked while they are open, as the option ``locking`` of h5py: ``True``, ``False``,
    ``"best-effort"``, or ``None`` for what HDF5 and its environment variable say. Assign to it to change the default of
    all files that are opened from then on."""

    def __init__(
        self,
        *,
        batch_size: Sequence[int] | int | None = None,
        filename: Any = None,
        group: Any = None,
        mode: str = "r",
        backend: str = "h5",
        device: torch.device | str | int | None = None,
        validate_batch_size: bool = True,
        non_tensor_as_stack: bool = False,
        allow_pickle: bool | None = None,
        **kwargs: Any,
    ) -> None:
        if (filename is None) == (group is None):
            raise PlaceError(
                f"Either group or filename must be provided, and not both: got filename={filename!r} and "
                f"group={group!r}; pass one of them"
            )
        opened = backend_of(backend).open(filename, group, mode, self.LOCKING, kwargs)
        options = Options(as_device(device), non_tensor_as_stack, bool(allow_pickle), kwargs)
        try:
            facts = opened.facts
            given = batch_size is not None
            size = as_batch_size(batch_size if given else facts.get("batch_size", ()))
            self._open(opened, Meta(size, options.device, names_of(facts.get("names"), size)), options)
            if validate_batch_size:
                self._check_shapes()
            if given and opened.writable:
                self._put_facts()
        except BaseException:
            opened.close()
            raise

    def _open(self, group: Any, meta: Meta, options: Options) -> None:
        self._start(meta)
        self._group = group
        self._options = options
        self._children: dict[str, Any] = {}

    @classmethod
    def _make(cls, group: Any, meta: Meta, options: Options) -> Self:
        self = object.__new__(cls)
        self._open(group, meta, options)
        return self

    def _check_shapes(self) -> None:
        size = self._meta.batch_size
        if not size:
            return
        for name in self._keys():
            entry = self._group.find(name)
            if _is_tensor(entry) and entry.shape[: len(size)] != size:
                raise ValueError(
                    f"the entry {name!r} has shape {list(entry.shape)}, which does not start with the batch size "
                    f"{list(size)}; pass another batch_size"
                )

    # members for files only -------------------------------------------------------------------------------------------

    @property
    def backend(self) -> str:
        """The name of the format, ``"h5"`` or ``"zarr"``.

        >>> TensorDict({"x": torch.ones(2)}).to_zarr("backend.zarr").backend
        'zarr'
        """
        name: str = self._group.backend
        return name

    def append(self, rows: Any) -> Self:
        """Append rows along the first batch dimension.

        Readers see the new rows when all are written, because the batch size in the file is updated last. zarr arrays
        can always grow; an HDF5 file must have been written with ``maxshape=True``. Non-tensor data are rewritten
        completely.

        Args:
            rows: A tensordict with the same entries, whose batch size differs in the first dimension only.

        Raises:
            RuntimeError: The tensordict is locked or cannot grow, or the rows do not fit.
            KeyError: The rows do not have the same keys.

        >>> td = TensorDict({"x": torch.zeros(2, 3)}, [2]).to_zarr("grows.zarr")
        >>> td.append(TensorDict({"x": torch.ones(4, 3)}, [4])).batch_size
        torch.Size([6])
        >>> td[1:3]["x"].tolist()
        [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
        """
        append_rows(self, rows)
        return self

    def separates(self, *keys: Any, **options: Any) -> Any:
        """Return the entries under some keys as a plain tensordict; the file keeps them.

        Args:
            *keys: The keys, which may be nested.
            **options: As for `tensordict_core.TensorDict.separates`.

        >>> td = TensorDict({"x": torch.ones(2), "y": torch.zeros(2)}).to_h5("separates.h5")
        >>> list(td.separates("x").keys()), list(td.keys()), td.close()
        (['x'], ['x', 'y'], None)
        """
        return self._now().separates(*keys, **options)

    # entries ----------------------------------------------------------------------------------------------------------

    def _keys(self) -> Iterable[str]:
        names: Iterable[str] = self._group.names()
        return names

    def _peek(self, key: str) -> Any:
        entry = self._group.find(key)
        if _is_tensor(entry):
            return torch.empty(entry.shape, dtype=entry.dtype, device="meta")
        return self._node(key, entry)

    def _get(self, key: str) -> Any:
        return self._read(key, None)

    def _node(self, key: str, entry: Array | Group | None) -> Any:
        """Return the nested tensordict or the non-tensor data in an entry of the group; ``None`` if there is none."""
        if isinstance(entry, Array):
            return self._value(key, entry)
        return None if entry is None else self._child(key, entry)

    def _now(self) -> Any:
        return self._fetched(None)

    def _index(self, index: Index) -> Any:
        return self._view_at(index)

    def _view_at(self, index: Index) -> Any:
        return PersistentView._make(self, index)

    def _fetched(self, index: Index | None) -> Any:
        """Return the part that an index selects as a plain tensordict; all of it is read in one call."""
        pairs: list[tuple[Array, Selection]] = []
        places: list[tuple[dict[str, Any], str]] = []
        out = self._add_requests(Selector(index), pairs, places)
        values = self._group.read_all(pairs)
        for (entries, key), (_, selection), value in zip(places, pairs, values, strict=True):
            entries[key] = self._on_device(selection.part(value))
        return out

    def _add_requests(
        self, rows: Selector, pairs: list[tuple[Array, Selection]], places: list[tuple[dict[str, Any], str]]
    ) -> Any:
        """Return a tensordict whose tensors are still to be read, and append the reads with their targets."""
        index = rows.index
        entries: dict[str, Any] = {}
        for key in self._keys():
            entry = self._group.find(key)
            if _is_tensor(entry):
                entries[key] = None  # keeps the order
                pairs.append((entry, rows.select(entry.shape, entry.gap)))
                places.append((entries, key))
            elif isinstance(entry, Array):
                value = self._value(key, entry)
                entries[key] = value._clone(True) if index is None else value._index(index)
            else:
                child = self._child(key, entry)
                entries[key] = (
                    child._add_requests(rows, pairs, places)
                    if isinstance(child, PersistentTensorDict)
                    else around(type(child), inside(child)._fetched(index))
                )
        return dense(entries, self._meta if index is None else index.meta(self._meta))

    def _shape_of(self, key: str) -> torch.Size:
        entry = self._group.find(key)
        return entry.shape if _is_tensor(entry) else self._node(key, entry).shape

    def _nodes(self) -> Iterable[Node]:
        return [entry for key in self._keys() if isinstance(entry := self._peek(key), Node)]

    def _on_device(self, value: Tensor) -> Tensor:
        device = self._meta.device
        return value if device is None else value.to(device)

    def _read(self, key: str, index: Index | None) -> Any:
        entry = self._group.find(key)
        if not _is_tensor(entry):
            value = self._node(key, entry)
            return value if index is None else value._index(index)
        selection = select(index, entry.shape, entry.gap)
        return self._on_device(selection.part(entry.read(selection)))

    def _write(self, key: str, index: Index | None, value: Tensor) -> None:
        entry = self._group.find(key)
        assert isinstance(entry, Array)
        selection = select(index, entry.shape)
        if selection.residual is not None:
            blank = partial(torch.empty, selection.shape, dtype=value.dtype, device="cpu")
            values = blank() if selection.covers else entry.read(selection)
            values[selection.residual] = value.to(values.device)
            value = values
        for box, place in selection.boxes():
            start, stop = box[selection.dim] if box else (0, 0)
            entry.write(box, value.narrow(selection.dim, place, stop - start) if len(selection.runs) > 1 else value)

    def _set(self, key: str, value: Any) -> None:
        if isinstance(value, Node) and (
            value is self._children.get(key) or inside(value) is self._children.get(key, self)
        ):
            return
        put = self._prepared(key, value)
        self._children.pop(key, None)
        old = self._group.find(key)
        if (
            isinstance(old, Array)
            and isinstance(value, Tensor)
            and (old.dtype, old.shape) == (value.dtype, value.shape)
        ):
            put(self._group)  # into the array that is there
            return
        with self._group.undone_by_errors(key):
            put(self._group)

    def _del(self, key: str) -> None:
        self._group.remove(key)
        self._children.pop(key, None)

    def _rename(self, old: str, new: str) -> None:
        self._group.rename(old, new)
        self._children.pop(old, None)
        self._children.pop(new, None)

    def _prepared(self, key: str, value: Any) -> Callable[[Target], None]:
        """Return a function that stores an entry; an entry that cannot be stored raises an error here."""
        if isinstance(value, Tensor):
            return prepared_tensor(key, value, lambda rows: value[rows] if value.ndim else value)
        if value._is_non_tensor:
            encoded = encode(key, value, self._options.allow_pickle)
            return lambda group: group.put_value(key, encoded)
        value, facts = unwrapped(key, value, "in a file")
        parts = self._prepared_entries(value)
        meta, names = value._meta, [str(name) for name in value._keys()]

        def put(group: Target) -> None:
            node = group.create_group(key)
            node.set_facts(facts_of(meta) | facts | {"keys": names})
            for part in parts:
                part(node)

        return put

    def _prepared_entries(self, node: Any) -> list[Callable[[Target], None]]:
        """Return functions that store the entries of a node; a store whose reads copy is read when they run."""
        if not node._reads_copy:
            node = node._now() if isinstance(node, CustomContainer) else node._solid()
            return [self._prepared(name, entry) for name, entry in node._items()]
        return [
            self._prepared(name, entry)
            if isinstance(entry, Node)
            else prepared_tensor(name, entry, reader(node, name), node._shape_of(name))
            for name, entry in node._peek_items()
        ]

    def _child(self, key: str, group: Group) -> Any:
        child = self._children.get(key)
        if child is None:
            facts = group.facts
            child = self._make(group, child_meta(facts, self._meta), self._options)
            child = self._children[key] = wrapped(child, facts, self._locked)
        return child

    def _value(self, key: str, entry: Array) -> Any:
        node = decode(key, entry.value(), self._meta, self._options.allow_pickle)
        if self._options.as_stack:
            node = node.maybe_to_stack()
        save_by(node, lambda new: self._group.put_value(key, encode(key, new, self._options.allow_pickle)))
        return node

    # metadata ---------------------------------------------------------------------------------------------------------

    def is_contiguous(self) -> bool:
        """Return ``False``: entries are in a file, and ``contiguous()`` reads them.

        >>> TensorDict({"x": torch.ones(2)}).to_h5("data.h5").is_contiguous()
        False
        """
        return False

    def _moved(self, target: Any, memory_format: Any, *options: Any) -> Any:
        """Return the result of ``to``; for another device alone, this file with reads that go there."""
        device, dtype, _ = target
        if device in (None, self._meta.device) or dtype is not None or memory_format is not None:
            return super()._moved(target, memory_format, *options)
        meta = Meta(self._meta.batch_size, device, self._meta.names)
        return locked_if(self._make(self._group, meta, self._options._replace(device=device)), self._locked)

    def _set_meta(self, meta: Meta) -> None:
        old = self._meta
        super()._set_meta(meta)
        if (meta.batch_size, meta.names) != (old.batch_size, old.names) and self._group.writable:
            self._put_facts()

    def _put_facts(self) -> None:
        kept = {key: fact for key, fact in self._group.facts.items() if key not in ("batch_size", "names")}
        self._group.set_facts(facts_of(self._meta) | kept)

    def memmap(self, prefix: Any = None, *args: Any, **options: Any) -> Any:
        """Copy the entries to mapped files, as ``TensorDict.memmap``, a block of rows at a time.

        >>> stored = TensorDict({"x": torch.arange(6).view(3, 2)}, [3]).to_h5("rows.h5")
        >>> stored.memmap("rows")["x"].sum().item(), stored.close()
        (15, None)
        """
        if prefix is None or args or options or os.path.lexists(prefix):
            return super().memmap(prefix, *args, **options)
        return memmap_in_blocks(self, os.fspath(prefix))

    # copies -----------------------------------------------------------------------------------------------------------

    def __reduce__(self) -> Any:
        """Pickle the path of the file; the unpickled tensordict opens it again."""
        return _reopened, (type(self), self._group.recipe(), self._meta, self._options, self._locked)

    @classmethod
    def from_dict(  # type: ignore[override]  # a file has a name
        cls,
        input_dict: Any,
        filename: Any,
        *,
        auto_batch_size: bool = False,
        batch_size: Sequence[int] | int | None = None,
        device: torch.device | str | int | None = None,
        backend: str = "h5",
        batch_dims: int | None = None,
        allow_pickle: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """Store a dictionary or a tensordict in a new file, and return it open for reading and writing.

        The file is written under a temporary name and then renamed, so an existing file is replaced atomically.

        Args:
            input_dict: The dictionary or tensordict.
            filename: The file.
            auto_batch_size: Whether the batch size is the longest common prefix of all shapes.
            batch_size: The batch size; by default that of a tensordict, and for a dictionary the longest common prefix
                of all shapes.
            device: The device of tensors that are read.
            backend: ``"h5"`` or ``"zarr"``.
            batch_dims: The maximum number of batch dimensions with ``auto_batch_size``.
            allow_pickle: Whether non-tensor values that JSON cannot hold are pickled.
            **kwargs: How entries are stored, as for the constructor.

        Raises:
            ValueError: The backend is unknown.
            TypeError: An entry cannot be stored; the error names its key.
            OSError: The file cannot be written.

        >>> from tensordict_store import PersistentTensorDict
        >>> td = PersistentTensorDict.from_dict({"a": {"b": torch.ones(3, 2)}}, "d.h5", batch_size=[3])
        >>> td["a", "b"].shape, td.close()
        (torch.Size([3, 2]), None)
        """
        create = backend_of(backend).create
        td = input_dict if isinstance(input_dict, Node) else TensorDict(input_dict, batch_size)
        if batch_size is not None and as_batch_size(batch_size) != td._meta.batch_size:
            td = td._clone(False)
            td.batch_size = batch_size
        if auto_batch_size or (batch_size is None and td is not input_dict):
            td = td._clone(False).auto_batch_size_(batch_dims)
        options = Options(as_device(device), False, bool(allow_pickle), kwargs)
        writer = cls._make(None, td._meta, options)
        parts = writer._prepared_entries(td)
        meta = Meta(td._meta.batch_size, options.device, td._meta.names)

        def fill(group: Target) -> None:
            group.set_facts(facts_of(meta) | {"keys": [str(key) for key in td._keys()]})
            for part in parts:
                part(group)

        return cls._make(create(filename, cls.LOCKING, kwargs, fill), meta, options)


def _is_tensor(entry: Array | Group | None) -> TypeGuard[Array]:
    """Return whether an entry of a group holds a tensor, and not nested entries or non-tensor data."""
    return isinstance(entry, Array) and entry.dtype is not None


def _reopened(cls: Any, recipe: tuple[Any, ...], meta: Meta, options: Options, locked: bool) -> Any:
    open_group, arguments = recipe
    return locked_if(cls._make(open_group(*arguments), meta, options), locked)
