"""Distributed load: each rank reads the ranges of a save that its DTensors hold; the save may be of any mesh.

No messages are needed: the files define the position of each tensor, and the mesh and placements of the destination
define which part of it this rank holds.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement

from tensordict_core.extension import annotation
from tensordict_memmap.distributed.placements import boxes_of, check_placements, local_of
from tensordict_memmap.distributed.plan import Box
from tensordict_memmap.distributed.reads import Count, Read, Saved, read_ranges
from tensordict_memmap.schema.node import Dense, Leaf, Node, Path, leaves, nodes, show
from tensordict_memmap.schema.plan import plan
from tensordict_memmap.tensor.memmap import MemoryMappedTensor

bytes_read = Count()
"""The bytes that loads of this process took from files for DTensors, for tests and benchmarks."""


def sharded_like(loaded: Any, like: Any, *, cast: bool = False) -> Any:
    """Replace entries of a loaded tensordict by the DTensors that another one has, read by the ranges of this rank.

    Args:
        loaded: The loaded tensordict, unlocked, over mapped files or memory that is read.
        like: The tensordict with DTensors, which may be on the ``meta`` device; the result has their meshes, their
            placements and their devices.
        cast: Whether the results get the dtypes of ``like``.

    Returns:
        ``loaded``, changed. Entries of another shape stay as they are; the caller compares shapes.
    """
    wanted = {leaf.key: leaf.source for leaf in leaves(plan(like)) if isinstance(leaf.source, DTensor)}
    node = plan(loaded)
    reader = BoxReader(loaded)
    made = []
    for container, name, leaf in _entries(node):
        target = wanted.get(leaf.key)
        if target is None or leaf.source is None or tuple(leaf.source.shape) != tuple(target.shape):
            continue
        local = _empty_local(target, leaf.dtype, leaf.key)
        reader.add_local(leaf, target, local)
        made.append((container, name, target, local))
    reader.read()
    for container, name, target, local in made:
        values = local.to(target.dtype) if cast and local.dtype != target.dtype else local
        device = target.device if target.device.type != "meta" else torch.device(target.device_mesh.device_type)
        whole = DTensor.from_local(
            values.to(device),
            target.device_mesh,
            target.placements,
            run_check=False,
            shape=target.shape,
            stride=target.stride(),
        )
        container._set(name, whole.requires_grad_(target.requires_grad) if _keeps_grad(target, values) else whole)
    return loaded


def read_into(td: Any, loaded: Any) -> None:
    """Read this rank's ranges of a loaded tensordict into the DTensors of another one, in place.

    Args:
        td: The tensordict with DTensors.
        loaded: The loaded one, unlocked; entries that were read are removed from it.

    Raises:
        RuntimeError: A saved entry has another shape; the error names its key.
    """
    wanted = {leaf.key: leaf.source for leaf in leaves(plan(td)) if isinstance(leaf.source, DTensor)}
    reader, pending, done = BoxReader(loaded), [], []
    for container, name, leaf in _entries(plan(loaded)):
        target = wanted.get(leaf.key)
        if target is None or leaf.source is None:
            continue
        if tuple(leaf.source.shape) != tuple(target.shape):
            raise RuntimeError(
                f"key {show(leaf.key)} was saved with the shape {list(leaf.source.shape)}, and the DTensor has "
                f"{list(target.shape)}; load it into one of that shape"
            )
        own = local_of(target)
        direct = own.dtype == leaf.dtype and own.device.type == "cpu" and own.is_contiguous()
        local = own if direct else _empty_local(target, leaf.dtype, leaf.key)
        reader.add_local(leaf, target, local)
        done.append((container, name))
        if not direct:
            pending.append((own, local))
    reader.read()
    with torch.no_grad():
        for own, local in pending:
            own.copy_(local)
    for container, name in done:
        container._del(name)


def wanted_parts(td: Any) -> Callable[[Any], list[torch.Tensor]]:
    """Return a function that selects the parts of a loaded tensordict that this rank needs for one with DTensors."""
    targets = {leaf.key: leaf.source for leaf in leaves(plan(td)) if isinstance(leaf.source, DTensor)}

    def parts(loaded: Any) -> list[torch.Tensor]:
        found = []
        for leaf in leaves(plan(loaded)):
            source, target = leaf.source, targets.get(leaf.key)
            if source is None or leaf.layout != "strided":
                continue
            if target is None or tuple(source.shape) != tuple(target.shape):
                found.append(source)
            else:
                found += [source[box.slices()] for box, _ in _boxes(target, leaf.key)]
        return found

    return parts


def _entries(node: Node) -> Iterator[tuple[Any, str, Leaf]]:
    """Yield the strided leaves of a schema with their containers and names."""
    for one in nodes(node):
        for name, entry in one.entries.items() if isinstance(one, Dense) else ():
            if isinstance(entry, Leaf) and entry.layout == "strided" and not entry.unbatched:
                yield one.origin, name, entry


def _keeps_grad(target: DTensor, values: torch.Tensor) -> bool:
    return bool(target.requires_grad) and (values.is_floating_point() or values.is_complex())


def _boxes(target: DTensor, key: Path) -> tuple[tuple[Box, tuple[int, ...]], ...]:
    check_placements(target, key)
    coordinate = target.device_mesh.get_coordinate()
    if coordinate is None:
        return ()
    placements: tuple[Placement, ...] = tuple(target.placements)
    return boxes_of(tuple(target.shape), tuple(target.device_mesh.shape), tuple(coordinate), placements)


def _empty_local(target: DTensor, dtype: torch.dtype, key: Path) -> torch.Tensor:
    """Memory for the parts of a DTensor that this rank holds."""
    boxes = _boxes(target, key)
    size = [0] * target.dim() if target.dim() else ([] if boxes else [0])
    if not boxes:
        size = list(local_of(target).shape)
    for box, start in boxes:
        size = [max(n, first + count) for n, first, count in zip(size, start, box.size, strict=True)]
    return torch.empty(size, dtype=dtype, device="cpu")


class _Replaced(Exception):
    """A file is not the one that was mapped."""


class BoxReader:
    """Collects the reads of a loaded tensordict, as ranges of files where these are mapped."""

    def __init__(self, loaded: Any) -> None:
        self.reads: list[Read] = []
        self._sources: list[torch.Tensor] = []
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.staged: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._identities: dict[str, tuple[int, int]] = {}
        mappings = annotation(loaded, "mappings") or []
        self._mappings = sorted(
            ((int(one.buffer.ctypes.data), one) for one in mappings if one.nbytes), key=lambda pair: pair[0]
        )
        self._starts = [start for start, _ in self._mappings]

    def add_local(self, leaf: Leaf, target: DTensor, local: torch.Tensor) -> None:
        """Add the boxes that this rank holds of a DTensor, to read from a leaf into its memory."""
        for box, start in _boxes(target, leaf.key):
            out = local[tuple(slice(first, first + count) for first, count in zip(start, box.size, strict=True))]
            self.add(leaf, box, out)

    def add(self, leaf: Leaf, box: Box, out: torch.Tensor) -> bool:
        """Add a box to read from a leaf into memory on any device, which casts; return whether that is direct."""
        assert leaf.source is not None
        source = leaf.source.detach()
        saved = self._saved(source)
        if saved is None:
            self.copies.append((out, source[box.slices()]))
            return True
        direct = out.is_cpu and out.dtype == source.dtype and out.is_contiguous()
        block = out if direct else torch.empty(box.size, dtype=source.dtype, device="cpu")
        self.reads.append(Read(leaf.key, saved, box, block))
        self._sources.append(source)
        if not direct:
            self.staged.append((out, block))
        return direct

    def read(self) -> None:
        """Read everything that was added."""
        try:
            read_ranges(self.reads, check=self._check, count=bytes_read)
        except (_Replaced, FileNotFoundError):
            # another save replaced a file since it was mapped, and the mapping keeps the earlier content
            with torch.no_grad():
                for read, source in zip(self.reads, self._sources, strict=True):
                    read.out.copy_(source[read.box.slices()])
        with torch.no_grad():
            for out, block in self.staged:
                out.copy_(block)
            for out, values in self.copies:
                bytes_read.nbytes += out.nbytes
                out.copy_(values)

    def _saved(self, source: torch.Tensor) -> Saved | None:
        """Return the position of a tensor in its file; None unless it is a whole tensor over a mapped file."""
        if not source.numel() or not source.is_contiguous():
            return None
        if isinstance(source, MemoryMappedTensor):
            mapping, position = source.handler, source.data_ptr() - int(source.handler.buffer.ctypes.data)
        else:
            place = bisect.bisect_right(self._starts, source.data_ptr()) - 1
            if place < 0:
                return None
            start, mapping = self._mappings[place]
            position = source.data_ptr() - start
        if mapping.filename is None or not 0 <= position <= mapping.nbytes - source.nbytes:
            return None
        self._identities[mapping.filename] = mapping.identity
        return Saved(mapping.filename, mapping.offset + position, source.dtype, tuple(source.shape))

    def _check(self, path: str, fd: int) -> None:
        info = os.fstat(fd)
        if (info.st_dev, info.st_ino) != self._identities[path]:
            raise _Replaced(path)
