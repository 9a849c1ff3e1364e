"""Checksums of a sharded save: after the write, each rank reads back and hashes a share of the blocks.

The checksum of a tensor is the hash of the hashes of its blocks, and a block may have bytes of several ranks. Therefore
the ranks divide the blocks among themselves when everything is written, and the coordinator combines their hashes.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from tensordict_memmap.distributed.layout import Layout, path_in
from tensordict_memmap.engine import executor, syscalls
from tensordict_memmap.engine.checksums import BLOCK, hash_of_file, join_hashes
from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.saving.writer import Run


def hash_share(staged: str, layout: Layout, sizes: Sequence[int], index: int, count: int, run: Run) -> bytes:
    """Return the hashes of the blocks that one rank reads back.

    Args:
        staged: The staged folder or file.
        layout: The files and offsets of the tensors.
        sizes: The bytes of each tensor.
        index: The place of the rank among the ranks.
        count: The number of ranks.
        run: The threads, and whether the save was cancelled.

    Returns:
        The hashes, little-endian, in the order of the tensors; `join_shares` takes those of all ranks.

    >>> from tensordict_memmap.engine.checksums import checksum_of
    >>> with open("x.bin", "wb") as file:
    ...     _ = file.write(b"abcdef")
    >>> layout = Layout([""], [6], [0, 0], [0, 4])
    >>> shares = [hash_share("x.bin", layout, [4, 2], rank, 2, Run()) for rank in range(2)]
    >>> join_shares([4, 2], shares) == [checksum_of(b"abcd"), checksum_of(b"ef")]
    True
    """
    tensors, starts, lengths = _blocks(sizes)
    ends = lengths.cumsum()
    mine = np.flatnonzero((ends - lengths) * count // max(int(lengths.sum()), 1) == index)
    found = np.zeros(len(mine), dtype="<u8")
    by_file: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for place, block in enumerate(mine.tolist()):
        tensor = int(tensors[block])
        by_file[layout.file_of[tensor]].append(
            (place, layout.offsets[tensor] + int(starts[block]), int(lengths[block]))
        )
    for file, blocks in by_file.items():
        with Descriptor(os.open, path_in(staged, layout.files[file]), os.O_RDONLY | syscalls.BINARY) as opened:
            work = partial(_hash, opened.fileno(), found)
            bounds = [*range(0, len(blocks), _BATCH), len(blocks)] if len(blocks) > _MANY else range(len(blocks) + 1)
            jobs = [partial(work, blocks[first:last]) for first, last in pairwise(bounds)]
            executor.run([jobs], threads=run.threads, cancelled=run.cancelled)
    return found.tobytes()


_MANY, _BATCH = 1000, 64
"""The number of blocks of a file from which a job hashes several, since they are small, and how many."""


def _hash(fd: int, found: np.ndarray, blocks: Sequence[tuple[int, int, int]]) -> None:
    for place, offset, nbytes in blocks:
        found[place] = hash_of_file(fd, offset, nbytes)


def join_shares(sizes: Sequence[int], shares: Sequence[bytes]) -> list[str]:
    """Return the checksum of each tensor, from the hashes of all ranks; empty for one without bytes."""
    hashes, checksums, place = b"".join(shares), [], 0
    for size in sizes:
        end = place + 8 * -(-size // BLOCK)
        checksums.append(join_hashes(BLOCK, hashes[place:end]) if size else "")
        place = end
    return checksums


def _blocks(sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each block of all tensors, the number of its tensor, its start there and its length."""
    nbytes = np.array(sizes, dtype=np.int64)
    counts = -(-nbytes // BLOCK)
    tensors = np.repeat(np.arange(len(nbytes)), counts)
    starts = (np.arange(len(tensors)) - np.repeat(counts.cumsum() - counts, counts)) * BLOCK
    return tensors, starts, np.minimum(nbytes[tensors] - starts, BLOCK)
