"""Saves by several ranks, as the public ``save`` makes them, and exchanges of values before them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tensordict_memmap.distributed.collectives import gather, receive, scatter
from tensordict_memmap.distributed.rendezvous import joined
from tensordict_memmap.distributed.save import ShardedSave, seconds_of
from tensordict_memmap.distributed.team import team_of
from tensordict_memmap.engine.future import run_save
from tensordict_memmap.remote.urls import local_path
from tensordict_memmap.saving.options import SaveOptions


def save(
    data: Any,
    path: str | os.PathLike[str],
    options: SaveOptions,
    *,
    group: Any = None,
    placements: Any = None,
    timeout: float | None = None,
    pending: str = "wait",
    early: bool = False,
    pbar: bool | None = None,
    result: Callable[[], Any] | None = None,
) -> Any:
    """Save together with the other ranks of a group; the arguments are those of the public ``save``.

    ``result`` is called once everything is saved; it returns the result of the call or of its future, which by default
    is ``data``.
    """
    start = time.monotonic()
    team = team_of(group)
    team.pending.end(pending)
    job = ShardedSave(data, local_path(path), options, team, placements=placements, timeout=timeout)
    pbar = bool(pbar) and team.is_coordinator  # not unasked: the ranks share one terminal
    result = result or (lambda: data)
    if not early:
        return run_save(job.run, result, 0, pbar=pbar, where=job.path)
    job.hold()
    future = run_save(job.run, result, job.total, early=True, pbar=pbar, where=job.path)
    team.pending.set(future)
    job.on_total = partial(setattr, future, "bytes_total")
    future.stall_seconds = time.monotonic() - start
    return future


def gather_values(
    value: bytes,
    path: str | os.PathLike[str],
    *,
    error: Exception | None = None,
    timeout: float | None = None,
    pending: str = "wait",
) -> list[bytes]:
    """Collect a value of each rank of the default process group, before they save to a path.

    Args:
        value: The value of this rank.
        path: The target of the save.
        error: An error of this rank, which prevents the save; it is reported to all other ranks.
        timeout: The longest wait for another rank, in seconds.
        pending: What to do with an earlier save in the background, as for a save.

    Returns:
        For the first rank the values of all ranks in their order, for others nothing.

    Raises:
        RankError: Another rank failed, or did not answer in time. The error of this rank is raised as it is.
    """
    team = team_of()
    team.pending.end(pending)
    team.number += 1
    request: dict[str, Any] = {"call": "gather", "path": str(path)}
    with joined(team, request, seconds_of(timeout), f"the save to {path}", error=error) as link:
        found = gather(link, lambda: value)
        if team.is_coordinator:
            scatter(link)
        else:
            receive(link)
        return found
