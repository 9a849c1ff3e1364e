"""Trees: the records of a tensordict on a server, and the commands that change it.

The records of entries and nodes are read once, in two requests, and kept. A change is one atomic request: the server
runs all of its commands or none, and what is kept here changes after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch

from tensordict_core.extension import as_device
from tensordict_store.redis.commands import MAX_BYTES, Command
from tensordict_store.redis.connection import Connection
from tensordict_store.redis.layout import Path, Record, join, parse_record, split

_WHOLE = ("__type__", "__batch_size__", "__device__", "__count__", "__stack_dim__", "__inner_batch_size__")
"""Values of the whole tensordict; the last three, and the type, are those of a lazy stack."""


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
        caches: Whether the records are kept, or read again for every operation.
        ttl: Seconds after which new values are deleted by the server; ``None`` keeps them.
        allow_pickle: Whether values that JSON cannot hold are pickled, and pickles are loaded.
        records: The record of each entry by its path.
        nodes: The record of each node: ``"keys"`` in order, ``"batch_size"``, ``"names"``, ``"class"``.
        whole: The values of the whole tensordict by name; every change stores them, and starts their time to live.
    """

    def __init__(
        self, connection: Connection, prefix: str, td_id: str, caches: bool, ttl: int | None, allow_pickle: bool
    ) -> None:
        self.connection = connection
        self.prefix = prefix
        self.id = td_id
        self.caches = caches
        self.ttl = ttl
        self.allow_pickle = allow_pickle
        self.records: dict[Path, Record] = {}
        self.nodes: dict[Path, dict[str, Any]] = {(): {"keys": []}}
        self.whole: dict[str, str] = {}
        self._names: dict[Path, str] = {}

    @property
    def device(self) -> torch.device | None:
        """The device that the server has for tensors that are read."""
        return as_device(self.whole.get("__device__") or None)

    def name(self, part: str) -> str:
        """Return the name on the server of a value of the whole tensordict."""
        return f"{self.prefix}:{{{self.id}}}:{part}"

    def data(self, path: Path) -> str:
        """Return the name of the value of an entry."""
        name = self._names.get(path)
        if name is None:
            name = self._names[path] = self.name(f"d:{join(path)}")
        return name

    def key_of(self, name: str) -> str:
        """Return the key of an entry from the name of its value, as errors show it."""
        return ".".join(split(name.removeprefix(self.name("d:"))))

    def meta(self, path: Path) -> str:
        """Return the name of the metadata of an entry."""
        return self.name(f"m:{join(path)}")

    # reading ----------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read all records, and the values of the whole tensordict.

        Raises:
            KeyError: The server does not have the tensordict.
            ValueError: A record is damaged.
        """
        commands: list[Command] = [("GET", self.name(name)) for name in _WHOLE]
        commands += [("SMEMBERS", self.name("__keys__")), ("HGETALL", self.name("__nodes__"))]
        *found, keys, nodes = self.connection.run(commands)
        whole = {name: text.decode() for name, text in zip(_WHOLE, found, strict=True) if text is not None}
        if "__batch_size__" not in whole and "__count__" not in whole:
            raise KeyError(
                f"there is no tensordict with td_id={self.id!r} and prefix={self.prefix!r} on the Redis server at "
                f"{self.connection.place}; it was never stored, deleted, or its time to live is over"
            )
        paths = sorted(split(name.decode()) for name in keys)
        hashes = self.connection.run([("HGETALL", self.meta(path)) for path in paths])
        pairs = zip(paths, hashes, strict=True)
        self.records = {path: parse_record(".".join(path), _fields(fields)) for path, fields in pairs}
        self.nodes = self._parsed(_fields(nodes))
        self.whole = whole

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
        commands += [("SET", self.name(name), text) for name, text in self.whole.items()]
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
        if isinstance(value, bytes | memoryview) and len(value) > MAX_BYTES:
            raise ValueError(
                f"the entry {'.'.join(path)!r} has {len(value)} bytes, and a value of Redis has at most {MAX_BYTES}; "
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
        names = [self.name(name) for name in ("__keys__", "__nodes__", *self.whole)]
        return names + [name for path, record, _ in change.puts for name in self._names_of(path, record)]

    def all_names(self) -> list[str]:
        """Return every name that the tensordict has on the server."""
        out = [self.name(name) for name in ("__keys__", "__nodes__", *_WHOLE)]
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


def _fields(reply: Any) -> dict[bytes, bytes]:
    """Return the fields of a hash, which redis-py gives as a dictionary, and the protocol as a list."""
    if isinstance(reply, dict):
        return reply
    return {bytes(key): value for key, value in zip(reply[::2], reply[1::2], strict=True)}
