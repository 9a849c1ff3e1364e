"""Consolidation: copies all leaves of a tensordict into one storage, in memory or in one file.

A consolidated tensordict moves between devices and processes in one copy. The file has the same layout as in the
tensordict package, for exchange with it; for other uses a safetensors file holds the same data and more tools read it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch

from tensordict_core import LazyStackedTensorDict, UnbatchedTensor
from tensordict_core.extension import Meta, annotate, annotation, gc_paused, is_compiling
from tensordict_memmap.engine import executor
from tensordict_memmap.engine.file_ranges import file_ranges
from tensordict_memmap.engine.future import Cancelled, Progress, run_save
from tensordict_memmap.engine.sources import FileRange, check_memory, detached
from tensordict_memmap.engine.sources import Run as SourceRun
from tensordict_memmap.engine.write_plan import FileWrite
from tensordict_memmap.formats.consolidated import jagged
from tensordict_memmap.formats.describe_consolidated import count_of, describe, lay_out, stored_parts
from tensordict_memmap.loading.consolidated import bytes_of
from tensordict_memmap.saving.options import SaveOptions, check_local
from tensordict_memmap.saving.writer import SHORT, Run, Writer, carry_out
from tensordict_memmap.schema.node import Dense, Leaf, Node, Parts, leaves
from tensordict_memmap.schema.plan import check_depth, plan, too_deep
from tensordict_memmap.tensor.mapping import Mapping

Allocate = Callable[[int], torch.Tensor]
"""Allocates a storage of a number of bytes."""


def consolidate(
    td: Any,
    filename: str | os.PathLike[str] | None = None,
    *,
    num_threads: int = 0,
    device: torch.device | str | int | None = None,
    non_blocking: bool = False,
    inplace: bool = False,
    return_early: bool = False,
    use_buffer: bool = False,
    share_memory: bool = False,
    pin_memory: bool = False,
    metadata: bool = False,
) -> Any:
    """Copy all leaves into one storage, and return a locked tensordict of views of it.

    Args:
        td: The tensordict.
        filename: A file to use as the storage, which `from_consolidated` opens. Writes to the result change the file.
        num_threads: The number of threads that copy.
        device: The device of the storage; by default that of the tensordict. Exclusive with ``filename``.
        non_blocking: Whether copies between devices may be asynchronous.
        inplace: Whether the views replace the leaves of ``td``, which is returned.
        return_early: With ``num_threads > 1``, whether to return a future at once.
        use_buffer: Whether leaves are copied to a buffer in shared memory, which is written to the file and becomes
            the storage. Writes to the result then do not change the file.
        share_memory: Whether the storage is shared memory.
        pin_memory: Whether the storage is pinned.
        metadata: Accepted for compatibility; a file always holds the structure.

    Raises:
        RuntimeError: ``filename`` is given with a device other than the CPU.
        ValueError: ``return_early`` is given with ``use_buffer`` or ``non_blocking``.
        TypeError: An entry cannot be stored in one storage; the error names its key.

    >>> td = consolidate(TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(2)}}), "one.bin")
    >>> td["a"][0] = 5
    >>> TensorDict.from_consolidated("one.bin")["a"].tolist(), is_consolidated(td)
    ([5, 1, 2], True)
    """
    plain = filename is None and not (share_memory or pin_memory)
    _check_options(filename, device, early=return_early, use_buffer=use_buffer, non_blocking=non_blocking)
    if is_compiling() and plain and not return_early:
        return _consolidate_traced(td, device, inplace)
    if plain and device is None and is_consolidated(td):
        return td
    place = torch.device(device if device is not None else td.device or "cpu")
    early = return_early and num_threads > 1
    plan_layout = functools.partial(_Layout, td, num_threads, non_blocking=non_blocking, inplace=inplace)
    allocate = functools.partial(_allocate, place, shared=share_memory or use_buffer, pinned=pin_memory)
    if filename is None:
        with gc_paused() as resume_gc:
            return _in_memory(plan_layout(), allocate, None if device is None else place, resume_gc, early=early)
    check_local(filename)

    def make() -> ConsolidatedWriter:
        options = SaveOptions(num_threads=num_threads, mapped=not use_buffer)
        writer = ConsolidatedWriter(plan_layout(), filename, options)
        if use_buffer:
            writer.layout.fill(allocate)
        return writer

    return carry_out(make, lambda writer: writer.mapped(), early=early)


def _in_memory(
    layout: _Layout,
    allocate: Allocate,
    device: torch.device | None,
    resume_gc: Callable[[], None],
    *,
    early: bool,
) -> Any:
    # a function of its own, so that the schema is freed before the collector runs again
    if layout.total > SHORT:
        resume_gc()
    if early:
        layout.hold()
    return run_save(
        functools.partial(layout.fill, allocate), functools.partial(layout.put, device), layout.total, early=early
    )


def _allocate(place: torch.device, nbytes: int, *, shared: bool, pinned: bool) -> torch.Tensor:
    """Allocate a storage in memory."""
    if shared and place.type == "cpu":
        return bytes_of(Mapping.anonymous(nbytes))
    storage = torch.empty(nbytes, dtype=torch.uint8, device=place)
    return storage.pin_memory() if pinned else storage


def _check_options(
    filename: str | os.PathLike[str] | None,
    device: torch.device | str | int | None,
    *,
    early: bool,
    use_buffer: bool,
    non_blocking: bool,
) -> None:
    if filename is not None and device is not None and torch.device(device).type != "cpu":
        raise RuntimeError(f"device={device}, and a file is mapped into the memory of the CPU; pass filename or device")
    if early and (use_buffer or non_blocking):
        raise ValueError("return_early=True cannot be combined with use_buffer or non_blocking; leave them out")


def _consolidate_traced(td: Any, device: torch.device | str | int | None, inplace: bool) -> Any:
    """Consolidate in operations that Dynamo traces, each leaf at a multiple of 16 bytes."""
    result = td.unlock_() if inplace else td.clone(recurse=False)
    keys = list(td.keys(True, True))
    leaves = [td.get(key) for key in keys]
    parts = []
    for leaf in leaves:
        part = leaf.detach().to(device).reshape(-1).view(torch.uint8)
        parts.append(torch.nn.functional.pad(part, (0, -len(part) % 16)))
    storage = torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8, device=device or td.device)
    start = 0
    for key, leaf, part in zip(keys, leaves, parts, strict=True):
        view = storage[start : start + leaf.numel() * leaf.itemsize]
        result.set(key, view.view(leaf.dtype).view(leaf.shape))
        start += len(part)
    annotate(result, "consolidated", storage)
    return result.lock_()


def save_consolidated(
    td: Any,
    path: str | os.PathLike[str],
    *,
    num_threads: int = 0,
    durable: bool = False,
    pbar: bool | None = None,
) -> None:
    """Write a tensordict to a consolidated file, without mapping it.

    Args:
        td: A tensordict, lazy stack or tensorclass.
        path: The file.
        num_threads: The number of writer threads; chosen for the machine if 0.
        durable: Whether to sync the file to disk, so that it survives a power failure once the call returns.
        pbar: Whether to show a progress bar; None shows one on a terminal if the save takes over two seconds.
    """
    options = SaveOptions(num_threads=num_threads, durable=durable, mapped=False)
    carry_out(lambda: ConsolidatedWriter(_Layout(td, num_threads), path, options), lambda writer: None, pbar=pbar)


def is_consolidated(td: Any) -> bool:
    """Return whether all leaves of a tensordict are still views of the storage that `consolidate` made.

    >>> td = TensorDict({"a": torch.ones(3)}).consolidate()
    >>> is_consolidated(td), is_consolidated(td.unlock_().set("b", torch.ones(1)))
    (True, False)
    """
    storage = annotation(td, "consolidated")  # the annotation keeps it alive, so its addresses are not reused
    if storage is None:
        return False
    start = storage.data_ptr()
    end = start + storage.numel()
    sources: list[Any] = [part.source for leaf in leaves(plan(td)) for part in stored_parts(leaf)]
    return all(
        start <= source.data_ptr() and source.data_ptr() + source.nbytes <= end for source in sources if source.numel()
    )


# --- the storage


class _Layout:
    """The byte ranges of all leaves in one storage, and the storage once it is filled.

    Args:
        td: The tensordict.
        threads: The number of threads that copy.
        non_blocking: Whether copies between devices may be asynchronous.
        inplace: Whether the entries of ``td`` itself become those of the storage, and not those of a copy.
    """

    def __init__(self, td: Any, threads: int, *, non_blocking: bool = False, inplace: bool = True) -> None:
        self.threads, self.non_blocking = threads, non_blocking
        self._was_locked = td.is_locked
        try:
            self.td = td if inplace else td.clone(recurse=False)
            self.schema = plan(self.td)
        except RecursionError:
            raise too_deep() from None
        self.columns = lay_out(self.schema)
        self.total = self.columns.total
        self.storage: torch.Tensor | None = None
        self._tensors: list[torch.Tensor] = []

    def hold(self) -> None:
        """Detach all sources from later changes of the tensordict."""
        for leaf in self.columns.leaves:
            leaf.source = detached(leaf.source)

    def fill(self, allocate: Allocate, progress: Progress | None = None, cancelled: Cancelled | None = None) -> None:
        """Allocate a storage and copy all leaves into it."""
        sources: list[Any] = [leaf.source for leaf in self.columns.leaves]
        for leaf, source in zip(self.columns.leaves, sources, strict=True):
            check_memory(leaf.key, source)
        storage = allocate(self.total)
        tensors = self._tensors = self.columns.over(storage)
        if self.threads > 1:

            def copy(tensor: torch.Tensor, source: torch.Tensor) -> None:
                tensor.copy_(source.detach(), self.non_blocking)

            jobs = [[functools.partial(copy, *pair)] for pair in zip(tensors, sources, strict=True)]
            executor.run(jobs, threads=self.threads, cancelled=cancelled)
        elif tensors:
            with torch.no_grad():
                torch._foreach_copy_(tensors, sources, non_blocking=self.non_blocking)
        self.storage = storage

    def put(self, device: torch.device | None) -> Any:
        """Replace all leaves by tensors over the storage, lock the tensordict and return it."""
        if self.td.is_locked:
            self.td.unlock_()
        assert self.storage is not None
        self._put(self.schema, iter(self._tensors or self.columns.over(self.storage)), device)
        annotate(self.td, "consolidated", self.storage)
        annotate(self.td, "was_locked", self._was_locked)
        return self.td.lock_()

    def _put(self, node: Node, tensors: Iterator[torch.Tensor], device: torch.device | None) -> None:
        if isinstance(node, Parts):
            for part in node.parts.values():
                self._put(part, tensors, device)
            if not isinstance(node.origin, LazyStackedTensorDict):
                return  # a wrapper has the metadata of the tensordict in it
        entries = node.entries if isinstance(node, Dense) else {}
        inner, put = [], node.origin._set
        for name, entry in entries.items():
            if not isinstance(entry, Leaf):
                inner.append(entry)
            elif entry.unbatched:
                put(name, UnbatchedTensor(next(tensors), node.origin._get(name).batch_size))
            else:
                put(name, next(tensors) if entry.layout == "strided" else _jagged(entry, tensors))
        for part in inner:  # as `leaves` yields them: after the leaves of the node itself
            self._put(part, tensors, device)
        if device is not None:
            meta = node.origin._meta
            node.origin._set_meta(Meta(meta.batch_size, device, meta.names))


def _jagged(leaf: Leaf, tensors: Iterator[torch.Tensor]) -> torch.Tensor:
    values, offsets, *lengths = islice(tensors, count_of(leaf))
    return jagged(values, offsets, lengths[0] if lengths else None, leaf.ragged)


# --- the file


class ConsolidatedWriter(Writer):
    """Saves a tensordict to one consolidated file: the bytes of all leaves, their JSON description, its length."""

    def __init__(self, layout: _Layout, path: str | os.PathLike[str], options: SaveOptions) -> None:
        super().__init__(layout.td, path, options)
        check_depth(layout.schema)
        self.layout = layout
        self.total = layout.total
        self.text = describe(layout.schema, layout.columns)
        self.mapping: Mapping | None = None

    def hold(self) -> None:
        """Detach all sources from later changes of the tensordict."""
        self.layout.hold()

    def write(self, staged: str, run: Run) -> None:
        """Write the file, from the storage in memory if there is one."""
        storage = self.layout.storage
        ranges = self._ranges() if storage is None else [FileRange("all entries", storage)]
        run.write_files([FileWrite(staged, [*ranges, FileRange("the description", self.text, self.total)])])

    def _ranges(self) -> list[FileRange | SourceRun]:
        """Return the content of the file; consecutive small contiguous tensors form one run."""
        columns = self.layout.columns
        keys, sources = [leaf.key for leaf in columns.leaves], [leaf.source for leaf in columns.leaves]
        addresses, sizes = [leaf.address for leaf in columns.leaves], [form.nbytes for form in columns.forms]
        return file_ranges(keys, sources, addresses, columns.begins, sizes)[0]

    def map(self, staged: str) -> None:
        """Map the staged file."""
        self.mapping = Mapping.open(staged, self.total, mode="r+")

    def mapped(self) -> Any:
        """Replace the leaves by views of the file, or of the storage in memory, and return the tensordict."""
        if self.layout.storage is None:
            if self.mapping is None:
                self.map(self.path)
            assert self.mapping is not None
            self.mapping.filename = self.path
            self.layout.storage = bytes_of(self.mapping)
        return self.layout.put(torch.device("cpu"))
