"""Figures show the times that tables list: that of the README, and that of the page about distributed checkpoints."""

from __future__ import annotations

import pytest
from benchmarks.figure import FOLDER, PAGE, bars, files, tables
from benchmarks.memmap import planner
from benchmarks.memmap.distributed import plan

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


def test_the_figure_of_the_planner_is_drawn_from_its_table():
    times = planner.read(planner.PAGE.read_text())
    assert planner.FIGURE.read_text() == planner.draw(times), (
        "python -m benchmarks.memmap.planner --draw draws it again"
    )
    assert list(times) == list(planner.LEAVES)


def test_the_time_to_plan_grows_with_the_leaves_and_not_faster():
    plan(1000, 2)  # imports
    few, many = (min(sum(plan(leaves, 16)[:2]) for _ in range(3)) for leaves in (5_000, 20_000))
    assert many < 8 * few  # four times as many leaves; seconds of processor time
