"""Saves by several ranks, and loads into DTensors, as the public calls of the same names make them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tensordict_memmap.distributed.collectives import gather, receive, scatter
from tensordict_memmap.distributed.load import read_into, wanted_parts
from tensordict_memmap.distributed.rendezvous import joined
from tensordict_memmap.distributed.save import ShardedSave, seconds_of
from tensordict_memmap.distributed.team import Team, team_of
from tensordict_memmap.engine.future import end_pending, run_save
from tensordict_memmap.loading.open import open_any
from tensordict_memmap.loading.request import LoadRequest
from tensordict_memmap.remote.urls import local_path
from tensordict_memmap.saving.options import SaveOptions
from tensordict_memmap.schema.diff import refuse_new_keys


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
    team = _free_team(group, pending)
    job = ShardedSave(data, local_path(path), options, team, placements=placements, timeout=timeout)
    pbar = bool(pbar) and team.is_coordinator  # not unasked: the ranks share one terminal
    result = result or (lambda: data)
    if not early:
        return run_save(job.run, result, 0, pbar=pbar, where=job.path)
    job.hold()
    future = team.pending = run_save(job.run, result, job.total, early=True, pbar=pbar, where=job.path)
    job.on_total = partial(setattr, future, "bytes_total")
    future.stall_seconds = time.monotonic() - start
    return future


def _free_team(group: Any, pending: str) -> Team:
    """Return the ranks of a group, when their earlier save in the background has ended."""
    team = team_of(group)
    earlier, team.pending = team.pending, None
    end_pending(earlier, pending)
    return team


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
    team = _free_team(None, pending)
    team.number += 1
    request: dict[str, Any] = {"call": "gather", "path": str(path)}
    with joined(team, request, seconds_of(timeout), f"the save to {path}", error=error) as link:
        found = gather(link, lambda: value)
        if team.is_coordinator:
            scatter(link)
        else:
            receive(link)
        return found


def load_into_ranks(
    td: Any, path: str | os.PathLike[str], *, allow_pickle: bool | None = None, verify: str = "size"
) -> Any:
    """Write a save into a tensordict with DTensors, in place; each rank reads its ranges.

    Raises:
        KeyError: The tensordict is locked and lacks a key; nothing is written then.
        RuntimeError: An entry has another shape.
    """
    request = LoadRequest(mode="r", allow_pickle=bool(allow_pickle), verify=verify, parts=wanted_parts(td))
    loaded = open_any(local_path(path), request)
    refuse_new_keys(loaded, td)
    read_into(td, loaded)
    return td.update_(loaded) if td.is_locked else td.update(loaded, inplace=True)
