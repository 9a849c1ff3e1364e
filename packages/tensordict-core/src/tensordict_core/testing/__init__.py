"""Tests of containers: the suite that every container must pass, and hypothesis strategies that make examples.

The suite requires pytest, and the strategies require hypothesis: ``pip install tensordict-core[testing]``. No other
module of this distribution imports them.
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


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
