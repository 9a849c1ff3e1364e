"""File ranges: which bytes of tensors go where in one file, with small neighbours as one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any

from tensordict_memmap.engine.sources import FileRange, Run
from tensordict_memmap.engine.tuning import SMALL_FILE
from tensordict_memmap.schema.node import Path, Stacked

__all__ = ["file_ranges"]


def file_ranges(
    keys: Sequence[Path],
    sources: Sequence[Any],
    addresses: Sequence[int],
    begins: Sequence[int],
    sizes: Sequence[int],
) -> tuple[list[FileRange | Run], list[tuple[int, int]]]:
    """The ranges that put tensors into a file: small ones that follow one another there are one run.

    Args:
        keys: their nested keys, which errors name.
        sources: tensors, or tensors to stack.
        addresses: where they lie in memory; 0 for those that lie there otherwise than in the file.
        begins: where they go, in ascending order.
        sizes: how many bytes each takes.

    Returns:
        The ranges; offset and size of each tensor that is in no run.
    """
    if 0 in sizes:
        filled = [n for n, size in enumerate(sizes) if size]
        keys, sources = [keys[n] for n in filled], [sources[n] for n in filled]
        addresses, begins, sizes = ([column[n] for n in filled] for column in (addresses, begins, sizes))
    total = len(sizes)
    single: set[int] = set()
    if 0 in addresses or max(sizes, default=0) >= SMALL_FILE:
        single.update(n for n in range(total) if not addresses[n] or sizes[n] >= SMALL_FILE)
    cuts = {0, total, *single, *(n + 1 for n in single)}
    if total and begins[-1] + sizes[-1] - begins[0] != sum(sizes):
        cuts.update(n for n in range(1, total) if begins[n - 1] + sizes[n - 1] != begins[n])
    ranges: list[FileRange | Run] = []
    for first, last in pairwise(sorted(cuts)):
        if first not in single:
            part = slice(first, last)
            ranges.append(Run(keys[part], addresses[part], sizes[part], begins[first], sources[part]))
            continue
        key, source = keys[first], sources[first]
        name = key[0] if len(key) == 1 else key
        if isinstance(source, Stacked):
            ranges += _stacked(name, source, begins[first])
        else:
            ranges.append(FileRange(name, source, begins[first]))
    return ranges, [(begins[n], sizes[n]) for n in sorted(single)]


def _stacked(key: object, source: Stacked, offset: int) -> Iterator[FileRange]:
    """Where each part of stacked tensors goes."""
    first, dim = source.parts[0], source.dim
    size = prod(first.shape[dim:]) * first.element_size()
    rows = [part.detach().flatten(0, dim - 1) if dim else part.detach()[None] for part in source.parts]
    for number in range(len(rows[0])):
        for row in rows:
            yield FileRange(key, row[number], offset)
            offset += size
