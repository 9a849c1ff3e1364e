"""Team: the ranks of a save, with the coordinator, and the store through which they connect."""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import platform
import threading
import weakref
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import PrefixStore

from tensordict_memmap.engine.future import Pending
from tensordict_memmap.engine.syscalls import system_text


class Team:
    """The ranks that save together.

    Args:
        ranks: Their global ranks; the first is the coordinator.
        index: The place of this rank among them.
        store: A store with its own connection, so that waiting in it does not block the store of the process group.

    Attributes:
        lock: Held during a save: messages of two saves must not mix.
        link: The connections of the last save, which the next one uses again (`rendezvous`).
        number: The number of saves that were begun, by which ranks notice that they are not at the same one.
        given_up: The numbers of those that this rank cancelled since the ranks met, before they met again.
        pending: The last save in the background.
    """

    def __init__(self, ranks: list[int], index: int, store: Any) -> None:
        self.ranks = ranks
        self.index = index
        self.store = store
        self.lock = threading.Lock()
        self.link: Any = None
        self.number = 0
        self.given_up: list[int] = []
        self.pending = Pending()

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    @property
    def is_coordinator(self) -> bool:
        """Whether this rank coordinates."""
        return self.index == 0

    @property
    def rank(self) -> int:
        """The global rank of this process."""
        return self.ranks[self.index]


_teams: weakref.WeakKeyDictionary[Any, dict[tuple[int, ...], Team]] = weakref.WeakKeyDictionary()
"""The teams of each default process group, which a program may destroy and make again."""


@atexit.register
def _close_links() -> None:
    # while the interpreter still works: threads of gloo that are left to its finalization may abort the process
    for team in [team for teams in list(_teams.values()) for team in teams.values()]:
        if team.link is not None:
            team.link.close()


def team_of(group: Any = None) -> Team:
    """Return the team of a process group or a device mesh; None is the default process group.

    Raises:
        RuntimeError: There is no process group, or this process is not in the given one.
        TypeError: The argument is neither.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "a distributed save requires a process group, and there is none; call init_process_group() first"
        )
    world = dist.distributed_c10d._get_default_group()
    ranks = _ranks_of(group)
    if dist.get_rank() not in ranks:
        raise RuntimeError(
            f"this is rank {dist.get_rank()}, and the group of the save has the ranks {ranks}; call save() on those"
        )
    teams = _teams.setdefault(world, {})
    team = teams.get(tuple(ranks))
    if team is None:
        name = hashlib.blake2b(",".join(map(str, ranks)).encode(), digest_size=8).hexdigest()
        store = PrefixStore(f"tensordict-memmap/{name}", _own_connection())
        team = teams[tuple(ranks)] = Team(ranks, ranks.index(dist.get_rank()), store)
        store.set(f"process/{team.index}", process_name())
    return team


def _ranks_of(group: Any) -> list[int]:
    if group is None:
        return list(range(dist.get_world_size()))
    if isinstance(group, DeviceMesh):
        ranks: list[int] = group.mesh.flatten().tolist()
        return ranks
    if isinstance(group, dist.ProcessGroup):
        return list(dist.get_process_group_ranks(group))
    raise TypeError(f"group= takes a process group or a device mesh, not a {type(group).__name__}; pass one of those")


def _own_connection() -> Any:
    # torch has no public name for the store of the default group; a store of our own would need an address to agree on
    store: Any = dist.distributed_c10d._get_default_store()
    try:
        return store.clone()
    except (AttributeError, RuntimeError):  # stores in a file or in memory, which threads share
        return store


@functools.cache
def host_name() -> str:
    """Return a name of this machine since it was started: containers may share a name of the network."""
    boot = system_text("/proc/sys/kernel/random/boot_id").strip()
    return f"{platform.node()}/{boot}/{_mounts()}"


def _mounts() -> str:
    """Return the mount namespace of this process: mappings of a file are of one page cache where it is the same."""
    try:
        return os.readlink("/proc/self/ns/mnt")
    except OSError:
        return ""


def process_name() -> str:
    """Return a name of this process that no other one has or will have."""
    return f"{host_name()}|{os.getpid()}|{_started(os.getpid())}"


def has_ended(name: str) -> bool:
    """Return whether a process has ended, if it ran on this machine; of others that is not known.

    >>> has_ended(process_name()), has_ended(process_name().rpartition("|")[0] + "|0")
    (False, True)
    """
    host, pid, start = name.rsplit("|", 2)
    return host == host_name() and os.path.isdir("/proc/self") and _started(int(pid)) != start


def _started(pid: int) -> str:
    """When a process started, in ticks since that of the machine; empty if it has ended."""
    fields = system_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return "" if not fields or fields[0] in "ZX" else fields[19]
