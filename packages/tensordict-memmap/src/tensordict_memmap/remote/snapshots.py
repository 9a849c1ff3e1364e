"""Generations: the files of each save to an address lie under a name of their own, and this says which of them may go.

``tensordict-<16 hex digits>/`` holds the files, and ``tensordict-<16 hex digits>.json`` beside it says who saves them:
the machine and the process. The manifest at the address names the one generation that counts. Object stores have no
locks that vanish with a process, so a save that was killed is told another way: its generation is named by no manifest,
and its process has ended, where that is one of this machine, or else it has not been heard of for a day. The next save
removes such a generation, and the one that the manifest says it took the place of, if that is still there. A folder
without the file beside it is somebody's copy of a save, and stays.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import secrets
import time
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from tensordict_memmap.remote.ranges import Store
from tensordict_memmap.storage.manifest import NAME, Manifest

__all__ = ["Generation", "Published", "published", "remove_orphans"]

_GENERATION = re.compile(r"tensordict-[0-9a-f]{16}")
_RENEWED = 600.0
"""Seconds after which a save says again that it goes on."""

_GONE = 24 * 3600.0
"""Seconds without a word after which a save of another machine counts as gone."""

_under_way: set[str] = set()


class Generation:
    """The files of one save to an address, while it is made.

    Args:
        store: the address.

    Attributes:
        name: the folder of the files.

    >>> store = Store("memory://generations")
    >>> generation = Generation(store)
    >>> sorted(store.sizes()) == [f"{generation.name}.json"]
    True
    >>> generation.remove()
    >>> store.sizes()
    {}
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.name = f"tensordict-{secrets.token_hex(8)}"
        _under_way.add(self.name)
        self._tell()

    def _tell(self) -> None:
        self.store.write(f"{self.name}.json", orjson.dumps({"saved_by": _this_process()}))
        self._told = time.monotonic()

    def renew(self) -> None:
        """Says that the save goes on, where that was not said for a while."""
        if time.monotonic() - self._told > _RENEWED:
            self._tell()

    def publish(self, manifest: Manifest) -> None:
        """Makes this the generation that counts, and removes the one that did.

        Raises:
            FileNotFoundError: Another save took this one for dead, as after a day of sleep, and removed it.
        """
        if self.store.read(f"{self.name}.json") is None:
            raise FileNotFoundError(
                f"a save elsewhere goes on without a break of a day, and another one to {self.store.url} has removed "
                "what this one had sent; save again"
            )
        sealed = Manifest({}).replaced_under(self.name, manifest).dumps()  # byte by byte: its seal is about these bytes
        replaces = ""
        with contextlib.suppress(ValueError):  # a damaged manifest is replaced like any other
            earlier = published(self.store)
            replaces = "" if earlier is None else earlier.generation
        own = orjson.dumps({"generation": self.name, "replaces": replaces})
        self.store.write(NAME, sealed[:-1] + b"," + own[1:])
        _under_way.discard(self.name)
        if replaces:
            _remove(self.store, replaces)

    def remove(self) -> None:
        """Takes everything back."""
        _remove(self.store, self.name)
        _under_way.discard(self.name)


class Published(NamedTuple):
    """What the manifest at an address says.

    Args:
        generation: the folder of the files, ``""`` of a save that was copied there.
        manifest: the manifest of these files.
        replaces: the generation that counted before, ``""`` for none.
    """

    generation: str
    manifest: Manifest
    replaces: str = ""


def published(store: Store) -> Published | None:
    """What counts at an address; None where nothing does.

    Raises:
        ValueError: The manifest is damaged.
    """
    document = store.read(NAME)
    if document is None:
        return None
    where = f"{store.url}/{NAME}"
    manifest = Manifest.loads(document, where=where)
    record = json.loads(document)
    generation, replaces = record.get("generation", ""), record.get("replaces", "")
    if generation == "":
        return Published("", manifest)
    if not all(isinstance(name, str) and _GENERATION.fullmatch(name) for name in (generation, replaces or generation)):
        raise ValueError(f"a manifest elsewhere names the folder of its files, and {where} is damaged; save again")
    return Published(generation, manifest.under(generation), replaces)


def remove_orphans(store: Store) -> None:
    """Removes what saves to an address left that were stopped before they counted, or before they had cleaned up."""
    names = [path.removesuffix(".json") for path in store.sizes() if path.endswith(".json")]
    found = [name for name in names if _GENERATION.fullmatch(name) and name not in _under_way]
    if not found:
        return
    ended = {name for name in found if _has_ended(store, name)}
    try:
        current = published(store)  # after the look at who has ended: what ended since may count by now
    except ValueError:  # nobody can tell what counts
        return
    for name in found:
        if current is None:
            removable = name in ended
        else:
            removable = name != current.generation and (name in ended or name == current.replaces)
        if removable:
            _remove(store, name)


def _remove(store: Store, name: str) -> None:
    with contextlib.suppress(Exception):  # what is left is found by the next save
        with contextlib.suppress(FileNotFoundError):
            store.fs.rm(store.at(name), recursive=True)
        store.fs.rm(store.at(f"{name}.json"))  # last: a removal that is stopped is found again
    store.fs.invalidate_cache()


def _has_ended(store: Store, name: str) -> bool:
    """Whether nobody saves this generation any more."""
    document = store.read(f"{name}.json")
    if document is None:
        return False
    try:
        saver = orjson.loads(document)["saved_by"]
        machine, process = saver["machine"], saver["process"]
    except (ValueError, KeyError, TypeError):
        return False
    if machine and machine == _machine():
        return bool(saver == _this_process() or saver.get("started") != _started(process))
    with contextlib.suppress(Exception):  # a store that does not say when something was written
        written: datetime.datetime = store.fs.modified(store.at(f"{name}.json"))
        if written.tzinfo is None:
            written = written.replace(tzinfo=datetime.UTC)
        return time.time() - written.timestamp() > _GONE
    return False


# --- processes


def _this_process() -> dict[str, Any]:
    return {"machine": _machine(), "process": os.getpid(), "started": _started(os.getpid())}


def _machine() -> str:
    """What tells this run of this machine, and this space of process numbers, from others; ``""`` if nothing does."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _started(process: object) -> int | None:
    """When a process of this machine began, in ticks since that did; None where there is none."""
    if type(process) is not int:
        return None
    with contextlib.suppress(OSError):
        state, *fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        return None if state in (b"Z", b"X") else int(fields[18])  # zombies have ended; proc_pid_stat(5), starttime
    return None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_under_way.clear)  # those are of the parent
