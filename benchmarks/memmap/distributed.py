"""Distributed checkpoints: saves and loads by ranks, against ``torch.distributed.checkpoint`` of the same torch.

The ranks run on one machine over gloo. ``python -m benchmarks.memmap.distributed`` runs all variants in turn, round by
round, in the same processes, and prints medians of the slowest rank and ratios. ``--megabytes`` is the size of the
whole checkpoint, ``--folder`` where it is written, ``--plan`` prints how long the planner takes for 100,000 leaves, and
``--plan-dcp`` the same for ``TensorDictWriter``, whose plans are DCP's.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.tensor import DTensor, Shard, init_device_mesh

from tensordict_core import TensorDict
from tensordict_memmap import TensorDictReader, TensorDictWriter

LAYERS = 16


def sharded(megabytes: int, mesh: Any, dim: int) -> dict[str, DTensor]:
    """The tensors of a model of equal layers, each sharded over all ranks along a dimension."""
    count = mesh.size()
    columns = 2048
    rows = (megabytes << 20) // LAYERS // columns // 4 // (2 * count) * 2 * count
    size = [rows, columns]
    size[dim] //= count
    return {
        f"layers.{n}.weight": DTensor.from_local(torch.rand(size), mesh, [Shard(dim)], run_check=False)
        for n in range(LAYERS)
    }


def timed(work: Callable[[], Any]) -> float:
    """The seconds of the slowest rank; what earlier variants left in the page cache is on the disk before."""
    if dist.get_rank() == 0:
        os.sync()
    dist.barrier()
    start = time.perf_counter()
    work()
    spent = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    dist.all_reduce(spent, dist.ReduceOp.MAX)
    return float(spent)


def ways(folder: str, tensors: dict[str, DTensor], other: dict[str, DTensor]) -> dict[str, Callable[[], Any]]:
    td, across = TensorDict(tensors), TensorDict(other)
    plain = [leaf.to_local() for leaf in tensors.values()]
    if not held:
        held.extend(
            map(torch.ones_like, plain)
        )  # once, so that a copy takes no page faults; nor does a background save
    mapping = dict.fromkeys(tensors, 1)

    def hf() -> None:
        writer = dcp.HuggingFaceStorageWriter(
            f"{folder}/hf", fqn_to_index_mapping=mapping, save_distributed=True, enable_consolidation=True
        )
        dcp.save(dict(tensors), storage_writer=writer)

    def dcp_save(sync: bool) -> None:
        dcp.save(dict(tensors), storage_writer=dcp.FileSystemWriter(f"{folder}/dcp", sync_files=sync, overwrite=True))

    def copy() -> None:
        for one, two in zip(held, plain, strict=True):
            one.copy_(two)

    return {
        "save, ours": lambda: td.save(f"{folder}/ours.safetensors"),
        "save, ours as DCP's storage": lambda: dcp.save(
            dict(tensors), storage_writer=TensorDictWriter(f"{folder}/storage.safetensors")
        ),
        "save, DCP": lambda: dcp_save(False),
        "save, DCP to safetensors, consolidated": hf,
        "durable save, ours": lambda: td.save(f"{folder}/durable.safetensors", durable=True),
        "durable save, DCP": lambda: dcp_save(True),
        "load, ours": lambda: td.load_(f"{folder}/ours.safetensors"),
        "load, ours as DCP's storage": lambda: dcp.load(
            dict(tensors), storage_reader=TensorDictReader(f"{folder}/storage.safetensors")
        ),
        "load, DCP": lambda: dcp.load(dict(tensors), checkpoint_id=f"{folder}/dcp"),
        "load on another mesh, ours": lambda: across.load_(f"{folder}/ours.safetensors"),
        "load on another mesh, ours as DCP's storage": lambda: dcp.load(
            dict(other), storage_reader=TensorDictReader(f"{folder}/storage.safetensors")
        ),
        "load on another mesh, DCP": lambda: dcp.load(dict(other), checkpoint_id=f"{folder}/dcp"),
        "copy to host memory": copy,
        "stall of a background save": lambda: pending.append(td.save(f"{folder}/early", return_early=True)),
    }


pending: list[Any] = []
held: list[torch.Tensor] = []


def worker(rank: int, count: int, port: int, folder: str, megabytes: int, rounds: int, only: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=count)
    mesh = init_device_mesh("cpu", (count,))
    tensors, other = sharded(megabytes, mesh, 0), sharded(megabytes, mesh, 1)
    found: dict[str, list[float]] = {}
    for _ in range(rounds + 1):  # the first round warms up
        for name, work in ways(folder, tensors, other).items():
            if not re.search(only, name):
                continue
            if "consolidated" in name and rank == 0:
                shutil.rmtree(f"{folder}/hf", ignore_errors=True)
            found.setdefault(name, []).append(timed(work))
            while pending:
                pending.pop().result()
    TensorDict(tensors).save(f"{folder}/ours.safetensors")
    if rank == 0:
        from tensordict_memmap.distributed.load import bytes_read

        own = sum(leaf.to_local().nbytes for leaf in tensors.values())
        before = bytes_read.nbytes
        TensorDict(tensors).load_(f"{folder}/ours.safetensors")
        report(found, (bytes_read.nbytes - before) / own)
    dist.barrier()
    dist.destroy_process_group()


BARS = [
    ("save, ours", "save, DCP", 2.0),
    ("save, ours", "save, DCP to safetensors, consolidated", 4.0),
    ("save, ours as DCP's storage", "save, DCP", 2.0),
    ("save, ours as DCP's storage", "save, DCP to safetensors, consolidated", 4.0),
    ("durable save, ours", "durable save, DCP", 1.3),
    ("load, ours", "load, DCP", 4.0),
    ("load, ours as DCP's storage", "load, DCP", 4.0),
    ("load on another mesh, ours as DCP's storage", "load on another mesh, DCP", 3.0),
    ("load on another mesh, ours", "load on another mesh, DCP", 3.0),
]


def report(found: dict[str, list[float]], read: float) -> None:
    medians = {name: statistics.median(times[1:]) for name, times in found.items()}
    for name, seconds in medians.items():
        print(f"{name:45} {seconds * 1e3:9.1f} ms  (least {min(found[name][1:]) * 1e3:.1f})")
    for ours, theirs, bar in BARS:
        if ours in medians and theirs in medians:
            least = min(found[theirs][1:]) / min(found[ours][1:])
            print(f"{theirs} / {ours}: {medians[theirs] / medians[ours]:.2f}, of the least {least:.2f} (target {bar})")
    if copy := medians.get("copy to host memory"):
        if stall := medians.get("stall of a background save"):
            print(f"stall / copy: {stall / copy:.2f} (target at most 1.2)")
        if load := medians.get("load, ours"):
            print(f"load, ours / copy: {load / copy:.2f} (1 is the speed of memory)")
    print(f"bytes read / bytes that the rank holds: {read:.3f} (target at most 1.05)")


# --- the planner


def plan(leaves: int, ranks: int) -> tuple[float, float, int]:
    """Seconds of processor time of one rank to plan, and of the coordinator; the bytes of messages."""
    from tensordict_memmap.distributed.assign import assign
    from tensordict_memmap.distributed.plan import NO_NAMES, Box, ShardPlan, whole

    messages, spent = [], 0.0
    for rank in range(ranks):
        start = time.process_time()
        made = ShardPlan()
        for n in range(leaves):
            kind = n % 10
            if kind == 9:
                made.add(f"model.layers.{n // 10}.norm", torch.float32, (4096,), [whole((4096,))])
                continue
            rows = ranks * (kind + 1)
            box = Box((rank * (kind + 1), 0), (kind + 1, 64))
            made.add(f"model.layers.{n // 10}.weight{kind}", torch.bfloat16, (rows, 64), [box])
        messages.append(made.dumps(names=not rank))
        spent = time.process_time() - start
    start = time.process_time()
    first = ShardPlan.loads(messages[0])
    names = {NO_NAMES: first.names}
    assignment = assign([first, *(ShardPlan.loads(message, names) for message in messages[1:])])
    sent = sum(map(len, messages)) + sum(len(share.dumps()) for share in assignment.shares)
    return spent, time.process_time() - start, sent


def plan_dcp(leaves: int, ranks: int) -> tuple[float, float, float]:
    """Seconds of processor time: of the coordinator to plan and to finish, and of a load to describe the file."""
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties
    from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
    from torch.distributed.checkpoint.storage import WriteResult

    plans = []
    gc.disable()  # millions of items are made, and none is garbage
    for rank in range(ranks):
        forms = []
        for kind in range(10):
            offset, size = torch.Size((rank, 0)), torch.Size((1, kind + 1))
            chunk = ChunkStorageMetadata(offset, size)
            data = TensorWriteData(chunk, TensorProperties(torch.bfloat16), torch.Size((ranks, kind + 1)))
            forms.append((offset, data))
        items, paths = [], {}
        for n in range(leaves):
            offset, data = forms[n % 10]
            name = f"model.layers.{n // 10}.weight{n % 10}"
            items.append(WriteItem(MetadataIndex(name, offset), WriteItemType.SHARD, tensor_data=data))
            paths[name] = ("model", name[6:])
        if not rank:
            items += [WriteItem(MetadataIndex(f"lr{n}"), WriteItemType.BYTE_IO) for n in range(leaves // 100)]
        plans.append(SavePlan(items, storage_data="a host", planner_data=paths))
    gc.enable()
    gc.freeze()
    folder = tempfile.mkdtemp()
    try:
        writer = TensorDictWriter(f"{folder}/x.safetensors")
        writer.set_up_storage_writer(True)
        start = time.process_time()
        made = writer.prepare_global_plan(plans)
        middle = time.process_time()
        results = [WriteResult(MetadataIndex(f"lr{n}"), 4, b"0.01") for n in range(leaves // 100)]
        writer.finish(Metadata({}), [results])
        end = time.process_time()
        reader = TensorDictReader(f"{folder}/x.safetensors")
        assert len(reader.read_metadata().state_dict_metadata) == leaves + leaves // 100
        assert len(made) == ranks
        return middle - start, end - middle, time.process_time() - end
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder")
    parser.add_argument("--only", default="", help="a regular expression of the variants to run")
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--plan-dcp", action="store_true")
    options = parser.parse_args()
    if options.plan:
        for leaves, ranks in [(12_500, 64), (25_000, 64), (50_000, 64), (100_000, 64), (100_000, 16), (10_000, 1000)]:
            own, all_ranks, sent = plan(leaves, ranks)
            print(
                f"{leaves:7} leaves x {ranks:4} ranks: {own:.2f} s on each rank, {all_ranks:.2f} s on the coordinator, "
                f"{sent / 1e6:.1f} MB of messages"
            )
        return
    if options.plan_dcp:
        for leaves, ranks in [(12_500, 64), (25_000, 64), (50_000, 64), (100_000, 64)]:
            first, last, load = plan_dcp(leaves, ranks)
            gc.unfreeze()
            print(
                f"{leaves:7} leaves x {ranks:4} ranks: prepare_global_plan {first:.2f} s, finish {last:.2f} s, "
                f"read_metadata {load:.2f} s"
            )
        return
    folder = tempfile.mkdtemp(dir=options.folder)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port
    del store
    try:
        arguments = (options.ranks, port, folder, options.megabytes, options.rounds, options.only)
        mp.spawn(worker, arguments, nprocs=options.ranks)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
