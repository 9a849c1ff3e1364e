"""`LazyStackedTensorDictStore`: a lazy stack on a Redis server, whose elements may differ in shape.

An entry is one value on the server, the concatenation of its elements; another value has their offsets. Reading one
element, or consecutive elements, reads one range of that value.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Self, Unpack

import torch
from torch import Tensor

from tensordict_core import LazyStackedTensorDict, TensorDict, lazy_stack
from tensordict_core.extension import CustomContainer, Index, Meta, Node, as_batch_size, dense, with_options
from tensordict_store.nodes import locked_if, names_of, save_by
from tensordict_store.redis.commands import Command, Writes
from tensordict_store.redis.elements import add_elements
from tensordict_store.redis.layout import Path, Record, ends_of, gone, parse_size, shape_of
from tensordict_store.redis.node import ServerNode
from tensordict_store.redis.options import DEFAULTS, ServerOptions, StoreOptions, tree_at
from tensordict_store.redis.ranges import Elements, as_bytes
from tensordict_store.redis.transfer import gather, scatter
from tensordict_store.redis.tree import Change, Tree
from tensordict_store.redis.values import decoded
from tensordict_store.redis.writes import whole_rows


class LazyStackedTensorDictStore(ServerNode):
    """A lazy stack on a Redis server; its elements have the same keys and may have different shapes.

    Args:
        backend: ``"redis"`` or ``"dragonfly"``, which use the same protocol.
        host: The host of the server.
        port: The port of the server.
        db: The number of the database.
        unix_socket_path: The socket of a server on this machine, in place of host and port.
        prefix: The first part of all names on the server.
        count: The number of elements.
        stack_dim: The batch dimension along which they are stacked.
        inner_batch_size: The batch size of each element.
        device: The device of tensors that are read.
        client: A client of redis-py, synchronous or of ``redis.asyncio``, in place of host and port.
        td_id: The id of an existing stack, as in `from_store`; by default a new id.
        cache_metadata: Whether keys, shapes and dtypes are cached.
        ttl: The time in seconds after which the server deletes values that are stored from now on.
        allow_pickle: Whether pickled values may be stored and loaded.
        **options: Options of ``redis.Redis``.

    Raises:
        ImportError: redis-py is not installed.
        ConnectionError: The server does not answer.

    >>> from tensordict_core import lazy_stack
    >>> ragged = lazy_stack([TensorDict({"a": torch.ones(n)}) for n in (1, 2)])
    >>> stored = LazyStackedTensorDictStore.from_lazy_stack(ragged, host="localhost")
    >>> stored[1]["a"]
    tensor([1., 1.])
    """

    @with_options(StoreOptions, DEFAULTS)
    def __init__(
        self,
        *,
        count: int,
        stack_dim: int = 0,
        inner_batch_size: Sequence[int],
        **options: Unpack[StoreOptions],
    ) -> None:
        tree, device = tree_at(options)
        inner = as_batch_size(inner_batch_size)
        if options.get("td_id") is not None:
            tree.load()
        tree.whole["__stack_dim__"] = str(stack_dim)
        self._start_at(tree, (), Meta(_stacked_size(inner, count, stack_dim), device))
        if options.get("td_id") is None:
            self._create(Change())

    def _start_at(self, tree: Tree, path: Path, meta: Meta) -> None:
        super()._start_at(tree, path, meta)
        self._dim = int(tree.whole["__stack_dim__"])

    @property
    def _count(self) -> int:
        return self._meta.batch_size[self._dim]

    @property
    def _inner(self) -> torch.Size:
        size, dim = self._meta.batch_size, self._dim
        return torch.Size((*size[:dim], *size[dim + 1 :]))

    def _sizes(self, meta: Meta) -> dict[str, str]:
        size, dim = list(meta.batch_size), self._dim
        return {
            "__type__": "lazy_stack",
            "__count__": str(size[dim]),
            "__stack_dim__": str(dim),
            "__inner_batch_size__": json.dumps(size[:dim] + size[dim + 1 :]),
        }

    @property
    def stack_dim(self) -> int:
        """The batch dimension along which the elements are stacked.

        >>> parts = [{"a": torch.ones(1)}, {"a": torch.ones(2)}]
        >>> LazyStackedTensorDictStore.from_dict(parts).stack_dim
        0
        """
        return self._dim

    def _nested(self, path: Path, facts: dict[str, Any]) -> Any:
        return locked_if(self._at(self._tree, path, self._meta), self._locked)

    def _peek(self, key: str) -> Any:
        self._tree.refresh()
        record = self._record(key)
        if record is None:
            return self._child(key)
        if record.dtype is None:
            return self._get(key)
        # if shapes differ, the shape of the first element is used; a read or write of the entry raises the error
        shape = record.shape if record.shape is not None else (self._count, *shape_of(record, 0))
        return torch.empty(shape, dtype=record.dtype, device="meta").movedim(0, self._dim)

    def _shape_of(self, key: str) -> torch.Size:
        record = self._record(key)
        if record is None or record.shapes is None:
            shape: torch.Size = self._peek(key).shape
            return shape
        sizes = [sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*record.shapes, strict=False)]
        return torch.Size((*sizes[: self._dim], self._count, *sizes[self._dim :]))

    def _get(self, key: str) -> Any:
        self._tree.refresh()
        if self._record(key) is None:
            return self._child(key)
        value = self._stacked(keys=[key])._get(key)  # raises where shapes differ
        if isinstance(value, Node):
            save_by(value, lambda new: self._set(key, new))
        return value

    def _read(self, key: str, index: Index | None) -> Any:
        if self._record(key) is None or index is None:
            value = self._get(key)
            return value if index is None else value._index(index)
        return self._part(index, [key])._get(key)

    def _now(self) -> Any:
        return _named(self._stacked(), self._meta.names)

    def _frame(self) -> Any:
        return self._now()  # a lazy stack, of which shapes of entries are not the whole structure

    def _index(self, index: Index) -> Any:
        return _named(self._part(index, None), index.names(self._meta.names))

    def _part(self, index: Index, keys: Sequence[str] | None) -> Any:
        """Return the rows that an index selects; if it starts with elements, these alone are read."""
        first = index.parts[0] if index.parts and not self._dim else None
        wanted: Sequence[int] = ()
        rest: Any = slice(None)
        if isinstance(first, slice):
            wanted = range(self._count)[first]
        elif type(first) is int:
            wanted, rest = [range(self._count)[first]], 0
        elif isinstance(first, Tensor) and index.rows is not None and index.at == 0:
            rows, rest = torch.unique(index.rows, return_inverse=True)
            wanted = rows.tolist()
        if not wanted:
            return self._stacked(keys=keys)._index(index)
        size = torch.Size((len(wanted), *self._inner))
        return self._stacked(wanted, keys)._index(Index((rest, *index.parts[1:]), size))

    def _stacked(self, numbers: Sequence[int] | None = None, keys: Sequence[str] | None = None) -> Any:
        """Return a lazy stack of elements, by default all, read in one request."""
        elements = self._elements(range(self._count) if numbers is None else numbers, keys)
        return lazy_stack(elements, self._dim) if elements else dense({}, self._meta)

    def _elements(self, numbers: Sequence[int], keys: Sequence[str] | None = None) -> list[Any]:
        """Return elements as plain tensordicts, read in one request; neighbours share a range."""
        tree = self._tree
        tree.refresh()
        meta = Meta(self._inner, self._meta.device)
        root = len(self._path)
        paths = tree.below(self._path)
        if keys is not None:
            paths = [path for path in paths if path[root] in keys]
        tensors = [path for path in paths if tree.records[path].dtype is not None]
        values: list[Command] = [("GET", tree.data(path)) for path in paths if tree.records[path].dtype is None]
        wanted = [Elements(path, tree.data(path), tree.records[path], numbers, self._count) for path in tensors]
        contents, replies = gather(tree.connection, [one.reads for one in wanted], values)
        found = zip(wanted, contents, strict=True)
        rest = iter(replies)
        out = [self._empty(meta, self._path, keys) for _ in numbers]
        for path in paths:
            record = tree.records[path]
            if record.dtype is None:
                value = decoded(".".join(path), record, next(rest), self._meta, tree.allow_pickle)
                parts: list[Any] = [value._index(Index(i, torch.Size((self._count,)))) for i in numbers]
            else:
                one, content = next(found)
                parts = one.elements(content)
            for element, part in zip(out, parts, strict=True):
                if isinstance(part, Tensor) and meta.device is not None:
                    part = part.to(meta.device)
                element.set(path[root:], part)
        return out

    def _empty(self, meta: Meta, path: Path, keys: Sequence[str] | None = None) -> Any:
        """Return an element whose leaves are still to be set; their places keep the order of the keys."""
        nodes, chosen = self._tree.nodes, self._tree.nodes.get(path, {"keys": ()})["keys"]
        names = [name for name in chosen if keys is None or name in keys]
        entries = {name: self._empty(meta, (*path, name)) if (*path, name) in nodes else None for name in names}
        return dense(entries, meta)

    def _write(self, key: str, index: Index | None, value: Tensor) -> None:
        """Write into a part of an entry whose elements have one shape."""
        record = self._record(key)
        assert record is not None
        if record.shape is None:
            raise RuntimeError(
                f"the elements of {key!r} differ in shape, so they cannot be written as one tensor; "
                "write each element, store[i] = element"
            )
        first = index.parts[0] if index is not None and len(index.parts) == 1 and not self._dim else None
        if type(first) is int:  # one element is one range
            number = range(self._count)[first]
            run = (number, number + 1)
        else:
            run = (0, self._count)
            if index is not None:
                whole = self._get(key)
                whole[index.idx] = value.to(whole.device)
                value = whole
            value = value.movedim(self._dim, 0)
        scatter(self._tree, whole_rows(self._tree.data((*self._path, key)), record, [run], value))

    def _plan_write(self, index: Index | None, source: Any, plan: Any, prefix: tuple[str, ...]) -> None:
        """Plan an in-place write; elements that differ in shape are written as a whole."""
        parts = () if index is None or self._dim else index.parts
        first = parts[0] if len(parts) == 1 else None
        if type(first) is not int or not isinstance(source, Node):
            super()._plan_write(index, source, plan, prefix)
            return
        number = range(self._count)[first]
        changes: list[tuple[Path, Record, Tensor]] = []
        rest = source._clone(False)
        for path in source._leaf_keys():
            record = self._tree.records.get((*self._path, *path))
            if record is not None and record.shapes is not None:
                changes.append(((*self._path, *path), record, source.get(path)))
                rest.del_(path)
        super()._plan_write(index, rest, plan, prefix)
        if changes:
            plan.before(lambda: self._replace(number, changes))

    def _replace(self, number: int, changes: list[tuple[Path, Record, Tensor]]) -> None:
        """Write one element of entries whose elements differ in shape.

        Raises:
            KeyError: An entry was deleted on the server, and nothing was written.
        """
        tree = self._tree
        writes: list[Writes] = []
        resized: list[tuple[Path, Record, Tensor, list[int]]] = []
        for path, record, value in changes:
            assert record.shapes is not None
            ends = ends_of(record, self._count)
            if value.shape != record.shapes[number]:
                resized.append((path, record, value, ends))
            elif value.numel():
                content = as_bytes(value.to(record.dtype))
                writes.append(Writes(tree.data(path), [(ends[number], ends[number + 1])], 1, content))
        if not resized:
            scatter(tree, writes)
            return
        reads: list[Command] = [("GET", tree.data(path)) for path, *_ in resized]
        found = tree.connection.run([*reads, *(("EXISTS", write.name) for write in writes)])
        names = [name for _, name in reads] + [write.name for write in writes]
        for name, reply in zip(names, found, strict=True):
            if reply is None or reply == 0:
                raise gone(tree.key_of(name), "nothing was written, store the entry again")
        change = Change()
        for (path, record, value, ends), old in zip(resized, found, strict=False):
            assert record.shapes is not None
            shapes = (*record.shapes[:number], value.shape, *record.shapes[number + 1 :])
            parts = old[: ends[number]], as_bytes(value.to(record.dtype)), old[ends[number + 1] :]
            change.puts.append((path, Record(record.dtype, None, shapes=shapes), b"".join(parts)))
        tree.apply(change, writes)

    def _add_entry(self, path: Path, value: Any, change: Change) -> None:
        elements = value if isinstance(value, list) else list(value.unbind(self._dim))
        add_elements(path, elements, change, self._tree.allow_pickle)

    def _rename(self, old: str, new: str) -> None:
        self._change_entries({new: [one._get(old) for one in self._elements(range(self._count), [old])]}, old)

    def _change_batch_size(self, size: torch.Size) -> None:
        if size[self._dim : self._dim + 1] != (self._count,):
            raise RuntimeError(
                f"the batch size {list(size)} does not keep the stack dimension {self._dim} of size {self._count}; "
                "copy the stack with to_tensordict() first"
            )
        super()._change_batch_size(size)

    def _shown(self) -> dict[str, Any]:
        return {"count": self._count, "stack_dim": self._dim}

    @classmethod
    @with_options(StoreOptions, DEFAULTS)
    def from_lazy_stack(
        cls,
        lazy_td: Any,
        **options: Unpack[StoreOptions],
    ) -> Self:
        """Store a lazy stack on a server, in one request.

        Args:
            lazy_td: The lazy stack; its elements have the same keys.
            backend: This and the following arguments are those of the constructor.
            host: The host of the server.
            port: The port of the server.
            db: The number of the database.
            unix_socket_path: The socket of a server on this machine.
            prefix: The first part of all names on the server.
            device: The device of tensors that are read; by default the device of the stack.
            **options: More options of the constructor.

        Raises:
            TypeError: ``lazy_td`` is not a lazy stack, or an entry cannot be stored.
            KeyError: The elements differ in their keys.
            ConnectionError: The server does not answer.

        >>> ragged = lazy_stack([TensorDict({"a": torch.ones(n)}) for n in (1, 2)])
        >>> LazyStackedTensorDictStore.from_lazy_stack(ragged)[1]["a"]
        tensor([1., 1.])
        """
        if not isinstance(lazy_td, LazyStackedTensorDict):
            raise TypeError(
                f"from_lazy_stack() takes a lazy stack, got {type(lazy_td).__name__}; store it with TensorDictStore"
            )
        tree, device = tree_at(options)
        tree.whole["__stack_dim__"] = str(lazy_td.stack_dim)
        own = lazy_td._meta
        self = cls._at(tree, (), Meta(own.batch_size, device or own.device, own.names))
        elements = [part._now() if isinstance(part, CustomContainer) else part for part in lazy_td.tensordicts]
        change = Change()
        add_elements((), elements, change, tree.allow_pickle)
        self._create(change)
        return self

    @classmethod
    @with_options(StoreOptions, DEFAULTS)
    def from_dict(  # type: ignore[override]  # a server has an address
        cls,
        input_dict: Any,
        *,
        auto_batch_size: bool = False,
        batch_size: Sequence[int] | int | None = None,
        **options: Unpack[StoreOptions],
    ) -> Self:
        """Store elements as a stack.

        Args:
            input_dict: A sequence of tensordicts or dictionaries, or a dictionary with such values.
            auto_batch_size: Whether the batch size of an element is the longest common prefix of its shapes.
            batch_size: The batch size of each element.
            device: The device of tensors that are read.
            **options: More options of `from_lazy_stack`.

        >>> LazyStackedTensorDictStore.from_dict([{"a": torch.ones(1)}, {"a": torch.ones(2)}])[1]["a"]
        tensor([1., 1.])
        """
        parts = input_dict.values() if isinstance(input_dict, dict) else input_dict
        elements = [one if isinstance(one, Node) else TensorDict(one, batch_size) for one in parts]
        if auto_batch_size:
            elements = [one._clone(False).auto_batch_size_() for one in elements]
        return cls.from_lazy_stack(lazy_stack(elements), **options)

    @classmethod
    @with_options(ServerOptions, DEFAULTS)
    def from_store(
        cls,
        *,
        td_id: str,
        **options: Unpack[ServerOptions],
    ) -> Self:
        """Open a stack that is stored on a server.

        Args:
            backend: This and the following arguments are those of the constructor.
            host: The host of the server.
            port: The port of the server.
            db: The number of the database.
            unix_socket_path: The socket of a server on this machine.
            prefix: The first part of all names on the server.
            td_id: The id of the stack.
            device: The device of tensors that are read.
            **options: More options of the constructor.

        Raises:
            KeyError: The server has no tensordict with this id.
            TypeError: The id is not that of a stack.
            ConnectionError: The server does not answer.

        >>> stored = LazyStackedTensorDictStore.from_dict([{"a": torch.ones(1)}, {"a": torch.ones(2)}])
        >>> LazyStackedTensorDictStore.from_store(td_id=stored.td_id)[1]["a"]
        tensor([1., 1.])
        """
        tree, device = tree_at({**options, "td_id": td_id})
        tree.load()
        if tree.whole.get("__type__") != "lazy_stack":
            raise TypeError(f"td_id={td_id!r} is not a lazy stack; open it with TensorDictStore.from_store")
        inner = parse_size("__inner_batch_size__", tree.whole.get("__inner_batch_size__", ""))
        numbers = f"[{tree.whole.get('__count__')},{tree.whole.get('__stack_dim__')}]"
        count, dim = parse_size("__count__", numbers)
        if dim > len(inner):
            raise ValueError(f"the stack dimension {dim} of td_id={td_id!r} is damaged; store the stack again")
        size = _stacked_size(inner, count, dim)
        return cls._at(tree, (), Meta(size, device or tree.device, names_of(tree.nodes[()].get("names"), size)))


def _stacked_size(inner: torch.Size, count: int, dim: int) -> torch.Size:
    """Return the batch size of a stack of elements."""
    return torch.Size((*inner[:dim], count, *inner[dim:]))


def _named(part: Any, names: Any) -> Any:
    """Return a part of a stack with the names of its dimensions, which the elements do not have."""
    if names is not None:
        part._put_names(names)
    return part
