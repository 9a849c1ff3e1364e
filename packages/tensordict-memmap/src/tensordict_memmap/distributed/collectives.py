"""Collectives: each rank does its part and reports the outcome; the coordinator orders all to continue or to stop.

An error on one rank is therefore raised on every rank, and no rank waits for one that has stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from tensordict_memmap.distributed.errors import RankError, describe_failure, failure_of
from tensordict_memmap.distributed.rendezvous import Link

_OK, _FAILED = b"\0", b"\1"


def gather(link: Link, work: Callable[[], bytes]) -> list[bytes]:
    """Do the part of this rank and report the result to the coordinator.

    Returns:
        For the coordinator, the results of all ranks; for others nothing: they `receive` its message.

    Raises:
        RankError: For the coordinator: another rank failed or is lost, and the others were notified. If this rank
            failed, its own error is raised, on another rank than the coordinator by `receive`.
    """
    error: Exception | None = None
    try:
        message = _OK + work()
    except Exception as failed:
        error = failed
        message = _FAILED + orjson.dumps(failure_of(failed))
    found = link.gather(message)
    if not link.team.is_coordinator:
        link.own_error = error
        return []
    failures: dict[int, dict[str, Any]] = {}
    for rank, one in zip(link.team.ranks, found, strict=True):
        if isinstance(one, RankError):
            failures[rank] = {"text": str(one), "cancelled": False}
        elif one[:1] == _FAILED:
            failures[rank] = orjson.loads(one[1:])
    if failures:
        scatter_failure(link, failures)
        raise error or describe_failure(link.what, failures)
    return [one[1:] for one in found if isinstance(one, bytes)]


def scatter(link: Link, messages: Sequence[bytes] | None = None) -> None:
    """Send each other rank the message that it waits for; the default is empty and reports success."""
    link.scatter([_OK + message for message in messages or [b""] * link.team.size])


def scatter_failure(link: Link, failures: dict[int, dict[str, Any]]) -> None:
    """Send all other ranks the failures of some; a second time it does nothing."""
    if not link.told:
        link.told = True
        text = _FAILED + orjson.dumps({str(rank): failure for rank, failure in failures.items()})
        link.scatter([text] * link.team.size)


def receive(link: Link) -> bytes:
    """Return the message of the coordinator to this rank.

    Raises:
        RankError: A rank failed, or the coordinator is lost. If this rank failed, its own error is raised.
    """
    error, link.own_error = link.own_error, None
    try:
        message = link.from_coordinator()
    except RankError:
        if error is not None:
            raise error from None
        raise
    if message[:1] == _OK:
        return message[1:]
    if error is not None:
        raise error
    failures = {int(rank): failure for rank, failure in orjson.loads(message[1:]).items()}
    raise describe_failure(link.what, failures)
