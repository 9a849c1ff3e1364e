"""Kills during appends: whatever moment a writer dies at, every row that counted is there, whole, and no other is seen.

A child appends rows that tell their number in every leaf, and says which it has counted. It is killed after a random
time, while other processes load, refresh and check what they see. Then the next writer goes on.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import time
import traceback

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import MemmapDataset, append_memmap, load_memmap, save
from tensordict_memmap.engine import syscalls as system

pytestmark = pytest.mark.skipif(not system.POSIX, reason="children are forked and killed")

ROUNDS = [pytest.param(20, id="20 kills"), pytest.param(200, id="200 kills", marks=pytest.mark.long)]
LONGEST = 0.04
"""Seconds to the latest kill: some appends are made in them."""


def rows(start: int, stop: int) -> TensorDict:
    number = torch.arange(start, stop)
    deep = TensorDict({"c": number[:, None].expand(-1, 7), "d": {"e": number.double()}}, [stop - start])
    large = number.int()[:, None].expand(-1, 3000)
    return TensorDict({"a": number, "large": large, "deep": deep}, [stop - start]).auto_batch_size_(1)


def count(td: TensorDict) -> int:
    """The number of rows; an assertion where one is not whole or not in its place."""
    number = torch.arange(len(td))
    assert td["deep"].batch_size == td["deep", "d"].batch_size == td.batch_size
    for leaf in (td["a"], td["large"].amin(1), td["large"].amax(1), td["deep", "c"].amin(1), td["deep", "d", "e"]):
        assert torch.equal(leaf.long(), number)
    return len(td)


class Shared:
    """Numbers that several processes see."""

    def __init__(self) -> None:
        # struct.pack_into clears the bytes before it writes them, so a kill in between leaves a zero; this does not
        self.numbers = memoryview(mmap.mmap(-1, 64)).cast("q")

    def __getitem__(self, place: int) -> int:
        return self.numbers[place]

    def __setitem__(self, place: int, number: int) -> None:
        self.numbers[place] = number


def forked(work) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.set_num_threads(1)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def poll(path, shared: Shared) -> None:
    """Sees whole rows only, and never fewer than before, until it is told to stop."""
    reader, seen = MemmapDataset.open(path), 0
    while not shared[1]:
        known = shared[0]
        for found in (load_memmap(path), load_memmap(path, subpath="deep"), reader):
            if isinstance(found, MemmapDataset):
                found.refresh()
                found = found.tensordict
            number = count(found) if "a" in found else len(found)
            assert number >= max(seen, known)
            seen = number
        shared[2] += 1


def append(path, shared: Shared, way: str) -> None:
    if way == "append_memmap":
        while True:
            start = shared[0]
            append_memmap(path, rows(start, start + 3))
            shared[0] = start + 3
    writer = MemmapDataset.open(path, "r+")
    while True:
        start = len(writer)
        writer.extend(rows(start, start + 2), commit=False)
        writer.append(rows(start + 2, start + 3)[0])
        shared[0] = start + 3


@pytest.mark.parametrize("way", ["dataset", "append_memmap"])
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_killed_writer_costs_at_most_the_rows_that_did_not_count(tmp_path, rounds, way):
    path, chance = tmp_path / "data", random.Random(rounds)
    save(rows(0, 2), path)
    shared = Shared()
    shared[0] = 2
    reader = forked(lambda: poll(path, shared))
    try:
        for number in range(rounds):
            before = shared[0]
            child = forked(lambda: append(path, shared, way))
            late = time.monotonic() + 30
            while number % 2 and shared[0] == before and time.monotonic() < late:  # every other one gets to count rows
                time.sleep(0.001)
            time.sleep(chance.random() * LONGEST)
            os.kill(child, signal.SIGKILL)
            assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
            told = shared[0]
            found = count(load_memmap(path))
            assert told <= found <= told + 3
            shared[0] = found
    finally:
        shared[1] = 1
        status = os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1])
    assert status == 0 and shared[2] > 0
    assert shared[0] > 2
    append_memmap(path, rows(shared[0], shared[0] + 1))
    assert count(load_memmap(path)) == shared[0] + 1
    leaves = {"a.memmap", "large.memmap", "deep/c.memmap", "deep/d/e.memmap"}
    described = {"meta.json", "deep/meta.json", "deep/d/meta.json", "tensordict.manifest.json", "tensordict.lock"}
    found = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
    assert found == leaves | described  # the next writer removed what the killed ones left
