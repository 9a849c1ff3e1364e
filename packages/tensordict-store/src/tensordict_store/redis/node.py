"""Nodes on a server: the base of the containers of one tensordict and of lazy stacks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Self

from tensordict_core.extension import CustomContainer, Meta, Node
from tensordict_store.nodes import locked_if
from tensordict_store.redis.commands import Command
from tensordict_store.redis.layout import Record
from tensordict_store.redis.tree import Change, Path, Tree


class ServerNode(CustomContainer, abstract=True):
    """A node whose entries are values on a Redis server; its path is its position in the tree of the tensordict."""

    _reads_copy = True

    _tree: Tree
    _path: Path
    _allow_pickle: bool

    def _start_at(self, tree: Tree, path: Path, meta: Meta, allow_pickle: bool) -> None:
        self._start(meta)
        self._tree, self._path, self._allow_pickle = tree, path, allow_pickle
        self._children: dict[str, Any] = {}

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

    def _del(self, key: str) -> None:
        change = Change()
        change.removed.append((*self._path, key))
        facts = self._tree.nodes[self._path]
        change.nodes[self._path] = {**facts, "keys": [name for name in facts["keys"] if name != key]}
        self._children.pop(key, None)
        self._tree.apply(change)

    def _shown(self) -> dict[str, Any]:
        """Return the lines of ``repr`` beside keys, batch size, device and place."""
        return {}

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


def rebuilt(cls: Any, parts: tuple[Any, ...], locked: bool) -> Any:
    """Return an unpickled container, which connects by itself."""
    return locked_if(cls._at(*parts), locked)
