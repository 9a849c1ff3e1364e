"""Trees: the records of a tensordict on a server, and the commands that change it.

The records of entries and nodes are read once, in two requests, and kept. A change is one atomic request: the server
runs all of its commands or none, and what is kept here changes after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch

from tensordict_core import NonTensorData, NonTensorStack
from tensordict_core.extension import Meta
from tensordict_store.arrays.values import STACK, VALUE, Encoded, decode, encode
from tensordict_store.redis.commands import Command
from tensordict_store.redis.connection import Connection
from tensordict_store.redis.layout import Path, Record, gone, join, parse_record, parse_size, split

__all__ = ["Change", "Path", "Tree", "batch_size_of", "decoded", "encoded"]

_LIMIT = 1 << 29
"""Bytes that a value of Redis may have."""


class Change:
    """Entries and nodes that are stored, and paths that are removed, in one request."""

    __slots__ = ("nodes", "puts", "removed")

    def __init__(self) -> None:
        self.puts: list[tuple[Path, Record, Any]] = []
        self.nodes: dict[Path, dict[str, Any]] = {}
        self.removed: list[Path] = []


class Tree:
    """A tensordict on a server, shared by the containers of its nodes.

    Attributes:
        connection: The connection.
        prefix: The first part of all names on the server.
        id: The id of the tensordict.
        records: The record of each entry by its path.
        nodes: The record of each node: ``"keys"`` in order, ``"batch_size"``, ``"names"``, ``"class"``.
        ttl: Seconds after which new values are deleted by the server; ``None`` keeps them.
        caches: Whether the records are kept, or read again for every operation.
    """

    def __init__(self, connection: Connection, prefix: str, td_id: str, caches: bool = True) -> None:
        self.connection = connection
        self.prefix = prefix
        self.id = td_id
        self.caches = caches
        self.ttl: int | None = None
        self.records: dict[Path, Record] = {}
        self.nodes: dict[Path, dict[str, Any]] = {(): {"keys": []}}
        self.extra: dict[str, str] = {}
        self._names: dict[Path, str] = {}

    def name(self, part: str) -> str:
        """Return the name on the server of a value of the whole tensordict."""
        return f"{self.prefix}:{{{self.id}}}:{part}"

    def data(self, path: Path) -> str:
        """Return the name of the value of an entry."""
        name = self._names.get(path)
        if name is None:
            name = self._names[path] = self.name(f"d:{join(path)}")
        return name

    def meta(self, path: Path) -> str:
        """Return the name of the metadata of an entry."""
        return self.name(f"m:{join(path)}")

    # reading ----------------------------------------------------------------------------------------------------------

    def load(self) -> list[Any]:
        """Read all records, and return the type, batch size, device, count, stack dimension and inner batch size.

        Raises:
            KeyError: The server does not have the tensordict.
            ValueError: A record is damaged.
        """
        names = ("__type__", "__batch_size__", "__device__", "__count__", "__stack_dim__", "__inner_batch_size__")
        commands: list[Command] = [("GET", self.name(name)) for name in names]
        commands += [("SMEMBERS", self.name("__keys__")), ("HGETALL", self.name("__nodes__"))]
        *found, keys, nodes = self.connection.run(commands)
        if found[1] is None and found[3] is None:
            raise KeyError(
                f"there is no tensordict with td_id={self.id!r} and prefix={self.prefix!r} on the Redis server at "
                f"{self.connection.place}; it was never stored, deleted, or its time to live is over"
            )
        paths = sorted(split(name.decode()) for name in keys)
        hashes = self.connection.run([("HGETALL", self.meta(path)) for path in paths])
        records: dict[Path, Record] = {}
        for path, fields in zip(paths, hashes, strict=True):
            records[path] = parse_record(".".join(path), fields if isinstance(fields, dict) else _pairs(fields))
        self.records = records
        self.nodes = self._parsed(nodes if isinstance(nodes, dict) else _pairs(nodes))
        return found

    def _parsed(self, hashes: dict[bytes, bytes]) -> dict[Path, dict[str, Any]]:
        nodes: dict[Path, dict[str, Any]] = {(): {}}
        for name, text in hashes.items():
            path = split(name.decode())[1:]
            try:
                nodes[path] = dict(json.loads(text))
            except ValueError:
                raise ValueError(f"the metadata of node {path!r} on the server are damaged; store it again") from None
        present: dict[Path, dict[str, None]] = {path: {} for path in nodes}
        for path in (*nodes, *self.records):
            for depth in range(len(path)):
                present.setdefault(path[:depth], {})[path[depth]] = None
        for path, names in present.items():
            facts = nodes.setdefault(path, {})
            first = [name for name in facts.get("keys", ()) if name in names]
            facts["keys"] = [*first, *(name for name in names if name not in first)]
        return nodes

    def refresh(self) -> None:
        """Read the records again, unless they are kept."""
        if not self.caches:
            self.load()

    def below(self, path: Path) -> list[Path]:
        """Return the paths of the entries at and below a path."""
        return [other for other in self.records if other[: len(path)] == path]

    # writing ----------------------------------------------------------------------------------------------------------

    def apply(self, change: Change, more: Iterable[Command] = ()) -> None:
        """Make a change in one atomic request.

        Raises:
            ValueError: A value is larger than the server allows.
        """
        stored = {path for path, _, _ in change.puts}
        lost = [path for root in change.removed for path in self.below(root) if path not in stored]
        gone = [node for root in change.removed for node in self.nodes if node and node[: len(root)] == root]
        gone = [node for node in gone if node not in change.nodes]
        commands = self._removals(lost, gone)
        for path, record, value in change.puts:
            commands += self._put(path, record, value)
        if stored:
            commands.append(("SADD", self.name("__keys__"), *map(join, stored)))
        for node, facts in change.nodes.items():
            commands.append(("HSET", self.name("__nodes__"), _node_name(node), json.dumps(facts)))
        commands += [("SET", self.name(name), text) for name, text in self.extra.items()]
        commands += more
        if self.ttl is not None:
            commands += [("EXPIRE", name, self.ttl) for name in self._touched(change)]
        self.connection.run(commands, atomic=True)
        for path in lost:
            del self.records[path]
        for node in gone:
            del self.nodes[node]
        self.records.update((path, record) for path, record, _ in change.puts)
        self.nodes.update(change.nodes)

    def _removals(self, paths: list[Path], nodes: list[Path]) -> list[Command]:
        """Return the commands that remove entries and the metadata of nodes."""
        commands: list[Command] = []
        if paths:
            commands.append(("UNLINK", *(name for path in paths for name in self._names_of(path, self.records[path]))))
            commands.append(("SREM", self.name("__keys__"), *map(join, paths)))
        if nodes:
            commands.append(("HDEL", self.name("__nodes__"), *map(_node_name, nodes)))
        return commands

    def _put(self, path: Path, record: Record, value: Any) -> list[Command]:
        if isinstance(value, bytes | memoryview) and len(value) > _LIMIT:
            raise ValueError(
                f"the entry {'.'.join(path)!r} has {len(value)} bytes, and a value of Redis has at most {_LIMIT}; "
                "store it in several entries"
            )
        data, meta = self.data(path), self.meta(path)
        fields = [part for pair in record.fields().items() for part in pair]
        commands: list[Command] = [("DEL", meta), ("HSET", meta, *fields)]
        earlier = self.records.get(path)
        if earlier is not None and earlier.shapes is not None and record.shapes is None:
            commands.append(("DEL", f"{data}:idx"))
        if value is None:  # zeros, which the server makes itself
            commands.append(("DEL", data))
            commands.append(("SETRANGE", data, record.nbytes - 1, b"\0") if record.nbytes else ("SET", data, b""))
        elif record.shapes is not None:
            ends = torch.tensor([0, *(shape.numel() for shape in record.shapes)], device="cpu").cumsum(0)
            assert record.dtype is not None
            offsets = (ends * record.dtype.itemsize).numpy().astype("<i8").tobytes()
            commands += [("SET", data, value), ("SET", f"{data}:idx", offsets)]
        else:
            commands.append(("SET", data, value))
        return commands

    def _touched(self, change: Change) -> list[str]:
        names = [self.name(name) for name in ("__keys__", "__nodes__", *self.extra)]
        return names + [name for path, record, _ in change.puts for name in self._names_of(path, record)]

    def all_names(self) -> list[str]:
        """Return every name that the tensordict has on the server."""
        names = ("__keys__", "__nodes__", "__type__", "__batch_size__", "__device__")
        out = [self.name(name) for name in (*names, "__count__", "__stack_dim__", "__inner_batch_size__")]
        for path, record in self.records.items():
            out += self._names_of(path, record)
        return out

    def _names_of(self, path: Path, record: Record) -> list[str]:
        """Return the names of the value and the metadata of an entry, and of the offsets of a ragged one."""
        data = self.data(path)
        return [data, self.meta(path), *([] if record.shapes is None else [f"{data}:idx"])]


def _node_name(path: Path) -> str:
    """Return the field of a node; that of the root is empty, and those of others start with a dot."""
    return "" if not path else f".{join(path)}"


def _pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    return {bytes(key): value for key, value in zip(flat[::2], flat[1::2], strict=True)}


def encoded(key: str, node: Any, allow_pickle: bool) -> tuple[Record, bytes]:
    """Return the record and the bytes of non-tensor data.

    Raises:
        TypeError: JSON cannot hold the value, and pickles are not allowed.
    """
    content, attributes = encode(key, node, allow_pickle)
    encoding = attributes.get(VALUE, {"encoding": "json"})["encoding"]
    stack = tuple(attributes[STACK]) if STACK in attributes else None
    if stack is not None and encoding == "json":
        return Record(None, None, "json_array", None, stack), json.dumps(node.tolist()).encode()
    return Record(None, None, encoding, None, stack), content if isinstance(content, bytes) else json.dumps(
        content
    ).encode()


def decoded(key: str, record: Record, content: bytes | None, meta: Meta, allow_pickle: bool) -> Any:
    """Return non-tensor data from the bytes of the server.

    Raises:
        KeyError: The value does not exist on the server.
        ValueError: The bytes are damaged, or they are a pickle and pickles are not allowed.
    """
    if content is None:
        raise gone(key)
    if record.encoding == "json_array":
        values = decode(key, Encoded(content, {VALUE: {"encoding": "json"}}), Meta(torch.Size(())), False).data
        size = (len(values),) if record.stack is None else record.stack
        try:
            return NonTensorStack.from_list(values, batch_size=size, device=meta.device)
        except (ValueError, TypeError, IndexError, RuntimeError) as error:
            raise ValueError(f"the values of {key!r} on the server are damaged: {error}; store them again") from None
    facts = {} if record.stack is None else {STACK: list(record.stack)}
    value = decode(key, Encoded(content, {VALUE: {"encoding": record.encoding}, **facts}), meta, allow_pickle)
    assert isinstance(value, NonTensorData | NonTensorStack)
    return value


def batch_size_of(text: bytes | None) -> torch.Size:
    """Return the batch size in a reply."""
    return torch.Size(()) if text is None else parse_size("__batch_size__", text)
