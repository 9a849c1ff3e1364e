"""Pytest plugin: writes the outcome of each test as one line of JSON, as soon as it is known.

A run that is stopped at its time limit, or that ends in a crash, leaves the lines of the tests before. The environment
variable ``TEST_OUTCOMES`` names the file; `client_suites.py` sets it and reads the file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def _first_line(report: Any) -> str:
    """The first line of the error, where there is one."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr or "")
    return text.splitlines()[0] if text else ""


def pytest_runtest_logreport(report: Any) -> None:
    """Writes the outcome of a test, or that its fixtures fail."""
    if report.when != "call" and report.outcome == "passed":
        return
    said = {"test": report.nodeid, "outcome": report.outcome, "error": _first_line(report) if report.failed else ""}
    with Path(os.environ["TEST_OUTCOMES"]).open("a") as file:
        file.write(json.dumps(said) + "\n")


def pytest_collectreport(report: Any) -> None:
    """Writes that a file cannot be imported."""
    if report.failed:
        with Path(os.environ["TEST_OUTCOMES"]).open("a") as file:
            file.write(json.dumps({"test": report.nodeid, "outcome": "failed", "error": _first_line(report)}) + "\n")
