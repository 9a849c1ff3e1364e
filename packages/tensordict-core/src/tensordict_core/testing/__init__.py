"""What tests of containers need: the suite that every container must pass, and strategies that make examples.

It needs pytest, and the strategies need hypothesis: ``pip install tensordict-core[testing]``. Nothing else in this
distribution imports it.
"""

from __future__ import annotations

from tensordict_core.testing.container import ContainerCase
from tensordict_core.testing.contents import assert_row, assert_rows, contents, map_rows, positions, rows
from tensordict_core.testing.memory import MemoryTests
from tensordict_core.testing.suite import ContainerSuite

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
