"""`TensorDictStore`: a tensordict whose entries are values of a Redis server.

Indexing reads only the selected rows, and in-place writes change the values on the server. Each operation is one
request, independent of the number of entries; large writes first check in a separate request that the entries exist.
Results of operations are plain tensordicts.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from typing import Any, Self, Unpack

from torch import Tensor

from tensordict_core.extension import CustomContainer, Index, Meta, Node, as_batch_size, as_device, dense, with_options
from tensordict_store.arrays.selection import ALL, Selector
from tensordict_store.nodes import child_meta, save_by, unwrapped, wrapped
from tensordict_store.redis.commands import Command
from tensordict_store.redis.constructors import Constructors
from tensordict_store.redis.layout import Record, tensor_record
from tensordict_store.redis.node import ServerNode, rebuilt
from tensordict_store.redis.options import DEFAULTS, StoreOptions, tree_at
from tensordict_store.redis.ranges import Request, as_bytes
from tensordict_store.redis.transfer import gather
from tensordict_store.redis.tree import Change, Path, Tree, batch_size_of, decoded, encoded
from tensordict_store.redis.writes import facts_of, write_all


class TensorDictStore(Constructors, ServerNode):  # type: ignore[misc]  # a server has an address
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
        tree, allow_pickle = tree_at(options), options.get("allow_pickle")
        where = as_device(options.get("device"))
        if options.get("td_id") is None:
            meta = Meta(as_batch_size(batch_size), where)
            self._start_at(tree, (), meta, bool(allow_pickle))
            self._create(Change())
        else:
            found = tree.load()
            size = batch_size_of(found[1]) if batch_size is None else as_batch_size(batch_size)
            where = as_device(found[2].decode()) if where is None and found[2] else where
            names = tree.nodes[()].get("names")
            meta = Meta(size, where, tuple(names) if names and len(names) == len(size) else None)
            self._start_at(tree, (), meta, bool(allow_pickle))

    @classmethod
    def _at(cls, tree: Tree, path: Path, meta: Meta, allow_pickle: bool) -> Self:
        self = object.__new__(cls)
        self._start_at(tree, path, meta, allow_pickle)
        return self

    def _create(self, change: Change) -> None:
        """Store the root and its first entries in one request."""
        meta = self._meta
        self._tree.extra = {
            "__batch_size__": json.dumps(list(meta.batch_size)),
            "__device__": "" if meta.device is None else str(meta.device),
        }
        change.nodes.setdefault((), {"keys": []})
        change.nodes[()] |= facts_of(meta)
        self._tree.apply(change)

    # entries ----------------------------------------------------------------------------------------------------------

    def _peek(self, key: str) -> Any:
        self._tree.refresh()
        record = self._record(key)
        if record is None:
            return self._child(key)
        if record.dtype is None:
            return self._values([key])[0]
        return record.like()

    def _get(self, key: str) -> Any:
        self._tree.refresh()
        record = self._record(key)
        if record is None:
            return self._child(key)
        return self._values([key])[0] if record.dtype is None else self._read(key, None)

    def _nested(self, path: Path, facts: dict[str, Any]) -> Any:
        made = self._at(self._tree, path, child_meta(facts, self._meta), self._allow_pickle)
        return wrapped(made, facts, self._locked)

    def _values(self, keys: Sequence[str], replies: Sequence[Any] | None = None) -> list[Any]:
        """Return non-tensor entries, whose new values are stored."""
        tree = self._tree
        if replies is None:
            replies = tree.connection.run([("GET", tree.data((*self._path, key))) for key in keys])
        out = []
        for key, reply in zip(keys, replies, strict=True):
            record = self._record(key)
            assert record is not None
            node = decoded(key, record, reply, self._meta, self._allow_pickle)
            save_by(node, functools.partial(self._set, key))
            out.append(node)
        return out

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
            [value] = node._values([key], [reply])
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

    def _set(self, key: str, value: Any) -> None:
        self._set_each([(key, value)])

    def _set_each(self, entries: Iterable[tuple[str, Any]]) -> None:
        """Store entries in one request."""
        change = Change()
        names = list(self._tree.nodes[self._path]["keys"])
        for key, value in entries:
            if isinstance(value, Node) and value is self._children.get(key):
                continue
            self._add_entry((*self._path, key), value, change)
            change.removed.append((*self._path, key))
            self._children.pop(key, None)
            if key not in names:
                names.append(key)
        if change.removed:
            change.nodes[self._path] = {**self._tree.nodes[self._path], **facts_of(self._meta), "keys": names}
            self._tree.apply(change)

    def _add_entry(self, path: Path, value: Any, change: Change) -> None:
        key = ".".join(path)
        if isinstance(value, Tensor):
            change.puts.append((path, tensor_record(key, value), as_bytes(value)))
            return
        if value._is_non_tensor:
            change.puts.append((path, *encoded(key, value, self._allow_pickle)))
            return
        value, facts = unwrapped(key, value, "on a server")
        value = value._now() if isinstance(value, CustomContainer) else value._solid()
        self._add_node(path, value, change, facts)

    def _add_node(self, path: Path, node: Any, change: Change, facts: dict[str, Any]) -> None:
        items = list(node._items())
        change.nodes[path] = {**facts_of(node._meta), **facts, "keys": [str(key) for key, _ in items]}
        for key, value in items:
            self._add_entry((*path, key), value, change)

    def _rename(self, old: str, new: str) -> None:
        value = self._get(old)
        value = value._now() if isinstance(value, CustomContainer) else value
        self._del(old)
        self._set(new, value)

    def _set_meta(self, meta: Meta) -> None:
        before = self._meta
        super()._set_meta(meta)
        if (before.batch_size, before.names) == (meta.batch_size, meta.names):
            return
        change = Change()
        change.nodes[self._path] = {**self._tree.nodes[self._path], "names": None, **facts_of(meta)}
        size = ("SET", self._tree.name("__batch_size__"), json.dumps(list(meta.batch_size)))
        if not self._path and "__batch_size__" in self._tree.extra:
            self._tree.extra["__batch_size__"] = json.dumps(list(meta.batch_size))
        self._tree.apply(change, [] if self._path else [size])

    # copies and constructors ------------------------------------------------------------------------------------------

    def __reduce__(self) -> Any:
        """Pickle the address of the server and the id; the unpickled store connects by itself."""
        return rebuilt, (type(self), (self._tree, self._path, self._meta, self._allow_pickle), self._locked)
