"""Distributed load: each rank reads the ranges of a save that its DTensors hold; the save may be of any mesh.

No messages are needed: the files define the position of each tensor, and the mesh and placements of the destination
define which part of it this rank holds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from tensordict_memmap.distributed.placements import held_boxes, local_of
from tensordict_memmap.distributed.plan import Box
from tensordict_memmap.distributed.reads import Count, Read, Saved, read_ranges
from tensordict_memmap.schema.node import Dense, Leaf, Path, leaves, nodes, show
from tensordict_memmap.schema.plan import plan
from tensordict_memmap.tensor.mapping import places_of

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
    reader = BoxReader()
    made = []
    for container, name, leaf, target in _pairs(loaded, like):
        if leaf.shape != tuple(target.shape):
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
    reader, done = BoxReader(), []
    for container, name, leaf, target in _pairs(loaded, td):
        if leaf.shape != tuple(target.shape):
            raise RuntimeError(
                f"key {show(leaf.key)} was saved with the shape {list(leaf.shape)}, and the DTensor has "
                f"{list(target.shape)}; load it into one of that shape"
            )
        reader.add_local(leaf, target, local_of(target))
        done.append((container, name))
    reader.read()
    for container, name in done:
        container._del(name)


def wanted_parts(td: Any) -> Callable[[Any], list[torch.Tensor]]:
    """Return a function that selects the parts of a loaded tensordict that this rank needs for one with DTensors."""
    targets = _dtensors(td)

    def parts(loaded: Any) -> list[torch.Tensor]:
        found = []
        for leaf in leaves(plan(loaded)):
            source, target = leaf.source, targets.get(leaf.key)
            if source is None or leaf.layout != "strided":
                continue
            if target is None or tuple(source.shape) != tuple(target.shape):
                found.append(source)
            else:
                found += [source[box.slices()] for box, _ in held_boxes(target, leaf.key)]
        return found

    return parts


def _dtensors(td: Any) -> dict[Path, DTensor]:
    """Return the DTensors of a tensordict by their nested keys."""
    return {leaf.key: leaf.source for leaf in leaves(plan(td)) if isinstance(leaf.source, DTensor)}


def _pairs(loaded: Any, td: Any) -> Iterator[tuple[Any, str, Leaf, DTensor]]:
    """Yield the container, name and leaf of each loaded entry for which a tensordict has a DTensor, and the DTensor."""
    targets = _dtensors(td)
    for node in nodes(plan(loaded)):
        for name, leaf in node.entries.items() if isinstance(node, Dense) else ():
            if not isinstance(leaf, Leaf) or leaf.layout != "strided" or leaf.unbatched or leaf.source is None:
                continue
            if leaf.key in targets:
                yield node.origin, name, leaf, targets[leaf.key]


def _keeps_grad(target: DTensor, values: torch.Tensor) -> bool:
    return bool(target.requires_grad) and (values.is_floating_point() or values.is_complex())


def _empty_local(target: DTensor, dtype: torch.dtype, key: Path) -> torch.Tensor:
    """Memory for the parts of a DTensor that this rank holds."""
    boxes = held_boxes(target, key)
    size = [0] * target.dim() if boxes else list(local_of(target).shape)
    for box, start in boxes:
        size = [max(n, first + count) for n, first, count in zip(size, start, box.size, strict=True)]
    return torch.empty(size, dtype=dtype, device="cpu")


class _Replaced(Exception):
    """A file is not the one that was mapped."""


class BoxReader:
    """Collects boxes of the leaves of a loaded tensordict, and reads them from its files where these are mapped."""

    def __init__(self) -> None:
        self._wanted: list[tuple[Path, torch.Tensor, Box, torch.Tensor]] = []

    def add_local(self, leaf: Leaf, target: DTensor, local: torch.Tensor) -> None:
        """Add the boxes that this rank holds of a DTensor, to read from a leaf into its memory."""
        for box, start in held_boxes(target, leaf.key):
            self.add(leaf, box, local[Box(start, box.size).slices()])

    def add(self, leaf: Leaf, box: Box, out: torch.Tensor) -> None:
        """Add a box to read from a leaf into memory on any device, which casts."""
        assert leaf.source is not None
        self._wanted.append((leaf.key, leaf.source.detach(), box, out))

    def read(self) -> None:
        """Read everything that was added."""
        reads: list[Read] = []
        identities: dict[str, tuple[int, int]] = {}
        values: list[torch.Tensor] = []  # of the boxes, for those that are read: where the mapping has them
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        places = places_of(source for _, source, _, _ in self._wanted)
        for (key, source, box, out), place in zip(self._wanted, places, strict=True):
            offset = place.in_file(source) if place is not None and source.is_contiguous() else None
            if place is None or offset is None:
                bytes_read.nbytes += out.nbytes
                copies.append((out, source[box.slices()]))
                continue
            direct = out.is_cpu and out.dtype == source.dtype and out.is_contiguous()
            block = out if direct else torch.empty(box.size, dtype=source.dtype, device="cpu")
            reads.append(Read(key, Saved(place.filename, offset, source.dtype, tuple(source.shape)), box, block))
            values.append(source[box.slices()])
            identities[place.filename] = place.identity
            if not direct:
                copies.append((out, block))

        def check(path: str, fd: int) -> None:
            info = os.fstat(fd)
            if (info.st_dev, info.st_ino) != identities[path]:
                raise _Replaced(path)

        with torch.no_grad():
            try:
                read_ranges(reads, check=check, count=bytes_read)
            except (_Replaced, FileNotFoundError):
                # another save replaced a file since it was mapped, and the mapping keeps the earlier content
                for read, value in zip(reads, values, strict=True):
                    read.out.copy_(value)
            for out, value in copies:
                out.copy_(value)
