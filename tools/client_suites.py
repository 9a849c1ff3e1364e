"""Runs the CPU tests of a client under the suite and under the reference: ``python tools/client_suites.py PATH``.

PATH is a checkout of torchrl, verl, rl4co, rsl_rl or TransferQueue. Its Python code is run as it is, nothing of it is
built or installed, and what a client compiles comes from its wheel. ``nox -s clients`` makes the two environments.

Each file is run on the reference first, then on the suite, each with a time limit; a line for each file says how many
tests pass on the reference and how many of those on the suite, followed by the tests that fail on the suite only, with
the first line of their errors. Results of the reference are kept under ``.nox/results`` by commit of the client, so a
second run repeats the suite's half only.

    python tools/client_suites.py ../rl -k "not cuda" test/test_specs.py     # chosen files, arguments of pytest
    python tools/client_suites.py ../rl --most 2                             # two parametrizations of each test
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / ".nox" / "results"
NAMES = ("reference", "suite")


class Client(NamedTuple):
    """What to run of a client.

    Attributes:
        tests: Patterns of the test files that need no accelerator and no service.
        compiled: The module that is compiled, where there is one.
    """

    tests: tuple[str, ...]
    compiled: str = ""


CLIENTS = {
    "torchrl": Client(
        (
            "test/test_specs.py",
            "test/test_postprocs.py",
            "test/test_distributions.py",
            "test/test_exploration.py",
            "test/modules/test_*.py",
            "test/rb/test_*.py",
            "test/objectives/test_*.py",
            "test/transforms/test_*.py",
            "test/envs/test_*.py",
            "test/test_collectors.py",
        ),
        compiled="torchrl._torchrl",
    ),
    "verl": Client(
        (
            "tests/test_protocol_on_cpu.py",
            "tests/test_protocol_v2_on_cpu.py",
            "tests/single_controller/test_decorator_on_cpu.py",
        )
    ),
    "rl4co": Client(("tests/test_*.py",)),
    "rsl-rl-lib": Client(("tests/*/test_*.py",)),
    "TransferQueue": Client(
        (
            "tests/test_serial_utils_on_cpu.py",
            "tests/test_tensor_utils.py",
            "tests/test_simple_storage_unit.py",
            "tests/test_metadata.py",
        )
    ),
}

SAMPLE = """
import collections, os, zlib
def pytest_collection_modifyitems(config, items):
    groups = collections.defaultdict(list)
    for item in items:
        groups[item.nodeid.partition("[")[0]].append(item)
    for group in groups.values():
        group.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
    kept = {item.nodeid for group in groups.values() for item in group[: int(os.environ["MOST"])]}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]
"""


def project_name(checkout: Path) -> str:
    """The name that a checkout's pyproject.toml gives it."""
    name: str = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["name"]
    return name


def commit_of(checkout: Path) -> str:
    """The commit of a checkout, or ``"unknown"`` where it is no git repository."""
    ran = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False
    )
    return ran.stdout.strip() if ran.returncode == 0 else "unknown"


def environment(checkout: Path, folder: Path, most: int) -> dict[str, str]:
    """The environment variables of a run: the checkout's code first, one thread, and this tool's plugins."""
    path = os.pathsep.join(map(str, (checkout, folder, ROOT / "tools")))
    found = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MOST": str(most)}
    return found | {"WANDB_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


def outcomes(
    python: Path, checkout: Path, file: str, arguments: list[str], limit: float, most: int
) -> dict[str, tuple[str, str]]:
    """Runs a file and returns for each test its outcome and the first line of its error.

    A test that was running when the limit was reached is missing.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sample_plugin.py").write_text(SAMPLE)
        log = folder / "outcomes"
        plugins = ["-p", "pytest_outcomes", *(["-p", "sample_plugin"] if most else [])]
        command = [str(python), "-W", "ignore", "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", *plugins]
        try:
            subprocess.run(
                [*command, file, *arguments],
                cwd=checkout,
                env=environment(checkout, folder, most) | {"TEST_OUTCOMES": str(log)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            print(f"{file}: stopped after {limit:.0f} s; the tests before count", flush=True)
        lines = log.read_text().splitlines() if log.exists() else []
    found = [json.loads(line) for line in lines]
    return {one["test"]: (one["outcome"], one["error"]) for one in found}


def kept_outcomes(record: Path, run: str, make: object) -> dict[str, tuple[str, str]]:
    """The outcomes of a run of the reference, from the record or made and recorded now."""
    known = json.loads(record.read_text()) if record.exists() else {}
    if run not in known:
        known[run] = make()
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(known))
    return {test: (outcome, error) for test, (outcome, error) in known[run].items()}


def loads(python: Path, module: str, checkout: Path) -> bool:
    """Whether an environment imports a module, from its own packages rather than the checkout."""
    ran = subprocess.run([str(python), "-c", f"import {module}"], cwd=checkout.parent, capture_output=True, check=False)
    return ran.returncode == 0


def main() -> int:
    """Prints one line for each file and one for each test that only the suite fails; 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("path", type=Path, help="a checkout of a client's repository")
    parser.add_argument("--suite", type=Path, default=ROOT / ".nox" / "clients-suite" / "bin" / "python")
    parser.add_argument("--reference", type=Path, default=ROOT / ".nox" / "clients-reference" / "bin" / "python")
    parser.add_argument("--limit", type=float, default=1800, help="seconds for each file and environment")
    parser.add_argument("--most", type=int, default=0, help="the most parametrizations of a test; 0 runs all")
    options, rest = parser.parse_known_args()
    checkout: Path = options.path.resolve()
    name = project_name(checkout)
    client = CLIENTS.get(name)
    if client is None:
        parser.error(f"{checkout} is a checkout of {name!r}; this tool knows {', '.join(CLIENTS)}")
    chosen = [argument for argument in rest if (checkout / argument.partition("::")[0]).is_file()]
    arguments = [argument for argument in rest if argument not in chosen]
    files = chosen or sorted(
        str(path.relative_to(checkout)) for pattern in client.tests for path in checkout.glob(pattern)
    )
    if client.compiled and not loads(options.suite, client.compiled, checkout):
        print(f"{client.compiled} of the wheel does not load with this torch: tests that need it fail on both")
    record = RESULTS / f"clients-{name}-{commit_of(checkout)}.json"
    passed = kept = 0
    broken: list[str] = []
    for file in files:
        run = json.dumps([file, arguments, options.most])

        def on_reference(file: str = file) -> dict[str, tuple[str, str]]:
            return outcomes(options.reference, checkout, file, arguments, options.limit, options.most)

        theirs = kept_outcomes(record, run, on_reference)
        ours = outcomes(options.suite, checkout, file, arguments, options.limit, options.most)
        good = [test for test, (outcome, _) in theirs.items() if outcome == "passed"]
        lost = [test for test in good if ours.get(test, ("missing", ""))[0] != "passed"]
        passed, kept = passed + len(good), kept + len(good) - len(lost)
        print(f"{file}: {len(good)} pass on the reference, {len(good) - len(lost)} of them on the suite", flush=True)
        for test in lost:
            outcome, error = ours.get(test, ("missing", "no result"))
            print(f"    {test}: {error or outcome}", flush=True)
        broken += lost
    share = f", {100 * kept / passed:.1f} %" if passed else ""
    print(f"{name}: {passed} pass on the reference, {kept} of them on the suite{share}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
