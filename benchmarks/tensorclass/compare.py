"""Compares tensorclasses with the reference and plain Python: ``python -m benchmarks.tensorclass.compare``.

Fields and construction are compared with a hand-written class over a dictionary, operations with the wrapped
tensordict, and a class definition with a plain dataclass. Every round runs the columns of a row one after another, for
a millisecond each, so that other work on the machine disturbs only some rounds; a cell is the minimum over the rounds.
The last lines name the rows that are furthest from their targets.
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
import subprocess
import sys
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from timeit import Timer
from typing import Any

import torch

import tensordict as reference
import tensordict_class
from benchmarks.core.operations import interleaved
from benchmarks.tensorclass.fields import NAMES, OPERATIONS, ByHand, body, record

MODES = ("default", "autocast", "nocast", "tensor_only", "frozen", "shadow")


@dataclass
class Row:
    """One statement for three namespaces: ours, the reference, and plain Python."""

    kind: str
    name: str
    statement: str
    ours: dict[str, Any]
    reference: dict[str, Any]
    plain: dict[str, Any]

    def timers(self) -> list[Timer]:
        names = (self.ours, self.reference, self.plain)
        return [Timer(self.statement, globals={"torch": torch, **known}) for known in names]


def rows() -> list[Row]:
    values = {name: torch.randn(3, 4) for name in NAMES}
    value = torch.randn(3, 4)
    found = []
    for mode in MODES:
        classes = [record(tensordict_class, mode), record(reference, mode), ByHand]
        made = [{"C": cls, "x": cls(**values, batch_size=[3]), "v": value, "values": values} for cls in classes]
        found.append(Row("read", f"read, {mode}", "x.field3", *made))
        if mode != "frozen":
            found.append(Row("write", f"write, {mode}", "x.field3 = v", *made))
        found.append(Row("construct", f"construct, {mode}", "C(**values, batch_size=[3])", *made))
    ours, theirs = (record(library)(**values, batch_size=[3]) for library in (tensordict_class, reference))
    for name, run in OPERATIONS.items():
        made = [{"run": run, "x": x} for x in (ours, theirs, ours._tensordict)]
        found.append(Row("operation", name, "run(x)", *made))
    define = [{"define": lambda library=library: record(library)} for library in (tensordict_class, reference)] + [
        {"define": lambda: dataclasses.dataclass(body())}
    ]
    found.append(Row("decorate", "decorate, 10 fields", "define()", *define))
    return found


def importing(statement: str, before: str, cache: str) -> float:
    """Measures an import in a new interpreter with cached byte code, in microseconds.

    Importing torch leaves a full garbage collection due, which the next allocation triggers, so it runs first.
    """
    compiled = f"sys.dont_write_bytecode = False; sys.pycache_prefix = {cache!r}"
    timed = f"t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    code = f"import {before}, gc, sys, time; gc.collect(); {compiled}; {timed}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout) * 1e6


def imports(rounds: int) -> list[list[float]]:
    cases = [
        ("import tensordict_class", "torch, tensordict_core"),
        ("import tensordict", "torch"),
        ("import tensordict_core", "torch"),
    ]
    times: list[list[float]] = [[] for _ in cases]
    with TemporaryDirectory() as cache:
        for _ in range(rounds + 1):
            for case, values in zip(cases, times, strict=True):
                values.append(importing(*case, cache))
    return [values[1:] for values in times]  # the first import compiles the byte code


def ratio(times: list[float], to: list[float]) -> float:
    return min(times) / min(to)


def line(name: str, times: list[list[float]]) -> str:
    mine, other, plain = times
    cells = [f"{min(values):.3f}" for values in times]
    return f"| {name} | {' | '.join(cells)} | {ratio(other, mine):.2f} | {ratio(mine, plain):.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--only", default="", help="run only rows whose names contain this text")
    options = parser.parse_args()
    print("| case | ours, µs | reference, µs | plain, µs | reference / ours | ours / plain |")
    print("|---|---:|---:|---:|---:|---:|")
    measured: dict[str, list[tuple[str, list[list[float]]]]] = {}
    for row in rows():
        if options.only in row.name:
            times = interleaved(row.timers(), options.rounds, 0.001)
            measured.setdefault(row.kind, []).append((row.name, times))
            print(line(row.name, times), flush=True)
    if options.only in "import":
        print(line("import (plain: core after torch)", imports(max(3, options.rounds // 20))), flush=True)
    print(f"\nMinimum of {options.rounds} rounds, 10 fields of 3 x 4, batch size 3, ", end="")
    print(f"Python {platform.python_version()}, torch {torch.__version__}.")
    for kind, target in (("read", 1.3), ("operation", 1.1)):
        if kind in measured:
            most, name = max((ratio(times[0], times[2]), name) for name, times in measured[kind])
            print(f"Highest ratio ours / plain of kind {kind}: {most:.2f} ({name}; target {target}).")
    for kind in ("read", "write", "construct"):
        if kind in measured:
            least, name = min((ratio(times[1], times[0]), name) for name, times in measured[kind])
            target = 1 if kind == "read" else 2
            print(f"Lowest ratio reference / ours of kind {kind}: {least:.2f} ({name}; target {target}).")
            fastest = min(min(times[1]) for _, times in measured[kind])
            slowest, name = max((min(times[0]), name) for name, times in measured[kind] if "autocast" not in name)
            print(
                f"  Fastest of the reference {fastest:.3f} µs; slowest of ours but autocast {slowest:.3f} µs ({name})."
            )


if __name__ == "__main__":
    main()
