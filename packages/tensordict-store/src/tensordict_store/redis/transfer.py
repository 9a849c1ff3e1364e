"""Transfers: rows of several values in one request, read together or written all or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensordict_store.redis.commands import Command, Reads, Writes
from tensordict_store.redis.connection import Connection
from tensordict_store.redis.layout import gone
from tensordict_store.redis.tree import Tree

_GUARD = """
for i = 1, #KEYS - 1 do
  if redis.call('EXISTS', KEYS[i]) == 0 then
    redis.call('SET', KEYS[#KEYS], '')
    redis.call('DEL', KEYS[#KEYS])
    return KEYS[i]
  end
end
return false
"""
"""Return the first of the names that does not exist; a transaction that watches the last name then fails."""


def gather(
    connection: Connection, reads: Sequence[Reads], others: Sequence[Command] = ()
) -> tuple[list[Any], list[Any]]:
    """Return rows of several values, and the results of other commands, in one request.

    Returns:
        The result of each read, ``None`` for a deleted value; and the results of the commands.
    """
    found = connection.run([*reads, *others] if others else reads)
    replies = found[len(reads) :]
    found = found[: len(reads)]
    # a row of a deleted value has no bytes, as one of an empty value
    short = [i for i, got in enumerate(found) if isinstance(got, bytes) and not got and reads[i].size]
    if short:
        for i, exists in zip(short, connection.run([("EXISTS", reads[i].name) for i in short]), strict=True):
            found[i] = found[i] if exists else None
    return found, replies


def scatter(tree: Tree, writes: Sequence[Writes]) -> None:
    """Write rows of several values, all or none, if all of the values exist.

    This is one request where the server runs scripts: a script checks the values, and fails the transaction that
    follows it if one was deleted. Otherwise, and the first time, the check is a request before the transaction.

    Args:
        tree: The tensordict.
        writes: The writes, one or more for each value.

    Raises:
        KeyError: A value was deleted before the call, and nothing was written; or during it, and the others were
            written.
    """
    if not writes:
        return
    connection, watched = tree.connection, tree.name("__guard__")  # a name that no value has
    names = [write.name for write in writes]
    exist: list[Command] = [("EXISTS", name) for name in names]
    guard: Command = ("EVAL", _GUARD, len(names) + 1, *names, watched)
    replies: list[Any] | None = None
    while connection.guards and replies is None:
        deleted, replies = connection.run_watching(watched, guard, [*exist, *writes])
        if deleted is not None:
            raise gone(tree.key_of(deleted), "nothing was written, store the entry again")
    if replies is None:
        deleted = connection.ask(guard, exist, names)
        if deleted is not None:
            raise gone(tree.key_of(deleted), "nothing was written, store the entry again")
        replies = connection.run([*exist, *writes], atomic=True)
    lost = [name for name, found in zip(names, replies, strict=False) if not found]
    if lost:  # SETRANGE has made values that lack their other rows
        connection.run([("UNLINK", *lost)])
        raise KeyError(
            f"the entry {tree.key_of(lost[0])!r} was deleted from the server while it was written, or its time to live "
            "ended then; the other entries are written, store this one again"
        )
