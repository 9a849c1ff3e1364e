"""Distributed save: one save by all ranks of a group, from the plans of the ranks to the rename.

The coordinator runs the transaction that a save of one process runs (`storage.transaction`): while its staged file or
folder exists, all ranks write into it. If one of them fails, the transaction is undone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import orjson

from tensordict_memmap.distributed.assign import Assignment, Share, assign
from tensordict_memmap.distributed.byte_ranges import ByteRanges
from tensordict_memmap.distributed.checksums import hash_share, join_shares
from tensordict_memmap.distributed.collectives import gather, receive, scatter, scatter_failure
from tensordict_memmap.distributed.errors import RankError, failure_of
from tensordict_memmap.distributed.formats import Format, check_same_names, format_of, whole_writes
from tensordict_memmap.distributed.layout import Layout, path_in
from tensordict_memmap.distributed.local_parts import LocalParts
from tensordict_memmap.distributed.plan import NO_NAMES, ShardPlan, pack, unpack
from tensordict_memmap.distributed.rendezvous import Link, joined
from tensordict_memmap.distributed.team import Team
from tensordict_memmap.distributed.upload import Target, UploadPlan, bytes_of_share, exchange, upload_share
from tensordict_memmap.distributed.write import writes_of
from tensordict_memmap.engine import executor, syscalls
from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.engine.future import Cancelled, Progress
from tensordict_memmap.engine.sink import error_context, is_mapping_fast
from tensordict_memmap.engine.tuning import DISK_THREADS
from tensordict_memmap.remote.store import Store
from tensordict_memmap.remote.urls import is_remote
from tensordict_memmap.saving.options import SaveOptions
from tensordict_memmap.saving.writer import Run
from tensordict_memmap.schema.node import plain
from tensordict_memmap.storage.manifest import Manifest
from tensordict_memmap.storage.transaction import Stage, saving

TIMEOUT = 1800.0
"""The default number of seconds to wait for another rank, that of torch's process groups."""


_DISK_THREADS = 2
"""The least number of threads of a rank in a durable save, of which one copies while the other waits for the disk."""


