"""Processes: items that go through map, map_iter, a DataLoader, send and recv, and a queue.

``python -m benchmarks.core.processes`` prints items per second of ours over those of the reference and of plain tuples
of tensors. Times are processor times of all processes involved, so that other programs of the machine change them
little; ``--wall`` takes the time on the clock. The contenders run in turn, and each cell is from
medians over rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import platform
import random
import resource
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.contenders import NotThereError, core, reference

SIZES = {"1 KiB": 1 << 10, "100 KiB": 100 << 10, "10 MiB": 10 << 20}
NAMES = ("obs", "action", "reward")
Run = Callable[[], Any]


def count_of(size: int) -> int:
    """How many items a round moves."""
    return 64 if size < 1 << 20 else 8


def tensors(size: int, *lead: int) -> tuple[Tensor, ...]:
    """The tensors of an item, or of several: three of together ``size`` bytes an item."""
    most = size // 4 - 16
    return tuple(torch.ones(*lead, n) for n in (most, 12, 4))


def contenders(chosen: Sequence[str] = ("ours", "reference", "plain")) -> dict[str, Callable[..., Any]]:
    """What makes items of each contender; without the reference where it is not installed."""
    found: dict[str, Callable[..., Any]] = {}
    for name in chosen:
        if name == "plain":
            found[name] = tensors
            continue
        with contextlib.suppress(NotThereError):
            library = core() if name == "ours" else reference()
            found[name] = lambda size, *lead, library=library: library.TensorDict(
                dict(zip(NAMES, tensors(size, *lead), strict=True)), list(lead)
            )
    return found


def same(item: Any) -> Any:
    return item


class Channel:
    """One way of items through processes. `runs` has a function for each contender that moves a round of items."""

    def __init__(self, makers: dict[str, Callable[..., Any]], size: int) -> None:
        self.makers = makers
        self.size = size
        self.count = count_of(size)
        self.pids: list[int] = []

    def runs(self) -> dict[str, Run]:
        return {name: self.run_of(name) for name in self.makers}

    def run_of(self, name: str) -> Run:
        raise NotImplementedError(name)

    def close(self) -> None:
        """Ends the processes."""


class Map(Channel):
    """Each item is a chunk for a pool of two processes; results are joined."""

    def __init__(self, makers: dict[str, Callable[..., Any]], size: int) -> None:
        super().__init__(makers, size)
        self.pool = mp.get_context("fork").Pool(2, torch.set_num_threads, (1,))
        self.pids = [process.pid for process in self.pool._pool]

    def run_of(self, name: str) -> Run:
        items = self.makers[name](self.size, self.count)
        if name == "plain":
            return lambda: [torch.cat(column) for column in zip(*self.results(items), strict=True)]
        return lambda: items.map(same, 0, chunksize=1, pool=self.pool)

    def results(self, items: tuple[Tensor, ...]) -> Iterator[Any]:
        return self.pool.imap(same, list(zip(*(column.split(1) for column in items), strict=True)))

    def close(self) -> None:
        self.pool.terminate()
        self.pool.join()


class MapInNewProcesses(Channel):
    """As for map, in two processes that each call starts and ends."""

    def run_of(self, name: str) -> Run:
        items = self.makers[name](self.size, self.count)
        if name != "plain":
            return lambda: items.map(same, 0, chunksize=1, num_workers=2, mp_start_method="fork")

        def run() -> None:
            with mp.get_context("fork").Pool(2, torch.set_num_threads, (1,)) as pool:
                rows = list(zip(*(column.split(1) for column in items), strict=True))
                [torch.cat(column) for column in zip(*pool.imap(same, rows), strict=True)]

        return run


class MapIter(Map):
    """As for map; results are read one by one."""

    def run_of(self, name: str) -> Run:
        items = self.makers[name](self.size, self.count)
        if name == "plain":
            return lambda: [None for _ in self.results(items)]
        return lambda: [None for _ in items.map_iter(same, 0, chunksize=1, pool=self.pool)]


class Collate(Channel):
    """A DataLoader stacks items to batches of eight, in this process."""

    workers = 0

    def __init__(self, makers: dict[str, Callable[..., Any]], size: int) -> None:
        super().__init__(makers, size)
        if not self.workers and size < 1 << 20:
            self.count *= 16  # a batch takes microseconds

    def run_of(self, name: str) -> Run:
        items = [self.makers[name](self.size) for _ in range(self.count)]
        collate = None if name == "plain" else core().collate if name == "ours" else torch.stack
        loader: Any = DataLoader(
            items,
            8,
            collate_fn=collate,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            multiprocessing_context="fork" if self.workers else None,
        )
        if self.workers:
            iter(loader)
            self.pids += [worker.pid for worker in loader._iterator._workers]
        return lambda: [None for _ in loader]


class CollateInWorkers(Collate):
    """As for collate, in two workers."""

    workers = 2


class Peer(Channel):
    """Another process takes the items that this one sends."""

    def __init__(self, makers: dict[str, Callable[..., Any]], size: int) -> None:
        super().__init__(makers, size)
        context = mp.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.prepare(context)
        self.process = context.Process(target=self.serve, args=(theirs,), daemon=True)
        self.process.start()
        self.pids = [self.process.pid]
        self.join(0)

    def prepare(self, context: Any) -> None:
        """Makes what both processes use."""

    def join(self, rank: int) -> None:
        """Runs first in each of the processes."""

    def serve(self, pipe: Any) -> None:
        torch.set_num_threads(1)
        self.join(1)
        takes = {name: self.taker(name) for name in self.makers}
        while name := pipe.recv():
            for _ in range(self.count):
                takes[name]()
            pipe.send(None)

    def taker(self, name: str) -> Run:
        raise NotImplementedError(name)

    def put_of(self, name: str, item: Any) -> Run:
        raise NotImplementedError(name)

    def run_of(self, name: str) -> Run:
        put = self.put_of(name, self.makers[name](self.size))

        def run() -> None:
            self.pipe.send(name)
            for _ in range(self.count):
                put()
            self.pipe.recv()

        return run

    def close(self) -> None:
        self.pipe.send("")
        self.process.join()


class Queue(Peer):
    """Items go through a queue of ``torch.multiprocessing``."""

    def prepare(self, context: Any) -> None:
        self.queue = context.Queue()

    def taker(self, name: str) -> Run:
        return lambda: self.queue.get()

    def put_of(self, name: str, item: Any) -> Run:
        return lambda: self.queue.put(item)


class Send(Peer):
    """Items are sent by ``torch.distributed`` with gloo, and received in place."""

    def prepare(self, context: Any) -> None:
        self.folder = tempfile.TemporaryDirectory()

    def join(self, rank: int) -> None:
        dist.init_process_group("gloo", init_method=f"file://{self.folder.name}/store", rank=rank, world_size=2)

    def taker(self, name: str) -> Run:
        room = self.makers[name](self.size)
        if name == "plain":
            return lambda: [dist.recv(tensor, 0) for tensor in room]
        return lambda: room.recv(0)

    def put_of(self, name: str, item: Any) -> Run:
        if name == "plain":
            return lambda: [dist.send(tensor, 1) for tensor in item]
        return lambda: item.send(1)

    def close(self) -> None:
        super().close()
        dist.destroy_process_group()
        self.folder.cleanup()


CHANNELS: dict[str, type[Channel]] = {
    "map": Map,
    "map, new processes": MapInNewProcesses,
    "map_iter": MapIter,
    "collate": Collate,
    "collate, 2 workers": CollateInWorkers,
    "queue": Queue,
    "send, recv": Send,
}


def processor_time(pids: Sequence[int]) -> float:
    """The seconds that this process, its ended children and other processes have run."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    clocks = [((~pid) << 3) | 2 for pid in pids]  # the clock of another process, as clock_getcpuclockid of Linux
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(map(time.clock_gettime, clocks))


