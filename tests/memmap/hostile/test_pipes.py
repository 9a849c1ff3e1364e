"""Pipes and devices: loads do not wait for them, saves do not replace them."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import (
    MemoryMappedTensor,
    convert,
    is_memmap_archive,
    pack_memmap,
    refresh_archive_checksums,
    to_safetensors,
    unpack_memmap,
)


@pytest.fixture
def pipe(tmp_path):
    """A pipe that nobody writes to, and an alarm for what waits for it."""

    def give_up(*_):
        raise TimeoutError("waits for a pipe")

    os.mkfifo(tmp_path / "pipe")
    earlier = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(20)
    yield tmp_path / "pipe"
    signal.alarm(0)
    signal.signal(signal.SIGALRM, earlier)
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize(
    "read",
    [
        lambda path: unpack_memmap(path, path.parent / "out"),
        TensorDict.load,
        TensorDict.from_consolidated,
        refresh_archive_checksums,
        lambda path: MemoryMappedTensor.from_filename(path, torch.float32, (3,)),
        lambda path: convert(path, path.parent / "out.tdz"),
    ],
    ids=["unpack", "load", "consolidated", "refresh", "tensor", "convert"],
)
def test_a_pipe_is_not_read(pipe, read):
    assert not is_memmap_archive(pipe)
    with pytest.raises(ValueError, match=r"pipe|regular file|consolidated"):
        read(pipe)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize(
    "write",
    [
        lambda td, path: td.save(path, format="safetensors"),
        lambda td, path: td.save(path, archive=True),
        lambda td, path: td.save(path, archive=True, compression="deflate"),
        lambda td, path: td.save(path),
        lambda td, path: td.consolidate(path),
        to_safetensors,
        lambda td, path: MemoryMappedTensor.from_tensor(td["a"], filename=path, existsok=True),
        lambda td, path: MemoryMappedTensor.from_tensor(td["a"][:0], filename=path, existsok=True),
        lambda td, path: pack_memmap(td.memmap(path.parent / "d").saved_path, path),
    ],
    ids=["safetensors", "archive", "compressed", "tree", "consolidated", "function", "tensor", "empty", "pack"],
)
def test_a_pipe_is_not_replaced(pipe, write):
    with pytest.raises(OSError, match="pipe"):
        write(TensorDict({"a": torch.ones(3)}), pipe)


def test_a_device_is_not_replaced(tmp_path, monkeypatch):
    found = os.stat(os.devnull)
    with pytest.raises(FileExistsError, match="device"):
        TensorDict({"a": torch.ones(3)}).save(os.devnull, format="safetensors")
    assert os.stat(os.devnull) == found


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_folder_with_a_pipe_in_it_is_not_packed_without_it(pipe):
    folder = pipe.parent / "d"
    TensorDict({"a": torch.ones(3)}).save(folder)
    (folder / "a.memmap").unlink()
    os.mkfifo(folder / "a.memmap")
    with pytest.raises(ValueError, match=r"a\.memmap is a pipe"):
        pack_memmap(folder, pipe.parent / "x.tdz")
