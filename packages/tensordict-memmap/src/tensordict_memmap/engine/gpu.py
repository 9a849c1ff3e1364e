"""Copies between files and GPUs: each thread has a pinned block of host memory, and a stream for each GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import torch

from tensordict_memmap.engine.tuning import JOB_BYTES

_local = threading.local()


def finish_device_work(tensors: Iterable[torch.Tensor]) -> None:
    """Wait until the devices of tensors have computed their values."""
    # Other threads copy on streams of their own, which do not wait for the stream that computes.
    for device in {tensor.device for tensor in tensors if tensor.device.type == "cuda"}:
        torch.cuda.current_stream(device).synchronize()


def staging(device: torch.device) -> tuple[torch.Tensor, torch.cuda.Stream]:
    """Return the pinned block of this thread, of ``JOB_BYTES`` bytes, and its stream for a GPU."""
    streams = getattr(_local, "streams", None)
    if streams is None:
        streams = _local.streams = {}
        _local.pinned = torch.empty(JOB_BYTES, dtype=torch.uint8, pin_memory=True, device="cpu")
    stream = streams.get(device)
    if stream is None:
        stream = streams[device] = torch.cuda.Stream(device)
    return _local.pinned, stream


def from_gpu(chunk: torch.Tensor) -> torch.Tensor:
    """Copy a chunk of at most ``JOB_BYTES`` to the pinned block, while other threads write."""
    pinned, stream = staging(chunk.device)
    # A dtype conversion ran on the thread's current stream; finish_device_work waited for the caller's stream.
    stream.wait_stream(torch.cuda.current_stream(chunk.device))
    with torch.cuda.stream(stream):
        dense = chunk.resolve_conj().resolve_neg().contiguous()
        block = pinned[: dense.nbytes].view(dense.dtype).view(dense.shape)
        block.copy_(dense, non_blocking=True)
    stream.synchronize()
    return block