class ShardedSave:
    """One save by several ranks.

    Args:
        data: The tensordict of this rank.
        path: The target, the same on all ranks, on a file system that all of them share.
        options: The options.
        team: The ranks.
        placements: How ranks hold plain leaves; see `LocalParts`.
        timeout: The longest wait for another rank, in seconds.
    """

    def __init__(
        self,
        data: Any,
        path: str | os.PathLike[str],
        options: SaveOptions,
        team: Team,
        *,
        placements: Any = None,
        timeout: float | None = None,
    ) -> None:
        self.path = str(path) if is_remote(path) else os.path.abspath(path)
        self.options = options
        self.team = team
        self.timeout = seconds_of(timeout)
        self.what = f"the save to {self.path}"
        self.error: Exception | None = None
        self.total = 0
        self.on_total: Callable[[int], None] | None = None
        self._placements = repr(placements)
        team.number += 1
        self._form: Format | None = None
        self._release: Callable[[], None] | None = None
        try:
            _check_options(self.path, options)
            self.held = LocalParts(data, placements)
        except Exception as error:  # it is reported to the other ranks when they connect
            self.error = error

    def hold(self) -> None:
        """Copy the parts of this rank to host memory, for a save in the background."""
        if self.error is None:
            try:
                self._release = self.held.copy_to_host()
                self.total = self.held.nbytes()
                self._prepare()
            except Exception as error:
                self.error = error

    def _prepare(self) -> None:
        """Describe the tensordict before the ranks connect, unless they have to exchange the whole shapes."""
        if self.held.dim is None:
            self._describe()

    def run(self, progress: Progress | None = None, cancelled: Cancelled | None = None) -> None:
        """Save together with the other ranks.

        Raises:
            RankError: Another rank failed, or did not answer in time. Errors of this rank are raised as they are.
        """
        try:
            self._run(progress, cancelled)
        except RankError:
            executor.check_cancelled(cancelled)  # the other ranks were at another step when this one gave up
            raise
        finally:
            if self._release is not None:
                self._release()

    def _run(self, progress: Progress | None, cancelled: Cancelled | None) -> None:
        request = self._request()
        with joined(self.team, request, self.timeout, self.what, cancelled, self.error) as link:
            own = Run(self._threads(link), self.options.durable, progress, cancelled)
            if self.team.is_coordinator:
                self._coordinate(link, own)
            else:
                self._follow(link, own)

    def _request(self) -> dict[str, Any]:
        options = self.options
        request: dict[str, Any] = {
            "call": "save",
            "path": self.path,
            "format": options.format,
            "shard_size": options.shard_size,
            "durable": options.durable,
            "checksum": options.checksum,
            "placements": self._placements,
        }
        if self.error is None:
            try:
                self._prepare()
            except Exception as error:
                self.error = error
        if self.error is None and self._form is not None:
            request["names"] = self._form.plan.digest()
        return request

    def _threads(self, link: Link) -> int:
        """Return the threads of this rank: those of the machine, divided by the ranks on it."""
        here = link.hosts.count(link.hosts[self.team.index])
        return self.options.num_threads or max(executor.default_threads() // here, 1)

    # --- the steps of a rank

    def _meet(self, link: Link) -> None:
        """Exchange the lengths of parts of plain leaves, if ranks hold parts of them."""
        if self.held.dim is None:
            return
        found = gather(link, lambda: orjson.dumps(self.held.lengths()))
        if self.team.is_coordinator:
            keys, lengths = zip(*map(orjson.loads, found), strict=True)
            try:
                check_same_names(keys, self.team.ranks)
            except ValueError as error:
                scatter_failure(link, {self.team.rank: failure_of(error)})
                raise
            scatter(link, [orjson.dumps(lengths)] * self.team.size)
        else:
            lengths = orjson.loads(receive(link))
        self.held.join_parts(lengths, self.team.index)

    def _describe(self) -> Format:
        if self._form is None:
            self._form = format_of(self.held, self.path, self.options)
        return self._form

    def _follow(self, link: Link, run: Run) -> None:
        """Run the steps of a rank that is not the coordinator."""
        self._meet(link)

        def plan() -> bytes:
            own = self._describe().plan
            return own.dumps(names=own.digest() != link.names)

        gather(link, plan)
        order, layout, share = unpack(receive(link))
        head, where, form = orjson.loads(order), Layout.loads(layout), self._describe()
        if "url" in head:
            self._upload(link, form, head, where, Share.loads(share), run)
        else:
            gather(link, lambda: self._write(form, head, where, Share.loads(share), run))
            if self.options.checksum:
                receive(link)
                gather(link, lambda: self._hash(head["staged"], form, where, run))
        receive(link)

    def _write(self, form: Format, head: dict[str, Any], layout: Layout, share: Share, run: Run) -> bytes:
        """Write the share of this rank."""
        if not os.path.lexists(head["staged"]):
            raise FileNotFoundError(
                f"{head['staged']} does not exist on rank {self.team.rank}, and ranks save to a shared file system; "
                "save to a path that all machines share"
            )
        run.check_cancelled()
        writes = writes_of(head["staged"], layout, share, form.keys, form.shapes(), form.parts, maps=head["maps"])
        self._report_total(form, share)
        if run.durable and not self.options.num_threads:  # threads wait for the disk, or for syncs of many files
            run = replace(run, threads=None if len(writes) > DISK_THREADS else max(run.threads or 1, _DISK_THREADS))
        run.write_files(writes)
        if run.durable and self.team.is_coordinator:
            written = {write.path for write in writes}
            for number, path in enumerate(layout.files):  # those of which this rank wrote the header only
                if number not in layout.owned and path_in(head["staged"], path) not in written:
                    syscalls.sync_file(path_in(head["staged"], path))
        run.check_cancelled()
        return b""

    def _hash(self, staged: str, form: Format, layout: Layout, run: Run) -> bytes:
        return hash_share(staged, layout, form.sizes(), self.team.index, self.team.size, run)

    def _report_total(self, form: Format, share: Share) -> None:
        """Report to the future how many bytes this rank writes."""
        if self.on_total is not None:
            counts = np.array([sum(box.volume for box in boxes) for boxes in share.table])[share.column]
            widths = np.array([kind.dtype.itemsize for kind in form.plan.kinds], dtype=np.int64)
            self.on_total(int((counts * widths[form.plan.column]).sum()) if len(counts) else 0)

    def _upload(
        self, link: Link, form: Format, head: dict[str, Any], layout: Layout, share: Share, run: Run
    ) -> list[bytes]:
        """Upload the share of this rank; return the results of all for the coordinator."""
        plan = UploadPlan(head["files"], head["sizes"], head["uploads"])
        self._report_total(form, share)
        first = self.team.is_coordinator
        made: list[list[ByteRanges]] = []

        def count() -> list[ByteRanges]:
            made.append(bytes_of_share(layout, share, form.keys, form.shapes(), form.parts, is_coordinator=first))
            return made[0]

        counts = exchange(link, plan, count)
        return gather(link, lambda: upload_share(link, Store(head["url"]), plan, made[0], counts, run))

    # --- the coordinator

    def _coordinate(self, link: Link, run: Run) -> None:
        self._meet(link)
        messages = gather(link, lambda: self._describe().plan.dumps())
        try:
            self._commit(link, run, self._describe(), messages)
        except Exception as error:
            scatter_failure(link, {self.team.rank: failure_of(error)})
            raise
        scatter(link)

    def _commit(self, link: Link, run: Run, form: Format, messages: list[bytes]) -> None:
        options = self.options
        names = {NO_NAMES: form.plan.names}
        plans = [ShardPlan.loads(message, names) for message in messages]
        check_same_names([plan.names for plan in plans], self.team.ranks)
        assignment = assign(plans, self.team.ranks)
        save_id = secrets.token_hex(16)
        layout = form.layout(assignment, save_id)
        if is_remote(self.path):
            self._commit_remote(link, run, form, assignment, layout, save_id)
            return
        with saving_layout(self.path, layout, options, is_folder=form.is_folder) as stage:
            stage.manifest = self._write_all(link, run, form, assignment, layout, stage.path, save_id)

    def _commit_remote(
        self, link: Link, run: Run, form: Format, assignment: Assignment, layout: Layout, save_id: str
    ) -> None:
        """Let all ranks upload, and make their save the current one at the URL."""
        if not self.options.existsok:
            Store(self.path).check_new()
        target = Target(self.path, layout, is_folder=form.is_folder)
        try:
            head = target.head()
            _send_shares(link, head, layout, assignment)
            found = self._upload(link, form, head, layout, assignment.shares[self.team.index], run)
            target.complete(found, layout.whole, form.manifest(None, layout, save_id, durable=False))
        except BaseException:
            target.abort()
            raise

    def _write_all(
        self, link: Link, run: Run, form: Format, assignment: Assignment, layout: Layout, staged: str, save_id: str
    ) -> Manifest | None:
        """Make the staged files, let all ranks write into them, and complete them."""
        maps = self._make_files(link, run, form, layout, staged)
        head = {"staged": staged, "maps": maps}
        _send_shares(link, head, layout, assignment)
        share = assignment.shares[self.team.index]
        gather(link, lambda: self._write(form, head, layout, share, run))
        checksums: list[str] = []
        if self.options.checksum:
            scatter(link)
            checksums = join_shares(form.sizes(), gather(link, lambda: self._hash(staged, form, layout, run)))
        return form.manifest(staged, layout, save_id, durable=run.durable, checksums=checksums)

    def _make_files(self, link: Link, run: Run, form: Format, layout: Layout, staged: str) -> bool:
        """Make the files that several ranks write, at their full size; return whether mappings of them are fast."""
        run.write_files(whole_writes(staged, layout))
        largest: dict[int, tuple[int, Any]] = {}
        for tensor, file in enumerate(layout.file_of):
            dtype, shape = form.plan.kinds[form.plan.column[tensor]][:2]
            found = prod(shape) * dtype.itemsize, form.keys[tensor]
            largest[file] = max(largest.get(file, (0, ())), found, key=lambda one: one[0])
        fast = make_files(layout, staged, {file: key for file, (_, key) in largest.items()}, run)
        return len(set(link.hosts)) == 1 and fast


def saving_layout(
    path: str, layout: Layout, options: SaveOptions, *, is_folder: bool
) -> contextlib.AbstractContextManager[Stage]:
    """Return the transaction of the files of a layout."""
    size, count = sum(layout.sizes), len(layout.files) + len(layout.whole)
    return saving(path, is_folder=is_folder, durable=options.durable, existsok=options.existsok, size=size, count=count)


def make_files(layout: Layout, staged: str, keys: Mapping[int, Any], run: Run) -> bool:
    """Make the files that several ranks write, with their blocks and headers.

    Args:
        layout: The files.
        staged: The staged file or folder.
        keys: The key that errors name, by the number of the file.
        run: The threads and the cancellation.

    Returns:
        Whether mappings of the files are fast.
    """
    for folder in sorted({os.path.dirname(path) for path in layout.files if "/" in path}):
        os.makedirs(f"{staged}/{folder}", exist_ok=True)
    made: list[bool] = []
    shared = [number for number in range(len(layout.files)) if number not in layout.owned]
    jobs = [partial(_make_file, layout, number, staged, keys.get(number, ()), made) for number in shared]
    executor.run([jobs], threads=run.threads, cancelled=run.cancelled)
    return all(made)


def _make_file(layout: Layout, number: int, staged: str, key: Any, made: list[bool]) -> None:
    path, size = path_in(staged, layout.files[number]), layout.sizes[number]
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | syscalls.BINARY
    with error_context(plain(key) or None, path), Descriptor(os.open, path, flags, 0o666) as file:
        fd = file.fileno()
        reserved = syscalls.reserve(fd, 0, size)
        if not reserved:
            os.ftruncate(fd, size)
        made.append(reserved and is_mapping_fast(fd))
        text = layout.texts.get(layout.files[number], b"")
        if text:
            block = np.frombuffer(text, dtype=np.uint8)
            syscalls.write_at(fd, block.ctypes.data, block.nbytes, 0)


def _send_shares(link: Link, head: dict[str, Any], layout: Layout, assignment: Assignment) -> None:
    order, where = orjson.dumps(head), layout.dumps()
    scatter(link, [pack(order, where, share.dumps()) for share in assignment.shares])


def seconds_of(timeout: float | None) -> float:
    """Return the longest wait for another rank, in seconds; None is the default.

    Raises:
        TypeError: It is not a number.
        ValueError: It is not a number of seconds that can pass.

    >>> seconds_of(None), seconds_of(2)
    (1800.0, 2.0)
    """
    if timeout is None:
        return TIMEOUT
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(
            f"timeout={timeout!r} is a {type(timeout).__name__}, and a time is in seconds; pass a number, such as 60"
        )
    if not 0 < timeout < threading.TIMEOUT_MAX:
        raise ValueError(f"timeout={timeout!r} is not a number of seconds to wait; pass a positive one, such as 60")
    return float(timeout)


def _check_options(path: str, options: SaveOptions) -> None:
    if options.checksum and is_remote(path):
        raise ValueError(
            f"checksum=True hashes blocks of files that several ranks wrote, and {path} is a URL, from which they "
            "would be downloaded again; leave it out, or save to files and upload them"
        )
    if not options.atomic:
        raise ValueError("atomic=False overwrites files in place, and ranks save all or nothing; leave it out")
