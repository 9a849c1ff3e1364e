"""Compiled calls: ten layers, and training steps of a policy, beside plain dictionaries: ``-m benchmarks.nn.compiled``.

``python -m benchmarks.nn.compiled`` prints, for each program of `benchmarks.nn.policy`, how often it is compiled again
in 1,000 steps, and the processor time of a step and of its compilation, divided by that of the same program on plain
dictionaries. Each library runs in a process of its own, in turn with the plain program, because the reference changes
``torch.vmap`` when it is imported.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch._functorch.config as functorch
import torch._inductor.config as inductor
from torch import nn

from benchmarks.contenders import core, found, reference
from benchmarks.nn.policy import PROGRAMS, library, train


class OnDictionary(nn.Module):
    """Reads and writes entries like a sequence: the least overhead of a graph that takes and returns a container."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, entries: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        for i, layer in enumerate(self.layers):
            entries[f"h{i + 1}"] = layer(entries[f"h{i}"])
        return entries


class OnTensordict(OnDictionary):
    """The same by hand on a tensordict: the overhead without modules."""

    def forward(self, td: Any) -> Any:
        for i, layer in enumerate(self.layers):
            td.set(f"h{i + 1}", layer(td.get(f"h{i}")))
        return td


class Step(nn.Module):
    """One of these layers in its own module: the overhead of modules around layers."""

    def __init__(self, layer: nn.Linear, in_key: str, out_key: str) -> None:
        super().__init__()
        self.layer, self.in_key, self.out_key = layer, in_key, out_key

    def forward(self, td: Any) -> Any:
        return td.set(self.out_key, self.layer(td.get(self.in_key)))


