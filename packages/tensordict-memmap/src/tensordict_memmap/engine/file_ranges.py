"""Layout of tensors in one file: makes a `FileRange` for each tensor, and one `Run` for many small consecutive ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any

from tensordict_memmap.engine.sources import FileRange, Run
from tensordict_memmap.engine.tuning import SMALL_FILE
from tensordict_memmap.schema.node import Path, Stacked, plain


def file_ranges(
    keys: Sequence[Path],
    sources: Sequence[Any],
    addresses: Sequence[int],
    begins: Sequence[int],
    sizes: Sequence[int],
) -> tuple[list[FileRange | Run], list[tuple[int, int]]]:
    """Return the ranges that write tensors to a file; consecutive small tensors form one run.

    Args:
        keys: The nested keys of the tensors, for errors.
        sources: Tensors, or `Stacked` ones.
        addresses: Their addresses in memory; 0 for those that are not contiguous or need a conversion.
        begins: Their offsets in the file, in ascending order.
        sizes: Their sizes in bytes.

    Returns:
        The ranges, and the offset and size of each tensor that is not part of a run.
    """
    if 0 in sizes:
        filled = [n for n, size in enumerate(sizes) if size]
        keys, sources = [keys[n] for n in filled], [sources[n] for n in filled]
        addresses, begins, sizes = ([column[n] for n in filled] for column in (addresses, begins, sizes))
    single, cuts = _cuts(addresses, begins, sizes)
    ranges: list[FileRange | Run] = []
    for first, last in pairwise(cuts):
        if first not in single:
            part = slice(first, last)
            ranges.append(Run(keys[part], addresses[part], sizes[part], begins[first], sources[part]))
            continue
        key, source = keys[first], sources[first]
        name = plain(key)
        if isinstance(source, Stacked):
            ranges += _stacked(name, source, begins[first])
        else:
            ranges.append(FileRange(name, source, begins[first]))
    return ranges, [(begins[n], sizes[n]) for n in sorted(single)]


def _cuts(addresses: Sequence[int], begins: Sequence[int], sizes: Sequence[int]) -> tuple[set[int], list[int]]:
    """Return the numbers of the tensors that are no part of a run, and those with which a range begins, in order."""
    total = len(sizes)
    single: set[int] = set()
    if 0 in addresses or max(sizes, default=0) >= SMALL_FILE:
        single.update(n for n in range(total) if not addresses[n] or sizes[n] >= SMALL_FILE)
    cuts = {0, total, *single, *(n + 1 for n in single)}
    if total and begins[-1] + sizes[-1] - begins[0] != sum(sizes):
        cuts.update(n for n in range(1, total) if begins[n - 1] + sizes[n - 1] != begins[n])
    return single, sorted(cuts)


def _stacked(key: object, source: Stacked, offset: int) -> Iterator[FileRange]:
    """Yield a range for each part of stacked tensors."""
    first, dim = source.parts[0], source.dim
    size = prod(first.shape[dim:]) * first.element_size()
    rows = [part.detach().flatten(0, dim - 1) if dim else part.detach()[None] for part in source.parts]
    for number in range(len(rows[0])):
        for row in rows:
            yield FileRange(key, row[number], offset)
            offset += size
