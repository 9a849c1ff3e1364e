"""Series: results of the tracked benchmarks over commits, the noise in them, and what they say about the newest commit.

A value of a series is a ratio: the time of a contender over the time of ours, both measured in one session. It does not
depend on how fast the machine was, so commits that were measured on different days can be compared. A time is that of
the fastest sample, because other work on the machine makes samples slower and never faster.
"""

from __future__ import annotations

import itertools
import json
import math
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
TRACKED = ROOT / "benchmarks" / "tracked.json"
"""What is known of each benchmark without importing it, which would need torch; `history` writes it."""
LEVEL = 3
"""The present level of a series is the median of its last three commits: one busy moment changes no colour."""
BEFORE = 8
"""It is compared with the median of the eight commits before them."""
LEAST = 0.05
"""Changes below five percent are never called a regression."""
TOO_NOISY = 0.5
"""A difference that must exceed fifty percent to be seen says nothing about which of two is faster."""
SPREAD_OF_MEDIANS = 1.25
"""The standard error of a median of normal values over that of their mean."""


@dataclass
class Series:
    """One benchmark on one machine.

    Args:
        name: The name that asv gives it.
        title: Its title for people.
        about: What is measured.
        limits: Contenders that do less and are no rivals.
        less: What they do less.
        note: What a reader of the ratios must know about the contenders.
        commits: The measured commits, oldest first.
        seconds: By contender, the least seconds of a call at each commit; None where it does not run.
    """

    name: str
    title: str
    about: str
    limits: tuple[str, ...]
    less: str
    commits: list[str]
    seconds: dict[str, list[float | None]]
    subjects: dict[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def rivals(self) -> list[str]:
        """The contenders that ours should be faster than."""
        return [name for name in self.seconds if name != "ours" and name not in self.limits]

    def ratios(self, contender: str) -> list[float | None]:
        """How many times as long as ours a contender takes, at each commit."""
        pairs = zip(self.seconds[contender], self.seconds["ours"], strict=True)
        return [theirs / ours if theirs and ours else None for theirs, ours in pairs]

    def level(self, contender: str) -> float | None:
        """The present ratio to a contender: the median of the last `LEVEL` commits."""
        values = [value for value in self.ratios(contender) if value is not None]
        return median(values[-LEVEL:]) if values else None

    def noise(self, contender: str | None = None) -> float:
        """The standard deviation of the logarithm of one ratio, or of the mean over all contenders.

        It is taken from the differences of neighbouring commits: few commits change the speed, so the median of the
        differences shows what measuring again does.
        """
        values = self.logs(contender)
        steps = [abs(b - a) for a, b in itertools.pairwise(values)]
        return 1.4826 * median(steps) / math.sqrt(2) if steps else math.inf

    def logs(self, contender: str | None = None) -> list[float]:
        """The logarithm of the ratio to one contender, or its mean over all of them, at the commits that have all."""
        return list(self.logs_at(contender).values())

    def logs_at(self, contender: str | None = None) -> dict[str, float]:
        """The values of `logs`, each with its commit."""
        columns = [self.ratios(name) for name in ([contender] if contender else self.seconds) if name != "ours"]
        rows = zip(self.commits, zip(*columns, strict=True), strict=True)
        return {
            commit: sum(math.log(value) for value in row if value) / len(row) for commit, row in rows if None not in row
        }

    def allowed_change(self) -> float:
        """By which part the present level may be below the earlier one: three standard errors, at least `LEAST`."""
        return max(LEAST, _relative(3 * self.noise() * SPREAD_OF_MEDIANS * math.sqrt(1 / LEVEL + 1 / BEFORE)))

    def allowed_behind(self, rival: str) -> float:
        """By which part ours may be slower than a rival and still counts as equal: three standard errors."""
        return max(LEAST, _relative(3 * self.noise(rival) * SPREAD_OF_MEDIANS / math.sqrt(LEVEL)))

    def change(self) -> float | None:
        """How many times as fast as before ours is, beside the contenders; None with too few commits."""
        values = self.logs()
        earlier = values[-LEVEL - BEFORE : -LEVEL]
        return math.exp(median(values[-LEVEL:]) - median(earlier)) if len(earlier) >= LEVEL else None

    def is_slower_since(self, commit: str) -> bool:
        """Tells whether the present ratios are below those before a commit by more than the noise.

        Where ours became slower and every contender did, too, the machine is slower and the ratios are the same.
        """
        values = self.logs_at()
        place = self.commits.index(commit)
        earlier = [values[name] for name in self.commits[:place] if name in values][-BEFORE:]
        later = [values[name] for name in self.commits[place:] if name in values][-LEVEL:]
        if not earlier or not later:
            return True  # nothing speaks against it
        return math.exp(median(later) - median(earlier)) < 1 / (1 + self.allowed_change())

    def faults(self) -> list[str]:
        """Why the benchmark is red; empty if it is green."""
        found = []
        for rival in self.rivals:
            level = self.level(rival)
            if level is None or self.seconds["ours"][-1] is None:
                found.append("ours was not measured")
                break
            if level < 1 / (1 + self.allowed_behind(rival)):
                found.append(f"slower than {called(rival)}")
        change = self.change()
        if change is not None and change < 1 / (1 + self.allowed_change()):
            found.append(f"{1 / change - 1:.0%} slower than it was")
        return found

    def loses_by_its_note(self) -> bool:
        """Tells whether a rival is faster, nothing else is wrong, and the note says what the rival leaves out."""
        faults = self.faults()
        return bool(self.note and faults) and all(fault.startswith("slower than ") for fault in faults)

    def verdict(self) -> tuple[str, str]:
        """The state of the benchmark, ``green``, ``red`` or ``grey``, and why.

        It is grey if ours is slower than a rival by less than a noise that is too large to tell.
        """
        faults, headline = self.faults(), self.headline()
        if faults or headline is None:
            return "red", "; ".join(faults) or "no rival was measured"
        level, rival = headline
        if level >= 1:
            return "green", "still faster"
        noise = self.allowed_behind(rival)
        if noise > TOO_NOISY:
            return "grey", f"slower than {called(rival)}, or not: too noisy to tell"
        return "green", f"as fast as {called(rival)}, within the noise of {noise:.0%}"

    def headline(self) -> tuple[float, str] | None:
        """The ratio to the fastest rival, and its name."""
        levels = [(level, rival) for rival in self.rivals if (level := self.level(rival)) is not None]
        return min(levels) if levels else None


def called(contender: str) -> str:
    """The name of a contender as pages show it.

    >>> called("reference"), called("torch")
    ('tensordict', 'torch')
    """
    return "tensordict" if contender == "reference" else contender


def matches(name: str, only: str) -> bool:
    """Tells whether a benchmark is selected by parts of names, separated by commas; by none, all are.

    >>> matches("tracked.Stack.time_run", "index,stack"), matches("tracked.Add.time_run", ""), matches("x", "y")
    (True, True, False)
    """
    return any(part.strip().lower() in name.lower() for part in only.split(","))


def machines(results: Path = RESULTS) -> list[str]:
    """Returns the machines with results, the one with most of them first."""
    found = {folder.name: len(list(folder.glob("*-*.json"))) for folder in results.iterdir() if folder.is_dir()}
    return sorted((name for name, count in found.items() if count), key=lambda name: (-found[name], name))


def load(machine: str, results: Path = RESULTS, order: list[str] | None = None) -> list[Series]:
    """Reads the tracked benchmarks of a machine.

    Args:
        machine: Its folder among the results.
        results: The folder of results.
        order: All commits, oldest first; by default those of the branch ``main``.
    """
    if order is None:
        order = _git("rev-list", "--first-parent", "--reverse", "main").split()
    places = {commit: place for place, commit in enumerate(order)}
    documents = [json.loads(path.read_text()) for path in sorted((results / machine).glob("*-*.json"))]
    documents = sorted((d for d in documents if d["commit_hash"] in places), key=lambda d: places[d["commit_hash"]])
    subjects = dict(line.split(" ", 1) for line in _git("log", "--format=%H %s", "main").splitlines() if " " in line)
    found = []
    for name, known in json.loads(TRACKED.read_text()).items():
        here = [document for document in documents if document["results"].get(name)]
        if not here:
            continue
        seconds: dict[str, list[float | None]] = {contender: [] for contender in known["contenders"]}
        for document in here:
            values = _values(document, name)
            for contender, column in seconds.items():
                column.append(values.get(contender))
        commits = [document["commit_hash"] for document in here]
        lines = {commit: subjects.get(commit, "") for commit in commits}
        limits = tuple(known["limits"])
        told = (known["title"], known["about"], limits, known["less"])
        found.append(Series(name, *told, commits, seconds, lines, known["note"]))
    return found


def _values(document: dict[str, Any], name: str) -> dict[str, float]:
    """The seconds of each contender in one file of results."""
    entry = dict(zip(document["result_columns"], document["results"][name], strict=False))
    names = [text.strip("'") for text in entry["params"][0]]
    none = [None] * len(names)
    columns = zip(names, entry.get("samples") or none, entry["result"] or none, strict=True)
    # `asv run` keeps the median alone
    found = {key: min(samples) if samples else middle for key, samples, middle in columns}
    return {key: value for key, value in found.items() if value and math.isfinite(value)}


def _relative(log: float) -> float:
    return math.expm1(log) if log < 10 else math.inf


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout
