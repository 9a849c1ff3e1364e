"""Calls of the room: `save`, which ``saving`` forwards to."""

from __future__ import annotations

import os
from typing import Any

from tensordict_memmap.distributed.save import ShardedSave
from tensordict_memmap.distributed.team import team_of
from tensordict_memmap.engine.future import run_save
from tensordict_memmap.remote.urls import local_path
from tensordict_memmap.saving.options import SaveOptions

__all__ = ["save"]


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
    pbar: bool = False,
) -> Any:
    """Saves together with the other ranks of a group; the public ``save`` says what the arguments mean."""
    team = team_of(group)
    job = ShardedSave(data, local_path(path), options, team, placements=placements, timeout=timeout)
    return run_save(job.run, lambda: data, job.total, early=early, pbar=pbar and team.is_coordinator, where=job.path)
