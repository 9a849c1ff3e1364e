"""`save_delta`: writes only the differences from an earlier save, for weights that change little between two saves.

The result is one safetensors file. Tensors whose checksum equals that of the base are omitted. Others are compared with
the base in blocks, and the file holds the blocks that differ, or the whole tensor if most blocks do.
``loading/delta.py`` combines them with the base.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from tensordict_core.extension import TensorCollection
from tensordict_memmap.engine import executor, syscalls
from tensordict_memmap.engine.checksums import DIGITS, Extent
from tensordict_memmap.engine.sources import FileRange, merged
from tensordict_memmap.engine.write_plan import FileWrite
from tensordict_memmap.formats.safetensors.delta import DELTA, MOST_DELTAS, DeltaRecord, DeltaTensor, name_of_blocks
from tensordict_memmap.formats.safetensors.describe import Pack, describe
from tensordict_memmap.formats.safetensors.header import Form, dump_header
from tensordict_memmap.loading.delta import Base, checksums_of, contiguous_source, open_base
from tensordict_memmap.loading.open import open_tree
from tensordict_memmap.remote.urls import is_remote, local_path
from tensordict_memmap.saving.options import check_local
from tensordict_memmap.saving.writer import Run
from tensordict_memmap.schema.node import Leaf, plain, show
from tensordict_memmap.schema.plan import plan_to_save
from tensordict_memmap.storage.header_checksums import CHECKSUMS, reserve_checksums, write_checksums
from tensordict_memmap.storage.transaction import saving

_CHUNK = 4 << 20
"""The bytes that are compared at once, before the blocks in them are."""

_MOST_IN_BLOCKS = 0.9
"""The part of a tensor up to which its changed blocks are stored instead of the whole."""


def save_delta(
    data: Any,
    path: str | os.PathLike[str],
    *,
    base: Any,
    block_size: int = 1 << 16,
    max_chain: int = 8,
    num_threads: int | None = None,
    existsok: bool = True,
    durable: bool = False,
) -> Any:
    """Write the tensors, or the blocks of tensors, that differ from an earlier save; a load returns all entries.

    ``TensorDict.load(path)`` opens the delta together with its base, and ``convert(path, target)`` writes a save that
    does not need the base. Keys, shapes, dtypes and non-tensor values are those of ``data``; the base may have others.

    Args:
        data: A tensordict, lazy stack, tensorclass or non-tensor data.
        path: The safetensors file to write, with any name. An existing file is replaced when the new one is complete.
        base: The path of the earlier save, or a tensordict that was loaded from it or mapped onto it. It is a folder
            with a file for each leaf, a safetensors file, or another delta, saved with ``checksum=True``. The delta
            records its path relative to ``path`` and the identity of its content.
        block_size: The size in bytes of the blocks that are compared and written.
        max_chain: The maximum number of deltas on top of each other, at most 64.
        num_threads: The number of writer threads; chosen for the machine if None or 0.
        existsok: Whether an existing file may be replaced.
        durable: Whether to sync the file to disk before the call returns.

    Returns:
        ``data`` itself.

    Raises:
        FileNotFoundError: There is no save at ``base``.
        ValueError: The base is an archive, a consolidated file, shards or a URL, has no checksums, is the file to write
            or depends on it, or is the last of ``max_chain`` deltas.
        TypeError: An entry cannot be stored; the error names its key.

    >>> weights = TensorDict({"a": torch.zeros(100_000), "b": torch.ones(3)})
    >>> _ = weights.save("step-1", checksum=True)
    >>> weights["a"][5] = 1.0
    >>> _ = save_delta(weights, "step-2.safetensors", base="step-1")
    >>> os.path.getsize("step-2.safetensors") < 80_000, TensorDict.load("step-2.safetensors")["a"][4:7].tolist()
    (True, [0.0, 1.0, 0.0])
    """
    run = Run(num_threads, durable)
    return save_delta_with(data, path, run, base=base, block_size=block_size, max_chain=max_chain, existsok=existsok)


def save_delta_with(
    data: Any,
    path: str | os.PathLike[str],
    run: Run,
    *,
    base: Any,
    block_size: int = 1 << 16,
    max_chain: int = 8,
    existsok: bool = True,
) -> Any:
    """`save_delta` with the threads, durability, progress and cancellation of a save."""
    _check_options(block_size, max_chain)
    check_local(path)
    target = os.path.realpath(path)
    opened = open_base(_path_of(base), open_tree=open_tree)
    if target in opened.paths:
        raise ValueError(f"{target} is the base of the delta, or one of its bases; save the delta to another path")
    if opened.depth >= max_chain:
        raise ValueError(
            f"{opened.path} is a chain of {opened.depth} deltas, and max_chain={max_chain}; flatten it with "
            "convert(base, target) and TensorDict.load(target).save(..., checksum=True), or save the whole"
        )
    pack = describe(plan_to_save(data))
    parts = _compare(pack, opened, block_size)
    record = DeltaRecord(
        _relative(opened.path, target),
        opened.id,
        opened.depth + 1,
        {part.leaf.file: DeltaTensor(part.checksum, part.tensor, part.blocks) for part in parts},
    )
    metadata = pack.metadata([leaf.file for leaf in pack.leaves]) | {DELTA: record.dumps()}
    written = [part for part in parts if part.tensor is not None]
    size = sum(part.form.nbytes for part in written)
    with saving(target, is_folder=False, durable=run.durable, existsok=existsok, size=size) as stage:
        _write(stage.path, written, metadata, run)
    return data


def _check_options(block_size: int, max_chain: int) -> None:
    if block_size < 1:
        raise ValueError(f"block_size={block_size}, and a block has at least one byte; pass 65536 for example")
    if not 1 <= max_chain <= MOST_DELTAS:
        raise ValueError(f"max_chain={max_chain}, and a chain has 1 to {MOST_DELTAS} deltas; pass one of these")


def _path_of(base: Any) -> str:
    """Return the path of a base, which may be a tensordict that was loaded from it."""
    if isinstance(base, TensorCollection):
        saved = getattr(base, "saved_path", None)
        if saved is None:
            raise ValueError("the tensordict given as base= has no saved_path; pass the path that it was saved to")
        base = saved
    if not isinstance(base, str | os.PathLike):
        raise TypeError(f"base= is the path of a save, or a tensordict loaded from it, not a {type(base).__name__}")
    place = local_path(base)
    if is_remote(place):
        raise ValueError(f"the base of a delta is a local save, and {base} is a URL; convert it to a local file first")
    return str(os.fspath(place))


def _relative(base: str, target: str) -> str:
    found = os.path.relpath(base, os.path.dirname(target)).replace(os.sep, "/")
    if ":" in found or "\\" in found:
        raise ValueError(f"{found!r} has a ':' or a backslash, which the path of a base cannot have; save it elsewhere")
    return found


# --- what differs


class _Part(NamedTuple):
    """A tensor of the whole, and the part of it that is written.

    Args:
        leaf: Its leaf.
        form: The dtype and shape of the part that is written.
        checksum: The checksum of the whole tensor.
        tensor: The name of the part that is written; None if the base has the tensor.
        blocks: The ranges of elements that are written; None for the whole.
    """

    leaf: Leaf
    form: Form
    checksum: str
    tensor: str | None = None
    blocks: Sequence[tuple[int, int]] | None = None


def _compare(pack: Pack, base: Base, block_size: int) -> list[_Part]:
    names = {leaf.file for leaf in pack.leaves}
    for leaf in pack.leaves:
        if hasattr(leaf.source, "full_tensor"):
            raise TypeError(
                f"key {show(leaf.key)} is a distributed tensor, and a delta holds the tensors of one process; pass "
                "its full_tensor()"
            )
    rows = zip(pack.leaves, pack.forms, _checksums(pack), strict=True)
    return [_part(leaf, form, checksum, base, block_size, names) for leaf, form, checksum in rows]


def _part(leaf: Leaf, form: Form, checksum: str, base: Base, block_size: int, names: set[str]) -> _Part:
    """Compare a tensor with that of the base; ``names`` are those that tensors of the delta have so far."""
    old = base.tensors.get(leaf.file)
    if old is None or old.dtype != form.dtype or tuple(old.shape) != form.shape:
        return _Part(leaf, form, checksum, leaf.file)
    if base.checksums.get(leaf.file) == checksum or not form.nbytes:
        return _Part(leaf, form, checksum)
    blocks = _changed_blocks(contiguous_source(leaf), old, max(block_size // form.dtype.itemsize, 1))
    count = sum(stop - start for start, stop in blocks)
    if not count:
        return _Part(leaf, form, checksum)
    if count > _MOST_IN_BLOCKS * (form.nbytes // form.dtype.itemsize):
        return _Part(leaf, form, checksum, leaf.file)
    name = name_of_blocks(leaf.file, names)
    names.add(name)
    return _Part(leaf, Form(form.dtype, (count,), width=form.width), checksum, name, blocks)


def _checksums(pack: Pack) -> list[str]:
    """Return the checksums of all tensors; those that need a copy are copied one after the other."""
    at_hand = {
        leaf.file: contiguous_source(leaf) for leaf, address in zip(pack.leaves, pack.addresses, strict=True) if address
    }
    sums = checksums_of(at_hand)
    for leaf in pack.leaves:
        if leaf.file not in sums:
            sums |= checksums_of({leaf.file: contiguous_source(leaf)})
    return [sums[leaf.file] for leaf in pack.leaves]


def _changed_blocks(new: torch.Tensor, old: torch.Tensor, step: int) -> list[tuple[int, int]]:
    """Return the ranges of elements, in multiples of ``step``, in which two contiguous tensors differ bit by bit.

    >>> _changed_blocks(torch.tensor([0, 1, 2, 3, 4]), torch.tensor([0, 1, 2, 0, 0]), 2)
    [(2, 5)]
    """
    width, count = new.element_size(), new.numel()
    a, b = new.data_ptr(), old.data_ptr()
    chunk = max(_CHUNK // (step * width), 1) * step
    differs: dict[int, None] = {}

    def compare(start: int) -> None:
        stop = min(start + chunk, count)
        if syscalls.is_same_memory(a + start * width, b + start * width, (stop - start) * width):
            return
        for at in range(start, stop, step):
            if not syscalls.is_same_memory(a + at * width, b + at * width, (min(at + step, count) - at) * width):
                differs[at] = None

    executor.run([[functools.partial(compare, start)] for start in range(0, count, chunk)])
    return merged((start, min(start + step, count)) for start in sorted(differs))


# --- writing


def _write(staged: str, parts: list[_Part], metadata: dict[str, str], run: Run) -> None:
    parts = sorted(parts, key=lambda part: -part.form.width)  # the widest first, so that each is aligned
    names = [part.tensor or "" for part in parts]
    forms = [part.form for part in parts]
    ends = list(accumulate(form.nbytes for form in forms))
    filled = sum(bool(form.nbytes) for form in forms)
    start = dump_header(names, forms, ends, metadata | {CHECKSUMS: reserve_checksums(filled)})
    ranges: list[Any] = [FileRange("the header", start)]
    extents = []
    for part, end in zip(parts, ends, strict=True):
        if not part.form.nbytes:
            continue
        offset = len(start) + end - part.form.nbytes
        extents.append(Extent(offset, part.form.nbytes))
        ranges += _ranges(part, offset)
    file = FileWrite(staged, ranges, len(start) + sum(form.nbytes for form in forms), extents=extents)
    run.write_files([file])
    digits = "".join(extent.checksum()[-DIGITS:] for extent in extents)
    write_checksums(staged, start, digits, durable=run.durable)


def _ranges(part: _Part, offset: int) -> list[FileRange]:
    key = plain(part.leaf.key)
    if part.blocks is None:
        source = contiguous_source(part.leaf) if part.leaf.source is None else part.leaf.source
        return [FileRange(key, source, offset)]
    source = contiguous_source(part.leaf)
    is_copy = part.leaf.source is None or part.leaf.source.data_ptr() != source.data_ptr()
    flat = source.view(-1)
    ranges = []
    for start, stop in part.blocks:
        block = flat[start:stop]
        ranges.append(FileRange(key, block.clone() if is_copy else block, offset))  # a view would keep the whole copy
        offset += (stop - start) * source.element_size()
    return ranges
