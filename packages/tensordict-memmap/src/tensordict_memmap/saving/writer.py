"""The writer of a save: runs one save of any format, from the plan to the result.

A `Writer` plans the files of one format when it is constructed, before anything is written. It then writes them to a
staging file or folder, in a transaction that leaves the earlier save unchanged if anything fails, maps them before
another save can replace them, and returns the result, at once or through a `SaveFuture`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tensordict_core.extension import gc_paused
from tensordict_memmap.engine import executor, syscalls
from tensordict_memmap.engine.future import Cancelled, Progress, run_save
from tensordict_memmap.engine.write_plan import FileWrite, write_files
from tensordict_memmap.loading.mapped import lock_mapped, take_over
from tensordict_memmap.saving.options import SaveOptions
from tensordict_memmap.storage.manifest import Manifest
from tensordict_memmap.storage.transaction import check_new, saving

SHORT = 1 << 26
"""Bytes that are written in milliseconds, so that the garbage collector may wait for it."""


@dataclass(frozen=True, slots=True)
class Run:
    """The threads, durability, progress and cancellation of one save.

    Args:
        threads: The number of writer threads; chosen for the machine if None or 0.
        durable: Whether files are synced to the disk.
        progress: A function that is called with the number of bytes just written.
        cancelled: A function that returns whether the save was cancelled.
    """

    threads: int | None = None
    durable: bool = False
    progress: Progress | None = None
    cancelled: Cancelled | None = None

    def write_files(self, files: Sequence[FileWrite], *, durable: bool | None = None) -> None:
        """Write files in parallel; ``durable=False`` leaves the sync to a caller that writes to them again."""
        write_files(
            files,
            threads=self.threads,
            durable=self.durable if durable is None else durable,
            progress=self.progress,
            cancelled=self.cancelled,
        )

    def count(self, nbytes: int) -> None:
        """Report bytes that the caller wrote itself."""
        if self.progress is not None:
            self.progress(nbytes)

    def check_cancelled(self) -> None:
        """Raise an error if the save was cancelled.

        Raises:
            CancelledError: The save was cancelled.
        """
        executor.check_cancelled(self.cancelled)


class Writer(ABC):
    """Base class of the writers, one for each format: one save, which is planned, written and committed.

    Args:
        data: The tensordict, lazy stack, tensorclass or non-tensor data.
        path: The target.
        options: The options, already checked against each other.
    """

    is_folder: bool = False
    """Whether the target is a folder."""

    total: int = 0
    """The number of bytes of tensors to write."""

    count: int = 1
    """The approximate number of files to write."""

    def __init__(self, data: Any, path: str | os.PathLike[str], options: SaveOptions) -> None:
        self.data = data
        self.path = os.path.abspath(path)
        self.options = options

    @abstractmethod
    def hold(self) -> None:
        """Detach all sources from later changes of the tensordict, for a save in the background."""

    @abstractmethod
    def write(self, staged: str, run: Run) -> Manifest | None:
        """Write the staged file, or all files into the staging folder; return the manifest if it is a folder."""

    @abstractmethod
    def map(self, staged: str) -> None:
        """Map the staged files, before they are renamed to the target."""

    @abstractmethod
    def mapped(self) -> Any:
        """Return a locked tensordict mapped onto the saved files."""

    def fill(self) -> Any:
        """Replace the entries of the saved tensordict by mapped ones, lock it and return it."""
        return lock_mapped(take_over(self.data, self.mapped()))

    def paths(self) -> Iterable[str]:
        """Return the paths of all files that are written to the folder."""
        return ()

    # --- the same for all formats

    def start(self, result: Callable[[], Any], *, early: bool = False, pbar: bool | None = False) -> Any:
        """Save and return the result; with ``early``, return a `SaveFuture` at once.

        Raises:
            RuntimeError: The folder is not empty and ``existsok`` is False.
        """
        if early:
            if self.is_folder and not self.options.existsok:
                check_new(self.path)
            self.hold()
        return run_save(self.run, result, self.total, early=early, pbar=pbar, where=self.path)

    def run(self, progress: Progress | None = None, cancelled: Cancelled | None = None) -> None:
        """Write all files and commit them to the target."""
        options = self.options
        run = Run(options.num_threads, options.durable, progress, cancelled)
        with saving(
            self.path,
            is_folder=self.is_folder,
            durable=options.durable,
            atomic=options.atomic,
            existsok=options.existsok,
            size=self.total,
            count=self.count,
            files=() if options.atomic else self.paths(),
        ) as stage:
            stage.manifest = self.write_and_map(stage.path, run)

    def write_and_map(self, staged: str, run: Run) -> Manifest | None:
        """Write the staged file, or all files into the staging folder, and map them."""
        manifest = self.write(staged, run)
        if self.options.mapped and syscalls.POSIX:  # Windows cannot rename mapped files
            self.map(staged)  # before another save can replace the files
        return manifest


def carry_out(
    make: Callable[[], Writer], result: Callable[[Writer], Any], *, early: bool = False, pbar: bool | None = False
) -> Any:
    """Plan a save and carry it out, with the garbage collector paused until the end of a short save.

    Otherwise the collector would traverse the schema of thousands of leaves and free nothing.

    Args:
        make: Constructs the writer.
        result: A function that returns the result, once everything is written.
        early: Whether to return a `SaveFuture` of the result at once.
        pbar: Whether to show a progress bar; None shows one on a terminal if the save takes over two seconds.

    Raises:
        RuntimeError: The folder is not empty and ``existsok`` is False.
    """
    with gc_paused() as resume:
        return _save(make, result, resume, early=early, pbar=pbar)


def _save(
    make: Callable[[], Writer],
    result: Callable[[Writer], Any],
    resume_gc: Callable[[], None],
    *,
    early: bool,
    pbar: bool | None,
) -> Any:
    # a function of its own, so that the schema is freed before the collector runs again
    writer = make()
    if writer.total > SHORT:
        resume_gc()
    return writer.start(lambda: result(writer), early=early, pbar=pbar)
