"""Nodes on a server: the base of the containers of one tensordict and of lazy stacks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Self

from tensordict_core.extension import CustomContainer, Meta, Node
from tensordict_store.nodes import facts_of, locked_if
from tensordict_store.redis.commands import Command
from tensordict_store.redis.layout import Path, Record
from tensordict_store.redis.tree import Change, Tree


class ServerNode(CustomContainer, abstract=True):
    """A node whose entries are values on a Redis server; its path is its position in the tree of the tensordict."""

    _reads_copy = True

    _tree: Tree
    _path: Path

    def _start_at(self, tree: Tree, path: Path, meta: Meta) -> None:
        self._start(meta)
        self._tree, self._path = tree, path
        self._children: dict[str, Any] = {}

    @classmethod
    def _at(cls, tree: Tree, path: Path, meta: Meta) -> Self:
        self = object.__new__(cls)
        self._start_at(tree, path, meta)
        return self

    def _create(self, change: Change) -> None:
        """Store the root and its first entries in one request."""
        meta = self._meta
        self._tree.whole = {**self._sizes(meta), "__device__": "" if meta.device is None else str(meta.device)}
        change.nodes.setdefault((), {"keys": []})
        change.nodes[()] |= facts_of(meta)
        self._tree.apply(change)

    @abstractmethod
    def _sizes(self, meta: Meta) -> dict[str, str]:
        """Return the values of the whole tensordict that follow from the metadata of its root."""

    @abstractmethod
    def _add_entry(self, path: Path, value: Any, change: Change) -> None:
        """Add an entry to a change.

        Raises:
            TypeError: The entry cannot be stored.
        """

    @abstractmethod
    def _nested(self, path: Path, facts: dict[str, Any]) -> Any:
        """Make the nested node at a path; the server describes it by ``facts``."""

    def _child(self, key: str) -> Any:
        """Return the nested node under a key, or ``None``."""
        path = (*self._path, key)
        facts = self._tree.nodes.get(path)
        if facts is None:
            self._children.pop(key, None)
            return None
        if key not in self._children:
            self._children[key] = self._nested(path, facts)
        return self._children[key]

    # members for servers only -----------------------------------------------------------------------------------------

    @property
    def td_id(self) -> str:
        """The id of the tensordict on the server.

        >>> stored = TensorDict({"a": torch.arange(3)}, [3]).to_store()
        >>> type(stored).from_store(td_id=stored.td_id)["a"]
        tensor([0, 1, 2])
        """
        return self._tree.id

    @property
    def client(self) -> Any:
        """The client of redis-py.

        >>> stored = TensorDict({"a": torch.arange(3)}, [3]).to_store()
        >>> stored.client.ping()
        True
        """
        return self._tree.connection.client

    def close(self) -> None:
        """Close the connections; the values stay on the server, and a later operation connects again.

        >>> stored = TensorDict({"a": torch.arange(3)}, [3]).to_store()
        >>> stored.close()
        >>> stored["a"]
        tensor([0, 1, 2])
        """
        self._tree.connection.close()

    def clear_redis(self) -> None:
        """Delete all entries and metadata from the server, in one request.

        >>> stored = TensorDict({"a": torch.arange(3)}, [3]).to_store()
        >>> stored.clear_redis()
        >>> stored.is_empty()
        True
        """
        tree = self._tree
        tree.connection.run([("UNLINK", *tree.all_names())], atomic=True)
        tree.records.clear()
        tree.nodes = {(): {"keys": []}}
        self._children.clear()

    def expire(self, seconds: int | None) -> Self:
        """Set the time in seconds after which the server deletes the tensordict; ``None`` keeps it.

        The same time applies to entries that are stored later, counted from their storage.

        >>> stored = TensorDict({"a": torch.arange(3)}, [3]).to_store().expire(3600)  # an hour
        >>> stored.expire(None)["a"]
        tensor([0, 1, 2])
        """
        tree = self._tree
        tree.ttl = seconds
        how: list[Command] = [
            ("PERSIST", name) if seconds is None else ("EXPIRE", name, seconds) for name in tree.all_names()
        ]
        tree.connection.run(how, atomic=True)
        return self

    def to_local(self) -> Any:
        """Return a copy of all entries in memory, read in one request.

        >>> stored = TensorDict({"a": torch.arange(3)}, [3]).to_store()
        >>> type(stored.to_local()).__name__
        'TensorDict'
        """
        return self._now()

    # entries ----------------------------------------------------------------------------------------------------------

    def _record(self, key: str) -> Record | None:
        return self._tree.records.get((*self._path, key))

    def _keys(self) -> Iterable[str]:
        self._tree.refresh()
        return list(self._tree.nodes.get(self._path, {"keys": ()})["keys"])

    def _nodes(self) -> Iterable[Node]:
        return [child for key in self._keys() if self._record(key) is None and (child := self._child(key)) is not None]

    def _shared_store(self) -> Any:
        return self._tree

    def _set(self, key: str, value: Any) -> None:
        self._set_each([(key, value)])

    def _set_each(self, entries: Iterable[tuple[str, Any]]) -> None:
        here = self._children
        new = {key: value for key, value in entries if not (isinstance(value, Node) and value is here.get(key))}
        if new:
            self._change_entries(new)

    def _del(self, key: str) -> None:
        self._change_entries({}, key)

    def _rename(self, old: str, new: str) -> None:
        self._change_entries({new: self._get(old)}, old)

    def _change_entries(self, entries: dict[str, Any], removed: str | None = None) -> None:
        """Store entries, and remove another one, in one request."""
        change = Change()
        facts = self._tree.nodes[self._path]
        names = dict.fromkeys([*(name for name in facts["keys"] if name != removed), *entries])
        for key, value in entries.items():
            self._add_entry((*self._path, key), value, change)
        for key in entries if removed is None else (*entries, removed):
            change.removed.append((*self._path, key))
            self._children.pop(key, None)
        change.nodes[self._path] = {**facts, **facts_of(self._meta), "keys": list(names)}
        self._tree.apply(change)

    def _set_meta(self, meta: Meta) -> None:
        before = self._meta
        if (before.batch_size, before.names) != (meta.batch_size, meta.names):
            change = Change()
            change.nodes[self._path] = {**self._tree.nodes[self._path], "names": None, **facts_of(meta)}
            if not self._path:
                self._tree.whole |= self._sizes(meta)
            self._tree.apply(change)
        super()._set_meta(meta)

    def _shown(self) -> dict[str, Any]:
        """Return the lines of ``repr`` beside keys, batch size, device and place."""
        return {}

    def __reduce__(self) -> Any:
        """Pickle the address of the server and the id; the unpickled store connects by itself."""
        return _rebuilt, (type(self), (self._tree, self._path, self._meta), self._locked)

    def __repr__(self) -> str:
        shown = {
            "keys": sorted(map(str, self._keys())),
            "batch_size": self.batch_size,
            **self._shown(),
            "device": self.device,
            "backend": repr(self._tree.connection.backend),
            "td_id": repr(self.td_id),
        }
        return f"{type(self).__name__}(\n" + ",\n".join(f"    {name}={value}" for name, value in shown.items()) + ")"


def _rebuilt(cls: Any, parts: tuple[Any, ...], locked: bool) -> Any:
    """Return an unpickled container, which connects by itself."""
    return locked_if(cls._at(*parts), locked)
