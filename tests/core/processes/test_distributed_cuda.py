"""Collectives over NCCL between GPUs, one process for each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tensordict_core import TensorDict, lazy_stack

pytestmark = pytest.mark.cuda

WORLD = min(torch.cuda.device_count(), 2) if torch.cuda.is_available() else 0


def _sample(value: float, device: str) -> TensorDict:
    def full(*shape: int) -> torch.Tensor:
        return torch.full(shape, value, device=device)

    lazy = lazy_stack([TensorDict({"q": full(n)}) for n in (1, 2)])
    return TensorDict({"a": full(4, 3), "n": {f"k{i}": full(4) for i in range(20)}, "lazy": lazy, "s": "text"})


def _holds(td: Any, value: float) -> bool:
    return all(bool((leaf == value).all()) and leaf.is_cuda for leaf in td._leaves())


def scenario(rank: int, world: int) -> None:
    """Run the checks of one process; a failure raises."""
    device = f"cuda:{rank}"
    td = _sample(rank + 1.0, device)
    td.all_reduce()
    assert _holds(td, sum(range(1, world + 1)))
    td = _sample(rank + 1.0, device)
    for transfer in td.all_reduce(dist.ReduceOp.MAX, async_op=True):
        transfer.wait()
    assert _holds(td, float(world))
    td = _sample(rank + 1.0, device)
    td.reduce(0)
    assert rank or _holds(td, sum(range(1, world + 1)))
    mine = _sample(rank + 5.0, device)
    got = mine.broadcast(0) if rank == 0 else TensorDict({}).broadcast(0, device=device)
    assert _holds(got, 5.0) and got["s"] == "text"
    everyone = _sample(float(rank), device).all_gather()
    assert [_holds(part, float(i)) for i, part in enumerate(everyone)] == [True] * world
    if world > 1:
        td = _sample(float(rank), device)
        td.send(0) if rank else td.recv(1)
        assert _holds(td, 1.0)
        td = _sample(float(rank + 3), device)
        td.isend(0) if rank else td.irecv(1)
        assert _holds(td, 4.0)


def main(rank: int, world: int, store: str) -> None:
    """Join the process group and run the scenario; this file runs as a program in each process."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        scenario(rank, world)
        torch.cuda.synchronize()
    finally:
        dist.destroy_process_group()


@pytest.mark.skipif(not WORLD, reason="there is no GPU")
def test_collectives_between_gpus(tmp_path: Path) -> None:
    command = [sys.executable, __file__]
    processes = [
        subprocess.Popen([*command, str(rank), str(WORLD), str(tmp_path / "store")], stderr=subprocess.PIPE, text=True)
        for rank in range(WORLD)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
