"""Connections: sends the commands of one operation in one pipeline, and connects again after a loss."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from tensordict_store.extras import require
from tensordict_store.redis.wire import PLAIN, ServerError, Wire

__all__ = ["BACKENDS", "Command", "Connection"]

BACKENDS = ("redis", "dragonfly")
"""Servers that speak the protocol."""
Command = tuple[Any, ...]


class Connection:
    """A connection to a server, opened on first use and once for each process.

    Args:
        backend: ``"redis"`` or ``"dragonfly"``, which speak one protocol.
        host: The host of the server.
        port: The port of the server.
        db: The number of the database.
        unix_socket_path: The socket of a server on this machine, in place of host and port.
        client: A client of redis-py that is used as it is; it must not decode responses.
        options: More options of ``redis.Redis``, such as ``password``, ``ssl`` and ``socket_timeout``.

    Raises:
        ValueError: The backend is unknown.
        ImportError: redis-py is not installed.
    """

    def __init__(
        self,
        backend: str,
        host: str,
        port: int,
        db: int,
        unix_socket_path: str | None,
        client: Any,
        options: dict[str, Any],
    ) -> None:
        if backend not in BACKENDS:
            raise ValueError(f"backend={backend!r} is unknown; pass {' or '.join(map(repr, BACKENDS))}")
        self._redis = require("redis", "TensorDictStore")
        self.backend = backend
        self.place = unix_socket_path or f"{host}:{port}"
        self._options = {"db": db, "socket_connect_timeout": 5, **options}
        self._options |= {"unix_socket_path": unix_socket_path} if unix_socket_path else {"host": host, "port": port}
        self._given = client
        if client is not None:
            known = client.get_connection_kwargs()
            if known.get("decode_responses"):
                raise ValueError(
                    "the client decodes responses, and tensors are bytes; pass decode_responses=False to it"
                )
            self.place = known.get("path") or f"{known.get('host')}:{known.get('port')}"
        self._client: Any = client
        self._wire: Wire | None = None
        self.scripts = True
        """Whether the server is not known to refuse scripts."""

    def __reduce__(self) -> Any:
        if self._given is not None:
            raise TypeError(
                "a store over a client that was passed to it cannot be pickled; pass host and port instead of client"
            )
        return _connected, (self.backend, self.place, self._options)

    @property
    def client(self) -> Any:
        """The client of redis-py."""
        if self._client is None:
            # (pools notice a fork by the process id, and open connections of their own)
            retry = self._redis.retry.Retry(self._redis.backoff.ExponentialBackoff(cap=0.5, base=0.05), 3)
            errors = [self._redis.ConnectionError, self._redis.TimeoutError]
            self._client = self._redis.Redis(**{"retry": retry, "retry_on_error": errors, **self._options})
        return self._client

    def run(self, commands: Sequence[Command], atomic: bool = False) -> list[Any]:
        """Send commands in one request, and return their results.

        Args:
            commands: Commands, each of which may be sent twice: after a lost connection they are.
            atomic: Whether the server runs all of them or none.

        Raises:
            ConnectionError: The server does not answer.
            OSError: The server refuses a command, for want of memory or of rights.
        """
        if not commands:
            return []
        redis = self._redis
        try:
            if self._given is None and self._options.keys() <= PLAIN:
                if self._wire is None:
                    self._wire = Wire(self._options)
                return self._wire.run(commands, atomic)
            if len(commands) == 1:
                return [self.client.execute_command(*commands[0])]
            pipeline = self.client.pipeline(transaction=atomic)
            for command in commands:
                pipeline.execute_command(*command)
            results: list[Any] = pipeline.execute()
        except (redis.ResponseError, ServerError) as error:
            raise OSError(f"the Redis server at {self.place} refuses a command: {error}") from error
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            raise ConnectionError(
                f"the Redis server at {self.place} does not answer ({error}); start it, or pass its host and port"
            ) from error
        return results

    def run_script(self, script: tuple[Any, ...], others: Sequence[Command]) -> list[Any] | None:
        """Run a script and other commands in one request; return ``None`` if the server allows no scripts.

        Args:
            script: The source, the names of the values it uses, and its arguments.
            others: More commands, whose results follow that of the script.
        """
        source, names, *arguments = script
        digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        command = ("EVALSHA", digest, len(names), *names, *arguments)
        for _ in range(2):
            try:
                return self.run([command, *others])
            except OSError as error:
                cause = error.__cause__
                if isinstance(cause, self._redis.exceptions.NoScriptError) or str(cause).startswith("NOSCRIPT"):
                    try:
                        self.run([("SCRIPT", "LOAD", source)])
                        continue
                    except OSError as refused:
                        if isinstance(refused, ConnectionError):
                            raise
                elif isinstance(error, ConnectionError) or "OOM" in str(cause):
                    raise
                self.scripts = False
                return None
        return None

    def close(self) -> None:
        """Close the connections of this process; a later operation opens one again."""
        if self._client is not None:
            self._client.close()
        if self._wire is not None:
            self._wire.close()


def _connected(backend: str, place: str, options: dict[str, Any]) -> Connection:
    options = dict(options)
    host, port = options.pop("host", "localhost"), options.pop("port", 6379)
    return Connection(backend, host, port, options.pop("db"), options.pop("unix_socket_path", None), None, options)
