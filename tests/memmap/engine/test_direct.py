"""Direct writes: the bytes of large ranges go past the page cache, and the file is what plain writes make."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordict_memmap.engine import direct, syscalls, write_plan
from tensordict_memmap.engine.direct import DirectFile
from tensordict_memmap.engine.sources import FileRange
from tensordict_memmap.engine.write_plan import FileWrite, write_files

BLOCK = max(4096, mmap.PAGESIZE)


@contextlib.contextmanager
def opened(path, size):
    """The file, open, filled with ones, and the direct file; skips where the file system has no direct writes."""
    path.write_bytes(b"\1" * size)
    with open(path, "r+b") as file:
        try:
            made = DirectFile(path, file.fileno())
        except OSError:
            pytest.skip("the file system has no direct writes")
        yield file, made
        made.close()


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.sampled_from([1, 7, 511, BLOCK, BLOCK + 1, 5 * BLOCK, 33_333]), min_size=1, max_size=6),
    st.sampled_from([0, 1, 100, BLOCK - 1, BLOCK, BLOCK + 5]),
)
def test_any_ranges_at_any_offset_are_written_as_plain_writes_do(tmp_path_factory, sizes, offset):
    path = tmp_path_factory.mktemp("direct") / "x.bin"
    size = offset + sum(sizes) + 100
    source = np.random.default_rng(0).integers(0, 255, sum(sizes) + len(sizes), dtype=np.uint8)
    starts = np.cumsum([0, *sizes[:-1]]) + np.arange(len(sizes))  # a byte between two ranges belongs to none
    expected = bytearray(b"\1" * size)
    expected[offset : offset + sum(sizes)] = b"".join(
        source[a : a + n].tobytes() for a, n in zip(starts, sizes, strict=True)
    )
    with opened(path, size) as (_, made), pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct, "DIRECT_MIN", BLOCK)
        patch.setattr(direct, "STAGING_BYTES", 2 * BLOCK)
        patch.setattr(direct, "_local", threading.local())  # the block of the thread has another size
        made.put([int(source.ctypes.data + a) for a in starts], sizes, offset)
    assert path.read_bytes() == bytes(expected)


def test_a_file_system_that_refuses_a_direct_write_gets_plain_ones(tmp_path, monkeypatch):
    source = np.random.default_rng(0).integers(0, 255, 10 * BLOCK, dtype=np.uint8)
    plain, refused = syscalls.write_at, []
    monkeypatch.setattr(direct, "DIRECT_MIN", BLOCK)
    with opened(tmp_path / "x.bin", len(source)) as (file, made):

        def write_at(fd, *rest):
            if fd != file.fileno():
                refused.append(fd)
                raise OSError(errno.EINVAL, "Invalid argument")
            plain(fd, *rest)

        monkeypatch.setattr(syscalls, "write_at", write_at)
        made.put([source.ctypes.data], [len(source)], 0)
        made.put([source.ctypes.data], [len(source)], 0)
    assert len(refused) == 1  # the second range is not tried again
    assert (tmp_path / "x.bin").read_bytes() == source.tobytes()


def test_a_full_disk_is_an_error_of_a_direct_write(tmp_path, monkeypatch):
    source = np.zeros(10 * BLOCK, dtype=np.uint8)

    def write_at(fd, *rest):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(direct, "DIRECT_MIN", BLOCK)
    monkeypatch.setattr(syscalls, "write_at", write_at)
    with opened(tmp_path / "x.bin", len(source)) as (_, made), pytest.raises(OSError, match="No space left"):
        made.put([source.ctypes.data], [len(source)], 0)


@pytest.mark.parametrize("durable", [True, False])
def test_only_a_durable_save_of_a_large_file_writes_past_the_page_cache(tmp_path, monkeypatch, durable):
    written = []

    class Spy(DirectFile):
        def put(self, addresses, sizes, offset):
            written.append(sum(sizes))
            super().put(addresses, sizes, offset)

    monkeypatch.setattr(write_plan, "DirectFile", Spy)
    monkeypatch.setattr(write_plan, "DIRECT_FILE_MIN", 1 << 20)
    small, large = torch.rand(1000), torch.rand(1 << 20)
    path = tmp_path / "large.bin"
    with opened(path, 0):
        pass
    write_files(
        [
            FileWrite(tmp_path / "small.bin", [FileRange("small", small, 100)], direct=True),
            FileWrite(path, [FileRange("large", large, 100)], direct=True),
        ],
        durable=durable,
    )
    assert sum(written) == (large.nbytes if durable else 0)
    assert path.read_bytes()[100:] == large.numpy().tobytes()
    assert os.path.getsize(tmp_path / "small.bin") == 4100
