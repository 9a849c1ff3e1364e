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
from tensordict_core.extension import CustomContainer, Index, Meta, Node, as_batch_size, as_device, dense, with_options
from tensordict_store.nodes import locked_if, save_by
from tensordict_store.redis.commands import Command
from tensordict_store.redis.elements import add_elements, named
from tensordict_store.redis.layout import Record, ends_of, parse_size, shape_of
from tensordict_store.redis.node import ServerNode, rebuilt
from tensordict_store.redis.options import DEFAULTS, ServerOptions, StoreOptions, tree_at
from tensordict_store.redis.ranges import Elements, as_bytes
from tensordict_store.redis.transfer import gather
from tensordict_store.redis.tree import Change, Path, Tree, decoded


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
        tree, device = tree_at(options), as_device(options.get("device"))
        inner = as_batch_size(inner_batch_size)
        self._begin(tree, (), count, stack_dim, inner, device, bool(options.get("allow_pickle")))
        if options.get("td_id") is None:
            self._create(Change())
        else:
            tree.load()

    def _begin(
        self, tree: Tree, path: Path, count: int, dim: int, inner: torch.Size, device: Any, allow_pickle: bool
    ) -> None:
        size = torch.Size((*inner[:dim], count, *inner[dim:]))
        self._start_at(tree, path, Meta(size, device), allow_pickle)
        self._count, self._dim, self._inner = count, dim, inner

    @classmethod
    def _at(cls, *parts: Any) -> Self:
        self = object.__new__(cls)
        self._begin(*parts)
        return self

    def _create(self, change: Change) -> None:
        self._tree.extra = {
            "__type__": "lazy_stack",
            "__count__": str(self._count),
            "__stack_dim__": str(self._dim),
            "__inner_batch_size__": json.dumps(list(self._inner)),
            "__device__": "" if self._meta.device is None else str(self._meta.device),
        }
        change.nodes.setdefault((), {"keys": []})
        self._tree.apply(change)

    @property
    def stack_dim(self) -> int:
        """The batch dimension along which the elements are stacked.

        >>> parts = [{"a": torch.ones(1)}, {"a": torch.ones(2)}]
        >>> LazyStackedTensorDictStore.from_dict(parts).stack_dim
        0
        """
        return self._dim

    def _nested(self, path: Path, facts: dict[str, Any]) -> Any:
        made = self._at(self._tree, path, self._count, self._dim, self._inner, self._meta.device, self._allow_pickle)
        return locked_if(made, self._locked)

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
        value = self._stacked(self._elements(range(self._count), [key]))._get(key)  # raises where shapes differ
        if isinstance(value, Node):
            save_by(value, lambda new: self._set(key, new))
        return value

    def _read(self, key: str, index: Index | None) -> Any:
        if self._record(key) is None or index is None:
            value = self._get(key)
            return value if index is None else value._index(index)
        return self._part(index, [key])._get(key)

    def _now(self) -> Any:
        return named(self._stacked(self._elements(range(self._count))), self._meta.names)

    def _frame(self) -> Any:
        return self._now()  # a lazy stack, of which shapes of entries are not the whole structure

    def _index(self, index: Index) -> Any:
        return named(self._part(index, None), index.names(self._meta.names))

    def _part(self, index: Index, keys: Sequence[str] | None) -> Any:
        """Return the rows that an index selects; if it starts with elements, these alone are read."""
        first = index.parts[0] if index.parts and not self._dim else None
        if isinstance(first, slice):
            wanted: Any = range(self._count)[first]
            rest: Any = slice(None)
        elif type(first) is int:
            wanted, rest = [range(self._count)[first]], 0
        elif isinstance(first, Tensor) and index.rows is not None and index.at == 0:
            wanted, places = torch.unique(index.rows, return_inverse=True)
            wanted, rest = wanted.tolist(), places
        else:
            return self._stacked(self._elements(range(self._count), keys))._index(index)
        elements = self._elements(wanted, keys)
        if not elements:
            return self._stacked(self._elements(range(self._count), keys))._index(index)
        size = torch.Size((len(elements), *self._inner))
        return self._stacked(elements)._index(Index((rest, *index.parts[1:]), size))

    def _stacked(self, elements: list[Any]) -> Any:
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
                value = decoded(".".join(path), record, next(rest), self._meta, self._allow_pickle)
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
        path = (*self._path, key)
        if index is not None:
            first = index.parts[0] if index.parts and not self._dim else None
            if type(first) is int and len(index.parts) == 1:  # one element is one range
                ends = ends_of(record, self._count)
                number = range(self._count)[first]
                self._tree.connection.run([("SETRANGE", self._tree.data(path), ends[number], as_bytes(value))])
                return
            whole = self._get(key)
            whole[index.idx] = value.to(whole.device)
            value = whole
        content = as_bytes(value.movedim(self._dim, 0))
        if content:
            self._tree.connection.run([("SETRANGE", self._tree.data(path), 0, content)])

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
        """Write one element of entries whose elements differ in shape."""
        commands: list[Command] = []
        change = Change()
        for path, record, value in changes:
            assert record.shapes is not None and record.dtype is not None
            ends = ends_of(record, self._count)
            content: bytes | memoryview = as_bytes(value.to(record.dtype))
            data = self._tree.data(path)
            if value.shape == record.shapes[number]:
                if content:
                    commands.append(("SETRANGE", data, ends[number], content))
                continue
            old = self._tree.connection.run([("GET", data)])[0] or b""
            shapes = (*record.shapes[:number], value.shape, *record.shapes[number + 1 :])
            content = old[: ends[number]] + content + old[ends[number + 1] :]
            change.puts.append((path, Record(record.dtype, None, shapes=shapes), content))
        self._tree.apply(change, commands)

    def _set(self, key: str, value: Any) -> None:
        if isinstance(value, Node) and value is self._children.get(key):
            return
        change = Change()
        path = (*self._path, key)
        add_elements(path, list(value.unbind(self._dim)), change, self._allow_pickle)
        facts = self._tree.nodes[self._path]
        change.removed.append(path)
        change.nodes[self._path] = {**facts, "keys": [*(name for name in facts["keys"] if name != key), key]}
        self._children.pop(key, None)
        self._tree.apply(change)

    def __reduce__(self) -> Any:
        """Pickle the address of the server and the id; the unpickled store connects by itself."""
        parts = (self._tree, self._path, self._count, self._dim, self._inner, self._meta.device, self._allow_pickle)
        return rebuilt, (type(self), parts, self._locked)

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
        tree = tree_at(options)
        device = as_device(options.get("device")) or lazy_td.device
        elements = [part._now() if isinstance(part, CustomContainer) else part for part in lazy_td.tensordicts]
        dim = lazy_td.stack_dim
        size = lazy_td.batch_size
        inner = torch.Size((*size[:dim], *size[dim + 1 :]))
        self = cls._at(tree, (), len(elements), dim, inner, device, bool(options.get("allow_pickle")))
        change = Change()
        add_elements((), elements, change, self._allow_pickle)
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
        tree = tree_at({**options, "td_id": td_id})
        kind, _, where, count, dim, inner = tree.load()
        if kind != b"lazy_stack":
            raise TypeError(f"td_id={td_id!r} is not a lazy stack; open it with TensorDictStore.from_store")
        device = options.get("device")
        chosen = as_device(where.decode()) if device is None and where else as_device(device)
        size = parse_size("__inner_batch_size__", inner)
        numbers = parse_size("__count__", b"[%b,%b]" % (count, dim))
        if numbers[1] > len(size):
            raise ValueError(f"the stack dimension {numbers[1]} of td_id={td_id!r} is damaged; store the stack again")
        return cls._at(tree, (), numbers[0], numbers[1], size, chosen, bool(options.get("allow_pickle")))
