"""Options: the server, the names on it, and how values are read; all constructors of stored tensordicts take them."""

from __future__ import annotations

import uuid
from typing import Any, TypedDict

import torch

from tensordict_core.extension import as_device
from tensordict_store.redis.connection import Connection
from tensordict_store.redis.tree import Tree


class _RedisOptions(TypedDict, total=False):
    username: str | None
    password: str | None
    socket_timeout: float | None
    socket_connect_timeout: float | None
    ssl: bool
    ssl_ca_certs: str | None
    ssl_certfile: str | None
    ssl_keyfile: str | None
    ssl_cert_reqs: str
    client_name: str | None
    health_check_interval: int
    max_connections: int | None


class ServerOptions(_RedisOptions, total=False):
    """The options of `TensorDictStore`, whose docstring explains each; others of ``redis.Redis`` are passed on too."""

    backend: str
    host: str
    port: int
    db: int
    unix_socket_path: str | None
    prefix: str
    device: torch.device | str | int | None
    client: Any
    cache_metadata: bool
    ttl: int | None
    allow_pickle: bool | None


class StoreOptions(ServerOptions, total=False):
    """The options of constructors that store a new tensordict, which gets a new id by default."""

    td_id: str | None


_SERVER: dict[str, Any] = {"host": "localhost", "port": 6379, "db": 0, "unix_socket_path": None}
_OWN: dict[str, Any] = {
    **{"backend": "redis", "prefix": "tensordict", "client": None, "td_id": None, "cache_metadata": True, "ttl": None},
    **{"allow_pickle": None, "device": None},
}

DEFAULTS: dict[str, Any] = dict.fromkeys(StoreOptions.__annotations__) | _SERVER | _OWN
"""The defaults of the options; those of redis-py are its own."""


def tree_at(options: StoreOptions) -> tuple[Tree, torch.device | None]:
    """Return the tree of a tensordict on a server, with a new id unless the options give one; and the given device."""
    own = _OWN | {name: value for name, value in options.items() if name in _OWN}
    server = _SERVER | {name: value for name, value in options.items() if name not in _OWN}
    connection = Connection(own["backend"], own["client"], server)
    td_id = str(uuid.uuid4()) if own["td_id"] is None else own["td_id"]
    tree = Tree(connection, own["prefix"], td_id, own["cache_metadata"], own["ttl"], bool(own["allow_pickle"]))
    return tree, as_device(own["device"])
