"""Inventories: what intersphinx reads, made from short lists of names, so that the build needs no network.

A line of a list is ``kind name page [anchor]``; the anchor is the name unless it is given. Where the pages of another
project move, the list is what changes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "inventories"
SITES = {
    "python": "https://docs.python.org/3/",
    "torch": "https://docs.pytorch.org/docs/stable/",
    "numpy": "https://numpy.org/doc/stable/",
}


def entries(text: str) -> Iterator[str]:
    """Yields the lines of an inventory for the lines of a list."""
    for line in text.splitlines():
        if line and not line.startswith("#"):
            kind, name, page, *anchor = line.split()
            anchor = [f"module-{name}"] if kind == "module" else anchor or [name]
            yield f"{name} py:{kind} 1 {page}#{anchor[0]} -\n"


def mapping(folder: Path) -> dict[str, tuple[str, str]]:
    """Writes the inventories to a folder, and returns the value of ``intersphinx_mapping``."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, site in SITES.items():
        path = folder / f"{name}.inv"
        lines = "".join(entries((FOLDER / f"{name}.txt").read_text()))
        head = f"# Sphinx inventory version 2\n# Project: {name}\n# Version: \n# The rest is compressed with zlib.\n"
        path.write_bytes(head.encode() + zlib.compress(lines.encode()))
        found[name] = (site, str(path))
    return found
