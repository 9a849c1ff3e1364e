"""History: measures old commits with the benchmarks of today and stores the results as asv does.

``python -m benchmarks.dashboard.history --commits 30`` spreads thirty commits over the history of ``main``, takes the
sources of each out of git into a temporary folder, and runs `benchmarks.tracked` on them in the present environment:
nothing is built or installed, so a commit takes less than a minute. All contenders are measured again beside every
commit, so ratios hold where times do not. ``--bisect GOOD..BAD --only NAME`` finds the commit that slowed a benchmark.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import json
import math
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.dashboard.series import RESULTS, ROOT, TRACKED, matches

LIBRARIES = ("numpy", "safetensors", "tensordict", "torch")
# The oldest file that every tracked benchmark of files needs; commits before it have no saves to measure.
FIRST = "packages/tensordict-memmap/src/tensordict_memmap/__init__.py"


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def machine_name() -> str:
    """Says what kind of machine this is, and nothing that identifies it."""
    return f"{platform.system()}-{platform.machine()}-{os.cpu_count()}-cores".lower()


def commits(revisions: str = "main") -> list[str]:
    """Returns the commits that changed the packages, oldest first."""
    return git("rev-list", "--first-parent", "--reverse", revisions, "--", ":(glob)packages/*/src/**").split()


def can_save(commit: str) -> bool:
    """Tells whether a commit exports the saves that are measured."""
    done = subprocess.run(["git", "show", f"{commit}:{FIRST}"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode == 0 and '"to_safetensors"' in done.stdout


def spread(found: list[str], count: int) -> list[str]:
    """Chooses a number of commits, evenly over a history, with its first and its last one.

    >>> spread(list("abcdefg"), 3)
    ['a', 'd', 'g']
    """
    if count >= len(found):
        return found
    if count == 1:
        return found[-1:]
    return [found[round(i * (len(found) - 1) / (count - 1))] for i in range(count)]


def coarse_first(found: list[str]) -> list[str]:
    """Orders a history so that the measured part is spread over all of it wherever the work is stopped.

    >>> coarse_first(list("abcdefg"))
    ['g', 'a', 'd', 'b', 'f', 'c', 'e']
    """
    order, step = [len(found) - 1, 0] if len(found) > 1 else list(range(len(found))), len(found) // 2
    while step and len(order) < len(found):
        order += range(step, len(found), 2 * step)
        step //= 2
    return [found[i] for i in dict.fromkeys([*order, *range(len(found))])]


def extract(commit: str, folder: Path) -> list[str]:
    """Writes the sources of a commit to a folder; returns the folders that go on the path.

    Installed packages find each other by their metadata, so each gets a ``dist-info`` of its own commit.
    """
    done = subprocess.run(["git", "archive", commit, "packages"], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    metadata = folder / "metadata"
    metadata.mkdir()
    sources = []
    for package in sorted((folder / "packages").iterdir()):
        # the suite would hide the reference, which has its import name
        if package.name == "tensordict-suite" or not (package / "src").is_dir():
            continue
        sources.append(str(package / "src"))
        project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
        version = project.get("version", "0")
        info = metadata / f"{project['name'].replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n")
        groups = project.get("entry-points", {})
        lines = [line for group, points in groups.items() for line in (f"[{group}]", *map(" = ".join, points.items()))]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return [*sources, str(metadata)]


def measure(commit: str, only: str = "") -> dict[str, Any]:
    """Runs the tracked benchmarks on a commit.

    Returns:
        By benchmark, ``samples`` (seconds by contender) and ``failed`` (reasons by contender).
    """
    with tempfile.TemporaryDirectory(prefix="history-") as temporary:
        folder = Path(temporary)
        path = [*extract(commit, folder), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(part for part in path if part),
            "BENCHMARK_SOURCES": temporary,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-m", "benchmarks.tracked", "--json", str(folder / "out.json"), "--only", only]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=600)
        found: dict[str, Any] = json.loads((folder / "out.json").read_text())
        for entry in found.values():  # a reason may name the folder of this run
            entry["failed"] = {k: v.replace(temporary, "SOURCES") for k, v in entry["failed"].items()}
        return found


def described() -> dict[str, dict[str, Any]]:
    """Returns what asv writes about each tracked benchmark into ``benchmarks.json``."""
    from benchmarks.tracked import tracked

    return {
        name: {
            "code": f"class {cls.__name__}: {cls.about}",
            "min_run_count": 2,
            "name": name,
            "number": cls.number,
            "param_names": list(cls.param_names),
            "params": [[repr(contender) for contender in cls.params[0]]],
            "pretty_name": cls.pretty_name,
            "repeat": getattr(cls, "repeat", 0),
            "rounds": getattr(cls, "rounds", 2),
            "sample_time": 0.01,
            "timeout": cls.timeout,
            "type": "time",
            "unit": "seconds",
            "version": cls.version,
            "warmup_time": getattr(cls, "warmup_time", -1),
        }
        for name, cls in tracked().items()
    }


def summary() -> str:
    """Returns what the dashboard needs to know of the benchmarks, as the text of ``benchmarks/tracked.json``."""
    from benchmarks.tracked import tracked

    known = {
        name: {
            "title": cls.pretty_name,
            "about": cls.about,
            "contenders": list(cls.params[0]),
            "limits": list(cls.limits),
            "less": cls.less,
            "note": cls.note,
        }
        for name, cls in tracked().items()
    }
    return json.dumps(known, indent=4) + "\n"


def store(commit: str, measured: dict[str, Any], benchmarks: dict[str, dict[str, Any]]) -> Path:
    """Adds what was measured of a commit to the results, in the format of asv; returns the file."""
    from asv.results import Results
    from asv.runner import BenchmarkResult

    machine = machine_name()
    python = ".".join(platform.python_version_tuple()[:2])
    versions = {name: importlib.metadata.version(name).partition("+")[0] for name in LIBRARIES}
    params = {"machine": machine, "python": python, **versions}
    name = f"existing-py{python}-" + "-".join(f"{key}{value}" for key, value in sorted(versions.items()))
    date = int(git("show", "-s", "--format=%ct", commit)) * 1000
    path = RESULTS / machine / f"{commit[:8]}-{name}.json"
    made = Results(params, versions, commit, date, python, name, {})
    if path.exists():
        made = Results.load(str(path), machine)
    for benchmark, entry in measured.items():
        contenders = [eval(text) for text in benchmarks[benchmark]["params"][0]]
        samples = [entry["samples"].get(contender) for contender in contenders]
        values = [math.nan if taken is None else sum(taken) for taken in samples]
        numbers = [None if taken is None else 1 for taken in samples]
        result = BenchmarkResult(values, samples, numbers, 0, "", None)
        made.add_result(benchmarks[benchmark], result, datetime.now(UTC), 0.0, record_samples=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save(str(RESULTS))
    keep_fastest(path)
    (path.parent / "machine.json").write_text(json.dumps({"machine": machine, "version": 1}, indent=4) + "\n")
    TRACKED.write_text(summary())
    listing = RESULTS / "benchmarks.json"
    known = json.loads(listing.read_text()) if listing.exists() else {"version": 2}
    others = {name: entry for name, entry in known.items() if not name.startswith("tracked.")}
    listing.write_text(json.dumps({**others, **described()}, indent=4, sort_keys=True) + "\n")
    return path


def keep_fastest(path: Path) -> None:
    """Makes the fastest sample of each contender its result; asv takes the median, which other work makes slower."""
    document = json.loads(path.read_text())
    result, samples = (document["result_columns"].index(name) for name in ("result", "samples"))
    for entry in document["results"].values():
        if len(entry) > samples and entry[samples] is not None and entry[result] is not None:
            pairs = zip(entry[result], entry[samples], strict=True)
            entry[result] = [min(taken) if taken else value for value, taken in pairs]
    path.write_text(json.dumps(document) + "\n")


def measured_commits() -> set[str]:
    """Returns the commits that have results of this machine, by their first eight digits."""
    return {path.name[:8] for path in (RESULTS / machine_name()).glob("*-existing-*.json")}


def ratio(measured: dict[str, Any]) -> float:
    """Returns the time of ours as a part of the time of the others, for one benchmark."""
    if len(measured) != 1:
        raise SystemExit(f"--bisect follows one benchmark, and --only selects {len(measured)}: {', '.join(measured)}")
    [entry] = measured.values()
    middle = {name: sorted(taken)[len(taken) // 2] for name, taken in entry["samples"].items()}
    if "ours" not in middle:
        raise SystemExit(f"the benchmark does not run there: {entry['failed']}")
    others = [math.log(value) for name, value in middle.items() if name != "ours"]
    return math.log(middle["ours"]) - sum(others) / len(others)


def bisect(revisions: str, only: str) -> None:
    """Halves a range of commits until one is left: the first that is nearer to the last than to the first one."""
    good, _, bad = revisions.partition("..")
    found = [git("rev-parse", good).strip(), *commits(f"{good}..{bad}")]
    ends = ratio(measure(found[0], only)), ratio(measure(found[-1], only))
    longer = math.exp(ends[1] - ends[0])
    print(f"ours took {longer:.2f} times as long at {found[-1][:8]} as at {found[0][:8]}", flush=True)
    first, last = 0, len(found) - 1
    while last - first > 1:
        middle = (first + last) // 2
        here = ratio(measure(found[middle], only))
        print(f"{found[middle][:8]}: {math.exp(here - ends[0]):.2f} times as long", flush=True)
        first, last = (middle, last) if abs(here - ends[0]) < abs(here - ends[1]) else (first, middle)
    print("first of the slower commits:", git("show", "-s", "--format=%h %s", found[last]).strip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=30, help="how many commits, spread over the history")
    parser.add_argument("--only", default="", help="run only benchmarks whose names contain one of these, by commas")
    parser.add_argument("--again", action="store_true", help="measure commits again that have results")
    parser.add_argument("--bisect", metavar="GOOD..BAD", help="find what made the benchmark of --only slower")
    parser.add_argument("revisions", nargs="*", help="measure these commits instead")
    options = parser.parse_args()
    if options.bisect:
        bisect(options.bisect, options.only)
        return
    chosen = [git("rev-parse", revision).strip() for revision in options.revisions]
    if not chosen:
        chosen = spread([commit for commit in commits() if can_save(commit)], options.commits)
    benchmarks = {name: entry for name, entry in described().items() if matches(name, options.only)}
    for number, commit in enumerate(coarse_first(chosen), 1):
        subject = git("show", "-s", "--format=%h %s", commit).strip()
        if not options.again and commit[:8] in measured_commits():
            print(f"[{number}/{len(chosen)}] {subject}: measured before", flush=True)
            continue
        print(f"[{number}/{len(chosen)}] {subject}", flush=True)
        try:
            measured = measure(commit, options.only)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"  not measured: {type(error).__name__}", flush=True)
            continue
        for name, entry in measured.items():
            for contender, reason in entry["failed"].items():
                print(f"  {name}, {contender}: {reason}", flush=True)
        store(commit, measured, benchmarks)


if __name__ == "__main__":
    main()
