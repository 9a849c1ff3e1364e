"""Distributed messages: many small leaves in one message, in one message per leaf, and by the reference.

Two processes on one machine use gloo. ``python -m benchmarks.core.distributed`` runs the variants in turn, round by
round, and prints medians; a round is a message there and back.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import tensordict
import tensordict_core

ROUNDS = {10: 30, 100: 30, 1000: 8}


def tensors(count: int) -> dict[str, torch.Tensor]:
    return {f"k{i}": torch.ones(16) for i in range(count)}


def exchange(rank: int, send: Callable[[], Any], recv: Callable[[], Any]) -> None:
    if rank:
        recv()
        send()
    else:
        send()
        recv()


def ways(count: int, peer: int) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """The functions that send and receive, by variant."""
    plain = tensors(count)
    ours = tensordict_core.TensorDict(tensors(count))
    theirs = tensordict.TensorDict(tensors(count))
    return {
        "a message a leaf": (
            lambda: [dist.send(leaf, peer) for leaf in plain.values()],
            lambda: [dist.recv(leaf, peer) for leaf in plain.values()],
        ),
        "ours": (lambda: ours.send(peer), lambda: ours.recv(peer)),
        "the reference": (lambda: theirs.send(peer), lambda: theirs.recv(peer)),
    }


def reductions(count: int) -> dict[str, Callable[[], Any]]:
    plain = tensors(count)
    ours = tensordict_core.TensorDict(tensors(count))
    return {
        "a message a leaf": lambda: [dist.all_reduce(leaf) for leaf in plain.values()],
        "ours": lambda: ours.all_reduce(dist.ReduceOp.MAX),
    }


def process(rank: int, store: str, out: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for count, rounds in ROUNDS.items():
        calls: dict[str, Callable[[], Any]] = {
            f"send {name}": (lambda send=send, recv=recv: exchange(rank, send, recv))
            for name, (send, recv) in ways(count, 1 - rank).items()
        }
        calls |= {f"all_reduce {name}": call for name, call in reductions(count).items()}
        times: dict[str, list[float]] = {name: [] for name in calls}
        for number in range(rounds + 2):
            for name, call in calls.items():
                dist.barrier()
                begun = time.perf_counter()
                call()
                if number >= 2:
                    times[name].append(time.perf_counter() - begun)
        if rank == 0:
            out.put((count, {name: statistics.median(found) for name, found in times.items()}))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    context = mp.get_context("fork")
    out = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=process, args=(rank, f"{folder}/store", out)) for rank in range(2)]
        for one in processes:
            one.start()
        for _ in ROUNDS:
            count, medians = out.get()
            for kind in ("send", "all_reduce"):
                ours = medians[f"{kind} ours"]
                for name, median in medians.items():
                    if name.startswith(kind):
                        print(f"{count:5} leaves  {name:30} {median * 1e3:8.3f} ms  {median / ours:6.2f} of ours")
        for one in processes:
            one.join()
    sys.exit(max(one.exitcode or 0 for one in processes))


if __name__ == "__main__":
    main()