class OnTensors(nn.Module):
    """Returns the values that the others write."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        results = []
        for layer in self.layers:
            x = layer(x)
            results.append(x)
        return results


class Compiled:
    """Ten linear layers, compiled in one graph; every result is kept."""

    timeout = 300

    def setup(self) -> None:
        layers = [nn.Linear(8, 8) for _ in range(10)]
        self.x = torch.randn(4, 8)

        def sequence(modules: Any) -> Callable[..., Any]:
            return modules.TensorDictSequential(
                *(modules.TensorDictModule(layer, [f"h{i}"], [f"h{i + 1}"]) for i, layer in enumerate(layers))
            )

        torch._dynamo.reset()
        self.plain = torch.compile(OnTensors(layers), fullgraph=True)
        self.dictionary = torch.compile(OnDictionary(layers), fullgraph=True)
        # the same program again: the random difference between two rows
        self.dictionary_again = torch.compile(OnDictionary(layers), fullgraph=True)
        steps = (Step(layer, f"h{i}", f"h{i + 1}") for i, layer in enumerate(layers))
        self.steps = torch.compile(nn.Sequential(*steps), fullgraph=True)
        self.by_hand = torch.compile(OnTensordict(layers), fullgraph=True)
        self.by_hand_reference = torch.compile(OnTensordict(layers), fullgraph=True)
        self.ours = torch.compile(sequence(found("tensordict_nn")), fullgraph=True)
        self.reference = torch.compile(sequence(found("tensordict.nn")), fullgraph=True)
        # the result of a call is the input of the next one, so these time only the calls
        self.entries = {"h0": self.x}
        self.td = core().TensorDict({"h0": self.x}, [4])
        self.td_reference = reference().TensorDict({"h0": self.x}, [4])
        for _ in range(3):
            for row in [getattr(self, name) for name in dir(self) if name.startswith("time_")]:
                row()

    @torch.no_grad()
    def time_tensors(self) -> None:
        self.plain(self.x)

    @torch.no_grad()
    def time_dictionary(self) -> None:
        self.dictionary(self.entries)

    @torch.no_grad()
    def time_dictionary_again(self) -> None:
        self.dictionary_again(self.entries)

    @torch.no_grad()
    def time_steps(self) -> None:
        self.steps(self.td)

    @torch.no_grad()
    def time_sequence(self) -> None:
        self.ours(self.td)

    @torch.no_grad()
    def time_sequence_reference(self) -> None:
        self.reference(self.td_reference)

    @torch.no_grad()
    def time_by_hand(self) -> None:
        self.by_hand(self.td)

    @torch.no_grad()
    def time_by_hand_reference(self) -> None:
        self.by_hand_reference(self.td_reference)

    @torch.no_grad()
    def time_dictionary_made(self) -> None:
        self.dictionary({"h0": self.x})

    @torch.no_grad()
    def time_sequence_made(self) -> None:
        self.ours(core().TensorDict({"h0": self.x}, [4]))

    @torch.no_grad()
    def time_sequence_made_reference(self) -> None:
        self.reference(reference().TensorDict({"h0": self.x}, [4]))


def recompilations(name: str, kind: str, steps: int) -> int:
    """How often a program is compiled after its first step."""
    program = PROGRAMS[name](library(kind))
    torch._dynamo.reset()
    step = train(program, "eager")
    step(program.batch())
    counters = torch._dynamo.utils.counters
    counters.clear()
    for _ in range(steps):
        step(program.batch())
    return int(counters["stats"]["unique_graphs"])


def time_steps(name: str, kinds: tuple[str, str], backend: str, rounds: int) -> float:
    """The time of a step of one library over that of another, from medians of rounds in turn."""
    torch._dynamo.reset()
    steps = {}
    for kind in kinds:
        program = PROGRAMS[name](library(kind))
        steps[kind] = train(program, backend), program.batch()
        for _ in range(3):
            steps[kind][0](steps[kind][1])
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, (step, batch) in random.sample(list(steps.items()), 2):
            start = time.thread_time()
            for _ in range(40):
                step(batch)
            times[kind].append(time.thread_time() - start)
    return median(times[kinds[0]]) / median(times[kinds[1]])


def time_compilations(name: str, kinds: tuple[str, str], backend: str, rounds: int) -> float:
    """The time of a first step of one library over that of another, from minima of rounds in turn.

    Graphs are not taken from a cache; the machine code of their kernels is, because it is made in other processes.
    """
    inductor.fx_graph_cache = functorch.enable_autograd_cache = False
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for i in range(rounds + 1):
        for kind in random.sample(kinds, 2):
            program = PROGRAMS[name](library(kind))
            batch = program.batch()
            torch._dynamo.reset()
            step = train(program, backend)
            start = time.process_time()
            step(batch)
            if i:  # the first one imports compilers
                times[kind].append(time.process_time() - start)
    return min(times[kinds[0]]) / min(times[kinds[1]])


def measure(name: str, kind: str, steps: int, rounds: int) -> list[float]:
    """The cells of a program and a library."""
    kinds = (kind, "plain")
    return [
        recompilations(name, kind, steps),
        time_steps(name, kinds, "inductor", 8 * rounds),
        time_compilations(name, kinds, "inductor", rounds),
        time_compilations(name, kinds, "eager", rounds),
    ]


class TrainingSteps:
    """Two columns of the table as numbers that asv keeps: ours over plain dictionaries."""

    params = (tuple(PROGRAMS),)
    param_names = ("program",)
    unit = "ratio"
    timeout = 600

    def track_step_over_plain(self, name: str) -> float:
        return time_steps(name, ("ours", "plain"), "inductor", 40)

    def track_compilation_over_plain(self, name: str) -> float:
        return time_compilations(name, ("ours", "plain"), "inductor", 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, help="how many steps must not compile again")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=list(PROGRAMS), help="run only this program")
    parser.add_argument("--library", choices=["ours", "reference"], help="print the numbers of this library as JSON")
    options = parser.parse_args()
    if options.library:
        torch.set_num_threads(1)
        print(json.dumps(measure(options.only, options.library, options.steps, options.rounds)))
        return
    print("| program: ours, reference | compiled again | step / plain | compilation / plain | tracing alone / plain |")
    print("|---|---:|---:|---:|---:|")
    for name in [options.only] if options.only else PROGRAMS:
        cells = []
        for kind in ("ours", "reference"):
            command = [sys.executable, "-m", __spec__.name, "--only", name, "--library", kind]
            command += ["--steps", str(options.steps), "--rounds", str(options.rounds)]
            child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            numbers = json.loads(child.stdout.splitlines()[-1]) if child.returncode == 0 else None
            cells.append(["fails"] * 4 if numbers is None else [f"{numbers[0]}", *(f"{n:.2f}" for n in numbers[1:])])
        print(f"| {name} | {' | '.join(', '.join(pair) for pair in zip(*cells, strict=True))} |", flush=True)
    print(f"\nRatios of processor times, Python {platform.python_version()}, torch {torch.__version__}.")


if __name__ == "__main__":
    main()
