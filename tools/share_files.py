"""Share files: equal files of all environments in .nox are one file on disk, by hard links.

Six test environments hold torch, and each would take a gigabyte of its own. Each stays complete: it holds what pip
installed in it and nothing else. pip records the SHA-256 of a file that it installs, which names the file in
`.nox/shared`. pip and virtualenv replace files and never write into them, so an environment that changes leaves the
others as they are. On file systems without hard links nothing happens.

Usage, with the Python of an environment: ``python tools/share_files.py``.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator
from pathlib import Path

STORE = Path(__file__).parents[1] / ".nox" / "shared"
SHARED_FROM = 4 * 1024
"""Files below a page would save nothing that is worth a link."""


def recorded(environment: Path) -> Iterator[tuple[Path, str]]:
    """The files that pip installed in an environment, with their digests; those that it compiled have none."""
    for record in environment.glob("**/site-packages/*.dist-info/RECORD"):
        with record.open(newline="", encoding="utf-8") as lines:
            for row in csv.reader(lines):
                if row[1]:
                    yield record.parents[1] / row[0], row[1]


def share(environment: Path, store: Path) -> None:
    """Makes the files of an environment links to equal files of the others, and drops what none holds any more."""
    store.mkdir(parents=True, exist_ok=True)
    for path, digest in recorded(environment):
        if not path.is_file() or (found := path.stat()).st_size < SHARED_FROM:
            continue
        kept = store / f"{digest}-{found.st_size}-{found.st_mode & 0o777:o}"
        link = path.with_name(f"{path.name}.link")
        try:
            if not kept.exists():
                os.link(path, kept)
            elif not kept.samefile(path):
                os.link(kept, link)
                link.replace(path)
        except OSError:  # no hard links here, or no more of this file, or another session was first
            link.unlink(missing_ok=True)
    for kept in store.iterdir():
        if kept.stat().st_nlink == 1:
            kept.unlink(missing_ok=True)


if __name__ == "__main__":
    share(Path(sys.prefix), STORE)
