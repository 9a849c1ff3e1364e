"""The figure of the README shows the times that the page about benchmarks lists."""

from __future__ import annotations

import pytest
from benchmarks.figure import FOLDER, PAGE, bars, files, tables

DRAWN = files(*bars(PAGE.read_text()))


@pytest.mark.parametrize("name", DRAWN)
def test_the_figure_is_drawn_from_the_measured_tables(name):
    assert (FOLDER / name).read_text() == DRAWN[name], "python -m benchmarks.figure draws it again"


def test_a_bar_is_the_best_way_of_a_library():
    title, panels = bars(PAGE.read_text())
    assert title == "146 parameters of GPT-2, 498 MB"
    [row] = [rows["save"] for name, rows in tables(PAGE.read_text()).items() if name.startswith("A: ")]
    assert panels["Save"]["torch"] == min(row["torch.save"], row["torch.save, no CRC"])
    assert sum(len(times) for times in panels.values()) == 8
