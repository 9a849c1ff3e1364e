"""Runs the programs of this folder under the installed ``tensordict``, or compares two runs.

``python tests/clients/run.py FILE`` runs all and writes their digests; ``python tests/clients/run.py FILE OTHER``
compares two such files, prints what differs and fails if anything does. A program that raises an error counts with its
error, so both libraries have to raise the same one.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

PROGRAMS = ("replay", "ppo", "sac", "dataproto", "ensemble", "transfers")


def run_all(out: Path) -> int:
    """Runs each program in an empty folder and writes what it computed."""
    import tensordict

    said: dict[str, Any] = {}
    for name in PROGRAMS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                said[name] = importlib.import_module(name).run(Path(folder))
            except Exception as error:
                said[name] = {"error": f"{type(error).__name__}: {error}"}
                print(f"{name}: {said[name]['error']}")
        print(f"{name}: {'error' if 'error' in said[name] else 'done'}", flush=True)
    out.write_text(json.dumps(said, indent=1))
    print(f"{tensordict.__file__}: {out}")
    return int(any("error" in one for one in said.values()))


def differences(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """The places in which two results differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = sorted({*ours, *theirs})
        return [line for key in keys for line in differences(ours.get(key), theirs.get(key), f"{where}.{key}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [line for i, (one, other) in pairs for line in differences(one, other, f"{where}[{i}]")]
    return [] if ours == theirs else [f"{where}: {str(ours)[:100]} against {str(theirs)[:100]}"]


def main() -> int:
    """Runs or compares, by the number of arguments."""
    if len(sys.argv) == 2:
        return run_all(Path(sys.argv[1]))
    ours, theirs = (json.loads(Path(name).read_text()) for name in sys.argv[1:3])
    found = [line for name in PROGRAMS for line in differences(ours.get(name), theirs.get(name), name)]
    print("\n".join(found) or f"{len(PROGRAMS)} programs compute the same to the last bit")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
