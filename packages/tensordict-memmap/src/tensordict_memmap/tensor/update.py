"""In-place updates of memory-mapped tensors, many at once: through the mapping, or to the file.

If the pages of a tensor are in memory, it is copied into the mapping at memory speed, on several threads if it is
large. If the pages are not in memory, as right after preallocation, each of them would cause a page fault. The bytes
are written to the file then, where the mapping sees them: the disk blocks of all files are reserved first, so that a
full disk raises an error before anything is written, and then the files are written like those of a save
(``engine/write_plan.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.autograd.graph import increment_version

from tensordict_memmap.engine import executor, syscalls, write_plan
from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.engine.sink import Sink, error_context
from tensordict_memmap.engine.sources import FileRange
from tensordict_memmap.engine.tuning import FILE_WRITE_MIN, JOB_BYTES, THREADED_COPY_MIN, is_unfilled
from tensordict_memmap.schema.dtypes import reach
from tensordict_memmap.tensor.mapping import Mapping

_MOST_OPEN_FILES = 256
"""The number of files to open at once; the usual limit of a process is 1,024."""


def write_leaves(
    keys: Sequence[Any],
    leaves: Sequence[torch.Tensor],
    sources: Sequence[torch.Tensor],
    *,
    threads: int | None = None,
) -> None:
    """Copy tensors into tensors that may map files; convert like ``Tensor.copy_``.

    Args:
        keys: The names of the leaves, for errors.
        leaves: The targets, changed in place.
        sources: The new values, each of the shape of its leaf.
        threads: The number of threads for writes to files.

    Raises:
        OSError: The disk is full; the error names the key.

    >>> first, second = torch.zeros(2), torch.zeros(2)
    >>> write_leaves(["a", "b"], [first, second], [torch.ones(2), torch.arange(2)])
    >>> second
    tensor([0., 1.])
    """
    unfilled = [number for number, leaf in enumerate(leaves) if is_unfilled(leaf, sources[number])]
    if not unfilled or not _are_apart(leaves, sources):
        if torch.is_grad_enabled() and any([tensor.requires_grad for tensor in (*leaves, *sources)]):
            for leaf, source in zip(leaves, sources, strict=True):
                torch.Tensor.copy_(leaf, source)
        else:
            _copy(leaves, sources)
        return
    by_file: dict[int, list[int]] = {}
    for number in sorted(unfilled, key=lambda number: -leaves[number].nbytes):
        by_file.setdefault(id(_mapping_of(leaves[number])), []).append(number)
    files = list(by_file.values())
    written: set[int] = set()
    for first in range(0, len(files), _MOST_OPEN_FILES):
        written |= _fill(files[first : first + _MOST_OPEN_FILES], keys, leaves, sources, threads)
    for number, (leaf, source) in enumerate(zip(leaves, sources, strict=True)):
        if number in written:
            increment_version(leaf)
        else:
            torch.Tensor.copy_(leaf, source)


def _copy(leaves: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy within memory, without autograd."""
    flat = [number for number, leaf in enumerate(leaves) if _is_plain_copy(leaf, sources[number])]
    total = sum(leaves[number].nbytes for number in flat)
    if total < THREADED_COPY_MIN or not _are_apart(leaves, sources):
        torch._foreach_copy_(list(leaves), list(sources))
        return
    queues = []
    for number in flat:
        target, source, nbytes = leaves[number].data_ptr(), sources[number].data_ptr(), leaves[number].nbytes
        starts = range(0, nbytes, JOB_BYTES)
        queues.append(
            [
                functools.partial(syscalls.copy, target + start, source + start, min(JOB_BYTES, nbytes - start))
                for start in starts
            ]
        )
    executor.run(queues)
    for number in flat:
        increment_version(leaves[number])
    others = sorted(set(range(len(leaves))).difference(flat))
    if others:
        torch._foreach_copy_([leaves[number] for number in others], [sources[number] for number in others])


def _is_plain_copy(leaf: torch.Tensor, source: torch.Tensor) -> bool:
    """Return whether the copy is a large contiguous one on the CPU, without conversion."""
    return (
        leaf.nbytes >= FILE_WRITE_MIN
        and leaf.dtype is source.dtype
        and leaf.device.type == source.device.type == "cpu"
        and leaf.layout is source.layout is torch.strided
        and leaf.is_contiguous()
        and source.is_contiguous()
        and not (leaf.is_conj() or leaf.is_neg() or source.is_conj() or source.is_neg())
    )


def _mapping_of(leaf: Any) -> Mapping:
    """Return the mapping of a `MemoryMappedTensor`, whose module imports this one."""
    mapping: Mapping = leaf.handler
    return mapping


def _fill(
    files: Sequence[Sequence[int]],
    keys: Sequence[Any],
    leaves: Sequence[torch.Tensor],
    sources: Sequence[torch.Tensor],
    threads: int | None,
) -> set[int]:
    """Write leaves to their files; return the numbers of those written, and skip files that cannot be opened."""
    files_open: list[Descriptor] = []
    targets: list[tuple[Sink, FileRange]] = []
    written: set[int] = set()
    try:
        for numbers in files:
            mapping = _mapping_of(leaves[numbers[0]])
            file = mapping.open_descriptor()
            if file is None:
                continue
            sink = Sink(file)
            files_open.append(file)
            for number in numbers:
                leaf, key = leaves[number], keys[number]
                offset = mapping.offset + leaf.data_ptr() - mapping.address
                with error_context(key, mapping.filename):
                    sink.reserve(offset, leaf.nbytes)
                targets.append((sink, FileRange(key, sources[number], offset, leaf.dtype)))
                written.add(number)
        write_plan.write_into(targets, threads=threads)
    finally:
        for file in files_open:
            file.close()
    return written


def _are_apart(leaves: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> bool:
    """Return whether copies may run in any order: no source shares memory with a leaf, and no two leaves overlap."""
    leaves = [leaf for leaf in leaves if leaf.numel()]
    places = {leaf.untyped_storage().data_ptr() for leaf in leaves}
    for source in sources:
        if source.layout is torch.strided and source.numel() and source.untyped_storage().data_ptr() in places:
            return False
    if len(places) == len(leaves):
        return True
    spans = sorted(
        (leaf.data_ptr(), leaf.data_ptr() + reach(leaf.shape, leaf.stride()) * leaf.element_size()) for leaf in leaves
    )
    return all(one[1] <= other[0] for one, other in pairwise(spans))


def copy_into(dst: torch.Tensor, src: torch.Tensor) -> None:
    """Copy ``src`` into ``dst``, which may map a file; convert and broadcast like ``Tensor.copy_``.

    Args:
        dst: The target, changed in place.
        src: The new values, a tensor that broadcasts to the shape of ``dst``.

    >>> dst = torch.zeros(2, 3)
    >>> copy_into(dst, torch.arange(3))
    >>> dst[1]
    tensor([0., 1., 2.])
    """
    if is_unfilled(dst, src) or dst.nbytes >= THREADED_COPY_MIN:
        write_leaves(["source"], [dst], [src.expand(dst.shape)])
    else:
        torch.Tensor.copy_(dst, src)
