"""Sinks: whoever comes second to a file copies into a mapping of it, and the bytes are the same."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.sink import Sink

MIB = 1 << 20


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets of positional writes."""
    seen: list[int] = []
    write_ranges_at = syscalls.write_ranges_at

    def noted(fd: int, addresses: Sequence[int], sizes: Sequence[int], offset: int) -> None:
        seen.append(offset)
        write_ranges_at(fd, addresses, sizes, offset)

    monkeypatch.setattr(syscalls, "write_ranges_at", noted)
    return seen


def random_bytes(nbytes: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)


def put(sink: Sink, data: np.ndarray, offset: int) -> None:
    with sink.open_range(offset, data.nbytes) as way:
        way([data.ctypes.data], [data.nbytes], offset)


def needs_mapping(sink: Sink) -> None:
    if not sink._maps:
        pytest.skip("only files of a disk, on Linux, are filled through mappings")


@pytest.mark.parametrize("offset", [0, 1, 4095, 4096, 2 * MIB - 3], ids=str)
def test_the_second_in_a_range_copies_and_changes_nothing_beside_it(fd: int, offset: int, writes: list[int]) -> None:
    data = random_bytes(3 * MIB + 17)
    sink = Sink(fd)
    sink.reserve(0, 8 * MIB)
    needs_mapping(sink)
    os.pwrite(fd, b"\xff" * (8 * MIB), 0)
    with sink.open_range(0, 8 * MIB):
        put(sink, data, offset)
    assert writes == []
    expected = np.full(8 * MIB, 255, dtype=np.uint8)
    expected[offset : offset + data.nbytes] = data
    assert os.pread(fd, 8 * MIB, 0) == expected.tobytes()


def test_whoever_is_alone_writes_and_so_does_the_next(fd: int, writes: list[int]) -> None:
    data = random_bytes(2 * MIB)
    sink = Sink(fd)
    sink.reserve(0, 4 * MIB)
    put(sink, data, 0)
    put(sink, data, 2 * MIB)
    assert writes == [0, 2 * MIB]
    assert os.pread(fd, 4 * MIB, 0) == data.tobytes() * 2


def test_an_error_gives_the_turn_back(fd: int, writes: list[int]) -> None:
    sink = Sink(fd)
    sink.reserve(0, 4 * MIB)
    with pytest.raises(ZeroDivisionError), sink.open_range(0, 2 * MIB):
        raise ZeroDivisionError
    put(sink, random_bytes(2 * MIB), 0)
    assert writes == [0]


def test_nothing_is_mapped_where_blocks_may_be_missing(fd: int, writes: list[int]) -> None:
    data = random_bytes(2 * MIB)
    sink = Sink(fd)
    with sink.open_range(0, 4 * MIB):
        put(sink, data, 0)
    assert writes == [0]
    assert os.pread(fd, 2 * MIB, 0) == data.tobytes()


def test_many_threads_fill_one_file(fd: int) -> None:
    data = random_bytes(24 * MIB)
    sink = Sink(fd)
    sink.reserve(0, data.nbytes)
    ready = threading.Barrier(6)

    def fill(number: int) -> None:
        ready.wait()
        for start in range(number * MIB, data.nbytes, 6 * MIB):
            put(sink, data[start : start + MIB], start)

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.pread(fd, data.nbytes, 0) == data.tobytes()
