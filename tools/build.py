"""Builds the wheel and the sdist of every distribution into ``dist``, twice, and refuses builds that differ.

The second build is of a copy in another folder, so that paths, times and leftovers of the first cannot hide in it. The
time in all archives is that of the last commit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def build(packages: Path, out: Path, environment: dict[str, str]) -> dict[str, bytes]:
    """Builds with the hatchling of this environment; returns the content of each file by its name."""
    for package in sorted(packages.glob("tensordict-*")):
        command = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
        subprocess.run(command, cwd=package, check=True, env=environment, capture_output=True)
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


def main() -> None:
    out = ROOT / "dist"
    shutil.rmtree(out, ignore_errors=True)
    time = subprocess.check_output(["git", "log", "-1", "--format=%ct"], cwd=ROOT, text=True).strip()
    environment = os.environ | {"SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", time)}
    first = build(ROOT / "packages", out, environment)
    with tempfile.TemporaryDirectory() as folder:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "packages", Path(folder) / "packages", ignore=ignore)
        shutil.copy(ROOT / ".gitignore", folder)  # sdists hold it
        second = build(Path(folder) / "packages", Path(folder) / "dist", environment)
    differing = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
    if differing:
        sys.exit(f"two builds differ in {', '.join(differing)}; whatever depends on the time or the folder must go")
    for name, content in first.items():
        print(f"{len(content):>10,}  {name}")


if __name__ == "__main__":
    main()
