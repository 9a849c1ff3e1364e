"""The tracked benchmarks run on the sources of a commit, and their results say nothing about who measured them."""

from __future__ import annotations

import importlib.util
import json
import platform
import subprocess

import pytest
from benchmarks.dashboard import history
from benchmarks.dashboard.series import RESULTS, ROOT, TRACKED

FILES = sorted(RESULTS.rglob("*.json"))
in_git = pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="commits are taken out of git, and this is no checkout"
)


def test_the_results_of_thirty_commits_are_tracked_in_less_than_20_mb():
    commits = {path.name[:8] for path in FILES if "-existing-" in path.name}
    assert len(commits) >= 30
    assert sum(path.stat().st_size for path in FILES) < 20e6


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name[:12])
def test_results_name_no_machine_and_no_folder(path):
    text = path.read_text()
    assert not [word for word in ("/root", "/home", "/tmp", "/Users", "\\\\", "@") if word in text]
    assert len(platform.node()) < 4 or platform.node() not in text


def test_the_dashboard_has_the_current_descriptions_of_the_benchmarks():
    assert TRACKED.read_text() == history.summary(), "python -m benchmarks.dashboard.history writes it"


def test_every_benchmark_has_a_title_of_its_own_and_a_rival():
    known = json.loads(TRACKED.read_text())
    titles = [entry["title"] for entry in known.values()]
    assert len(set(titles)) == len(titles) >= 12
    assert all(set(entry["contenders"]) - {"ours"} - set(entry["limits"]) for entry in known.values())


@in_git
def test_a_commit_is_measured_with_its_own_sources(tmp_path):
    commit = history.git("rev-parse", "HEAD").strip()
    found = history.measure(commit, "NestedKey")["tracked.NestedKey.time_run"]
    assert {"ours", "torch"} <= found["samples"].keys(), found["failed"]
    assert min(found["samples"]["ours"]) > 0
    # the suite, if it is installed, is not the reference
    assert "reference" in found["samples"] or "tensordict" in found["failed"]["reference"]
    folders = history.extract(commit, tmp_path)
    assert not [folder for folder in folders if "tensordict-suite" in folder]
    points = (tmp_path / "metadata").glob("tensordict_memmap-*.dist-info/entry_points.txt")
    assert "MemoryMappedTensor = tensordict_memmap:MemoryMappedTensor" in next(points).read_text()


@in_git
def test_a_commit_without_a_package_is_measured_without_it(tmp_path, monkeypatch):
    """Modules of this checkout must not stand in for those that an old commit lacks."""
    monkeypatch.setattr(history, "extract", lambda commit, folder: [str(tmp_path)])
    found = history.measure("HEAD", "NestedKey")["tracked.NestedKey.time_run"]
    assert "ours" not in found["samples"]
    assert "the measured commit has none of tensordict_core" in found["failed"]["ours"]


@pytest.mark.skipif(importlib.util.find_spec("asv") is None, reason="asv writes the results, and is not installed")
@pytest.mark.skipif(
    importlib.util.find_spec("safetensors") is None, reason="results name the versions of all contenders"
)
@in_git
def test_results_are_stored_as_asv_reads_them(tmp_path, monkeypatch):
    from asv.results import Results

    monkeypatch.setattr(history, "RESULTS", tmp_path)
    monkeypatch.setattr(history, "TRACKED", tmp_path / "tracked.json")
    monkeypatch.setattr(history.importlib.metadata, "version", lambda name: "1.0+cpu")
    name = "tracked.NestedKey.time_run"
    benchmarks = {name: history.described()[name]}
    commit = history.git("rev-parse", "HEAD").strip()
    measured = {name: {"samples": {"ours": [3e-6, 1e-6, 2e-6], "torch": [1e-6] * 3}, "failed": {"reference": "no"}}}
    path = history.store(commit, measured, benchmarks)
    read = Results.load(str(path), history.machine_name())
    values = read.get_result_value(name, benchmarks[name]["params"])
    assert values[:2] == [1e-6, 1e-6], "the fastest sample counts"
    assert values[2] != values[2], "what was not measured is not a number"
    assert read.params["torch"] == "1.0"
    assert history.measured_commits() == {commit[:8]}


@pytest.mark.parametrize(("count", "chosen"), [(1, "g"), (2, "ag"), (3, "adg"), (7, "abcdefg"), (9, "abcdefg")])
def test_chosen_commits_are_spread_over_the_history(count, chosen):
    assert "".join(history.spread(list("abcdefg"), count)) == chosen


@pytest.mark.parametrize("count", range(1, 20))
def test_the_order_of_measuring_leaves_out_no_commit(count):
    found = [str(i) for i in range(count)]
    order = history.coarse_first(found)
    assert sorted(order) == sorted(found)
    assert order[0] == found[-1], "the newest commit comes first"


def test_a_bisection_finds_the_commit_that_made_ours_slower(monkeypatch, capsys):
    commits = [f"{i:040d}" for i in range(20)]
    monkeypatch.setattr(history, "commits", lambda revisions: commits[1:])
    monkeypatch.setattr(history, "git", lambda *arguments: commits[0] if arguments[0] == "rev-parse" else arguments[-1])
    asked = []

    def measure(commit, only):
        asked.append(commit)
        return {"x": {"samples": {"ours": [2.0 if int(commit) >= 13 else 1.0], "torch": [1.0]}, "failed": {}}}

    monkeypatch.setattr(history, "measure", measure)
    history.bisect("a..b", "x")
    assert capsys.readouterr().out.splitlines()[-1].endswith(commits[13])
    assert len(asked) <= 7


def test_the_command_explains_itself():
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.dashboard.history", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--bisect GOOD..BAD" in done.stdout
