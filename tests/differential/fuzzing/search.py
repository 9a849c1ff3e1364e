"""The search: programs of a seed, run one after another, with their unexplained differences in clusters."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzzing import calls, programs, rules
from fuzzing.outcomes import Difference

Cluster = tuple[str, str, str]
"""The call, the place (the result, the call itself, or a variable), and the kind of a difference."""

OPEN = Path(__file__).parents[1] / "open_differences.txt"


@dataclass
class Findings:
    """What a search finds: explained differences by row, known open ones, and others with their programs."""

    calls: int = 0
    explained: Counter[str] = field(default_factory=Counter)
    known: Counter[Cluster] = field(default_factory=Counter)
    examples: dict[str, list[calls.Program]] = field(default_factory=lambda: defaultdict(list))
    clusters: dict[Cluster, list[calls.Program]] = field(default_factory=lambda: defaultdict(list))

    @property
    def unexplained(self) -> int:
        """The number of programs whose difference is neither explained nor known."""
        return sum(map(len, self.clusters.values()))


def cluster(program: calls.Program, found: list[Difference]) -> Cluster | None:
    """The cluster of a program, by its first difference that no row explains; ``None`` where rows explain all."""
    first = next((d for d in found if rules.explain(program, [d]) is None), None)
    if first is None:
        return None
    place = first.place.split(".")[0].split("[")[0]
    return ("construct" if place in ("construct", "setup") else program.call.name), place, first.kind


def open_clusters() -> frozenset[Cluster]:
    """The clusters of differences that are known and not explained yet."""
    lines = OPEN.read_text().splitlines() if OPEN.exists() else []
    return frozenset(tuple(line.rsplit(" | ", 2)) for line in lines if line and not line.startswith("#"))


def search(
    seed: int,
    numbers: Iterable[int],
    only: list[str] | None = None,
    kind: str = "",
    known: frozenset[Any] = frozenset(),
    example: str = "",
) -> Findings:
    """Run the programs of a seed with these numbers; the same seed and number make the same program.

    Programs that a row explains whose first cell starts with ``example`` are kept.
    """
    theirs, ours = programs.libraries()
    spaces = programs.namespace(theirs), programs.namespace(ours)
    names = only or calls.call_names(ours.TensorDict, theirs.TensorDict)
    findings = Findings()
    for number in numbers:
        program = calls.program(random.Random(f"{seed}-{number}"), ours.TensorDict, theirs.TensorDict, names)
        if kind and kind not in program.x.label:
            continue
        findings.calls += 1
        found = programs.compare(program, *spaces)
        where = cluster(program, found)
        if found and where is None:
            for row in {rules.explain(program, [difference]) or "" for difference in found}:
                findings.explained[row] += 1
                if example and row.startswith(example):
                    findings.examples[row].append(program)
        elif where:
            if where in known:
                findings.known[where] += 1
            else:
                findings.clusters[where].append(program)
    return findings
