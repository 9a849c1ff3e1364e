"""Upload: the ranks upload one save to an S3 store; each uploads the parts of which it holds the most bytes.

A part is a range of a file of at least 5 MiB. If several ranks hold a part, one of them assembles it, and the others
send it their bytes over the connections of the save. All ranks process the parts in the same order, which prevents
deadlocks. A rank that fails continues to send empty messages until the end, and then reports its error. The coordinator
completes all uploads when every rank has succeeded, or aborts them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import torch

from tensordict_memmap.distributed.assign import Share
from tensordict_memmap.distributed.byte_ranges import ByteRanges, join_cut, parse_cut
from tensordict_memmap.distributed.collectives import gather, receive, scatter
from tensordict_memmap.distributed.layout import Layout
from tensordict_memmap.distributed.placements import Part
from tensordict_memmap.distributed.plan import pack, unpack
from tensordict_memmap.distributed.rendezvous import Link
from tensordict_memmap.distributed.write import ranges_of
from tensordict_memmap.engine.sources import Scattered
from tensordict_memmap.remote.multipart import Multipart, part_size
from tensordict_memmap.remote.snapshots import SnapshotWriter, remove_orphans
from tensordict_memmap.remote.store import Store
from tensordict_memmap.saving.tree import TreeFile
from tensordict_memmap.saving.writer import Run
from tensordict_memmap.schema.node import Path
from tensordict_memmap.storage.manifest import Manifest

_IN_FLIGHT = 3
"""Parts that a rank uploads at once; each takes 8 MiB or more."""


class UploadPlan:
    """The parts of all files.

    Args:
        files: The paths of the files under the URL.
        sizes: Their sizes in bytes.
        uploads: The ids of their uploads; empty for a file of one part, which is written in one request.

    >>> plan = UploadPlan(["a", "b"], [20 << 20, 5], ["u", ""])
    >>> [(file, number, end - start) for file, number, start, end in plan.parts]
    [(0, 1, 8388608), (0, 2, 8388608), (0, 3, 4194304), (1, 1, 5)]
    """

    def __init__(self, files: Sequence[str], sizes: Sequence[int], uploads: Sequence[str]) -> None:
        self.files = list(files)
        self.sizes = list(sizes)
        self.uploads = list(uploads)
        self.parts = [
            (file, number, start, end)
            for file in range(len(files))
            for number, (start, end) in enumerate(pairwise(self.bounds(file)), 1)
        ]

    def bounds(self, file: int) -> list[int]:
        """Return where the parts of a file start, and where the last one ends."""
        return [*range(0, max(self.sizes[file], 1), part_size(self.sizes[file])), self.sizes[file]]


def bytes_of_share(
    layout: Layout,
    share: Share,
    keys: Sequence[Path],
    shapes: Sequence[Sequence[int]],
    parts: Sequence[Sequence[Part]],
    *,
    is_coordinator: bool,
) -> list[ByteRanges]:
    """Return the bytes of each file that a rank has; the coordinator has the headers too."""
    found = [ByteRanges() for _ in layout.files]
    if is_coordinator:
        for number, path in enumerate(layout.files):
            text = layout.texts.get(path, b"")
            if text:
                found[number].add(0, torch.frombuffer(bytearray(text), dtype=torch.uint8))
    for file, one in ranges_of(layout, share, keys, shapes, parts):
        if isinstance(one, Scattered):
            found[file].add_scattered(one)
        else:
            found[file].add(one.offset, one.view)
    for ranges in found:
        ranges.sort()
    return found


def exchange(link: Link, plan: UploadPlan, make: Callable[[], Sequence[ByteRanges]]) -> np.ndarray:
    """Tell every rank how many bytes each one has of each part; return a row for each part.

    Args:
        link: The connections.
        plan: The parts.
        make: A function that returns the bytes that this rank has of each file.
    """

    def count() -> bytes:
        ranges = make()
        counts = [n for file, one in enumerate(ranges) for n in one.counts(plan.bounds(file))]
        return pack(np.array(counts, dtype=np.int64).tobytes())

    found = gather(link, count)
    if link.team.is_coordinator:
        columns = [np.frombuffer(unpack(one)[0], dtype=np.int64) for one in found]
        table = np.stack(columns, axis=1)
        scatter(link, [pack(table.tobytes())] * link.team.size)
        return table
    return np.frombuffer(unpack(receive(link))[0], dtype=np.int64).reshape(-1, link.team.size)


def upload_share(
    link: Link, store: Store, plan: UploadPlan, ranges: Sequence[ByteRanges], counts: np.ndarray, run: Run
) -> bytes:
    """Upload the parts of this rank.

    Returns:
        The numbers and tags of the uploaded parts, as a message.
    """
    me = link.team.index
    calls = Multipart(store)
    tags: list[tuple[int, int, str]] = []
    error: Exception | None = None
    in_flight = threading.Semaphore(_IN_FLIGHT)
    load = np.zeros(link.team.size, dtype=np.int64)

    def put(file: int, number: int, start: int, end: int, messages: Sequence[bytes]) -> tuple[int, int, str]:
        try:
            run.check_cancelled()
            block = np.zeros(end - start, dtype=np.uint8)
            own = ranges[file].cut(start, end)
            for cut in (own, *map(parse_cut, messages)):
                cut.put(block)
            tag = calls.put_part(plan.files[file], plan.uploads[file], number, block.tobytes())
            run.count(len(own.data))
            return file, number, tag
        finally:
            in_flight.release()

    with ThreadPoolExecutor(_IN_FLIGHT) as pool:
        pending: list[Future[tuple[int, int, str]]] = []
        for (file, number, start, end), row in zip(plan.parts, counts, strict=True):
            owner = _owner(row, load)
            others = [rank for rank in np.flatnonzero(row).tolist() if rank != owner]
            if me != owner and me not in others:
                continue
            if me != owner:
                message = b""
                if error is None:
                    try:
                        message = join_cut(ranges[file].cut(start, end))
                    except Exception as reason:  # it is raised when all parts are through
                        error = reason
                link.send(message, owner, tag=_DATA)
                continue
            messages = [link.receive(rank, tag=_DATA) for rank in others]
            if error is not None or not all(messages):
                continue
            in_flight.acquire()
            pending.append(pool.submit(put, file, number, start, end, messages))
            error = next((one.exception() for one in pending if one.done() and one.exception()), None)  # type: ignore[assignment]  # of a job
        for one in pending:
            failed = one.exception()
            if failed is None:
                tags.append(one.result())
            elif error is None and isinstance(failed, Exception):
                error = failed
    if error is not None:
        raise error
    return orjson.dumps(tags)


_DATA = 1
"""The tag of messages with content, apart from those of the coordinator."""


def _owner(row: np.ndarray, load: np.ndarray) -> int:
    """Return the rank that uploads a part: of those with most of its bytes the one with the least to upload so far."""
    most = np.flatnonzero(row == row.max())
    owner = int(most[load[most].argmin()]) if row.any() else 0
    load[owner] += int(row.sum())
    return owner


class Target:
    """The side of the coordinator: the uploads of all files, until they are complete or aborted.

    Args:
        url: The URL of the save.
        layout: Its files.
        is_folder: Whether it has several files, which are stored in a snapshot.
    """

    def __init__(self, url: str, layout: Layout, *, is_folder: bool) -> None:
        self.store = Store(url)
        self.calls = Multipart(self.store)
        self.snapshot: SnapshotWriter | None = None
        if is_folder:
            remove_orphans(self.store)
            self.snapshot = SnapshotWriter(self.store)
        else:
            self.calls.remove_abandoned("")
        start = f"{self.snapshot.name}/" if self.snapshot is not None else ""
        self.start = start
        files = [start + path for path in layout.files]
        self.plan = UploadPlan(files, layout.sizes, [""] * len(files))
        try:
            for number, (path, size) in enumerate(zip(files, layout.sizes, strict=True)):
                # an object of one part is written in one request, where only a manifest makes it visible
                if self.snapshot is None or size > part_size(size):
                    self.plan.uploads[number] = self.calls.create(path)
        except BaseException:
            self.abort()
            raise

    def head(self) -> dict[str, Any]:
        """Return the message to the other ranks."""
        plan = self.plan
        return {"url": self.store.url, "files": plan.files, "sizes": plan.sizes, "uploads": plan.uploads}

    def complete(self, found: Sequence[bytes], whole: Sequence[TreeFile], manifest: Manifest | None) -> None:
        """Complete the uploads of all ranks, write the other files, and make the save the current one."""
        tags: dict[int, dict[int, str]] = {}
        for message in found:
            for file, number, tag in orjson.loads(message):
                tags.setdefault(file, {})[number] = tag
        for file in whole:
            self.store.write(self.start + file.path, b"".join(file.blocks()))
        for number, upload in enumerate(self.plan.uploads):
            if upload:
                self.calls.complete(self.plan.files[number], upload, tags.get(number, {}))
        if self.snapshot is not None and manifest is not None:
            for path, first in manifest.aliases.items():
                self.store.fs.cp_file(self.store.full_path(self.start + first), self.store.full_path(self.start + path))
            self.snapshot.publish(manifest)
        self.store.fs.invalidate_cache()

    def abort(self) -> None:
        """Remove everything that was uploaded."""
        for path, upload in zip(self.plan.files, self.plan.uploads, strict=True):
            if upload:
                self.calls.abort(path, upload)
        if self.snapshot is not None:
            self.snapshot.remove()
