"""What tests of containers need: the suite that every container must pass, and strategies that make examples.

It needs pytest, and the strategies need hypothesis: ``pip install tensordict-core[testing]``. Nothing else in this
distribution imports it.
"""

from __future__ import annotations

from .container import ContainerCase
from .contents import assert_row, assert_rows, contents, map_rows, positions, rows
from .memory import MemoryTests
from .suite import ContainerSuite

__all__ = [
    "ContainerCase",
    "ContainerSuite",
    "MemoryTests",
    "assert_row",
    "assert_rows",
    "contents",
    "map_rows",
    "positions",
    "rows",
]