def rates(channel: Channel, rounds: int, wall: bool = False) -> dict[str, float]:
    """The items per second of each contender, from the median of its rounds."""
    try:
        runs = channel.runs()
        for run in runs.values():
            run()
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(rounds):
            for name, run in random.sample(list(runs.items()), len(runs)):
                start = time.perf_counter() if wall else processor_time(channel.pids)
                run()
                end = time.perf_counter() if wall else processor_time(channel.pids)
                taken[name].append(end - start)
    finally:
        channel.close()
    return {name: channel.count / median(seconds) for name, seconds in taken.items()}


class Processes:
    """The table as numbers that asv keeps: ours over another contender, above 1 where ours is faster."""

    params = (tuple(CHANNELS), tuple(SIZES))
    param_names = ("channel", "item")
    unit = "ratio"
    timeout = 300

    def track_ours_over_plain(self, channel: str, item: str) -> float:
        return self.ours_over("plain", channel, item)

    def track_ours_over_reference(self, channel: str, item: str) -> float:
        return self.ours_over("reference", channel, item)

    def ours_over(self, other: str, channel: str, item: str) -> float:
        torch.set_num_threads(1)
        found = rates(CHANNELS[channel](contenders(["ours", other]), SIZES[item]), rounds=9)
        return found["ours"] / found[other]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--only", default="", help="run only channels whose names start with this text")
    parser.add_argument("--wall", action="store_true", help="take the time on the clock instead of processor time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # `map` without a generator warns of a later default
    print("| channel | item | ours, items/s | ours / reference | ours / plain |")
    print("|---|---:|---:|---:|---:|")
    for name, channel in CHANNELS.items():
        if not name.startswith(options.only):
            continue
        for label, size in SIZES.items():
            found = rates(channel(contenders(), size), options.rounds, options.wall)
            ours = found.pop("ours")
            cells = [f"{ours / found[other]:.2f}" if other in found else "" for other in ("reference", "plain")]
            print(f"| {name} | {label} | {ours:,.0f} | {' | '.join(cells)} |", flush=True)
    kind = "clock" if options.wall else "processor"
    print(f"\nMedians of {options.rounds} rounds by {kind} time, Python {platform.python_version()}, ", end="")
    print(f"torch {torch.__version__}.")


if __name__ == "__main__":
    main()
