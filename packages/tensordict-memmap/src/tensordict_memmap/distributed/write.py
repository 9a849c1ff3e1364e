"""Writes of one rank: its share of the tensors, as ranges of the staged files for the copy engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from tensordict_memmap.distributed.assign import Share
from tensordict_memmap.distributed.layout import Layout, path_in
from tensordict_memmap.distributed.placements import Part
from tensordict_memmap.distributed.plan import Box
from tensordict_memmap.engine.file_ranges import file_ranges
from tensordict_memmap.engine.sources import FileRange, Run, Scattered
from tensordict_memmap.engine.write_plan import FileWrite
from tensordict_memmap.schema.node import Path, plain
from tensordict_memmap.schema.plan import plain_address

_LONG_RUN = 256 << 10
"""If the runs of a scattered part have at least this many bytes, each is a separate range."""


def writes_of(
    folder: str,
    layout: Layout,
    share: Share,
    keys: Sequence[Path],
    shapes: Sequence[Sequence[int]],
    parts: Sequence[Sequence[Part]],
    *,
    maps: bool,
) -> list[FileWrite]:
    """Return the writes of a rank.

    Args:
        folder: The staged folder or file.
        layout: The files and offsets of the tensors.
        share: The boxes that the rank writes.
        keys: The nested keys of the tensors, for errors.
        shapes: The shapes of the whole tensors.
        parts: The parts of each tensor that the rank holds.
        maps: Whether threads may copy into mappings of files that several ranks write.
    """
    found: dict[int, list[Consecutive]] = {}
    scattered: dict[int, list[FileRange | Scattered]] = {}
    for file, one in ranges_of(layout, share, keys, shapes, parts):
        if isinstance(one, Scattered):
            scattered.setdefault(file, []).extend(_long_runs(one))
        else:
            found.setdefault(file, []).append(one)
    writes = []
    for file in sorted({*found, *scattered}):
        rows = sorted(found.get(file, ()), key=lambda row: row.offset)
        views = [row.view for row in rows]
        content: list[FileRange | Run | Scattered] = [*scattered.get(file, ())]
        content += file_ranges(
            [row.key for row in rows],
            views,
            list(map(plain_address, views)),
            [row.offset for row in rows],
            [view.nbytes for view in views],
        )[0]
        path, owned = path_in(folder, layout.files[file]), file in layout.owned
        writes.append(
            FileWrite(path, content, layout.sizes[file], fresh=owned, shared=not owned, maps=maps, direct=True)
        )
    return writes


class Consecutive(NamedTuple):
    """Values that are consecutive in a file: where they start, their key, and the memory that holds them."""

    offset: int
    key: Path
    view: torch.Tensor


def ranges_of(
    layout: Layout,
    share: Share,
    keys: Sequence[Path],
    shapes: Sequence[Sequence[int]],
    parts: Sequence[Sequence[Part]],
) -> Iterator[tuple[int, Consecutive | Scattered]]:
    """Yield the number of a file and a range of it, for each box that a rank writes; see `writes_of`."""
    for tensor in np.flatnonzero(share.column).tolist():
        for box in share.boxes(tensor):
            view = held_view(parts[tensor], box, keys[tensor])
            yield layout.file_of[tensor], _range_of(keys[tensor], view, box, shapes[tensor], layout.offsets[tensor])


def held_view(parts: Sequence[Part], box: Box, key: Path) -> torch.Tensor:
    """Return the memory of a box that is inside one of the parts that a rank holds.

    Raises:
        ValueError: The rank does not hold it.
    """
    for held, view in parts:
        if held == box:
            return view
        if held.contains(box):
            return view[box.slices(held.offset)]
    raise ValueError(f"this rank writes {box} of key {key}, and it does not hold that; save again")


def byte_strides(shape: Sequence[int], width: int) -> tuple[int, ...]:
    """Return the strides in bytes of a tensor in a file.

    >>> byte_strides((2, 3, 4), 8)
    (96, 32, 8)
    """
    strides, step = [], width
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _range_of(key: Path, view: torch.Tensor, box: Box, shape: Sequence[int], offset: int) -> Consecutive | Scattered:
    if box.size == tuple(shape):
        return Consecutive(offset, key, view)
    strides = byte_strides(shape, view.element_size())
    start = offset + sum(first * step for first, step in zip(box.offset, strides, strict=True))
    part = Scattered(plain(key), view, start, strides)
    outer, _ = part.run()
    if all(size == 1 for size in view.shape[:outer]):
        return Consecutive(start, key, view)
    return part


def _long_runs(part: Scattered) -> Iterator[FileRange | Scattered]:
    """Yield the runs of a scattered part as ranges if they are long, else the part."""
    outer, run = part.run()
    if run < _LONG_RUN:
        yield part
        return
    for place in np.ndindex(*part.tensor.shape[:outer]):
        offset = part.offset + sum(index * step for index, step in zip(place, part.strides, strict=False))
        yield FileRange(part.key, part.tensor[place], int(offset))
