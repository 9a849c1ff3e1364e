"""Kills: a process that dies while it saves a delta leaves the earlier delta or the new one, whole, and the base."""

from __future__ import annotations

import os
import random
import time

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import load_memmap, save_delta
from tensordict_memmap.engine import syscalls

pytestmark = pytest.mark.skipif(not syscalls.POSIX, reason="children are forked and killed")

ROUNDS = [pytest.param(6, id="6 kills"), pytest.param(200, id="200 kills", marks=pytest.mark.long)]


def content(version):
    td = TensorDict({f"leaf{i}": torch.zeros(50_000 * i + 1, dtype=torch.int32) for i in range(5)})
    for leaf in td.values():
        leaf[:: 1 + version % 3] = version
    return td


def save_versions(path, base):
    version = 1
    while True:
        save_delta(content(version), path, base=base, block_size=256)
        version += 1


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_killed_save_of_a_delta_leaves_a_whole_one(tmp_path, fork, rounds):
    base, path = str(tmp_path / "base"), str(tmp_path / "d.safetensors")
    content(0).save(base, checksum=True)
    save_delta(content(0), path, base=base)
    for _ in range(rounds):
        child = fork(save_versions, path, base)
        time.sleep(random.uniform(0, 0.05))
        child.kill()
        loaded = load_memmap(path, verify="full")
        version = int(loaded["leaf0"][0])
        assert all(torch.equal(loaded[key], leaf) for key, leaf in content(version).items())
    load_memmap(base, verify="full")
    save_delta(content(1), path, base=base)
    assert sorted(os.listdir(tmp_path)) == ["base", "d.safetensors"]
