"""Segments: whatever tensors they are made of and wherever they are cut, the same bytes and checksums come out."""

from __future__ import annotations

import os
import random
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

from tensordict_memmap.engine import segments, tuning
from tensordict_memmap.engine.checksums import DIGITS, Extent, checksum_of
from tensordict_memmap.engine.segments import Segment, join_segments
from tensordict_memmap.engine.sink import Sink
from tensordict_memmap.engine.sources import Contiguous, Run
from tensordict_memmap.engine.tuning import SMALL_FILE

MIB = 1 << 20


def parts_of(data, begins, offset, chance):
    """The bytes in segments that start at ``begins``, at addresses of their own; some of those that follow one another
    are a run."""
    copies = [data[begin:end].copy() for begin, end in zip(begins, [*begins[1:], len(data)], strict=True)]
    parts, first = [], 0
    while first < len(copies):
        count = chance.choice([1, 1, 1, 5, 40])
        some, place, numbers = copies[first : first + count], offset + begins[first], range(first, first + count)
        if count == 1 or max(one.nbytes for one in some) >= SMALL_FILE:
            some, count = some[:1], 1
            parts.append(Contiguous(first, some[0].ctypes.data, some[0].nbytes, place, some[0]))
        else:
            addresses, sizes = [one.ctypes.data for one in some], [one.nbytes for one in some]
            parts.append(Run(numbers[: len(some)], addresses, sizes, place, some, digits=[]))
        first += count
    return parts


def naive(data, block):
    hashes = [xxh3_64_intdigest(data[start : start + block]) for start in range(0, len(data), block)]
    joined = b"".join(one.to_bytes(8, "little") for one in hashes)
    return f"xxh3_64/{block}:{xxh3_64_intdigest(joined):016x}"


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("taken", [False, True], ids=["alone", "second"])
def test_the_same_bytes_and_checksums_come_out_in_any_order(tmp_path, monkeypatch, seed, taken):
    chance = random.Random(seed)
    monkeypatch.setattr(segments, "JOB_BYTES", chance.choice([4 * MIB, MIB, 700_001]))
    monkeypatch.setattr(segments, "HASH_BYTES", chance.choice([2 * MIB, MIB // 2, 100_003]))
    data = np.random.default_rng(seed).integers(0, 256, 9 * MIB + 11, dtype=np.uint8)
    edges = chance.sample(range(1, len(data)), chance.choice([0, 3, 60, 900]))
    begins, offset = [0, *sorted(edges)], chance.choice([0, 1, 4096, 2 * MIB - 5])
    parts = parts_of(data, begins, offset, chance)
    extents = {part.offset: Extent(part.offset, part.nbytes, MIB) for part in parts if isinstance(part, Contiguous)}
    [segment] = join_segments(parts, extents)
    steps = list(segment.jobs())
    chance.shuffle(steps)
    fd = os.open(tmp_path / "x", os.O_RDWR | os.O_CREAT)
    sink = Sink(fd)
    sink.reserve(0, offset + len(data))
    with sink.open_range(0, len(data)) if taken else nullcontext():
        for _, step, _ in steps:
            step(sink)
    os.close(fd)
    assert (tmp_path / "x").read_bytes()[offset:] == data.tobytes()
    assert sum(nbytes for *_, nbytes in steps) == len(data)
    for part in parts:
        first = part.offset - offset
        if isinstance(part, Contiguous):
            extent = extents[part.offset]
            assert extent.checksum() == naive(data[first : first + part.nbytes].tobytes(), extent.block)
        else:
            ends = np.cumsum([first, *part.sizes])
            own = [checksum_of(data[a:b].tobytes())[-DIGITS:] for a, b in pairwise(ends)]
            assert part.digits == own


def test_what_does_not_follow_is_a_segment_of_its_own_and_an_error_names_the_key_in_the_middle():
    memory = np.zeros(100, dtype=np.uint8)
    parts = [
        Contiguous(name, memory.ctypes.data, 10, offset, memory) for name, offset in [("a", 0), ("b", 10), ("c", 30)]
    ]
    run = Run(["d", "e"], [memory.ctypes.data] * 2, [40, 5], 40, memory)
    found = list(join_segments([*parts, run], {}))
    assert [[(key, nbytes) for key, _, nbytes in one.jobs()] for one in found] == [[("b", 20)], [("d", 55)]]
    assert all(isinstance(one, Segment) for one in found)


def test_parts_are_cut_where_the_bounds_of_the_file_are(monkeypatch):
    monkeypatch.setattr(segments, "JOB_BYTES", 16)
    monkeypatch.setattr(tuning, "MAPPED_RANGE_MIN", 0)
    memory = np.zeros(100, dtype=np.uint8)
    parts = [Contiguous("a", memory.ctypes.data, 10, 5, memory), Contiguous("b", memory.ctypes.data, 40, 15, memory)]
    [segment] = join_segments(parts, {})
    assert [nbytes for *_, nbytes in segment.jobs()] == [11, 16, 16, 7]


def test_segments_too_short_to_be_copied_are_one_job_unless_they_are_hashed_too(monkeypatch):
    monkeypatch.setattr(segments, "JOB_BYTES", 16)
    monkeypatch.setattr(segments, "SMALL_RANGES_BYTES", 64)
    monkeypatch.setattr(tuning, "MAPPED_RANGE_MIN", 9)
    memory = np.zeros(100, dtype=np.uint8)

    def jobs(nbytes, digits=None):
        [segment] = join_segments([Run(range(10), [memory.ctypes.data] * 10, [nbytes] * 10, 0, memory, digits)], {})
        return [nbytes for *_, nbytes in segment.jobs()]

    assert jobs(8) == [64, 16]
    assert jobs(9) == [16] * 5 + [10]
    assert jobs(8, digits=[]) == [16] * 5
