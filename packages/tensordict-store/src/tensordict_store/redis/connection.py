"""Connections: sends the commands of one operation in one pipeline, and connects again after a loss."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence
from typing import Any

from tensordict_store.extras import require
from tensordict_store.redis.commands import Command, Reads, Writes, expand
from tensordict_store.redis.event_loop import result_of
from tensordict_store.redis.replies import ServerError
from tensordict_store.redis.wire import PLAIN, Wire

BACKENDS = ("redis", "dragonfly")
"""Servers that implement the Redis protocol."""


class Connection:
    """A connection to a server, opened on first use and once for each process.

    Args:
        backend: ``"redis"`` or ``"dragonfly"``, which use the same protocol.
        client: A client of redis-py that is used as it is; it must not decode responses. One of ``redis.asyncio`` runs
            in a loop of its own thread, and belongs to the store from then on.
        options: The options of ``redis.Redis``: ``host``, ``port``, ``db``, ``unix_socket_path`` and others.

    Raises:
        ValueError: The backend is unknown.
        ImportError: redis-py is not installed.
    """

    def __init__(self, backend: str, client: Any, options: dict[str, Any]) -> None:
        if backend not in BACKENDS:
            raise ValueError(f"backend={backend!r} is unknown; pass {' or '.join(map(repr, BACKENDS))}")
        self._redis = require("redis", "TensorDictStore")
        self.backend = backend
        self.place = options["unix_socket_path"] or f"{options['host']}:{options['port']}"
        self._options = {"socket_connect_timeout": 5, **options}
        self._given = client
        if client is not None:
            known = client.get_connection_kwargs()
            if known.get("decode_responses"):
                raise ValueError(
                    "the client decodes responses, and tensors are bytes; pass decode_responses=False to it"
                )
            self.place = known.get("path") or f"{known.get('host')}:{known.get('port')}"
        self._client: Any = client
        self._is_async = inspect.iscoroutinefunction(getattr(client, "execute_command", None))
        self._wire: Wire | None = None
        self._scripts: bool | None = None  # whether the server runs scripts, once that is known

    def __reduce__(self) -> Any:
        if self._given is not None:
            raise TypeError(
                "a store over a client that was passed to it cannot be pickled; pass host and port instead of client"
            )
        return type(self), (self.backend, None, self._options)

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
            OSError: The server refuses a command, for example for lack of memory or permissions.
        """
        return self._request(commands, atomic) if commands else []

    def run_watching(
        self, name: str, guard: Command, commands: Sequence[Command]
    ) -> tuple[str | None, list[Any] | None]:
        """Send a transaction that fails if a script before it finds that a value was deleted, in one request.

        Args:
            name: The name that the transaction watches.
            guard: The script, which changes the watched name if a value was deleted, and returns its name.
            commands: The commands of the transaction.

        Returns:
            The name of a deleted value; and the results of the transaction, or ``None`` if it did not take place.
        """
        _, gone, *results = self._request(commands, True, [("WATCH", name), guard])
        if isinstance(gone, ServerError):
            self._scripts, gone = False, None
        return None if gone is None else str(gone, "utf-8"), None if results == [None] else results

    @property
    def guards(self) -> bool:
        """Whether `run_watching` is possible: the server is known to run scripts, and redis-py is not in between."""
        return bool(self._scripts) and self._plain_wire() is not None

    def ask(self, guard: Command, exist: Sequence[Command], names: Sequence[str]) -> str | None:
        """Return the first of some values that was deleted; find out whether the server runs scripts.

        Args:
            guard: The script that checks.
            exist: The commands that check on a server that runs no scripts.
            names: The names of the values, one for each command.
        """
        if self._scripts is None and self._plain_wire() is not None:
            try:
                [gone] = self.run([guard])
                self._scripts = True
                return None if gone is None else str(gone, "utf-8")
            except OSError as error:
                if isinstance(error, ConnectionError):
                    raise
                self._scripts = False
        return next((name for name, found in zip(names, self.run(exist), strict=True) if not found), None)

    def _plain_wire(self) -> Wire | None:
        if self._given is not None or not self._options.keys() <= PLAIN:
            return None
        if self._wire is None:
            self._wire = Wire(self._options)
        return self._wire

    def _by_client(self, commands: Sequence[Command], atomic: bool) -> list[Any]:
        """Send commands by redis-py."""
        plain = [expand(command) for command in commands]
        if len(commands) == len(plain[0]) == 1 and not self._is_async:
            replies = [self.client.execute_command(*plain[0][0])]
        else:
            pipeline = self.client.pipeline(transaction=atomic)
            for command in itertools.chain.from_iterable(plain):
                pipeline.execute_command(*command)
            replies = result_of(pipeline.execute()) if self._is_async else pipeline.execute()
        rest = iter(replies)
        parts = [list(itertools.islice(rest, len(one))) for one in plain]
        return [
            b"".join(own)
            if isinstance(command, Reads) and command.runs is not None
            else None
            if isinstance(command, Writes)
            else own[0]
            for command, own in zip(commands, parts, strict=True)
        ]

    def _request(self, commands: Sequence[Command], atomic: bool, before: Sequence[Command] = ()) -> list[Any]:
        """Send a request; an error names the server."""
        wire, redis = self._plain_wire(), self._redis
        try:
            return self._by_client(commands, atomic) if wire is None else wire.run(commands, atomic, before)
        except (redis.ResponseError, ServerError) as error:
            raise OSError(f"the Redis server at {self.place} refuses a command: {error}") from error
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            raise ConnectionError(
                f"the Redis server at {self.place} does not answer ({error}); start it, or pass its host and port"
            ) from error

    def close(self) -> None:
        """Close the connections of this process; a later operation opens one again."""
        if self._is_async:
            result_of(self._client.aclose())
        elif self._client is not None:
            self._client.close()
        if self._wire is not None:
            self._wire.close()
