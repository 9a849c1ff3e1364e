"""Multiprocessing: instances keep their class and their non-tensor fields between processes."""

from __future__ import annotations

from typing import Any

import torch

from tensordict_class import TensorClass


class Sample(TensorClass):
    x: torch.Tensor
    label: str = "none"
    extra: Any = None


def double(sample: Sample) -> Sample:
    assert type(sample) is Sample and sample.label == "text"
    return sample * 2


def test_map_sends_instances_to_workers_and_back():
    out = Sample(torch.arange(4.0), "text", batch_size=[4]).map(double, num_workers=1, chunksize=2)
    assert type(out) is Sample and out.x.tolist() == [0.0, 2.0, 4.0, 6.0] and out.label == "text"


def send(rank: int, store: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    if rank == 0:
        Sample(torch.arange(3.0), "sent", batch_size=[3]).send(1)
    else:
        sample = Sample(torch.zeros(3), "sent", batch_size=[3])
        sample.recv(0)
        assert type(sample) is Sample and sample.x.tolist() == [0.0, 1.0, 2.0] and sample.label == "sent"
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_instances_are_sent_between_processes(tmp_path):
    torch.multiprocessing.start_processes(send, (str(tmp_path / "store"),), nprocs=2, start_method="fork")
