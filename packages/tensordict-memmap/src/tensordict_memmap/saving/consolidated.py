"""Consolidated tensordicts: all leaves in one storage, in memory or in one file.

In memory they move and travel as one block. The file is of the reference's own form and serves exchange: a safetensors
file says as much, and more tools read it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tensordict_core import UnbatchedTensor
from tensordict_core.extension import Meta, annotate, annotation
from tensordict_memmap.engine import executor as pool
from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.file_ranges import file_ranges
from tensordict_memmap.engine.future import SaveFuture
from tensordict_memmap.engine.sources import FileRange, Run, detached
from tensordict_memmap.engine.write_plan import FileWrite, write_files
from tensordict_memmap.formats.consolidated import FIELDS, LENGTHS, OFFSETS, VALUES, jagged, open_consolidated
from tensordict_memmap.schema import nontensor as values
from tensordict_memmap.schema.node import WRAPPED, Dense, Leaf, Node, Parts, Value, leaves, show
from tensordict_memmap.schema.plan import LAZY, plain_address, plan
from tensordict_memmap.storage.transaction import save_file
from tensordict_memmap.tensor.mapping import MODES, Mapping

__all__ = ["consolidate", "from_consolidated", "is_consolidated"]

_ALIGNMENT = 8


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
    """Puts all leaves into one storage; ``TensorDict.consolidate`` says what the arguments are.

    >>> td = consolidate(TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(2)}}), "one.bin")
    >>> td["a"][0] = 5
    >>> from_consolidated("one.bin")["a"].tolist(), is_consolidated(td)
    ([5, 1, 2], True)
    """
    if filename is not None and device is not None and torch.device(device).type != "cpu":
        raise RuntimeError(f"a file is mapped into the memory of the CPU, not of {device}; pass filename or device")
    if return_early and (use_buffer or non_blocking):
        raise ValueError("return_early=True goes with neither use_buffer nor non_blocking; leave them out")
    if is_consolidated(td) and filename is None and device is None and not (share_memory or pin_memory):
        return td
    place = _place(td, device)
    path = Path(os.path.abspath(filename)) if filename is not None else None
    job = _Job(td if inplace else td.clone(recurse=False), path, place, num_threads)
    job.non_blocking, job.buffered = non_blocking, use_buffer
    job.shared, job.pinned = share_memory, pin_memory
    job.device = torch.device("cpu") if filename is not None else None if device is None else place
    if return_early and num_threads > 1:
        for slot in job.slots.values():
            slot.sources = list(map(detached, slot.sources))
        return SaveFuture(lambda progress, cancelled: job.run(progress, cancelled), job.total)
    return job.run(None, None)


def from_consolidated(filename: str | os.PathLike[str], *, mode: str = "r") -> Any:
    """Opens a file that `consolidate` wrote, ours or the reference's, without a copy.

    Args:
        filename: the file.
        mode: ``"r"`` keeps writes to tensors in this process, ``"r+"`` writes them to the file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged, or no such file.

    >>> _ = TensorDict({"a": torch.arange(3)}).consolidate("three.bin")
    >>> from_consolidated("three.bin")["a"]
    tensor([0, 1, 2])
    """
    if mode not in MODES:
        raise ValueError(
            f"files are mapped with mode {', '.join(map(repr, MODES))}, not {mode!r}; use 'r+' to write to them"
        )
    where = os.path.abspath(filename)
    made, mapping = open_consolidated(where, mode)
    annotate(made, "consolidated", _bytes(mapping))
    return made


def is_consolidated(td: Any) -> bool:
    """Whether all leaves of a tensordict still are the views that `consolidate` made of one storage.

    >>> td = TensorDict({"a": torch.ones(3)}).consolidate()
    >>> is_consolidated(td), is_consolidated(td.unlock_().set("b", torch.ones(1)))
    (True, False)
    """
    storage = annotation(td, "consolidated")  # it is held, so that its addresses are those of nothing else
    if storage is None:
        return False
    start = storage.data_ptr()
    end = start + storage.numel()
    return all(
        start <= part.data_ptr() and part.data_ptr() + part.nbytes <= end
        for leaf in leaves(plan(td))
        for part in _tensors(leaf)
        if part.numel()
    )


def _place(td: Any, device: torch.device | str | int | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    return td.device if td.device is not None else torch.device("cpu")


# --- what is consolidated


def _tensors(leaf: Leaf) -> list[torch.Tensor]:
    """The tensors that a leaf is stored as: itself; of a jagged one values and offsets, and lengths if it has any."""
    source = leaf.source
    assert source is not None
    if leaf.layout == "strided":
        return [source]
    if leaf.layout != "jagged":
        raise TypeError(
            f"a consolidated tensordict holds strided and jagged tensors, and key {show(leaf.key)} is a nested "
            "tensor of the strided layout; make it with layout=torch.jagged"
        )
    source = source.transpose(1, leaf.ragged) if leaf.ragged != 1 else source
    parts = [source.values(), source.offsets(), source.lengths()]  # type: ignore[attr-defined]  # jagged ones
    return [part for part in parts if part is not None]


@dataclass(slots=True)
class _Slot:
    leaf: Leaf
    sources: list[torch.Tensor]
    ranges: list[tuple[int, int]]


def _views(slot: _Slot, storage: torch.Tensor) -> list[torch.Tensor]:
    return [
        storage[start:end].view(part.dtype).view(part.shape)
        for part, (start, end) in zip(slot.sources, slot.ranges, strict=True)
    ]


@dataclass
class _Job:
    """One consolidation: planned when it is made, done by `run`, which puts the copies into ``td`` itself."""

    td: Any
    path: Path | None
    place: torch.device
    threads: int
    non_blocking: bool = False
    buffered: bool = False
    shared: bool = False
    pinned: bool = False
    device: torch.device | None = None
    total: int = 0
    finite: bool = True
    slots: dict[str, _Slot] = field(default_factory=dict)
    written: Mapping | None = None

    def __post_init__(self) -> None:
        self.node = plan(self.td)
        for number, leaf in enumerate(leaves(self.node)):
            leaf.file = str(number)
            sources = _tensors(leaf)
            ranges = []
            for part in sources:
                start = -(-self.total // max(part.element_size(), _ALIGNMENT)) * max(part.element_size(), _ALIGNMENT)
                ranges.append((start, start + part.nbytes))
                self.total = start + part.nbytes
            self.slots[leaf.file] = _Slot(leaf, sources, ranges)
        self.total = -(-self.total // _ALIGNMENT) * _ALIGNMENT
        if self.path is not None:
            self.text = self._text()

    def run(self, progress: Callable[[int], None] | None, cancelled: Callable[[], bool] | None) -> Any:
        """Copies, and gives the tensordict over the copies."""
        storage = self._memory() if self.path is None or self.buffered else None
        if storage is not None:
            self._fill(storage, cancelled)
        if self.path is not None:
            self._write(storage, progress, cancelled)
        if storage is None:
            assert self.path is not None
            mapping = self.written or self._map(os.fspath(self.path))
            mapping.filename = os.path.abspath(self.path)
            storage = _bytes(mapping)
        if self.td.is_locked:
            self.td.unlock_()
        self._put(self.node, storage)
        annotate(self.td, "consolidated", storage)
        return self.td.lock_()

    def _map(self, path: str) -> Mapping:
        return Mapping.open(path, self.total, mode="r+") if self.total else Mapping.nothing()

    def _memory(self) -> torch.Tensor:
        if (self.shared or self.buffered) and self.place.type == "cpu":
            return _bytes(Mapping.anonymous(self.total))
        storage = torch.empty(self.total, dtype=torch.uint8, device=self.place)
        return storage.pin_memory() if self.pinned else storage

    def _fill(self, storage: torch.Tensor, cancelled: Callable[[], bool] | None) -> None:
        sources = [part.detach() for slot in self.slots.values() for part in slot.sources]
        views = [view for slot in self.slots.values() for view in _views(slot, storage)]
        if self.threads > 1:

            def copy(view: torch.Tensor, part: torch.Tensor) -> None:
                view.copy_(part, self.non_blocking)

            jobs = [[functools.partial(copy, view, part)] for view, part in zip(views, sources, strict=True)]
            pool.run(jobs, threads=self.threads, cancelled=cancelled)
        elif views:
            torch._foreach_copy_(views, sources, non_blocking=self.non_blocking)

    def _write(
        self, storage: torch.Tensor | None, progress: Callable[[int], None] | None, cancelled: Callable[[], bool] | None
    ) -> None:
        assert self.path is not None
        pieces: list[FileRange | Run]
        if storage is not None:
            pieces = [FileRange("all entries", storage)]
        else:
            pieces = self._pieces()
        pieces.append(FileRange("the description", self.text, self.total))
        threads = self.threads or None

        def write(draft: str) -> None:
            write_files([FileWrite(draft, pieces)], threads=threads, progress=progress, cancelled=cancelled)
            if storage is None and syscalls.POSIX:  # elsewhere what is mapped cannot be renamed
                self.written = self._map(draft)  # before another save can take its name

        save_file(self.path, write, size=self.total)

    def _pieces(self) -> list[FileRange | Run]:
        """What goes into the file, small contiguous tensors that follow one another as one run."""
        keys, sources, addresses, begins, sizes = [], [], [], [], []
        for slot in self.slots.values():
            for part, (start, end) in zip(slot.sources, slot.ranges, strict=True):
                keys.append(slot.leaf.key)
                sources.append(part)
                addresses.append(plain_address(part))
                begins.append(start)
                sizes.append(end - start)
        return file_ranges(keys, sources, addresses, begins, sizes)[0]

    def _put(self, node: Node, storage: torch.Tensor) -> None:
        """Puts views of the storage in place of the leaves that were copied to it."""
        if isinstance(node, Parts):
            for part in node.parts.values():
                self._put(part, storage)
        elif isinstance(node, Dense):
            for name, entry in node.entries.items():
                if isinstance(entry, Leaf):
                    value: Any = self._view(self.slots[entry.file], storage)
                    before = node.origin._get(name)
                    if type(before) is UnbatchedTensor:
                        value = UnbatchedTensor(value, before.batch_size)
                    node.origin._set(name, value, False)
                else:
                    self._put(entry, storage)
        if self.device is not None and not isinstance(node, Parts):
            meta = node.origin._meta
            node.origin._set_meta(Meta(meta.batch_size, self.device, meta.names))

    @staticmethod
    def _view(slot: _Slot, storage: torch.Tensor) -> torch.Tensor:
        parts = _views(slot, storage)
        if slot.leaf.layout == "strided":
            return parts[0]
        return jagged(parts[0], parts[1], parts[2] if len(parts) > 2 else None, slot.leaf.ragged)

    # --- the description

    def _text(self) -> bytes:
        extra: list[Any] = []
        record = self._describe(self.node, extra)
        before = values.dumps({"tensordict_memmap": extra}) if extra else b""
        before += b" " * (-len(before) % _ALIGNMENT)
        text = values.quick_dumps(record, finite=self.finite)
        return before + text + len(text).to_bytes(8, "little")

    def _describe(self, node: Node, extra: list[Any]) -> dict[str, Any]:
        if isinstance(node, Value):
            raise TypeError(
                "a consolidated file holds a tensordict, lazy stack or tensorclass, not a value; save it to a folder"
            )
        if isinstance(node, Parts):
            if node.class_string == LAZY:
                record = self._record("LazyStackedTensorDict", {**node.facts, "is_locked": False})
                self._add(record, node.parts, extra)
                return record
            if list(node.parts) != [WRAPPED] or node.facts:
                raise TypeError(
                    f"a consolidated file holds tensordicts, lazy stacks and tensorclasses, and "
                    f"{node.class_string} is none; save it to a folder"
                )
            return {**self._describe(node.parts[WRAPPED], extra), "cls": node.class_string}
        for name, entry in node.entries.items():
            if isinstance(entry, Leaf) and type(node.origin._get(name)) is UnbatchedTensor:
                raise TypeError(
                    f"a consolidated file has no place for an UnbatchedTensor, and key {show(entry.key)} is one; save "
                    "to a .safetensors file"
                )
        names = list(node.names) if node.names is not None else [None] * len(node.batch_size)
        about = {"device": None, "names": names, "batch_size": list(node.batch_size), "is_locked": False}
        record = self._record("TensorDict", about)
        self._add(record, node.entries, extra)
        return record

    @staticmethod
    def _record(cls: str, metadata: dict[str, Any]) -> dict[str, Any]:
        return {"cls": cls, "non_tensors": {}, "leaves": {}, "cls_metadata": metadata}

    def _add(self, record: dict[str, Any], entries: dict[str, Any], extra: list[Any]) -> None:
        for name, entry in entries.items():
            if isinstance(entry, Leaf):
                slot = self.slots[entry.file]
                if entry.layout == "strided":
                    record["leaves"][name] = self._leaf(slot, 0)
                    continue
                for number, what in enumerate((VALUES, OFFSETS, LENGTHS)[: len(slot.sources)]):
                    record["leaves"][what + name] = self._leaf(slot, number)
                record["leaves"][OFFSETS + name].append(entry.ragged)
                continue
            if isinstance(entry, Value) and not entry.stack:
                record["non_tensors"][name] = [
                    self._plain(entry.origin.data, entry, entry.key, extra),
                    list(entry.batch_size),
                    None,
                ]
                continue
            if name in FIELDS:
                raise ValueError(
                    f"a consolidated file keeps {', '.join(FIELDS)} for itself, and key {show(entry.key)} is a "
                    "tensordict of such a name; rename it, or save to a .safetensors file"
                )
            record[name] = (
                self._stack(entry, entry.origin.tolist(), entry.key, extra)
                if isinstance(entry, Value)
                else self._describe(entry, extra)
            )

    def _leaf(self, slot: _Slot, number: int) -> list[Any]:
        part, (start, end) = slot.sources[number], slot.ranges[number]
        stop = -(-end // _ALIGNMENT) * _ALIGNMENT
        return [str(part.dtype), list(part.shape), start, stop, stop - end]

    def _stack(
        self, node: Value, data: list[Any], key: tuple[str, ...], extra: list[Any], depth: int = 1
    ) -> dict[str, Any]:
        record = self._record("NonTensorStack", {"stack_dim": 0, "stack_dim_name": None, "is_locked": False})
        for number, value in enumerate(data):
            inner = (*key, str(number))
            if depth < len(node.batch_size):
                record[str(number)] = self._stack(node, value, inner, extra, depth + 1)
            else:
                record["non_tensors"][str(number)] = [self._plain(value, node, inner, extra), [], None]
        return record

    def _plain(self, value: Any, node: Value, key: tuple[str, ...], extra: list[Any]) -> Any:
        try:
            exact = values.encode(value)
            self.finite &= values.is_finite(exact)
        except values.NoJsonForm as reason:
            raise TypeError(
                f"values in a consolidated file have a JSON form, and that of key {show(node.key)} has none "
                f"({reason}); save to a folder"
            ) from None
        try:
            plain = values.plain(value)
            differs = plain is not exact and plain != exact
        except values.NoJsonForm:
            plain, differs = exact, True
        if differs:
            extra.append([list(key), exact])
        return plain


def _bytes(mapping: Mapping) -> torch.Tensor:
    if not mapping.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(mapping.buffer, dtype=torch.uint8)
