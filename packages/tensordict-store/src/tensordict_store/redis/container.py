"""`TensorDictStore`: a tensordict whose entries are values of a Redis server.

Indexing reads only the selected rows, and in-place writes change the values on the server. Each operation is one
request, independent of the number of entries; large writes first check in a separate request that the entries exist.
Results of operations are plain tensordicts.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Self, Unpack

from torch import Tensor

from tensordict_core import TensorDict, is_tensorclass
from tensordict_core.extension import CustomContainer, Index, Meta, Node, as_batch_size, dense, find_type, with_options
from tensordict_store.arrays.selection import ALL, Selector
from tensordict_store.nodes import around, child_meta, facts_of, inside, names_of, save_by, unwrapped, wrapped
from tensordict_store.redis.commands import Command
from tensordict_store.redis.layout import Path, Record, parse_size, tensor_record
from tensordict_store.redis.node import ServerNode
from tensordict_store.redis.options import DEFAULTS, ServerOptions, StoreOptions, tree_at
from tensordict_store.redis.ranges import Request, as_bytes
from tensordict_store.redis.transfer import gather
from tensordict_store.redis.tree import Change
from tensordict_store.redis.values import decoded, encoded
from tensordict_store.redis.writes import write_all


class TensorDictStore(ServerNode):
    """A tensordict whose entries are values of a Redis server.

    Args:
        backend: ``"redis"`` or ``"dragonfly"``, which use the same protocol.
        host: The host of the server.
        port: The port of the server.
        db: The number of the database.
        unix_socket_path: The socket of a server on this machine, in place of host and port.
        prefix: The first part of all names on the server.
        batch_size: The batch size.
        device: The device of tensors that are read.
        client: A client of redis-py, synchronous or of ``redis.asyncio``, in place of host and port.
        td_id: The id of an existing tensordict, as in `from_store`; by default a new id.
        cache_metadata: Whether keys, shapes and dtypes are cached; otherwise each operation reads them from the server.
        ttl: The time in seconds after which the server deletes values that are stored from now on.
        allow_pickle: Whether non-tensor values that JSON cannot hold may be pickled and loaded; a pickle runs code when
            it is loaded, and anybody with access to the server can store one.
        **options: Options of ``redis.Redis``, such as ``password``, ``ssl`` and ``socket_timeout``.

    Raises:
        ImportError: redis-py is not installed.
        ConnectionError: The server does not answer.

    >>> stored = TensorDictStore(host="localhost", batch_size=[3])
    >>> stored["a"] = torch.arange(3)
    >>> stored[1:]["a"]
    tensor([1, 2])
    """

    _indexes_entries = True

    @with_options(StoreOptions, DEFAULTS)
    def __init__(
        self,
        *,
        batch_size: Sequence[int] | int | None = None,
        **options: Unpack[StoreOptions],
    ) -> None:
        tree, device = tree_at(options)
        if options.get("td_id") is None:
            self._start_at(tree, (), Meta(as_batch_size(batch_size), device))
            self._create(Change())
        else:
            tree.load()
            stored = parse_size("__batch_size__", tree.whole.get("__batch_size__", "[]"))
            size = stored if batch_size is None else as_batch_size(batch_size)
            names = names_of(tree.nodes[()].get("names"), size)
            self._start_at(tree, (), Meta(size, tree.device if device is None else device, names))

    def _sizes(self, meta: Meta) -> dict[str, str]:
        return {"__batch_size__": json.dumps(list(meta.batch_size))}

    # entries ----------------------------------------------------------------------------------------------------------

    def _peek(self, key: str) -> Any:
        self._tree.refresh()
        record = self._record(key)
        if record is None:
            return self._child(key)
        if record.dtype is None:
            return self._value(key)
        return record.like()

    def _get(self, key: str) -> Any:
        self._tree.refresh()
        record = self._record(key)
        if record is None:
            return self._child(key)
        return self._value(key) if record.dtype is None else self._read(key, None)

    def _nested(self, path: Path, facts: dict[str, Any]) -> Any:
        return wrapped(self._at(self._tree, path, child_meta(facts, self._meta)), facts, self._locked)

    def _value(self, key: str) -> Any:
        """Return a non-tensor entry, whose new values are stored."""
        [reply] = self._tree.connection.run([("GET", self._tree.data((*self._path, key)))])
        return self._decoded(key, reply)

    def _decoded(self, key: str, reply: Any) -> Any:
        """Return a non-tensor entry from the reply of the server; its new values are stored."""
        record = self._record(key)
        assert record is not None
        node = decoded(key, record, reply, self._meta, self._tree.allow_pickle)
        save_by(node, functools.partial(self._set, key))
        return node

    def _on_device(self, value: Tensor) -> Tensor:
        device = self._meta.device
        return value if device is None else value.to(device)

    def _request(self, key: str, record: Record, rows: Selector) -> Request:
        path = (*self._path, key)
        return Request(path, self._tree.data(path), record, rows)

    def _read(self, key: str, index: Index | None) -> Any:
        record = self._record(key)
        if record is None or record.dtype is None:
            value = self._peek(key)
            return value if index is None else value._index(index)
        wanted = self._request(key, record, ALL if index is None else Selector(index))
        [content], _ = gather(self._tree.connection, [wanted.reads])
        return self._on_device(wanted.result(content))

    def _now(self) -> Any:
        return self._fetched(None)

    def _index(self, index: Index) -> Any:
        return self._fetched(index)

    def _fetched(self, index: Index | None) -> Any:
        """Return the part that an index selects as a plain tensordict; all of it is read in one request."""
        self._tree.refresh()
        wanted: list[tuple[dict[str, Any], str, Request]] = []
        values: list[tuple[dict[str, Any], str, Any]] = []
        out = self._add_requests(ALL if index is None else Selector(index), wanted, values)
        gets: list[Command] = [("GET", node._tree.data((*node._path, key))) for _, key, node in values]
        contents, replies = gather(self._tree.connection, [one.reads for _, _, one in wanted], gets)
        for (entries, key, one), content in zip(wanted, contents, strict=True):
            entries[key] = self._on_device(one.result(content))
        for (entries, key, node), reply in zip(values, replies, strict=True):
            value = node._decoded(key, reply)
            entries[key] = value._clone(True) if index is None else value._index(index)
        return out

    def _add_requests(
        self,
        rows: Selector,
        wanted: list[tuple[dict[str, Any], str, Request]],
        values: list[tuple[dict[str, Any], str, Any]],
    ) -> Any:
        """Return a tensordict whose entries are still to be read, and append where tensors and values go."""
        index = rows.index
        entries: dict[str, Any] = {}
        for key in self._tree.nodes.get(self._path, {"keys": ()})["keys"]:
            record = self._record(key)
            entries[key] = None  # keeps the order
            if record is None:
                child = self._child(key)
                if isinstance(child, TensorDictStore):
                    entries[key] = child._add_requests(rows, wanted, values)
                else:
                    entries[key] = child if index is None else child._index(index)
            elif record.dtype is None:
                values.append((entries, key, self))
            else:
                wanted.append((entries, key, self._request(key, record, rows)))
        return dense(entries, self._meta if index is None else index.meta(self._meta))

    # writes -----------------------------------------------------------------------------------------------------------

    def _write(self, key: str, index: Index | None, value: Tensor) -> None:
        self._write_all([(self, key, index, value)])

    def _write_all(self, parts: Sequence[tuple[Any, str, Index | None, Tensor]]) -> None:
        write_all(self._tree, parts)

    def _add_entry(self, path: Path, value: Any, change: Change) -> None:
        key = ".".join(path)
        if isinstance(value, Tensor):
            change.puts.append((path, tensor_record(key, value), as_bytes(value)))
            return
        if value._is_non_tensor:
            change.puts.append((path, *encoded(key, value, self._tree.allow_pickle)))
            return
        value, facts = unwrapped(key, value, "on a server")
        value = value._now() if isinstance(value, CustomContainer) else value._solid()
        self._add_node(path, value, change, facts)

    def _add_node(self, path: Path, node: Any, change: Change, facts: dict[str, Any]) -> None:
        items = list(node._items())
        change.nodes[path] = {**facts_of(node._meta), **facts, "keys": [str(key) for key, _ in items]}
        for key, value in items:
            self._add_entry((*path, key), value, change)

    # constructors -----------------------------------------------------------------------------------------------------

    @classmethod
    @with_options(StoreOptions, DEFAULTS)
    def from_tensordict(
        cls,
        td: Any,
        **options: Unpack[StoreOptions],
    ) -> Self:
        """Store a tensordict on a server, in one request.

        Args:
            td: The tensordict.
            backend: This and the following arguments are those of the constructor.
            host: The host of the server.
            port: The port of the server.
            db: The number of the database.
            unix_socket_path: The socket of a server on this machine.
            prefix: The first part of all names on the server.
            device: The device of tensors that are read; by default the device of the tensordict.
            **options: More options of the constructor.

        Raises:
            ConnectionError: The server does not answer.
            TypeError: An entry cannot be stored; the error names its key.

        >>> from tensordict_store import TensorDictStore
        >>> TensorDictStore.from_tensordict(TensorDict({"a": torch.arange(3)}, [3]))[1:]["a"]
        tensor([1, 2])
        """
        tree, device = tree_at(options)
        if is_tensorclass(td):
            td = inside(td)
        own = td._meta
        self = cls._at(tree, (), Meta(own.batch_size, device or own.device, own.names))
        change = Change()
        self._add_node((), td._now() if isinstance(td, CustomContainer) else td._solid(), change, {})
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
        batch_dims: int | None = None,
        names: Sequence[str | None] | None = None,
        **options: Unpack[StoreOptions],
    ) -> Self:
        """Store a dictionary on a server, in one request.

        Args:
            input_dict: The dictionary, which may be nested.
            backend: This and the following arguments are those of the constructor.
            host: The host of the server.
            port: The port of the server.
            db: The number of the database.
            unix_socket_path: The socket of a server on this machine.
            prefix: The first part of all names on the server.
            auto_batch_size: Whether the batch size is the longest common prefix of all shapes.
            batch_size: The batch size; by default none.
            device: The device of tensors that are read.
            batch_dims: The maximum number of batch dimensions with ``auto_batch_size``.
            names: A name for each batch dimension.
            **options: More options of the constructor.

        >>> from tensordict_store import TensorDictStore
        >>> TensorDictStore.from_dict({"a": torch.arange(3)}, batch_size=[3])[1:]["a"]
        tensor([1, 2])
        """
        td = input_dict if isinstance(input_dict, Node) else TensorDict(input_dict, batch_size, names=names)
        if auto_batch_size:
            td = td._clone(False).auto_batch_size_(batch_dims)
        return cls.from_tensordict(td, **options)

    @classmethod
    @with_options(ServerOptions, DEFAULTS)
    def from_store(
        cls,
        *,
        td_id: str,
        tensorclass_cls: type | str | None = None,
        **options: Unpack[ServerOptions],
    ) -> Any:
        """Open a tensordict that is stored on a server.

        Args:
            backend: This and the following arguments are those of the constructor.
            host: The host of the server.
            port: The port of the server.
            db: The number of the database.
            unix_socket_path: The socket of a server on this machine.
            prefix: The first part of all names on the server.
            td_id: The id of the tensordict.
            device: The device of tensors that are read.
            tensorclass_cls: The tensorclass of the result, or its registered name.
            **options: More options of the constructor.

        Raises:
            KeyError: The server has no tensordict with this id.
            ConnectionError: The server does not answer.

        >>> from tensordict_store import TensorDictStore
        >>> stored = TensorDictStore.from_dict({"a": torch.arange(3)}, batch_size=[3])
        >>> TensorDictStore.from_store(td_id=stored.td_id)[1:]["a"]
        tensor([1, 2])
        """
        store = cls(td_id=td_id, **options)
        chosen: Any = find_type(tensorclass_cls) if isinstance(tensorclass_cls, str) else tensorclass_cls
        if tensorclass_cls is not None and (chosen is None or not is_tensorclass(chosen)):
            raise TypeError(f"tensorclass_cls={tensorclass_cls!r} is not a tensorclass; pass the class itself")
        return store if chosen is None else around(chosen, store)

    @classmethod
    @with_options(StoreOptions, DEFAULTS)
    def from_schema(  # type: ignore[override]  # a server has an address
        cls,
        schema: Mapping[Any, Any],
        *,
        batch_size: Sequence[int] | int | None = None,
        **options: Unpack[StoreOptions],
    ) -> Self:
        """Make a tensordict of zeros on a server; the zeros are not sent.

        Args:
            schema: For each key the shape behind the batch dimensions and the dtype; a dictionary nests.
            batch_size: The batch size; by default none.
            backend: This and the following arguments are those of the constructor.
            host: The host of the server.
            port: The port of the server.
            db: The number of the database.
            unix_socket_path: The socket of a server on this machine.
            prefix: The first part of all names on the server.
            device: The device of tensors that are read.
            **options: More options of the constructor.

        >>> from tensordict_store import TensorDictStore
        >>> buffer = TensorDictStore.from_schema({"a": ([2], torch.float32)}, batch_size=[1000])
        >>> buffer[3]["a"]
        tensor([0., 0.])
        """
        size = as_batch_size(batch_size)
        td = TensorDict.from_schema(schema, batch_size=size, device="meta")
        tree, device = tree_at(options)
        self = cls._at(tree, (), Meta(size, device))
        change = Change()
        _add_zeros((), td, change)
        self._create(change)
        return self


def _add_zeros(path: Path, node: Any, change: Change) -> None:
    """Add the entries of a node, whose values are zeros that the server makes, to a change."""
    change.nodes[path] = {**facts_of(node._meta), "keys": list(node._keys())}
    for key, value in node._items():
        if isinstance(value, Node):
            _add_zeros((*path, key), value, change)
        else:
            change.puts.append(((*path, key), tensor_record(key, value), None))
