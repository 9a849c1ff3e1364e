"""Builds the pages of the dashboard: ``python -m benchmarks.dashboard``."""

from __future__ import annotations

from benchmarks.dashboard.pages import build
from benchmarks.dashboard.series import ROOT

if __name__ == "__main__":
    print("the dashboard is", build(ROOT / "benchmarks" / "html").relative_to(ROOT))
