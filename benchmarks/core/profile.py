"""Profiles operations: ``python -m benchmarks.core.profile``.

A row is one operation on ten leaves: its total time, the time of the torch calls that it makes, run by a loop in C, and
the time of a plain loop over a dictionary; the overhead of the package is the rest of the total. All are CPU times of
this thread, medians of rounds in which the columns run one after another. A second table compares pairs of
implementations of the same task.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from itertools import repeat
from statistics import median
from timeit import Timer
from typing import Any, NamedTuple

import torch

from benchmarks.core.operations import interleaved
from tensordict_core import TensorDict, lazy_stack


class Part(NamedTuple):
    """An operation, the same on a dictionary, and the torch calls that it makes."""

    name: str
    whole: Callable[[], Any]
    plain: Callable[[], Any]
    calls: Callable[[], Iterable[Any]]


def parts(leaves: int) -> list[Part]:
    """The rows, on ``leaves`` tensors of ``[3, 4]``."""
    source = {f"key{i}": torch.randn(3, 4) for i in range(leaves)}
    td, other = TensorDict(source, [3]), TensorDict(source, [3]).clone()
    mine, theirs = list(source.values()), list(other.values())
    many = [TensorDict(source, [3]).clone() for _ in range(8)]
    plain_many = [dict(one.items()) for one in many]
    columns = [[one[key] for one in plain_many] for key in source]
    shape, size = torch.Size([3, 1, 4]), torch.float64
    return [
        Part(
            "td + td",
            lambda: td + other,
            lambda: {key: leaf + other[key] for key, leaf in source.items()},
            lambda: torch._foreach_add(mine, theirs),
        ),
        Part(
            "td == td",
            lambda: td == other,
            lambda: {key: leaf == other[key] for key, leaf in source.items()},
            lambda: list(map(torch.eq, mine, theirs)),
        ),
        Part(
            "apply(sin)",
            lambda: td.apply(torch.sin),
            lambda: {key: torch.sin(leaf) for key, leaf in source.items()},
            lambda: list(map(torch.sin, mine)),
        ),
        Part(
            "sum(0)",
            lambda: td.sum(0),
            lambda: {key: leaf.sum(0) for key, leaf in source.items()},
            lambda: list(map(torch.sum, mine, repeat(0))),
        ),
        Part(
            "reshape",
            lambda: td.reshape(3, 1),
            lambda: {key: leaf.reshape(3, 1, 4) for key, leaf in source.items()},
            lambda: list(map(torch.reshape, mine, repeat(shape))),
        ),
        Part(
            "td[0]",
            lambda: td[0],
            lambda: {key: leaf[0] for key, leaf in source.items()},
            lambda: [leaf[0] for leaf in mine],
        ),
        Part(
            "stack 8",
            lambda: torch.stack(many),
            lambda: {key: torch.stack([one[key] for one in plain_many]) for key in source},
            lambda: list(map(torch.stack, columns)),
        ),
        Part(
            "to(float64)",
            lambda: td.to(size),
            lambda: {key: leaf.to(size) for key, leaf in source.items()},
            lambda: [leaf.type(size) for leaf in mine],
        ),
    ]


class Ways(NamedTuple):
    """Two implementations of the same task."""

    task: str
    slow: str
    run_slow: Callable[[], Any]
    fast: str
    run_fast: Callable[[], Any]


def ways(leaves: int) -> list[Ways]:
    """The pairs, on ``leaves`` tensors of ``[256, 4]``."""
    rows = 256
    source = {f"key{i}": torch.randn(rows, 4) for i in range(leaves)}
    td, target = TensorDict(source, [rows]), TensorDict(source, [rows]).clone()
    half = leaves // 2
    nested = TensorDict({name: dict(list(source.items())[half:]) for name in ("a", "b", "c", "d")}, [rows])
    flat = nested.flatten_keys(".")
    parts = td.unbind(0)
    mask = torch.arange(rows) % 2 == 0
    at = mask.nonzero()[:, 0]

    def fill() -> None:
        for i, part in enumerate(parts):
            target[i] = part

    return [
        Ways(
            "read all rows one by one",
            "`[td[i] for i in range(256)]`",
            lambda: [td[i] for i in range(rows)],
            "`td.unbind(0)`",
            lambda: td.unbind(0),
        ),
        Ways(
            "combine 256 rows",
            "`target[i] = row` for each row",
            fill,
            "`torch.stack(rows)`",
            lambda: torch.stack(parts),
        ),
        Ways(
            "combine 256 rows and read few entries",
            "`torch.stack(rows)`",
            lambda: torch.stack(parts),
            "`lazy_stack(rows)`",
            lambda: lazy_stack(parts),
        ),
        Ways(
            "select the same half of the rows repeatedly",
            "`td[mask]`",
            lambda: td[mask],
            "`td[numbers]`",
            lambda: td[at],
        ),
        Ways("select every second row", "`td[numbers]`", lambda: td[at], "`td[::2]`", lambda: td[::2]),
        Ways(
            "add a number",
            "`td.apply(lambda leaf: leaf + 1)`",
            lambda: td.apply(lambda leaf: leaf + 1),
            "`td + 1`",
            lambda: td + 1,
        ),
        Ways("compute the sine", "`td.apply(torch.sin)`", lambda: td.apply(torch.sin), "`td.sin()`", lambda: td.sin()),
        Ways("add in place", "`td + 1`", lambda: td + 1, "`td.add_(1)`", lambda: target.add_(1)),
        Ways(
            "read two entries of a row",
            "`td[0].select('key0', 'key1')`",
            lambda: td[0].select("key0", "key1"),
            "`td.select('key0', 'key1')[0]`",
            lambda: td.select("key0", "key1")[0],
        ),
        Ways("read a row of four nodes", "`nested[0]`", lambda: nested[0], "`flat[0]`", lambda: flat[0]),
        Ways(
            "read a nested entry",
            "`nested['a', 'key9']`",
            lambda: nested["a", f"key{leaves - 1}"],
            "`flat['a.key9']`",
            lambda: flat[f"a.key{leaves - 1}"],
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--leaves", type=int, default=10)
    options = parser.parse_args()
    print("| operation | torch calls / total | total / plain loop | overhead per leaf, µs |")
    print("|---|---:|---:|---:|")
    for part in parts(options.leaves):
        timers = [Timer(run, timer=time.thread_time) for run in (part.whole, part.plain, part.calls)]
        whole, plain, calls = map(median, interleaved(timers, options.rounds, 0.002))
        overhead = (whole - calls) / options.leaves
        print(f"| `{part.name}` | {calls / whole:.2f} | {whole / plain:.2f} | {overhead:.2f} |", flush=True)
    print("\n| task | code | faster code | times as fast |")
    print("|---|---|---|---:|")
    for way in ways(options.leaves):
        timers = [Timer(run, timer=time.thread_time) for run in (way.run_slow, way.run_fast)]
        slow, fast = map(median, interleaved(timers, options.rounds, 0.002))
        print(f"| {way.task} | {way.slow} | {way.fast} | {slow / fast:.1f} |", flush=True)


if __name__ == "__main__":
    main()
