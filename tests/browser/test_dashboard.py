"""The dashboard opens in a browser: graphs have points, nothing fails, and no request leaves the machine."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.chromium import PROGRAM, WHY_NOT, Chromium, Page, serve

ROOT = Path(__file__).parents[2]
HAS_MAIN = not subprocess.run(
    ["git", "rev-parse", "--verify", "-q", "main"], cwd=ROOT, capture_output=True, check=False
).returncode
pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason=WHY_NOT),
    pytest.mark.skipif(importlib.util.find_spec("asv") is None, reason="asv builds the pages, and is not installed"),
    pytest.mark.skipif(not HAS_MAIN, reason="results belong to commits of the branch main, which is not here"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from benchmarks.dashboard import pages as dashboard

    made: Path = tmp_path_factory.mktemp("dashboard")
    dashboard.build(made / "html")
    return made / "html"


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with serve(folder) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as started:
        yield started


def drawn(page: Page, canvas: str) -> int:
    """Waits for a canvas with something on it, and returns how many of its pixels have been painted."""
    ink = f"""(() => {{
        const canvas = document.querySelector("{canvas}");
        if (!canvas || !canvas.width || !canvas.height) return 0;
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        let painted = 0;
        for (let i = 3; i < data.length; i += 4) painted += data[i] > 0;
        return painted;
    }})()"""
    return int(page.wait_for(ink, 20))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_the_landing_page_has_no_fault(browser: Chromium, url: str, width: int, dark: bool) -> None:
    assert browser.open(f"{url}/index.html", width=width, dark=dark).faults() == []


def test_every_graph_of_the_landing_page_has_the_points_of_thirty_commits(browser: Chromium, url: str) -> None:
    page = browser.open(f"{url}/index.html")
    points = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('article')].map(card => [card.querySelector('h2').innerText,"
        " [...card.querySelectorAll('polyline')].map(line => line.points.length)]))"
    )
    assert len(points) >= 12
    # a commit at which ours does not run has no point
    assert all(lines and min(lines) >= 5 for lines in points.values()), points
    assert max(max(lines) for lines in points.values()) >= 30
    assert page.evaluate("document.querySelectorAll('article.green').length") > 0


def test_the_landing_page_names_every_benchmark_with_a_ratio(browser: Chromium, url: str) -> None:
    page = browser.open(f"{url}/index.html")
    told = page.evaluate(
        "[...document.querySelectorAll('.headline strong')].map(element => parseFloat(element.innerText))"
    )
    assert told
    assert all(ratio > 0 for ratio in told), "a ratio that is no number"


@pytest.mark.parametrize("width", [400, 1400])
def test_a_card_leads_to_the_graph_of_asv_with_every_contender(browser: Chromium, url: str, width: int) -> None:
    landing = browser.open(f"{url}/index.html")
    page = browser.open(landing.evaluate("document.querySelector('article h2 a').href"), width=width)
    assert drawn(page, "#main-graph canvas.flot-base") > 1000
    legend = page.wait_for("[...document.querySelectorAll('#main-graph .legendLabel')].map(e => e.innerText)")
    assert [label.removeprefix("contender-") for label in legend][:2] == ["ours", "torch"]
    assert page.faults() == []


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("#/", "#summarygrid-display canvas.flot-base"),
        ("#/summarylist", "#summarylist-body table tbody tr"),
        ("#/regressions", "#regressions-body *"),
    ],
)
def test_pages_of_asv_are_legible_and_load_nothing_from_elsewhere(
    browser: Chromium, url: str, place: str, shown: str
) -> None:
    page = browser.open(f"{url}/asv/index.html{place}")
    page.wait_for(f"document.querySelectorAll('{shown}').length", 20)
    if "canvas" in shown:
        assert drawn(page, shown) > 100
    assert page.faults() == []


def test_no_regression_is_one_of_another_library(folder: Path) -> None:
    found = json.loads((folder / "asv" / "regressions.json").read_text())["regressions"]
    assert [name for name, *_ in found if "'ours'" not in name] == []
